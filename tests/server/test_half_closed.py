"""A client that stops sending behind its request, and reads on, gets its answer; one that is gone costs nothing."""

import asyncio
import contextlib
import json
import socket
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxinfer.llm.types import Delta
from jaxinfer.server.app import create_app
from jaxinfer.server.wire import INTERIM_S, BoundedProtocol
from tests.server.fakes import FakeLLM, hello
from tests.server.http import CHAT, COMPLETIONS, MESSAGES, RESPONSES, USER, live, read_until, wait_until

OLLAMA = "/api/chat"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
ROUTES = {
    CHAT: {"messages": USER},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": USER, "max_tokens": 9},
    OLLAMA: {"model": "tiny", "messages": USER},
}

LAST = {
    CHAT: b"[DONE]",
    COMPLETIONS: b"[DONE]",
    RESPONSES: b"response.completed",
    MESSAGES: b"message_stop",
    OLLAMA: b'"done_reason"',
}


def silent(prompt_ids, params):
    yield 60.0


class Slow(FakeLLM):
    """Its answers begin after the end of what is sent has come."""

    async def generate(self, *given, **rest):
        await asyncio.sleep(0.05)
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
        return read_until(connection, b"").replace(INTERIM, b"")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ROUTES)
def test_who_stops_sending_gets_its_answer_and_then_the_end(port, path, stream):
    got = answer(port, asked(path, stream=stream))
    assert got.startswith(b"HTTP/1.1 200 ")
    assert (LAST[path] in got) if stream else json.loads(got.partition(b"\r\n\r\n")[2])


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(ROUTES)), st.data())
def test_a_request_that_is_cut_short_is_a_400_wherever_it_is_cut(port, path, data):
    whole = asked(path)
    got = answer(port, whole[: data.draw(st.integers(1, len(whole) - 1))])
    assert got.startswith(b"HTTP/1.1 400 ") and b"cut short" in got


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(ROUTES)), st.integers(1, 3), st.booleans(), st.data())
def test_one_that_is_cut_short_behind_others_is_a_400_in_its_turn(port, path, num_whole, stream, data):
    cut = asked(path)
    cut = cut[: data.draw(st.integers(1, len(cut) - 1))]
    answers = answer(port, asked(path, stream=stream) * num_whole + cut).split(b"HTTP/1.1 ")[1:]
    assert [each[:4] for each in answers] == [b"200 "] * num_whole + [b"400 "]
    assert b"cut short" in answers[-1]


def test_two_requests_and_the_end_are_two_answers(port):
    assert answer(port, asked(CHAT) * 2 + b"\r\n").count(b"HTTP/1.1 200 OK") == 2
    assert answer(port, b"") == b""


def read_for(connection, seconds):
    """What comes in that time, at the end of which the connection must be open."""
    connection.settimeout(0.05)
    received, end_s = b"", time.monotonic() + seconds
    while time.monotonic() < end_s:
        with contextlib.suppress(TimeoutError):
            assert (chunk := connection.recv(65536)), f"closed after {received!r}"
            received += chunk
    return received


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_who_has_gone_leaves_nothing_running(stream, version):
    llm = FakeLLM(silent)
    with live(create_app(llm)) as port:
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        connection.sendall(asked(CHAT, version, stream=stream))
        wait_until(lambda: len(llm.running) == 1)
        connection.close()
        wait_until(lambda: not llm.running, timeout_s=1)


def test_who_has_gone_is_missed_before_an_answer_of_a_tenth_of_a_second_is_made():
    llm = FakeLLM(silent)
    with live(create_app(llm)) as port:
        took_s = []
        for _ in range(3):
            connection = socket.create_connection(("127.0.0.1", port), timeout=10)
            connection.sendall(asked(CHAT))
            wait_until(lambda: len(llm.running) == 1)
            began_s = time.monotonic()
            connection.close()
            wait_until(lambda: not llm.running, timeout_s=1)
            took_s.append(time.monotonic() - began_s)
    assert min(took_s) < 0.15, took_s  # four looks a second alone take a quarter of one


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("path", ROUTES)
def test_who_has_gone_from_a_stream_that_is_silent_is_missed(path, version):
    """A ping is no part of an answer; those that are due come every 15 s."""
    llm = FakeLLM(lambda ids, params: [Delta(0, "Hel", [1]), 60.0])
    with live(create_app(llm)) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(asked(path, version, stream=True))
            assert b"Hel" in read_for(connection, 0.4) and len(llm.running) == 1
        wait_until(lambda: not llm.running, timeout_s=3)


class Eager(BoundedProtocol):
    """Its last interim response comes after 1.5 s instead of twenty."""

    interim_s = (0.0, 0.25, 1.5)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_who_goes_after_its_half_close_is_missed_at_the_next_interim_response(stream):
    llm = FakeLLM(silent)
    with live(create_app(llm), protocol=Eager) as port:
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        connection.sendall(asked(CHAT, stream=stream))
        wait_until(lambda: len(llm.running) == 1)
        connection.shutdown(socket.SHUT_WR)
        began_s = time.monotonic()
        read_for(connection, 0.9)
        assert llm.running
        connection.close()
        wait_until(lambda: not llm.running)
        assert time.monotonic() - began_s < Eager.interim_s[-1] + 0.9


def test_the_interim_responses_are_few_enough_for_every_client():
    """Go's before 1.24 takes five, one of which the client itself may have asked for."""
    assert len(INTERIM_S) <= 4
    with (
        live(create_app(FakeLLM(lambda ids, params: [2.0, *hello(ids, params)])), protocol=Eager) as port,
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
    ):
        connection.sendall(asked(CHAT))
        connection.shutdown(socket.SHUT_WR)
        interim, status, _ = read_until(connection, b"").partition(b"HTTP/1.1 200 ")
    assert status and interim == INTERIM * len(Eager.interim_s)


def test_an_answer_of_http_1_0_that_has_begun_goes_on_behind_the_end_of_what_is_sent():
    llm = FakeLLM(lambda ids, params: [Delta(0, "Hel", [1]), 1.0, Delta(0, "lo", [2, 257], "stop")])
    with (
        live(create_app(llm)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
    ):
        connection.sendall(asked(CHAT, "1.0", stream=True))
        begun = read_for(connection, 0.5)
        assert b"Hel" in begun
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(10)
        assert (begun + read_until(connection, b"")).endswith(b"data: [DONE]\n\n")
