"""Large bodies that are not queued yet are held up to a limit together; small ones always pass, slow ones give way."""

import contextlib
import dataclasses
import gc
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from jaxinfer.llm.types import Delta
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.server import large_bodies
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
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
DEFAULT_MIB = large_bodies.MAX_LARGE_BODIES_MIB


@pytest.fixture(autouse=True)
def one_mib(monkeypatch):
    monkeypatch.setattr(large_bodies, "MAX_LARGE_BODIES_MIB", 1)


@dataclasses.dataclass
class Clock:
    """Of an app's large bodies; it stands still until a test moves it."""

    at_s: float = 0.0

    def now_s(self) -> float:
        return self.at_s


def app_and_clock(settings: ServerSettings | None = None) -> tuple[Starlette, Clock]:
    app, clock = create_app(FakeLLM(), settings), Clock()
    app.state.large_bodies.now_s = clock.now_s
    return app, clock


def chat_of(size: int) -> bytes:
    return json.dumps({"messages": USER, "user": "u" * size}).encode()


def half_sent(app: Starlette, port: int, raw: bytes, **headers: str) -> socket.socket:
    """All but the last byte of a chat's body; returns when the server holds that."""
    before = app.state.large_bodies.num_bytes
    connection = raw_request(port, CHAT, raw[:-1], content_length=str(len(raw)), **headers)
    wait_until(lambda: app.state.large_bodies.num_bytes == before + len(raw) - 1)
    return connection


def test_a_second_large_body_is_refused_while_the_first_is_held_and_small_ones_pass():
    app, _ = app_and_clock()
    with live(app) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def post(content: bytes) -> httpx2.Response:
            return client.post(CHAT, content=content, headers={"content-type": "application/json"})

        assert post(LARGE).status_code == 200
        with half_sent(app, port, LARGE) as half:
            refused = post(LARGE)
            assert (refused.status_code, error_of(refused)["code"]) == (429, "bodies_full")
            assert int(refused.headers["retry-after"]) >= 1
            assert post(json.dumps({"messages": USER, "user": "u" * 60_000}).encode()).status_code == 200
            half.sendall(LARGE[-1:])
            assert read_until(half, b"}}}").startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: app.state.large_bodies.num_bytes == 0)
        assert post(LARGE).status_code == 200


def status_of(port: int, raw: bytes, **headers: str) -> int:
    url = f"http://127.0.0.1:{port}{CHAT}"
    return httpx2.post(url, content=raw, headers={"content-type": "application/json"} | headers).status_code


def test_a_slow_body_gives_way_to_another_and_is_told():
    app, clock = app_and_clock()
    with live(app) as port, half_sent(app, port, LARGE) as slow:
        clock.at_s = 1.8  # no more than a second and what its size may take
        assert status_of(port, LARGE) == 429
        clock.at_s = 1.9
        assert status_of(port, chat_of(60_000)) == 200 and app.state.large_bodies.num_bytes == len(LARGE) - 1
        assert status_of(port, LARGE) == 200
        told = read_until(slow, b"}}")
        assert told.startswith(b"HTTP/1.1 429 ") and b"\r\nretry-after: 1\r\n" in told
        assert b"bodies_full" in told and b"more slowly than 1 MiB a second" in told
        wait_until(lambda: (app.state.large_bodies.num_bytes, app.state.large_bodies.coming) == (0, set()))
        slow.sendall(LARGE[-1:] + b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n")
        assert read_until(slow, b"}").startswith(b"HTTP/1.1 200 "), "its connection is as good as before"


def test_the_one_furthest_behind_gives_way():
    app, clock = app_and_clock()
    with live(app) as port, half_sent(app, port, chat_of(400_000)) as first:
        clock.at_s = 10
        with half_sent(app, port, chat_of(300_000)) as second, half_sent(app, port, chat_of(200_000)) as third:
            clock.at_s = 20  # all of them are late
            assert status_of(port, chat_of(500_000)) == 200
            assert read_until(first, b"}}").startswith(b"HTTP/1.1 429 ")
            for late in (second, third):
                late.sendall(b"}")
                assert read_until(late, b"}}}").startswith(b"HTTP/1.1 200 ")
            clock.at_s = 30
            with half_sent(app, port, chat_of(400_000)), half_sent(app, port, chat_of(400_000)):
                clock.at_s = 31
                assert status_of(port, LARGE) == 429, "nobody is late"


def test_a_slow_body_that_grows_is_refused_rather_than_one_less_behind():
    app, clock = app_and_clock()
    raw = chat_of(900_000)
    with live(app) as port, raw_request(port, CHAT, raw[:100_000], content_length=str(len(raw))) as slow:
        wait_until(lambda: app.state.large_bodies.num_bytes == 100_000)
        clock.at_s = 10
        with half_sent(app, port, chat_of(700_000)) as other:
            clock.at_s = 20
            slow.sendall(raw[100_000:-1])
            assert read_until(slow, b"}}").startswith(b"HTTP/1.1 429 ")
            other.sendall(b"}")
            assert read_until(other, b"}}}").startswith(b"HTTP/1.1 200 ")


def test_what_a_tenant_holds_leaves_room_for_others(monkeypatch):
    monkeypatch.setattr(large_bodies, "MAX_LARGE_BODIES_MIB_PER_KEY", 0.5)
    keys = ApiKey("alice", "sk-alice-0123"), ApiKey("bob", "sk-bob-012345")
    alice, bob = ({"authorization": f"Bearer {key.secret}"} for key in keys)
    app, clock = app_and_clock(ServerSettings(api_keys=keys))
    raw = chat_of(300_000)
    with live(app) as port, half_sent(app, port, raw, **alice) as slow, half_sent(app, port, raw, **bob) as other:
        assert status_of(port, raw, **alice) == 429
        other.sendall(raw[-1:])
        assert read_until(other, b"}}}").startswith(b"HTTP/1.1 200 ")
        assert status_of(port, raw, **bob) == 200
        clock.at_s = 60
        with half_sent(app, port, raw, **bob) as other:
            assert status_of(port, raw, **alice) == 200
            assert read_until(slow, b"}}").startswith(b"HTTP/1.1 429 "), "her own, which was late"
            other.sendall(raw[-1:])
            assert read_until(other, b"}}}").startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
def test_clients_that_drip_hold_the_room_of_sixteen_whole_bodies_for_seconds_only(monkeypatch):
    """With the limits and the clock that are the default."""
    monkeypatch.setattr(large_bodies, "MAX_LARGE_BODIES_MIB", DEFAULT_MIB)
    app, raw = create_app(FakeLLM()), chat_of(16 * 2**20 - 100)
    begun_s = time.monotonic()
    with live(app) as port, contextlib.ExitStack() as stack:
        drips = [stack.enter_context(half_sent(app, port, raw)) for _ in range(16)]
        assert status_of(port, raw) == 429
        last_s = time.monotonic()
        wait_until(lambda: status_of(port, raw) == 200, timeout_s=30)
        assert time.monotonic() - begun_s > 16, "what is not late keeps its place"
        assert time.monotonic() - last_s < 20
        assert read_until(drips[0], b"}}").startswith(b"HTTP/1.1 429 ")


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

        def bodies() -> list[object]:
            return [found for found in gc.get_objects() if isinstance(found, dict) and found == asked]

        wait_until(lambda: all(found is asked for found in bodies()))  # of which much may be nobody's field


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
