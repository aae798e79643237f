"""How many tokens a second one server streams, what a token costs it, and what else it still does meanwhile.

A dry run of the demo (only the device is made up) with an API key, under `jaxinfer bench serve`: every request has stop
strings and asks for usage. Prints a markdown table, a row for each run:

  tok/s                       of all streams together
  server, engine us a token   of a processor: figures to compare when others use the machine too
  tokens a frame              above 1 when the server is behind and sends several at once
  first token, gap ms         median and p99 of the streams
  /health ms                  median and p99 on new connections, asked all the while

Then, on an idle server, the time from a chat request of some 1,000 tokens to the engine's being given it.

    PYTHONPATH=.:kernels python benchmarks/streams.py [--streams 512] [--tokens 400] [--step-ms 5] [--clients 4]
"""

import argparse
import asyncio
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from engine_process import cpu_s, server

from jaxinfer.bench.report import percentile, read_json
from jaxinfer.config import EngineConfig
from jaxinfer.engine.sequence import Add, Message
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import start_dry_run
from jaxinfer.llm.events import OnEvent
from jaxinfer.llm.transport import Handshake, OnFailure, OnOutputs
from jaxinfer.llm.types import Stats
from jaxinfer.server.app import create_app

KEY = "streams-benchmark"
STOP = ("\n\nQ:", "<end>")  # which never come
CHAT_TOKENS, CHATS = 1000, 200


class Prober(threading.Thread):
    """Asks a server for its health until told to stop."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.ms: list[float] = []
        self._port = port
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(0.01):
            began = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200, "a server under load is healthy"
            self.ms.append((time.perf_counter() - began) * 1e3)
            connection.close()

    def stop(self) -> list[float]:
        self._stopping.set()
        self.join()
        return self.ms


def bench_serve(port: int, options: argparse.Namespace, report: Path) -> dict[str, Any]:
    """The tables of the report that `jaxinfer bench serve` wrote."""
    arguments = {
        "url": f"http://127.0.0.1:{port}",
        "api-key-env": "STREAMS_KEY",
        "requests": options.streams,
        "input-tokens": options.input_tokens,
        "output-tokens": options.tokens,
        "vocab-size": 300,
        "processes": options.clients,
        "json": report,
    }
    call = [sys.executable, "-c", "from jaxinfer.cli import main; main()", "bench", "serve"]
    call += [f"--{name}={value}" for name, value in arguments.items()]
    if options.stop:
        call += [f"--stop={text}" for text in STOP]
    subprocess.run(call, env=os.environ | {"STREAMS_KEY": KEY}, stdout=subprocess.DEVNULL, check=True)
    tables: dict[str, Any] = read_json(str(report))["tables"]
    return tables


def measure(options: argparse.Namespace, folder: Path) -> str:
    """One run, as a row of the table."""
    seqs = f"--max-num-seqs={options.streams}"
    with server(folder / "log", options.step_ms, seqs, f"--api-key={KEY}") as (port, pid, engine):
        prober = Prober(port)
        prober.start()
        before = cpu_s(pid), cpu_s(engine)
        tables = bench_serve(port, options, folder / "report.json")
        used_s = cpu_s(pid) - before[0], cpu_s(engine) - before[1]
        health = prober.stop()
    rates, times = tables["rates"][0], {row["ms"]: row for row in tables["times"]}
    if rates["errors"] or rates["of another length"]:
        raise SystemExit(f"every stream must be answered whole, got {rates}")
    frames = times["token gap"]["mean"] / times["time per token"]["mean"]
    server_us, engine_us = (seconds / (options.streams * options.tokens) * 1e6 for seconds in used_s)
    first, gap = (f"{times[kind]['p50']:.0f}, {times[kind]['p99']:.0f}" for kind in ("first token", "token gap"))
    probed = f"{percentile(health, 50):.1f}, {percentile(health, 99):.1f}"
    rate = f"{rates['output tok/s']:,.0f}"
    load = f"{os.getloadavg()[0]:.1f}"
    return f"| {rate} | {server_us:.1f}, {engine_us:.1f} | {frames:.1f} | {first} | {gap} | {probed} | {load} |"


class Noted:
    """A transport that only notes when it is given a request."""

    restartable = False

    def __init__(self, config: EngineConfig, on_event: OnEvent) -> None:
        self._config, self._on_event = config, on_event
        self.given_s = 0.0
        self.given = asyncio.Event()

    def start(
        self, on_outputs: OnOutputs, on_failure: OnFailure, *, whole: bool = False, replica: int = 0
    ) -> Handshake:
        core = start_dry_run(self._config, self._on_event)
        return Handshake(core.info, core.limits, str(core.folder))

    def post(self, message: Message) -> None:
        if isinstance(message, Add):
            self.given_s = time.perf_counter()
            self.given.set()

    def stats(self) -> Stats:
        return Stats()

    def heard_s(self) -> float:
        return time.monotonic()

    def profile(self, folder: str | None) -> None:
        raise AssertionError("nothing asks for a trace here")

    def close(self) -> None:
        """There is nothing to end."""


async def ask(app: Any, noted: Noted, body: bytes) -> float:
    """Seconds from the start of one chat request to the engine's being given it."""
    names = {b"host": b"localhost", b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
    scope: dict[str, Any] = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/chat/completions"}
    scope |= {"scheme": "http", "headers": list(names.items()), "query_string": b"", "root_path": ""}
    scope |= {"client": None, "server": None}
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await noted.given.wait()  # nothing will be answered: the client leaves
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        assert noted.given.is_set(), f"the request must reach the engine, it was answered: {message}"

    noted.given.clear()
    began = time.perf_counter()
    await app(scope, receive, send)
    return noted.given_s - began


async def request_to_engine() -> list[float]:
    """Milliseconds for each of CHATS requests, no two alike."""
    made: list[Noted] = []

    def new_transport(config: EngineConfig, on_event: OnEvent) -> Noted:
        made.append(Noted(config, on_event))
        return made[0]

    llm = AsyncLLM(EngineConfig(model="demo", max_model_len=2048), new_transport=new_transport)
    await llm.start()
    app, rng, found = create_app(llm), random.Random(0), []
    words = ["please", "tell", "me", "what", "the", "old", "house", "by", "the", "river", "has", "in", "its", "rooms"]
    for _ in range(CHATS):
        text = " ".join(rng.choices(words, k=CHAT_TOKENS))
        ids = await llm.encode(text[:4000])
        text = text[: 4000 * CHAT_TOKENS // len(ids)]
        body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 8}).encode()
        found.append(await ask(app, made[0], body) * 1e3)
    await llm.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--input-tokens", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-stop", dest="stop", action="store_false", help="no stop strings")
    options = parser.parse_args()
    what = f"{options.streams} streams of {options.tokens} tokens, step {options.step_ms:g} ms"
    print(f"{what}, {options.clients} client processes, {os.cpu_count()} cores")
    print("| tok/s | server, engine us a token | tokens a frame | first token ms | gap ms | /health ms | load |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeats):
            print(measure(options, Path(folder)), flush=True)
    ms = asyncio.run(request_to_engine())
    chat = f"least {min(ms):.2f}, median {percentile(ms, 50):.2f}, p99 {percentile(ms, 99):.2f} ms"
    print(f"from a chat request of {CHAT_TOKENS} tokens to the engine: {chat}")


if __name__ == "__main__":
    main()
