"""What is the engine process worth against an engine in a thread of the server, with many streams over HTTP?

`jaxinfer serve --dry-run`: real server, text, scheduler and engine; a step sleeps as it would while a GPU works. Each
way in turn, several times; the clients are processes of their own. Prints a markdown table:

  tok/s            of all streams together
  step ms          between two steps, from the engine's counter of steps; the device's share of it is --step-ms
  engine ms        of a processor that the engine's process used for each step: the host time of a step
  tokens a frame   above 1 when the server is behind and sends several at once
  gap p50, p99 ms  between two frames of one stream
  server, engine, clients   cores that they used; an engine in a thread counts as server

    PYTHONPATH=.:kernels python benchmarks/engine_process.py [--streams 256] [--tokens 1000] [--step-ms 2] [--clients 4]
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

WAYS = {"engine process": [], "in process": ["--in-process"]}
TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Load:
    """What one client process asks for."""

    port: int
    streams: int
    tokens: int
    first: int  # of its prompts, so that no two streams ask for the same


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one client process saw. gaps_s: between two frames of a stream.    cpu_s: what it used itself."""

    num_frames: int
    gaps_s: list[float]
    cpu_s: float


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one way; cores are averages over it."""

    tokens_per_s: float
    step_ms: float
    engine_ms: float
    tokens_a_frame: float
    gap_p50_ms: float
    gap_p99_ms: float
    server_cores: float
    engine_cores: float
    client_cores: float


async def read_stream(load: Load, number: int) -> tuple[int, list[float]]:
    """One streamed completion over a bare socket, as cheaply as Python can: frames and the gaps between them."""
    body = json.dumps({"prompt": [number % 250 + 1, number], "max_tokens": load.tokens, "ignore_eos": True,
                       "stream": True}).encode()  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", load.port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\nconnection: close"
    writer.write(f"{head}\r\ncontent-type: application/json\r\n\r\n".encode() + body)
    frames, gaps, last_s = 0, [], 0.0
    while data := await reader.read(65536):
        if found := data.count(b"data: {"):
            now_s = time.monotonic()
            if last_s:
                gaps.append(now_s - last_s)
            last_s, frames = now_s, frames + found
    writer.close()
    return frames, gaps


def run_client(load: Load, results: "multiprocessing.Queue[Seen]") -> None:
    async def run() -> list[tuple[int, list[float]]]:
        return await asyncio.gather(*(read_stream(load, load.first + i) for i in range(load.streams)))

    began_s = time.process_time()
    answers = asyncio.run(run())
    gaps = [gap for _, gaps in answers for gap in gaps]
    results.put(Seen(sum(frames for frames, _ in answers), gaps, time.process_time() - began_s))


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in threads for child in file.read_text().split()]


@contextlib.contextmanager
def server(log: Path, step_ms: float, *arguments: str) -> Iterator[tuple[int, int, int | None]]:
    """A dry run of the demo: its port, its process and its engine's, if that is another."""
    call = "from jaxinfer.cli import main; main()"
    command = [sys.executable, "-c", call, "serve", "demo", "--dry-run", "--dry-run-step-ms", str(step_ms)]
    with log.open("w") as out, subprocess.Popen([*command, "--port", "0", *arguments], stderr=out) as process:
        try:
            while "try it" not in log.read_text():
                if process.poll() is not None:
                    raise SystemExit(f"the server must start, it ended:\n{log.read_text()}")
                time.sleep(0.05)
            port = int(re.findall(r"listen   http://\S+:(\d+)", log.read_text())[0])
            yield port, process.pid, next(iter(children(process.pid)), None)
        finally:
            process.terminate()


def cpu_s(pid: int | None) -> float:
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def num_steps(port: int) -> float:
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    return float(re.findall(r"^jaxinfer:steps_total\{.*\} (\S+)$", page, re.MULTILINE)[0])


def measure(arguments: argparse.Namespace, way: str, log: Path) -> Run:
    with server(log, arguments.step_ms, *WAYS[way]) as (port, pid, engine):
        share = arguments.streams // arguments.clients
        loads = [Load(port, share, arguments.tokens, i * share) for i in range(arguments.clients)]
        used_s, steps, began_s = (cpu_s(pid), cpu_s(engine)), num_steps(port), time.monotonic()
        results: multiprocessing.Queue[Seen] = multiprocessing.Queue()
        clients = [multiprocessing.Process(target=run_client, args=(load, results)) for load in loads]
        for client in clients:
            client.start()
        seen = [results.get() for _ in clients]
        took_s = time.monotonic() - began_s
        for client in clients:
            client.join()
        time.sleep(0.3)  # the last counters arrive with the next look at them
        steps, num_tokens = num_steps(port) - steps, share * arguments.clients * arguments.tokens
        gaps = sorted(gap * 1000 for one in seen for gap in one.gaps_s)
        return Run(
            num_tokens / took_s,
            took_s / steps * 1000,
            (cpu_s(engine) - used_s[1]) / steps * 1000,
            num_tokens / sum(one.num_frames for one in seen),
            statistics.median(gaps),
            gaps[len(gaps) * 99 // 100],
            (cpu_s(pid) - used_s[0]) / took_s,
            (cpu_s(engine) - used_s[1]) / took_s,
            sum(one.cpu_s for one in seen) / took_s,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    log = Path(tempfile.gettempdir(), "engine_process.log")
    parser.add_argument("--log", type=Path, default=log, help=f"what the servers say; else {log}")
    arguments = parser.parse_args()
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    for _ in range(arguments.repeats):
        for way in WAYS:
            runs[way].append(measure(arguments, way, arguments.log))
    print(f"{arguments.streams} streams of {arguments.tokens} tokens, step {arguments.step_ms:g} ms, "
          f"{arguments.clients} client processes, {os.cpu_count()} cores, median of {arguments.repeats}")  # fmt: skip
    print(
        "| way | tok/s (each run) | step ms | engine ms | tokens a frame | gap p50, p99 ms | server, engine, clients |"
    )
    print("|---|---|---|---|---|---|---|")
    for way, found in runs.items():
        typical = [statistics.median(values) for values in zip(*map(dataclasses.astuple, found), strict=True)]
        speed, step, engine, frame, p50, p99, *cores = typical
        each = ", ".join(f"{run.tokens_per_s:,.0f}" for run in found)
        used = ", ".join(f"{value:.2f}" for value in cores)
        times = f"{step:.2f} | {engine:.2f} | {frame:.1f} | {p50:.1f}, {p99:.1f}"
        print(f"| {way} | {speed:,.0f} ({each}) | {times} | {used} |")


if __name__ == "__main__":
    main()
