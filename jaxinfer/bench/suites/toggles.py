"""Each optimisation off and on, in one run: the same requests to two engines over one device state, in turns.

Nothing else differs between the two sides of a row, and whatever else the machine does falls on both alike: rounds go
off, on, on, off. What belongs to a process (kernels, CUDA graphs) is asked of `jaxinfer bench latency`, off and on.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxinfer.bench.arrivals import drive
from jaxinfer.bench.chart import Chart
from jaxinfer.bench.http_client import Outcome
from jaxinfer.bench.load import Ask
from jaxinfer.bench.outcomes import first_tokens, gaps, output_rate
from jaxinfer.bench.program import CALL, settings_of, without_ours
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Table, Value, percentile
from jaxinfer.bench.steps import StepLog, Timed, TimedEngine
from jaxinfer.bench.suites.job import Found, Job
from jaxinfer.bench.suites.workloads import Workload, workloads
from jaxinfer.config import Limits
from jaxinfer.errors import EngineError
from jaxinfer.runtime import nvidia

CHUNK = 512
CONTIGUOUS_SEQUENCES = 8  # that the small pool of the paged row holds when each has max_model_len
COLUMNS = (
    "optimisation",
    "workload",
    "off tok/s",
    "on tok/s",
    "on / off",
    "least, most of the rounds",
    "off first token p50 ms",
    "on first token p50 ms",
    "off longest gap ms",
    "on longest gap ms",
)
DEVICE_COLUMNS = ("optimisation", "shape", "off tok/s", "on tok/s", "on / off", "least, most of the rounds")
NOTES = (
    "off and on differ in the named setting alone, get the same requests with the same random ids, greedy, ignore_eos, "
    "in this process, and take turns (off on, on off, ...). Rates and times are medians of the rounds; on / off is the "
    "median of the rounds' own ratios, with the least and the most of them: a row whose range holds 1 shows nothing.",
    "Where requests come at a fixed rate that both sides keep up with, tok/s says nothing and the first token does. "
    f"Chunked prefill: on is chunks of {CHUNK} tokens at most, off is whole prompts. Paged: both sides get a pool "
    f"that holds {CONTIGUOUS_SEQUENCES} sequences of max_model_len, fewer where requests are divided too.",
    "The prefix cache is off in all rows but its own.",
)
CHARTS = (
    Chart("toggles", ("off tok/s", "on tok/s"), "tok/s"),
    Chart("toggles", ("off first token p50 ms", "on first token p50 ms"), "ms to the first token"),
    Chart("toggles", ("off longest gap ms", "on longest gap ms"), "longest ms between tokens"),
)


@dataclasses.dataclass(frozen=True)
class Toggle:
    """An optimisation, the workload that it is for, and what Limits say without and with it."""

    name: str
    workload: str
    off: dict[str, Any]
    on: dict[str, Any]


def toggles(job: Job, limits: Limits) -> list[Toggle]:
    chunk = min(limits.max_num_batched_tokens, max(limits.max_num_seqs, job.tokens(CHUNK)))
    pages = min(limits.num_pages, 1 + job.requests(CONTIGUOUS_SEQUENCES) * limits.max_pages_per_seq)
    return [
        Toggle("requests together", "paged attention", {"max_num_seqs": 1}, {}),
        Toggle("continuous batching", "continuous batching", {"scheduling": "static"}, {"scheduling": "continuous"}),
        Toggle(
            "paged KV",
            "paged attention",
            {"kv_layout": "contiguous", "num_pages": pages},
            {"kv_layout": "paged", "num_pages": pages},
        ),
        Toggle(
            "chunked prefill",
            "chunked prefill",
            {"enable_chunked_prefill": False},
            {"enable_chunked_prefill": True, "max_num_batched_tokens": chunk},
        ),
        Toggle("prefix cache", "prefix caching", {"enable_prefix_caching": False}, {"enable_prefix_caching": True}),
        Toggle("one step ahead", "paged attention", {"run_ahead": 0}, {"run_ahead": 1}),
    ]


def measure(job: Job, timed: Timed) -> Table:
    """A row for each toggle of the host."""
    rows = []
    found = workloads(job)
    common = dataclasses.replace(timed.core.limits, enable_prefix_caching=False)
    room = min(common.max_model_len, common.max_num_batched_tokens)  # a whole prompt is one step without chunks
    for toggle in toggles(job, common):
        workload = found[toggle.workload].within(room if toggle.name == "chunked prefill" else common.max_model_len)
        rounds = list(in_turns(job, timed, common, toggle, workload))
        rows.append((toggle.name, toggle.workload, *figures(rounds)))
        job.say(f"{toggle.name}: on / off {rows[-1][4]:.3f}")
    return Table("toggles", COLUMNS, rows)


type Round = tuple[list[Outcome], list[Outcome]]  # off and on


def in_turns(job: Job, timed: Timed, common: Limits, toggle: Toggle, workload: Workload) -> Iterator[Round]:
    """Each round's outcomes; both sides of a round get the same requests, and those of another get others."""
    for number in range(job.runs):
        ids = prompts_of(workload.asks, job, number)
        sides = [("off", toggle.off), ("on", toggle.on)]
        told = {}
        for name, changes in sides if number % 2 == 0 else sides[::-1]:
            engine = TimedEngine(timed.core.runner, dataclasses.replace(common, **changes), StepLog())
            told[name] = drive(engine, workload.asks, ids)
        yield told["off"], told["on"]


def prompts_of(asks: tuple[Ask, ...], job: Job, seed: int) -> list[list[int]]:
    prompts = Prompts(job.vocab_size, (job.config.seed, seed))
    shared = prompts.one(max(ask.shared_tokens for ask in asks))
    return [shared[: ask.shared_tokens] + prompts.one(ask.input_tokens - ask.shared_tokens) for ask in asks]


def figures(rounds: list[Round]) -> tuple[Value, ...]:
    """Of COLUMNS, from the rate on."""
    rates = [(output_rate(off), output_rate(on)) for off, on in rounds]
    ratios = [on / off for off, on in rates]
    cells: list[Value] = [statistics.median(side) for side in zip(*rates, strict=True)]
    cells += [statistics.median(ratios), f"{min(ratios):.3f}, {max(ratios):.3f}"]
    for side in range(2):
        cells.append(statistics.median(percentile(first_tokens(one[side]), 50) or 0.0 for one in rounds) * 1e3)
    for side in range(2):
        cells.append(statistics.median(max(gaps(one[side]), default=0.0) for one in rounds) * 1e3)
    return tuple(cells)


def of_the_device(job: Job) -> tuple[list[Table], list[str]]:
    """What a process is started with, and a note where there is nothing to choose. Nothing may hold the device yet."""
    if job.config.device == "cpu" or not nvidia.visible_gpus(nvidia.list_gpus()):
        return [], ["attention_backend and cuda_graphs have no effect on a CPU and are not measured here."]
    toggles: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "Mosaic kernels": ({"attention_backend": "xla"}, {"attention_backend": "auto"}),
        "CUDA graphs": ({"cuda_graphs": False}, {"cuda_graphs": True}),
    }
    rows: list[tuple[Value, ...]] = []
    for name, sides in toggles.items():
        rounds = []
        for number in range(max(2, job.runs - 1)):
            told = [decode_rates(job, change) for change in (sides if number % 2 == 0 else sides[::-1])]
            rounds.append(told if number % 2 == 0 else told[::-1])
        for shape in rounds[0][0]:
            rates = [(off[shape], on[shape]) for off, on in rounds]
            ratios = [on / off for off, on in rates]
            middle = [statistics.median(side) for side in zip(*rates, strict=True)]
            rows.append((name, shape, *middle, statistics.median(ratios), f"{min(ratios):.3f}, {max(ratios):.3f}"))
        job.say(f"{name}: on / off {rows[-1][4]:.3f}")
    return [Table("toggles of the device", DEVICE_COLUMNS, rows)], []


def decode_rates(job: Job, change: dict[str, Any]) -> dict[str, float]:
    """Tokens per second of decoding by shape, in a process of its own. Raises EngineError."""
    config = dataclasses.replace(job.config, **change)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-P", "-c", CALL, "bench", "latency", "--json", str(file), "--first-steps", "0"]
        command += [
            "--prompt-lengths",
            str(job.tokens(128)),
            "--batch-sizes",
            f"1,{min(32, config.max_num_seqs or 32)}",
        ]
        done = subprocess.run(command, env=without_ours() | settings_of(config), capture_output=True, text=True)
        if done.returncode:
            raise EngineError(
                f"`jaxinfer bench latency` must run, it said: {done.stderr.strip().rpartition(chr(10))[2]}"
            )
        table = json.loads(file.read_text(encoding="utf-8"))["tables"]["speed"]
    return {row["batch x prompt"]: row["decode tok/s"] for row in table}


def found(tables: list[Table], notes: list[str]) -> Found:
    return Found(tables, CHARTS, (*NOTES, *notes))
