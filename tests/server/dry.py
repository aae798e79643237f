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
from statistics import median, quantiles
from typing import Any

import httpx2

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from tests.server.http import COMPLETIONS, raw_request
from tests.server.rest import Place
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

    @property
    def place(self) -> Place:
        return Place(f"http://127.0.0.1:{self.port}", self.pid)


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


PACED = ("--dry-run-step-ms", "20")  # long enough that half of it more is no noise
PACE = "of 1.5 times the gaps of a stream that is left in peace, in the middle and at the 99th percentile"


def share_of_the_pace(gaps: list[float], control_gaps: list[float]) -> float:
    """1 is how much slower a stream of a PACED server may be than one of another at the same time."""
    assert median(control_gaps) > 0.018, "it is paced by its steps"
    return max(median(gaps) / median(control_gaps), p99(gaps) / p99(control_gaps)) / 1.5


def gaps_of_a_stream(port: int, num_tokens: int = 200) -> list[float]:
    """Seconds between the reads of its tokens."""
    times, rest = [], b""
    body = {"prompt": "hi", "max_tokens": num_tokens, "stream": True, "ignore_eos": True}
    with raw_request(port, COMPLETIONS, body) as stream:
        while not rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            rest = rest[-64:] + stream.recv(65536)
            times.append(time.monotonic())
    return [later - earlier for earlier, later in itertools.pairwise(times[1:])]


def seconds_of_a_check(client: httpx2.Client) -> float:
    begun_s = time.monotonic()
    assert client.get("/health").status_code == 200
    return time.monotonic() - begun_s
