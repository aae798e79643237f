"""A client that stops sending behind its request, and reads on, gets its answer; one that is gone costs nothing."""

import asyncio
import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxinfer.server.app import create_app
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, MESSAGES, RESPONSES, USER, live, read_until, wait_until

ROUTES = {
    CHAT: {"messages": USER},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": USER, "max_tokens": 9},
}


def silent(prompt_ids, params):
    yield 60.0


class Slow(FakeLLM):
    """Its answers begin after the end of what is sent has come."""

    async def generate(self, *given, **rest):
        await asyncio.sleep(0.15)
        return await super().generate(*given, **rest)


@pytest.fixture(scope="module")
def port():
    with live(create_app(Slow())) as port:
        yield port


def asked(path, version="1.1", **fields):
    body = json.dumps(ROUTES[path] | fields).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: test\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def answer(port, sent):
    """All that comes until the server closes, without interim responses."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return read_until(connection, b"").replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ROUTES)
def test_who_stops_sending_gets_its_answer_and_then_the_end(port, path, stream, version):
    got = answer(port, asked(path, version, stream=stream))
    assert got.startswith(b"HTTP/1.1 200 ")
    last = {CHAT: b"[DONE]", COMPLETIONS: b"[DONE]", RESPONSES: b"response.completed", MESSAGES: b"message_stop"}[path]
    assert (last in got) if stream else json.loads(got.partition(b"\r\n\r\n")[2])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(ROUTES)), st.data())
def test_a_request_that_is_cut_short_is_a_400_wherever_it_is_cut(port, path, data):
    whole = asked(path)
    got = answer(port, whole[: data.draw(st.integers(1, len(whole) - 1))])
    assert got.startswith(b"HTTP/1.1 400 ") and b"cut short" in got


def test_two_requests_and_the_end_are_two_answers(port):
    assert answer(port, asked(CHAT) * 2 + b"\r\n").count(b"HTTP/1.1 200 OK") == 2
    assert answer(port, b"") == b""


@pytest.mark.parametrize("is_half_closed", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_who_has_gone_leaves_nothing_running(stream, is_half_closed):
    llm = FakeLLM(silent)
    with live(create_app(llm)) as port:
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        connection.sendall(asked(CHAT, stream=stream))
        wait_until(lambda: len(llm.running) == 1)
        if is_half_closed:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                while connection.recv(4096):
                    pass
            assert llm.running
        connection.close()
        wait_until(lambda: not llm.running)
