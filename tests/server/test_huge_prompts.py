"""Prompts of 8 MB, four at a time: refused untokenized, while health checks and streams go on (A47)."""

import contextlib
import itertools
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import httpx2
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from jaxinfer.server.app import create_app
from tests.server.http import CHAT, COMPLETIONS, error_of, live, raw_request, read_until
from tests.support.attempts import assert_below
from tests.support.processes import SERVE, serving

SIZE = 8 * 2**20
KINDS = {
    "text": (COMPLETIONS, lambda text: {"prompt": text}),
    "chat": (CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
    "control tokens in a chat": (
        CHAT,
        lambda text: {"messages": [{"role": "assistant", "content": text}, {"role": "user", "content": "<|im_end|>"}]},
    ),
    "several parts": (
        CHAT,
        lambda text: {"messages": [{"role": "user", "content": [{"type": "text", "text": text[: SIZE // 8]}] * 8}]},
    ),
    "tokenize": ("/tokenize", lambda text: {"prompt": text}),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    child = (MODULE, "0.005")
    llm = AsyncLLM(EngineConfig(model="demo"), new_transport=partial(EngineProcess, child=child))
    with (
        live(create_app(llm), llm.start, llm.close) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def text() -> str:
    words = [" alpha", " beta", " x", "12", "\n", " ün"]
    return "".join(random.Random(0).choices(words, k=SIZE // 3))[: SIZE - 2**20]


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_can_never_fit_is_refused_at_once(client, text, kind):
    path, body = KINDS[kind]
    begun_s = time.monotonic()
    response = client.post(path, json=body(text))
    assert (response.status_code, error_of(response)["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is" in error_of(response)["message"]
    assert time.monotonic() - begun_s < 2.0, "tokenizing it takes ten seconds"


def test_four_of_them_hold_up_neither_checks_nor_streams(client, text):
    """The client's own work shares the processors: medians, not tails."""

    def gaps() -> list[float]:
        body = {"prompt": "hi", "max_tokens": 200, "stream": True, "ignore_eos": True}
        with client.stream("POST", COMPLETIONS, json=body) as response:
            times = [time.monotonic() for line in response.iter_lines() if line]
        return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]

    def share_of_what_is_allowed() -> float:
        alone = gaps()
        with ThreadPoolExecutor(6) as pool:
            stream = pool.submit(gaps)
            huge = [pool.submit(client.post, path, json=body(text)) for path, body in list(KINDS.values())[:4]]
            checks = []
            while not (all(answer.done() for answer in huge) and stream.done()):
                begun_s = time.monotonic()
                assert client.get("/health").status_code == 200
                checks.append(time.monotonic() - begun_s)
                time.sleep(0.01)
        assert [answer.result().status_code for answer in huge] == [400] * 4
        # a frame may hold several tokens when both are busy
        return max(median(checks) / 0.05, median(stream.result()) / (1.5 * median(alone) + 0.02))

    assert_below(1, share_of_what_is_allowed, "of 50 ms a check, of 1.5 times a gap and 20 ms")


def test_a_long_text_that_may_fit_is_tokenized(client):
    counted = client.post("/tokenize", json={"prompt": " alpha" * 2000}).json()
    assert counted["count"] > 2000
    answer = client.post(COMPLETIONS, json={"prompt": " alpha" * 2000, "max_tokens": 1})
    assert "your prompt has" in error_of(answer)["message"], "counted, then refused"


# ---- tails, with the server in a process of its own ----


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


@contextlib.contextmanager
def dry_server(log: Path) -> Iterator[tuple[int, httpx2.Client]]:
    command = *SERVE, "--dry-run", "--dry-run-step-ms", "5", "--allowed-hosts", "*", "--port", "0"
    with serving(log, *command) as (_, port), httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield port, client


@pytest.mark.slow
def test_tails_of_checks_and_streams_beside_four_of_them(tmp_path, text):
    """A47: a check takes 50 ms at most, a gap 1.5 times as long, and 20 ms for what is not done piece by piece.

    The control is a second server, which gets no such bodies and shares the processors with the first.
    """
    bodies = [(path, json.dumps(body(text)).encode()) for path, body in list(KINDS.values())[:4]]

    def keep_asking(port: int, path: str, raw: bytes, stream: Future[list[float]]) -> None:
        while not stream.done():
            with raw_request(port, path, raw, connection="close") as connection:
                assert read_until(connection, b"").startswith(b"HTTP/1.1 400 ")
            time.sleep(0.5)

    def share_of_what_is_allowed() -> float:
        with ThreadPoolExecutor(8) as pool:
            stream, control = (pool.submit(gaps_of_a_stream, each) for each in (port, control_port))
            huge = [pool.submit(keep_asking, port, *body, stream) for body in bodies]
            checks, control_checks = [], []
            while not stream.done():
                checks.append(seconds_of_a_check(client))
                control_checks.append(seconds_of_a_check(control_client))
                time.sleep(0.01)
            for asker in huge:
                asker.result()
        assert len(checks) > 50
        return max(
            p99(checks) / (p99(control_checks) + 0.05), p99(stream.result()) / (1.5 * p99(control.result()) + 0.02)
        )

    with (
        dry_server(tmp_path / "log") as (port, client),
        dry_server(tmp_path / "control") as (control_port, control_client),
    ):
        assert_below(1, share_of_what_is_allowed, "of a check and 50 ms, of 1.5 times a gap and 20 ms")
