"""/abort_request and /load: what is under way, and ending it by the id that the client knows."""

import asyncio
import re
import threading
from typing import Any

import httpx2
import pytest

from jaxinfer.llm.events import STAGES, TEXTS, Event
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.answers import _START
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, ask, error_of, events, live, post, raw_request, read_until, wait_until

ALICE, BOB = {"authorization": "Bearer sk-alice-0123"}, {"authorization": "Bearer sk-bob-012345"}
LOCKED = ServerSettings(
    api_keys=(ApiKey("alice", "sk-alice-0123"), ApiKey("bob", "sk-bob-012345")), max_requests_per_key=3
)


def endless(ids: list[int], params: Any) -> Any:
    while True:
        yield Delta(0, "x", [1])
        yield 0.01


def test_a_request_is_ended_by_its_own_tenant_and_under_its_own_id_alone():
    llm = FakeLLM(endless)
    with live(create_app(llm, LOCKED)) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def abort(request_id: str, key: dict[str, str]) -> int:
            return client.post("/abort_request", json={"request_id": request_id}, headers=key).json()["aborted"]

        def load() -> int:
            return client.get("/load", headers=BOB).json()["server_load"]

        body = {"prompt": "a", "stream": True}
        streams = [
            raw_request(port, COMPLETIONS, body, x_request_id=name, connection="close", **key)
            for name, key in (("one", ALICE), ("one", ALICE), ("two", ALICE), ("one", BOB))
        ]
        wait_until(lambda: load() == 4)
        assert client.post("/tokenize", json={"prompt": "x"}, headers=ALICE).status_code == 429
        assert abort("three", ALICE) == abort("two", BOB) == 0
        assert load() == 4
        assert abort("one", ALICE) == 2
        for stream in streams[:2]:
            frames = read_until(stream, b"").partition(b"\r\n\r\n")[2]
            assert frames.count(b'"finish_reason":"abort"') == 1 and b"data: [DONE]" in frames
            assert b'"error"' not in frames
        wait_until(lambda: load() == 2)
        assert (abort("cmpl-two", ALICE), abort("one", BOB)) == (1, 1)
        wait_until(lambda: load() == 0 and not llm.running)
        for stream in streams:
            stream.close()


def test_a_request_that_is_ended_twice_is_counted_once():
    is_let = threading.Event()

    def until_let(ids: list[int], params: Any) -> Any:
        while not is_let.is_set():
            yield 0.01
        yield Delta(0, "x", [1])

    llm = FakeLLM(until_let)
    with (
        live(create_app(llm)) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client,
        raw_request(port, COMPLETIONS, {"prompt": ["a", "b"]}, x_request_id="one", connection="close") as connection,
    ):
        wait_until(lambda: len(llm.running) == 2)
        for _ in range(2):
            assert client.post("/abort_request", json={"request_id": "one"}).json() == {"aborted": 1}
        is_let.set()
        assert read_until(connection, b"").count(b'"finish_reason":"abort"') == 2
        wait_until(lambda: 'aborted_requests_total{reason="abort_request"} 0.0' not in client.get("/metrics").text)
        page = client.get("/metrics").text
    counted = re.findall(r'^jaxinfer:aborted_requests_total{reason="(\w+)"} (.*)$', page, re.MULTILINE)
    assert dict(counted) == {"client_left": "0.0", "slow_client": "0.0", "abort_request": "1.0"}


def test_an_answer_that_is_not_streamed_ends_too_with_what_there_is():
    llm = FakeLLM(endless)
    with (
        live(create_app(llm)) as port,
        raw_request(port, COMPLETIONS, {"prompt": "a"}, x_request_id="one", connection="close") as connection,
    ):
        url = f"http://127.0.0.1:{port}/abort_request"
        wait_until(lambda: httpx2.post(url, json={"request_id": "one"}).json()["aborted"] == 1)
        received = read_until(connection, b"")
    assert received.startswith(b"HTTP/1.1 200 ") and b'"finish_reason":"abort"' in received


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "request_id"), ({"request_id": 5}, "request_id"), ({"request_id": "x", "abort_all": True}, "abort_all")]
    + [({"rid": "x"}, "rid")],
)
def test_what_names_no_request_is_a_400(body, param):
    response = post(FakeLLM(), "/abort_request", body)
    assert (response.status_code, error_of(response)["param"]) == (400, param)


def test_what_has_ended_is_forgotten():
    llm = FakeLLM()
    app = create_app(llm)
    with live(app) as port:
        for stream in (False, True):
            answer = httpx2.post(
                f"http://127.0.0.1:{port}{CHAT}",
                json={"messages": [{"role": "user", "content": "hi"}], "stream": stream},
            )
            assert answer.status_code == 200
        assert events(answer.text)
        refused = httpx2.post(f"http://127.0.0.1:{port}{COMPLETIONS}", json={"prompt": [999]})
        assert refused.status_code == 400
        wait_until(lambda: len(app.state.running) == 0)
    assert app.state.running._by_key == {}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "slow"}),
        (COMPLETIONS, {"prompt": "slow"}),
        (CHAT, {"messages": [{"role": "user", "content": "slow"}]}),
        ("/v1/embeddings", {"input": ["slow", "slow"]}),
    ],
)
def test_load_counts_a_request_from_its_body_to_its_answer(path, body, monkeypatch):
    """Also while its text is being tokenized, which takes seconds where it is long."""
    go_on, llm = threading.Event(), FakeLLM()

    def slow(encode: Any) -> Any:
        async def wait(*args: Any, **named: Any) -> Any:
            while not go_on.is_set():
                await asyncio.sleep(0.01)
            return await encode(*args, **named)

        return wait

    for name in ("encode", "render"):
        monkeypatch.setattr(llm, name, slow(getattr(llm, name)))
    with live(create_app(llm)) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        connection = raw_request(port, path, body)
        wait_until(lambda: client.get("/load").json()["server_load"] == 1)
        assert not llm.running
        go_on.set()
        wait_until(lambda: client.get("/load").json()["server_load"] == 0)
        connection.close()


def test_load_tells_of_the_pages_once_there_are_any():
    loaded = ask(FakeLLM(), "GET", "/load").json()
    assert loaded == {"server_load": 0, "pages_owned": 0, "pages_cached": 0, "pages_total": 10}
    for status in ("starting", "failed"):
        assert ask(FakeLLM(status=status), "GET", "/load").json() == {"server_load": 0}


def test_load_tells_how_far_a_start_is():
    llm = FakeLLM(status="starting")
    assert _START["start"]["properties"]["stage"] == {"enum": [*STAGES]}
    for event in (Event("load", "", 5, 9), *(Event(stage, "extend 16x16", 7, 27) for stage in STAGES), TEXTS):
        llm.progress = event
        expected = {"stage": event.kind, "done": event.done, "total": event.total}
        assert ask(llm, "GET", "/load").json() == {"server_load": 0, "start": expected}
    llm.status = "ready"
    assert "start" not in ask(llm, "GET", "/load").json()
