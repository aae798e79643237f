"""How much sooner, and for how much less work, is a file answered by `jaxinfer batch` than by asking `jaxinfer serve`?

The same bodies, settings and model. The batch: until its output is there. The server: until a client that keeps so many
whole (not streamed) requests under way has read its last answer; it takes requests as early as the batch does
(--serve-early). Seconds are from the start of the program, CPU seconds those of all processes, the client's too. They
take turns, so that whatever else the machine does falls on both alike; where it does much, CPU seconds tell most.

    PYTHONPATH=.:kernels python benchmarks/batch_file.py [--dry-run] [--rows 2000] [--rounds 3] [-- FLAGS OF BOTH]
"""

import argparse
import asyncio
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jaxinfer.bench.http_client import Target

CALL = (sys.executable, "-c", "from jaxinfer.cli import main; main()")
URL = "/v1/chat/completions"


def bodies(count: int, max_tokens: int) -> list[dict[str, object]]:
    questions = [f"What is {i % 50} plus {i % 30}?" for i in range(count)]
    fixed = {"max_tokens": max_tokens, "temperature": 1, "ignore_eos": True}
    return [{"messages": [{"role": "user", "content": text}], "seed": i, **fixed} for i, text in enumerate(questions)]


class Cost(NamedTuple):
    seconds: float
    cpu_s: float

    @classmethod
    def of(cls, work: Callable[[], None]) -> "Cost":
        """Of this process and those that it waits for."""
        began, cpu = time.perf_counter(), cpu_s()
        work()
        return cls(time.perf_counter() - began, cpu_s() - cpu)


def cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def run_batch(rows: Path, flags: list[str]) -> None:
    command = [*CALL, "batch", "-i", str(rows), "-o", str(rows.with_suffix(".out.jsonl")), "--overwrite", *flags]
    subprocess.run(command, capture_output=True, check=True)


def run_server(asked: list[dict[str, object]], at_once: int, flags: list[str]) -> None:
    command = [*CALL, "serve", "--port", "0", "--serve-early", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            base = next(
                match[1] for line in server.stderr if (match := re.match(r"serving .* at (http\S+)/v1\b", line))
            )
            asyncio.run(ask_all(Target(base), [json.dumps(body).encode() for body in asked], at_once))
        finally:
            server.terminate()  # not killed: its engine's CPU seconds count too


async def ask_all(target: Target, asked: list[bytes], at_once: int) -> None:
    waiting = iter(asked)
    connections = [await target.connect() for _ in range(at_once)]

    async def lane(number: int) -> None:
        for body in waiting:
            reply = await connections[number].ask(target.request("POST", URL, body))
            assert not reply.error, reply.error
            json.loads(reply.body)["choices"][0]["message"]["content"]

    await asyncio.gather(*(lane(number) for number in range(at_once)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=64, help="requests under way, of the client")
    parser.add_argument("--dry-run", action="store_true", help="made-up answers: what the host alone costs")
    parser.add_argument("flags", nargs="*", help="of serve and batch alike")
    arguments = parser.parse_args()
    flags = [*(["--dry-run"] if arguments.dry_run else []), *arguments.flags]
    asked = bodies(arguments.rows, arguments.max_tokens)
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        named = ({"custom_id": str(i), "method": "POST", "url": URL, "body": body} for i, body in enumerate(asked))
        rows.write_text("".join(json.dumps(row) + "\n" for row in named))
        costs = []
        for _ in range(arguments.rounds):
            batch = Cost.of(lambda: run_batch(rows, flags))
            server = Cost.of(lambda: run_server(asked, arguments.at_once, flags))
            costs.append((batch, server))
            print(f"batch {batch.seconds:.2f} s, {batch.cpu_s:.2f} of CPU; ", end="")
            print(f"server {server.seconds:.2f} s, {server.cpu_s:.2f} of CPU", flush=True)
    for position, name in enumerate(Cost._fields):
        own, other = (statistics.median(cost[position] for cost in column) for column in zip(*costs, strict=True))
        print(f"{name}: {arguments.rows} rows, batch {own:.2f}, server {other:.2f}, ratio {other / own:.2f}")


if __name__ == "__main__":
    main()
