"""Dry runs to ask: an engine process for a server of the test's own; and servers in processes of their own, with how
long their clients wait, for tests of tails, which hold one against a second that is left in peace.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx2

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from tests.server.http import COMPLETIONS, raw_request
from tests.support.processes import SERVE, serving


def dry_llm(step_s: float, **settings: Any) -> AsyncLLM:
    """Not started. The demo's text and a process that makes its tokens up; a step takes `step_s`.

    settings: fields of EngineConfig.
    """
    return AsyncLLM(EngineConfig(**settings), new_transport=partial(EngineProcess, child=(MODULE, str(step_s))))


@dataclasses.dataclass(frozen=True)
class Served:
    """A server in a process of its own."""

    pid: int
    port: int
    client: httpx2.Client


@contextlib.contextmanager
def dry_server(log: Path, model: str | Path = "demo", *settings: str) -> Iterator[Served]:
    """settings: more flags; the last of a name is in force."""
    command = *SERVE, model, "--dry-run", "--dry-run-step-ms", "5", "--allowed-hosts", "*", "--port", "0"
    with (
        serving(log, *command, "--max-num-seqs", "8", *settings) as (process, port),
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield Served(process.pid, port, client)


def p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


def gaps_of_a_stream(port: int) -> list[float]:
    """Seconds between the reads of 400 tokens."""
    times, rest = [], b""
    body = {"prompt": "hi", "max_tokens": 400, "stream": True, "ignore_eos": True}
    with raw_request(port, COMPLETIONS, body) as stream:
        while not rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            rest = rest[-64:] + stream.recv(65536)
            times.append(time.monotonic())
    return [later - earlier for earlier, later in itertools.pairwise(times[1:])]


def seconds_of_a_check(client: httpx2.Client) -> float:
    begun_s = time.monotonic()
    assert client.get("/health").status_code == 200
    return time.monotonic() - begun_s
