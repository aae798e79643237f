"""Clients that leave: over a real socket, whatever was running for them is aborted, streamed or not."""

import asyncio
import gc
import json
import socket
import struct
import time
import weakref

import httpx2
import pytest

from jaxinfer.llm.generation import Generation, Job
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.responses import AnswerEnvelope
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.stream import EventStream
from jaxinfer.server.wire import BoundedProtocol
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, USER, live, raw_request, read_until, wait_until


def endless(prompt_ids, params):
    while True:
        for index in range(params.n):
            yield Delta(index, "x", [1])
        yield 0.005


def silent(prompt_ids, params):
    yield 60.0


def leave(connection: socket.socket, *, reset: bool) -> None:
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_leaving_a_stream_aborts_it(reset):
    llm = FakeLLM(endless)
    with live(create_app(llm)) as port:
        connection = raw_request(port, CHAT, {"messages": USER, "stream": True, "n": 2})
        assert b" 200 " in connection.recv(4096)
        assert len(llm.running) == 1
        leave(connection, reset=reset)
        wait_until(lambda: not llm.running)
    assert llm.aborts == [llm.calls[0].request_id]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_leaving_before_the_first_token_aborts_it(reset, stream):
    llm = FakeLLM(silent)
    with live(create_app(llm)) as port:
        connection = raw_request(port, COMPLETIONS, {"prompt": ["a", "b", "c"], "stream": stream})
        wait_until(lambda: len(llm.running) == 3)
        leave(connection, reset=reset)
        wait_until(lambda: not llm.running)
    assert set(llm.aborts) == {call.request_id for call in llm.calls}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_leaving_aborts_what_runs_also_when_another_request_waits_behind_it_on_the_connection(stream):
    llm = FakeLLM(endless)
    with live(create_app(llm)) as port:
        connection = raw_request(port, CHAT, {"messages": USER, "stream": stream})
        wait_until(lambda: len(llm.running) == 1)
        connection.sendall(b"GET /version HTTP/1.1\r\nhost: test\r\n\r\n")
        time.sleep(0.1)
        leave(connection, reset=True)
        wait_until(lambda: not llm.running)
        page = httpx2.get(f"http://127.0.0.1:{port}/metrics").text
        assert 'jaxinfer:aborted_requests_total{reason="client_left"} 1.0' in page
    assert llm.aborts == [llm.calls[0].request_id]


def test_nothing_is_kept_of_a_connection_that_was_reset():
    gc.freeze()  # what is there already: a whole run leaves so much that the collector takes seconds for it
    known = weakref.WeakSet()

    class Known(BoundedProtocol):
        def connection_made(self, transport):
            known.add(self)
            super().connection_made(transport)

    with live(create_app(FakeLLM()), protocol=Known) as port:
        for _ in range(3):
            connection = raw_request(port, "/version", b"", method="GET")
            read_until(connection, b"}")
            assert known
            leave(connection, reset=True)
        wait_until(lambda: gc.collect() >= 0 and not known, timeout_s=2)  # an idle connection is closed after five


def test_leaving_an_answer_that_is_not_streamed_aborts_it():
    llm = FakeLLM(endless)
    with live(create_app(llm)) as port:
        connection = raw_request(port, CHAT, {"messages": USER})
        wait_until(lambda: len(llm.running) == 1)
        connection.close()
        wait_until(lambda: not llm.running)


def test_leaving_while_the_prompts_are_being_queued_aborts_those_already_in():
    class Slow(FakeLLM):
        async def generate(self, prompt_ids, params, **rest):
            if len(self.calls) == 2:
                await asyncio.sleep(60)
            return await super().generate(prompt_ids, params, **rest)

    for stream in (False, True):
        llm = Slow(endless)
        with live(create_app(llm)) as port:
            connection = raw_request(port, COMPLETIONS, {"prompt": ["a", "b", "c"], "stream": stream})
            wait_until(lambda: len(llm.running) == 2)  # noqa: B023
            connection.close()
            wait_until(lambda: not llm.running)  # noqa: B023


def test_leaving_in_the_middle_of_the_body_starts_nothing():
    llm = FakeLLM(endless)
    with live(create_app(llm)) as port:
        raw_request(port, CHAT, b'{"messages": [', content_length="1000").close()
        with raw_request(port, CHAT, {"messages": USER, "stream": True}) as connection:
            connection.recv(4096)
            assert len(llm.calls) == 1
        wait_until(lambda: not llm.running)


def test_a_reader_who_stops_reading_is_noticed_when_it_leaves():
    def fast(prompt_ids, params):
        while True:
            yield Delta(0, "x" * 50_000, [1])
            yield 0.0

    llm = FakeLLM(fast)
    with live(create_app(llm)) as port:
        connection = raw_request(port, CHAT, {"messages": USER, "stream": True})
        wait_until(lambda: len(llm.running) == 1)
        connection.recv(10)
        connection.close()
        wait_until(lambda: not llm.running)


def test_the_connection_is_kept_for_the_next_request():
    with live(create_app(FakeLLM())) as port, raw_request(port, CHAT, {"messages": USER, "stream": True}) as connection:
        first = read_until(connection, b"data: [DONE]\n\n\r\n0\r\n\r\n")
        body = json.dumps({"messages": USER}).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        second = read_until(connection, b"}}}")
    assert b"transfer-encoding: chunked" in first
    assert second.startswith(b"HTTP/1.1 200 ")


def test_sixty_four_streams_with_leavers_end_with_nothing_running():
    def finite(prompt_ids, params):
        for _ in range(30):
            yield Delta(0, "x", [1])
            yield 0.002
        yield Delta(0, "", [2], "stop")

    llm = FakeLLM(finite, max_running=64)
    with live(create_app(llm)) as port:
        connections = [raw_request(port, CHAT, {"messages": USER, "stream": True}) for _ in range(64)]
        for connection in connections[::2]:
            connection.close()
        for connection in connections[1::2]:
            assert read_until(connection, b"data: [DONE]\n\n\r\n0\r\n\r\n").count(b'"finish_reason":"stop"') == 1
            connection.close()
        wait_until(lambda: not llm.running)
    assert len(llm.calls) == 64


def run_stream(llm, *, receive, send, ping_interval_s=15.0):
    """An EventStream over hand-made ASGI callables."""

    async def run():
        job = Job([[1, 2]], SamplingParams(), 0, chat=True, salt="", arrived_s=0.0)
        generation = await Generation.start(llm, job)
        answer = AnswerEnvelope("chat", "chatcmpl-1", 1, "tiny", "fp")
        stream = EventStream(generation, answer, {}, ping_interval_s)
        await stream({"type": "http", "state": {"request_id": "1"}}, receive, send)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_a_stream_that_nobody_began_to_read_is_aborted_by_its_id():
    async def gone():
        return {"type": "http.disconnect"}

    async def send(message):
        raise AssertionError("nobody is there")

    llm = FakeLLM(silent)
    run_stream(llm, receive=gone, send=send)
    assert llm.aborts == [llm.calls[0].request_id]


def test_a_send_that_fails_aborts_the_stream_and_leaves_no_task():
    async def stay():
        await asyncio.sleep(60)

    async def send(message):
        if message["type"] == "http.response.body":
            raise OSError("the connection is gone")

    llm = FakeLLM(endless)
    with pytest.raises(OSError, match="the connection is gone"):
        run_stream(llm, receive=stay, send=send)
    assert not llm.running


def test_a_cancelled_handler_aborts_the_stream():
    async def run():
        stay = asyncio.Event()
        llm = FakeLLM(endless)
        generation = await Generation.start(llm, Job([[1, 2]], SamplingParams(), 0, chat=True, salt="", arrived_s=0.0))
        stream = EventStream(generation, AnswerEnvelope("chat", "c", 1, "tiny", "fp"), {}, 15.0)

        async def send(message):
            started.set()

        started = asyncio.Event()
        task = asyncio.create_task(stream({"type": "http", "state": {"request_id": "1"}}, stay.wait, send))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not llm.running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_comments_do_not_hide_that_the_client_left():
    llm = FakeLLM(silent)
    with live(create_app(llm, ServerSettings(ping_interval_s=0.02))) as port:
        connection = raw_request(port, CHAT, {"messages": USER, "stream": True})
        read_until(connection, b": ping\n\n\r\n")
        connection.close()
        wait_until(lambda: not llm.running)
