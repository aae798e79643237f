"""What several engines behind one door are worth, what the door costs, and what streams see of an engine's end.

Dry runs of the demo (only the device is made up), with one engine and with several, over HTTP. Prints:

  tok/s, ratio          streams of new prompts, as many as one engine has slots for, times two
  server us a token     of a processor: the door's cost
  hit rate              prompt tokens found in a cache, over conversations whose turns go on from one another
  after kill -9         of an engine in the middle: tokens lost, and the longest gaps of streams, those of the other
                        engines (the half with the shorter gaps) and all

    PYTHONPATH=.:kernels python benchmarks/replicas.py [--replicas 2] [--streams 64] [--tokens 200] [--step-ms 20]
"""

import argparse
import asyncio
import dataclasses
import json
import os
import random
import re
import signal
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from engine_process import children, cpu_s, server

CONVERSATIONS, TURNS, SYSTEM, USER, ANSWER = 24, 6, 200, 40, 20  # the last three in tokens
KILL_AFTER_S = 1.0


@dataclasses.dataclass
class Seen:
    """Of one stream. gaps_s: between two of its frames."""

    num_tokens: int = 0
    gaps_s: list[float] = dataclasses.field(default_factory=list)


async def stream(port: int, body: dict[str, Any]) -> Seen:
    """One streamed completion over a bare socket."""
    sent = json.dumps(body | {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(sent)}\r\nconnection: close"
    writer.write(f"{head}\r\ncontent-type: application/json\r\n\r\n".encode() + sent)
    seen, last_s, rest = Seen(), 0.0, b""
    while data := await reader.read(65536):
        now_s = time.monotonic()
        if b"data: {" in data:
            if last_s:
                seen.gaps_s.append(now_s - last_s)
            last_s = now_s
        rest += data
    writer.close()
    if usage := re.findall(rb'"completion_tokens":(\d+)', rest):
        seen.num_tokens = int(usage[-1])
    return seen


def counters(port: int) -> dict[str, float]:
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    return {
        name: float(value)
        for name, value in re.findall(r"^jaxinfer:(\w+_tokens_total)\{model_name=\"demo\"\} (\S+)$", page, re.M)
    }


def engines(pid: int) -> list[int]:
    """Those of a server."""
    return [child for child in children(pid) if "dry_run" in Path(f"/proc/{child}/cmdline").read_text()]


def prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(5, 250) for _ in range(length)]


def throughput(options: argparse.Namespace, folder: Path, count: int) -> tuple[float, float]:
    """Tokens a second of all streams, and microseconds of the server's processor for each."""
    rng = random.Random(0)
    with server(folder / "log", options.step_ms, *slots(options), f"--data-parallel-size={count}") as (port, pid, _):
        bodies = [{"prompt": prompt(rng, 16), "max_tokens": options.tokens} for _ in range(options.streams)]

        async def run() -> list[Seen]:
            return await asyncio.gather(*(stream(port, body) for body in bodies))

        began_s, used_s = time.monotonic(), cpu_s(pid)
        tokens = sum(one.num_tokens for one in asyncio.run(run()))
        took_s, used_s = time.monotonic() - began_s, cpu_s(pid) - used_s
    assert tokens == options.streams * options.tokens, "every stream is answered whole"
    return tokens / took_s, used_s / tokens * 1e6


def hit_rate(options: argparse.Namespace, folder: Path, count: int) -> float:
    """Of conversations that go on all at once, each turn behind the one before it."""
    rng = random.Random(1)
    with server(folder / "log", 1.0, *slots(options), f"--data-parallel-size={count}") as (port, _, _):
        systems = [prompt(rng, SYSTEM) for _ in range(4)]

        async def converse(number: int) -> None:
            own = random.Random(number)
            ids = list(systems[number % len(systems)])
            for _ in range(TURNS):
                ids += prompt(own, USER)
                await stream(port, {"prompt": ids, "max_tokens": ANSWER})
                ids += prompt(own, ANSWER)

        async def run() -> None:
            await asyncio.gather(*(converse(number) for number in range(CONVERSATIONS)))

        asyncio.run(run())
        time.sleep(0.3)  # the last counters arrive with the next look at them
        found = counters(port)
    return found["cached_tokens_total"] / found["prompt_tokens_total"]


def killed(options: argparse.Namespace, folder: Path) -> str:
    rng = random.Random(2)
    with server(folder / "log", options.step_ms, *slots(options), f"--data-parallel-size={options.replicas}") as (
        port,
        pid,
        _,
    ):
        bodies = [{"prompt": prompt(rng, 16), "max_tokens": options.tokens} for _ in range(options.streams)]

        async def run() -> list[Seen]:
            streams = [asyncio.create_task(stream(port, body)) for body in bodies]
            await asyncio.sleep(KILL_AFTER_S)
            os.kill(engines(pid)[0], signal.SIGKILL)
            return await asyncio.gather(*streams)

        seen = asyncio.run(run())
    lost = options.streams * options.tokens - sum(one.num_tokens for one in seen)
    longest_ms = sorted(max(one.gaps_s) * 1e3 for one in seen)
    others_ms = longest_ms[(len(longest_ms) - 1) // options.replicas]
    return f"{lost} tokens lost; longest gap of the others' streams {others_ms:.0f} ms, of all {longest_ms[-1]:.0f} ms"


def slots(options: argparse.Namespace) -> tuple[str, ...]:
    return (f"--max-num-seqs={options.streams // 2}", f"--max-num-queued-seqs={options.streams}", "--page-size=16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    what = f"{options.streams} streams of {options.tokens} tokens, step {options.step_ms:g} ms"
    where = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{what}, {options.streams // 2} slots an engine, {where}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(options.repeats):
            (one, one_us), (several, several_us) = (throughput(options, folder, n) for n in (1, options.replicas))
            cost = f"server {one_us:.1f} and {several_us:.1f} us a token"
            print(f"tok/s {one:,.0f} -> {several:,.0f}, {several / one:.2f}x; {cost}", flush=True)
        alone, together = hit_rate(options, folder, 1), hit_rate(options, folder, options.replicas)
        print(f"hit rate {alone:.4f} -> {together:.4f}, {together / alone:.3f} of one engine's", flush=True)
        for _ in range(options.repeats):
            print("after kill -9:", killed(options, folder), flush=True)


if __name__ == "__main__":
    main()
