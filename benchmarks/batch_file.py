"""How much sooner is a file answered by `jaxinfer batch` than by asking `jaxinfer serve` for the same rows?

The same bodies, settings and model, both from the moment the model is loaded: the batch until its last row is kept, the
server until a client that keeps so many whole (not streamed) requests under way has read its last answer. The two take
turns, so that whatever else the machine does falls on both alike. Prints a line per round and the ratio of the medians.

    PYTHONPATH=.:kernels python benchmarks/batch_file.py [--dry-run] [--rows 2000] [--rounds 3] [-- FLAGS OF BOTH]
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jaxinfer.bench.http_client import Target

CALL = (sys.executable, "-c", "from jaxinfer.cli import main; main()")
URL = "/v1/chat/completions"


def bodies(count: int, max_tokens: int) -> list[dict[str, object]]:
    questions = [f"What is {i % 50} plus {i % 30}?" for i in range(count)]
    fixed = {"max_tokens": max_tokens, "temperature": 1, "ignore_eos": True}
    return [{"messages": [{"role": "user", "content": text}], "seed": i, **fixed} for i, text in enumerate(questions)]


def batch_s(rows: Path, flags: list[str]) -> float:
    """Seconds from the loaded model to the last row, as the summary has them."""
    command = [*CALL, "batch", "-i", str(rows), "-o", str(rows.with_suffix(".out.jsonl")), "--overwrite", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"rows in ([\d.]+) s", done.stderr)
    assert found is not None, done.stderr
    return float(found[1])


def server_s(asked: list[dict[str, object]], at_once: int, flags: list[str]) -> float:
    """Seconds from the first request to the last answer."""
    with subprocess.Popen([*CALL, "serve", "--port", "0", *flags], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            base = next(match[1] for line in server.stderr if (match := re.search(r" at (http\S+)/v1$", line)))
            return asyncio.run(ask_all(Target(base), [json.dumps(body).encode() for body in asked], at_once))
        finally:
            server.kill()


async def ask_all(target: Target, asked: list[bytes], at_once: int) -> float:
    waiting = iter(asked)
    connections = [await target.connect() for _ in range(at_once)]

    async def lane(number: int) -> None:
        for body in waiting:
            reply = await connections[number].ask(target.request("POST", URL, body))
            assert not reply.error, reply.error
            json.loads(reply.body)["choices"][0]["message"]["content"]

    began = time.perf_counter()
    await asyncio.gather(*(lane(number) for number in range(at_once)))
    return time.perf_counter() - began


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
        times = []
        for _ in range(arguments.rounds):
            times.append((batch_s(rows, flags), server_s(asked, arguments.at_once, flags)))
            print(f"batch {times[-1][0]:.2f} s, server {times[-1][1]:.2f} s for {arguments.rows} rows")
    batch, server = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"batch {arguments.rows / batch:.0f} rows/s, server {arguments.rows / server:.0f}; ratio {server / batch:.2f}"
    )


if __name__ == "__main__":
    main()
