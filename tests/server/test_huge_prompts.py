"""Prompts of 8 MB, four at a time: refused untokenized, while health checks and streams go on (A47); lists of ids."""

import contextlib
import itertools
import json
import random
import select
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import httpx2
import pytest

from jaxinfer.checkpoint.resolve import DEMO_FOLDER
from jaxinfer.server.app import create_app
from tests.server.dry import (
    PACE,
    PACED,
    Served,
    dry_llm,
    dry_server,
    gaps_of_a_stream,
    p99,
    seconds_of_a_check,
    share_of_the_pace,
)
from tests.server.http import CHAT, COMPLETIONS, EMBEDDINGS, error_of, live, raw_request, read_until
from tests.server.rest import ends_at_rest
from tests.support.attempts import Stopwatch, assert_below

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
    llm = dry_llm(0.005)
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
    watch = Stopwatch()
    response = client.post(path, json=body(text))
    assert (response.status_code, error_of(response)["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is" in error_of(response)["message"]
    assert watch.seconds() < 2, "tokenizing it takes ten seconds"


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


def waits_beside(served: Served, control: Served) -> list[tuple[list[float], list[float]]]:
    """Seconds of checks and between a stream's tokens, of both."""
    with ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(gaps_of_a_stream, each.port) for each in (served, control)]
        checks, control_checks = [], []
        while not all(stream.done() for stream in streams):
            checks.append(seconds_of_a_check(served.client))
            control_checks.append(seconds_of_a_check(control.client))
            time.sleep(0.01)
        gaps, control_gaps = (stream.result() for stream in streams)
    assert len(checks) > 50
    return [(checks, gaps), (control_checks, control_gaps)]


def share_of_what_is_allowed(served: Served, control: Served) -> float:
    """Of a check and 50 ms at the 99th percentile, of a stream's pace.

    The control is a second server, which gets no such bodies and shares the processors with the first.
    """
    (checks, gaps), (control_checks, control_gaps) = waits_beside(served, control)
    return max(p99(checks) / (p99(control_checks) + 0.05), share_of_the_pace(gaps, control_gaps))


LAW = f"of a check and 50 ms, {PACE}"


@pytest.mark.slow
def test_a_stream_that_is_two_thirds_slower_is_found_to_be(tmp_path):
    with (
        dry_server(tmp_path / "log", "demo", "--dry-run-step-ms", "33") as served,
        dry_server(tmp_path / "control", "demo", *PACED) as control,
    ):
        assert share_of_what_is_allowed(served, control) > 1


@pytest.mark.slow
def test_tails_of_checks_and_streams_beside_four_of_them(tmp_path, text):
    """A47, refused by their bytes, again and again."""
    bodies = [(path, json.dumps(body(text)).encode()) for path, body in list(KINDS.values())[:4]]
    done = threading.Event()

    def ask(port: int, path: str, raw: bytes) -> None:
        with raw_request(port, path, raw, connection="close") as connection:
            assert read_until(connection, b"").startswith(b"HTTP/1.1 400 ")

    def keep_asking(port: int, path: str, raw: bytes) -> None:
        while not done.wait(0.5):
            ask(port, path, raw)

    with (
        dry_server(tmp_path / "log", "demo", *PACED) as served,
        dry_server(tmp_path / "control", "demo", *PACED) as control,
        ThreadPoolExecutor(12) as pool,
    ):
        for asker in [pool.submit(ask, served.port, *body) for body in bodies * 3]:
            asker.result()  # what they need of threads is there
        with ends_at_rest(served.place):
            askers = [pool.submit(keep_asking, served.port, *body) for body in bodies]
            try:
                assert_below(1, partial(share_of_what_is_allowed, served, control), LAW)
            finally:
                done.set()
            for asker in askers:
                asker.result()


def of_ids(path: str, name: str, num_ids: int) -> tuple[str, bytes]:
    return path, b'{"%b": [%b1]}' % (name.encode(), b"1," * (num_ids - 1))


LISTS = {
    "millions for an answer": of_ids(COMPLETIONS, "prompt", 6_000_000),
    "millions for a vector": of_ids(EMBEDDINGS, "input", 6_000_000),
    "millions for a text": of_ids("/detokenize", "tokens", 6_000_000),
    "as many as a body may hold": of_ids(COMPLETIONS, "prompt", 262_000),
    "the last is none": (COMPLETIONS, of_ids(COMPLETIONS, "prompt", 262_000)[1].replace(b"]", b",1000000]")),
}
CODES = {"the last is none": "invalid_value"}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_ids_that_can_never_fit_is_refused_at_once(client, name):
    path, raw = LISTS[name]
    watch = Stopwatch()
    response = client.post(path, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["code"] == CODES.get(name, "context_length_exceeded")
    assert watch.seconds() < 2


@pytest.mark.slow
def test_lists_of_ids_hold_up_neither_checks_nor_streams(tmp_path):
    """No check and no gap of a stream beside them takes 100 ms longer than the longest where there are none."""
    done = threading.Event()

    def keep_asking(port: int) -> None:
        for path, raw in itertools.cycle(LISTS.values()):
            if done.wait(0.3):
                return
            with raw_request(port, path, raw, connection="close") as connection:
                assert read_until(connection, b"").startswith(b"HTTP/1.1 400 ")

    def longest() -> float:
        (checks, gaps), (control_checks, control_gaps) = waits_beside(served, control)
        return max(max(checks) / (max(control_checks) + 0.1), max(gaps) / (max(control_gaps) + 0.1))

    with (
        dry_server(tmp_path / "log", "demo", *PACED) as served,
        dry_server(tmp_path / "control", "demo", *PACED) as control,
        ThreadPoolExecutor(1) as pool,
    ):
        asker = pool.submit(keep_asking, served.port)
        try:
            assert_below(1, longest, "of what it takes without them and 100 ms")
        finally:
            done.set()
        asker.result()


# ---- a context that they may fit into: they are tokenized, which takes 15 s for each ----


@pytest.fixture
def long_model(tmp_path) -> Path:
    """The demo's settings and tokenizer with a context of a million tokens."""
    folder = tmp_path / "long"
    folder.mkdir()
    for file in DEMO_FOLDER.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 10**6}))
    return folder


@pytest.mark.slow
def test_tails_of_checks_and_of_new_streams_while_four_are_tokenized(tmp_path, text, long_model):
    """A47; who comes later with a short prompt does not wait until they are done."""
    bodies = [(path, json.dumps(body(text)).encode()) for path, body in KINDS.values()]
    bodies = [bodies[0], bodies[4], bodies[0], bodies[4]]
    with (
        dry_server(tmp_path / "log", long_model, *PACED) as served,
        dry_server(tmp_path / "control", long_model, *PACED) as control,
        contextlib.ExitStack() as stack,
    ):
        huge = [stack.enter_context(raw_request(served.port, path, raw)) for path, raw in bodies]
        time.sleep(1)
        assert_below(1, partial(share_of_what_is_allowed, served, control), LAW)
        ready, _, _ = select.select(huge, [], [], 0)
        assert len(ready) < 4, "they were being tokenized meanwhile"
