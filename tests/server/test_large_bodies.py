"""Large bodies that are not queued yet are held up to a limit together; small ones always pass."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from jaxinfer.llm.types import Delta
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.server import body
from jaxinfer.server.app import create_app
from tests.server.fakes import FakeLLM, Step, vector
from tests.server.http import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    SCORE,
    USER,
    error_of,
    live,
    raw_request,
    read_until,
    wait_until,
)

SIZE = 900_000
LARGE = json.dumps({"messages": USER, "user": "u" * SIZE}).encode()


@pytest.fixture(autouse=True)
def one_mib(monkeypatch):
    monkeypatch.setattr(body, "MAX_LARGE_BODIES_MIB", 1)


def test_a_second_large_body_is_refused_while_the_first_is_held_and_small_ones_pass():
    app = create_app(FakeLLM())
    with live(app) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def post(content: bytes) -> httpx2.Response:
            return client.post(CHAT, content=content, headers={"content-type": "application/json"})

        assert post(LARGE).status_code == 200
        with raw_request(port, CHAT, LARGE[:-1], content_length=str(len(LARGE))) as half:
            wait_until(lambda: app.state.large_bodies.num_bytes == len(LARGE) - 1)
            refused = post(LARGE)
            assert (refused.status_code, error_of(refused)["code"]) == (429, "bodies_full")
            assert int(refused.headers["retry-after"]) >= 1
            assert post(json.dumps({"messages": USER, "user": "u" * 60_000}).encode()).status_code == 200
            half.sendall(LARGE[-1:])
            assert read_until(half, b"}}}").startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: app.state.large_bodies.num_bytes == 0)
        assert post(LARGE).status_code == 200


QUEUED: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": (COMPLETIONS, {"prompt": "x", "user": "u" * SIZE}),
    "streamed": (COMPLETIONS, {"prompt": "x", "user": "u" * SIZE, "stream": True}),
    "response": (RESPONSES, {"input": "x", "user": "u" * SIZE}),
    "messages": (MESSAGES, {"messages": USER, "max_tokens": 1, "system": "s" * SIZE}),
    "embedding": (EMBEDDINGS, {"input": "x", "user": "u" * SIZE}),
    "score": (SCORE, {"text_1": "x", "text_2": "y", "user": "u" * SIZE}),
}


@pytest.mark.parametrize("kind", QUEUED)
def test_what_is_queued_is_held_no_longer(kind):
    llm = FakeLLM(lambda ids, params: [60.0], max_model_len=2 * SIZE)
    app, (path, asked) = create_app(llm), QUEUED[kind]
    with live(app) as port, contextlib.ExitStack() as stack:
        for number in range(1, 4):
            stack.enter_context(raw_request(port, path, asked))
            num_calls = 2 * number if kind == "score" else number
            wait_until(lambda: len(llm.calls) == num_calls and app.state.large_bodies.num_bytes == 0)  # noqa: B023


def test_inputs_that_wait_for_others_of_their_request_are_held():
    """As many are queued together as run together; the rest is ours until then."""
    may_end: list[bool] = []

    def script(ids: list[int], params: SamplingParams) -> Iterator[Step]:
        while len(may_end) < (2 if len(llm.calls) > 8 else 1):
            yield 0.01
        yield Delta(0, "", [], "stop", embedding=vector([1]).tobytes())

    llm = FakeLLM(script)
    app = create_app(llm)
    with live(app) as port, raw_request(port, EMBEDDINGS, {"input": ["x"] * 9, "user": "u" * SIZE}):
        wait_until(lambda: len(llm.calls) == 8)
        assert app.state.large_bodies.num_bytes > SIZE
        may_end.append(True)
        wait_until(lambda: len(llm.calls) == 9 and app.state.large_bodies.num_bytes == 0)
        may_end.append(True)


@pytest.mark.parametrize("raw", [LARGE[:-1], LARGE.replace(b'"messages"', b'"message"')], ids=["no JSON", "refused"])
def test_what_is_refused_or_left_is_given_back(raw):
    app = create_app(FakeLLM())
    with live(app) as port:
        url, headers = f"http://127.0.0.1:{port}{CHAT}", {"content-type": "application/json"}
        for _ in range(3):
            assert httpx2.post(url, content=raw, headers=headers).status_code == 400
            raw_request(port, CHAT, raw, content_length=str(len(raw) + 9)).close()
            wait_until(lambda: app.state.large_bodies.num_bytes == 0)
