"""Does a server that is asked for everything, left early and struck by faults stay as it was? `make soak` runs this.

    python -m tests.soak [--minutes 60] [--log FILE.md]

The report is a line for each sixtieth of the run and a verdict; the exit code is 1 when a law is broken.
"""

import argparse
import asyncio
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

from jaxinfer.bench.machine import facts
from jaxinfer.testing.faults import Fault
from tests.soak.crowd import NUM_CLIENTS, Crowd, Tally
from tests.soak.program import Program, program
from tests.soak.sample import Observer, Sample
from tests.soak.verdict import DEADLY, SPARE, Law, Slice, laws_of, rest_laws, struck_law, table
from tests.support.faulty_child import Order

SLICES = 60
MIN_BETWEEN_FAULTS_S = 6.0
GENTLE = ("nan", "run", "wait", "exhausted", "hang")
DEADLY_AT = {0.07: "poison", 0.13: "kill", 0.5: "kill -9"}  # by the share of all faults that come before
STEP_OF_A_FAULT = 3  # counted from the order
STEPS_OF_A_FAULT = 10  # run before the next order: it has struck by then, and what it failed was taken again
REST_S = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, program(Path(folder, "log")) as served:
        slices, laws = asyncio.run(soak(served, options.minutes * 60))
        lines = report(slices, laws, options.minutes)
    print("\n".join(lines))
    if options.log:
        options.log.write_text("\n".join(lines) + "\n")
    return 0 if all(law.holds for law in laws) else 1


async def soak(served: Program, seconds: float) -> tuple[list[Slice], list[Law]]:
    """Run the load and judge it."""
    observer, crowd = Observer(served), Crowd(served.port, seed=int(time.time()))
    said = await observer.canary()
    before = served.server()
    async with asyncio.TaskGroup() as group:  # what goes wrong with one client ends the run
        clients = [group.create_task(client) for client in crowd.clients(seconds)]
        slices = await watch(served, observer, crowd, seconds / SLICES)
        for client in clients:
            client.cancel()
    await asyncio.sleep(REST_S)
    # Each is a look of its own: before the canary below, whose pages they might find in two states or in none.
    total = [await observer.value("kv_pages", state=state) for state in ("free", "cached", "owned")]
    rest = {
        "files": (served.server().files, before.files + SPARE),
        "running": (await observer.value("requests", state="running"), 0),
        "waiting": (await observer.value("requests", state="waiting"), 0),
        "pages owned": (await observer.value("kv_pages", state="owned"), 0),
        "compilations after ready": (await observer.value("compilations_after_ready_total"), 0),
        "the number of servers that ended": (served.process.poll() is not None, 0),
        "pages lost": (abs(await observer.value("kv_pages_total") - sum(total)), 0),
        "the number of words that a fixed greedy answer changed by": ((await observer.canary()) != said, 0),
    }
    restarts = await observer.value("engine_restarts_total")
    recoveries = await observer.value("engine_recoveries_total")
    return slices, [*laws_of(slices), struck_law(slices, restarts, recoveries), *rest_laws(rest)]


async def watch(served: Program, observer: Observer, crowd: Crowd, slice_s: float) -> list[Slice]:
    """Send the faults and look, for SLICES times `slice_s`.

    A fault waits until the one before it is over, or a machine that starts engines slowly would lose one with the
    engine that another ends.
    """
    slices, due = [], deque[str]()
    kinds = faults(-int(-MIN_BETWEEN_FAULTS_S // slice_s))
    restarts, steps = 0, 0.0
    begun_s = time.monotonic()
    for number in range(SLICES):
        crowd.tally = Tally()
        due.extend([kinds[number]] if number in kinds else [])
        fault = ""
        if due and number <= max(kinds) and await is_over(observer, restarts, steps):
            fault = due.popleft()
            restarts += fault in DEADLY
            steps = STEPS_OF_A_FAULT + await observer.value("steps_total")
            await strike(served, fault)
        samples: list[Sample] = []
        while (left_s := begun_s + (number + 1) * slice_s - time.monotonic()) > 0 or not samples:
            samples.append(await observer.sample())
            await asyncio.sleep(max(0.0, min(slice_s / 12, left_s)))
        slices.append(Slice(samples, crowd.tally, fault))
    return slices


def faults(every: int) -> dict[int, str]:
    """Which kind strikes in which slice: one in each `every` slices, the deadly ones where DEADLY_AT says."""
    numbers = range(0, SLICES, every)
    kinds = dict(zip(numbers, itertools.cycle(GENTLE), strict=False))
    return kinds | {numbers[int(share * len(numbers))]: kind for share, kind in DEADLY_AT.items()}


async def is_over(observer: Observer, restarts: int, steps: float) -> bool:
    """Whether the engine has gone on after every fault so far, with that many restarts and at least as many steps."""
    return await observer.value("engine_restarts_total") == restarts and await observer.value("steps_total") >= steps


async def strike(served: Program, kind: str) -> None:
    """Order a fault for one of the next steps; an engine that is just starting gets it when it can."""
    if kind == "kill -9":
        pid = served.engine_pid()
        assert pid is not None, "there was time to start an engine since the last fault"
        os.kill(pid, signal.SIGKILL)
        return None
    while True:
        try:
            return served.orders.send(Order(add=Fault(kind, step=STEP_OF_A_FAULT, seconds=2.0)))
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.sleep(0.1)


def report(slices: Sequence[Slice], laws: Sequence[Law], minutes: float) -> list[str]:
    held = all(law.holds for law in laws)
    ends = sum((each.tally.ends for each in slices), Counter[str]())
    return [
        f"# {minutes:g} minutes of mixed load with faults: {'every law holds' if held else 'a law is broken'}",
        "",
        *(f"- {name}: {value}" for name, value in facts()),
        f"- command: `make soak MINUTES={minutes:g}`",
        f"- requests of {NUM_CLIENTS} clients and two strangers by how they ended: "
        + ", ".join(f"{end} {count:,}" for end, count in ends.most_common()),
        "",
        "## Verdict",
        *(f"- {'holds' if law.holds else '**BROKEN**'}: {law.text}" for law in laws),
        "",
        "## Every sixtieth of the run",
        *table(slices),
    ]


if __name__ == "__main__":
    sys.exit(main())
