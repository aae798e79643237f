"""What is refused below the app: endless heads, drips, framing with two readings, no reading (A10, A11, A12, A45)."""

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from statistics import median

import httpx2
import pytest

from jaxinfer.llm.types import Delta
from jaxinfer.server.app import create_app
from jaxinfer.server.linger import Lingering
from jaxinfer.server.wire import MAX_HEADERS, MAX_PIPELINED, BoundedProtocol
from tests.server.dry import dry_server
from tests.server.fakes import FakeLLM, hello
from tests.server.http import CHAT, LEAKS, USER, live, raw_request, read_until, wait_until
from tests.server.rest import canary, ends_at_rest
from tests.support.processes import footprint

REQUEST = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n".encode()
BODY = json.dumps({"messages": USER}).encode()


class Hasty(BoundedProtocol):
    """Gives up after 0.4 s instead of ten."""

    patience_s = 0.4
    slow_reader_s = 0.5
    lingering = Lingering(quiet_s=1.0, max_bytes=8 * 2**20)


@pytest.fixture(scope="module")
def llm() -> FakeLLM:
    return FakeLLM()


@pytest.fixture(scope="module")
def port(llm: FakeLLM) -> Iterator[int]:
    with live(create_app(llm), protocol=Hasty) as port:
        yield port


def send(port: int, raw: bytes) -> bytes:
    """All that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        with contextlib.suppress(ConnectionError):  # closed while we still write
            connection.sendall(raw)
        with contextlib.suppress(ConnectionError):
            return read_until(connection, b"")
        return b""


def error_code(received: bytes) -> str:
    assert not any(leak.encode() in received for leak in LEAKS)
    return json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"]


def works(port: int) -> bool:
    return httpx2.post(f"http://127.0.0.1:{port}{CHAT}", json={"messages": USER}).status_code == 200


HEADS = {
    "a header of 1 MB": REQUEST + b"x: " + b"a" * 2**20 + b"\r\n\r\n",
    "a header of 64 MB without end": REQUEST + b"x: " + b"a" * 2**26,
    "a name of 1 MB": REQUEST + b"a" * 2**20 + b": x\r\n\r\n",
    "10,000 headers": REQUEST + b"x: y\r\n" * 10_000 + b"\r\n",
    "one header too many": REQUEST + b"x: y\r\n" * (MAX_HEADERS - 1) + b"\r\n",
    "a URL of 1 MB": b"GET /" + b"a" * 2**20 + b" HTTP/1.1\r\nhost: test\r\n\r\n",
    "trailers of 1 MB": REQUEST + b"transfer-encoding: chunked\r\n\r\n0\r\nx: " + b"a" * 2**20 + b"\r\n\r\n",
    "a chunk's extension of 1 MB": REQUEST + b"transfer-encoding: chunked\r\n\r\n1;" + b"a" * 2**20 + b"\r\n",
}


@pytest.mark.parametrize("raw", HEADS.values(), ids=HEADS.keys())
def test_a_head_without_end_is_cut_off(llm, port, raw):
    before, num_calls = footprint(os.getpid()).kib, len(llm.calls)  # this process is the server's too
    received = send(port, raw)
    assert received == b"" or (received.startswith(b"HTTP/1.1 4") and error_code(received) == "head_too_large")
    assert footprint(os.getpid()).kib - before < 10 * 2**10
    assert len(llm.calls) == num_calls
    assert works(port)


def test_a_head_within_the_limits_passes(port):
    headers = b"x: y\r\n" * (MAX_HEADERS - 5) + b"y: " + b"a" * 60_000
    raw = REQUEST + headers + b"\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
    assert send(port, raw).startswith(b"HTTP/1.1 200 ")


DRIPS = {
    "a head": REQUEST + b"x: ",
    "a URL": b"GET /",
    "line ends": b"\r\n",
    "a body": REQUEST + b"content-length: 1000000\r\n\r\n",
    "a body that nobody reads": b"POST /nowhere HTTP/1.1\r\nhost: test\r\ncontent-length: 1000000\r\n\r\n",
    "chunks": REQUEST + b"transfer-encoding: chunked\r\n\r\n1\r\n",
}


def test_a_request_that_comes_in_drips_is_closed(port):
    with contextlib.ExitStack() as stack:
        dripping = {}
        for name, begun in DRIPS.items():
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            connection.sendall(begun)
            dripping[name] = connection, b"\r\n" if name == "line ends" else b"1"
        ended_s = time.monotonic() + 5
        while dripping and time.monotonic() < ended_s:
            time.sleep(0.05)
            for name, (connection, drip) in list(dripping.items()):
                try:
                    connection.sendall(drip)
                except ConnectionError:
                    del dripping[name]
    assert not dripping, "still open"


def test_five_hundred_that_drip_hold_up_nobody(port):
    def answered_s() -> float:
        begun_s = time.monotonic()
        assert works(port)
        return time.monotonic() - begun_s

    alone_s = max(answered_s() for _ in range(5))
    with contextlib.ExitStack() as stack:
        drips = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(500)]
        for number, connection in enumerate(drips):
            connection.sendall(REQUEST if number % 2 else REQUEST + b"content-length: 999\r\n\r\n{")
        # the median: the first of them waits for 500 connections to be taken, and the processors are shared
        assert median(answered_s() for _ in range(5)) < 2 * alone_s + 0.25
        answers = [read_until(connection, b"") for connection in drips]
    assert all(answer.startswith(b"HTTP/1.1 408 ") and error_code(answer) == "request_timeout" for answer in answers)


@pytest.mark.slow
def test_five_hundred_that_drip_a_byte_a_second_are_closed_in_fifteen_and_hold_up_nobody(tmp_path):
    """A11, with the patience that the server has by default; who is not held up is told what it always is."""
    begun = [REQUEST, REQUEST + b"content-length: 999\r\n\r\n{"]
    with dry_server(tmp_path / "log") as served, ends_at_rest(served.place), contextlib.ExitStack() as stack:

        def answered_s() -> float:
            begun_s = time.monotonic()
            canary(served.place)
            return time.monotonic() - begun_s

        alone_s = median(answered_s() for _ in range(9))
        address = ("127.0.0.1", served.port)
        drips = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(500)]
        for number, connection in enumerate(drips):
            connection.sendall(begun[number % 2])
        began_s, beside_s = time.monotonic(), []
        while drips and time.monotonic() - began_s < 20:
            beside_s += [answered_s() for _ in range(5)]
            for connection in list(drips):
                try:
                    connection.sendall(b"x")
                except ConnectionError:
                    drips.remove(connection)
            time.sleep(1)
        assert not drips, "still open"
        assert time.monotonic() - began_s < 15
        assert median(beside_s) < 2 * alone_s


def test_a_slow_body_that_does_come_is_read(port):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        padding = b" " * 40_000
        connection.sendall(REQUEST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % (len(BODY) + 160_000))
        for _ in range(4):
            connection.sendall(padding)
            time.sleep(0.25)
        connection.sendall(BODY)
        assert read_until(connection, b"").startswith(b"HTTP/1.1 200 ")


def test_a_line_end_behind_a_request_does_not_end_a_slow_answer():
    slow = FakeLLM(lambda ids, params: [0.9, *hello(ids, params)])
    with (
        live(create_app(slow), protocol=Hasty) as port,
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
    ):
        connection.sendall(REQUEST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        time.sleep(0.1)
        connection.sendall(b"\r\n")
        assert read_until(connection, b"}").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("num_cut", [5, len(BODY) + 9], ids=["body", "head"])
@pytest.mark.parametrize("wait_s", [0.0, 0.9], ids=["quick", "slow"])
def test_a_request_that_stalls_in_the_read_of_one_before_it_is_a_408(num_cut, wait_s):
    llm = FakeLLM(lambda ids, params: [wait_s, *hello(ids, params)])
    whole = REQUEST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    with live(create_app(llm), protocol=Hasty) as port:
        answers = send(port, whole + whole[:-num_cut]).split(b"HTTP/1.1 ")[1:]
    assert [each[:4] for each in answers] == [b"200 ", b"408 "]
    assert error_code(answers[1]) == "request_timeout"


def test_a_body_that_stalls_behind_a_running_answer_does_not_cut_that_off():
    def steady(ids, params):
        for _ in range(12):
            yield from (Delta(0, "x", [1]), 0.1)
        yield Delta(0, "", [2], "stop")

    with (
        live(create_app(FakeLLM(steady)), protocol=Hasty) as port,
        raw_request(port, CHAT, {"messages": USER, "stream": True}) as connection,
    ):
        begun = read_until(connection, b"\n\n\r\n")
        connection.sendall(REQUEST + b"content-length: 1000\r\n\r\n{")
        answer, status, refusal = (begun + read_until(connection, b"")).partition(b"HTTP/1.1 408 ")
    assert answer.count(b'"content":"x"') == 12 and answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert error_code(status + refusal) == "request_timeout"  # in its turn


def test_who_sends_too_many_requests_before_it_has_an_answer_is_closed():
    longest = 0

    class Counting(BoundedProtocol):
        def on_headers_complete(self):
            nonlocal longest
            try:
                super().on_headers_complete()
            finally:
                longest = max(longest, len(self.pipeline))

    llm, ahead = FakeLLM(lambda ids, params: [60.0]), b"GET /version HTTP/1.1\r\nhost: test\r\n\r\n"
    with live(create_app(llm), protocol=Counting) as port, raw_request(port, CHAT, {"messages": USER}) as connection:
        wait_until(lambda: len(llm.running) == 1)
        with contextlib.suppress(ConnectionError):
            connection.sendall(ahead * 4000)
        with contextlib.suppress(ConnectionError):
            assert read_until(connection, b"") == b""
        wait_until(lambda: not llm.running)
        assert longest == MAX_PIPELINED + 1  # whatever else the same read held
    assert len(llm.calls) == 1


def test_as_many_requests_as_may_wait_are_answered_in_their_order():
    slow = FakeLLM(lambda ids, params: [0.3, *hello(ids, params)])
    with live(create_app(slow)) as port, raw_request(port, CHAT, {"messages": USER}) as connection:
        wait_until(lambda: len(slow.running) == 1)
        heads = [b"GET /version HTTP/1.1\r\nhost: test\r\nx-request-id: %d\r\n" % i for i in range(MAX_PIPELINED)]
        connection.sendall(b"\r\n".join(heads) + b"connection: close\r\n\r\n")
        received = read_until(connection, b"")
    assert b'"Hello"' in received.partition(b"}HTTP/1.1 ")[0]
    assert re.findall(rb"x-request-id: (\d+)\r", received) == [b"%d" % number for number in range(MAX_PIPELINED)]


def test_who_never_reads_is_dropped_for_that_reason_and_others_notice_nothing(caplog):
    def endless(ids, params):
        while True:
            yield Delta(0, "x" * 65_536 if params.seed == 1 else "x", [1])
            yield 0.01

    llm = FakeLLM(endless)
    body = {"messages": USER, "stream": True}
    with (
        live(create_app(llm), protocol=Hasty) as port,
        raw_request(port, CHAT, body) as reader,
        raw_request(port, CHAT, body | {"seed": 1}, x_request_id="sleeps") as sleeper,
    ):
        wait_until(lambda: len(llm.calls) == 2)
        wait_until(lambda: len(llm.running) == 1)
        assert llm.aborts == [call.request_id for call in llm.calls if call.params.seed == 1]
        read_until(reader, b"\n\n\r\n")
        assert len(llm.running) == 1
        page = httpx2.get(f"http://127.0.0.1:{port}/metrics").text
        assert 'jaxinfer:aborted_requests_total{reason="slow_client"} 1.0' in page
        assert 'jaxinfer:aborted_requests_total{reason="client_left"} 0.0' in page
        (line,) = [record for record in caplog.records if "a client was dropped" in record.getMessage()]
        assert (line.reason, line.request_id) == ("slow_client", "sleeps")
        assert "(slow_client)" in line.getMessage() and line.getMessage().endswith("request sleeps")
        with contextlib.suppress(ConnectionError):
            while sleeper.recv(2**20):
                """What the kernel holds; then the end."""


FRAMES = {
    "two lengths": b"content-length: 5\r\ncontent-length: 6\r\n\r\n",
    "a length and chunks": b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length that is no number": b"content-length: +5\r\n\r\n",
    "a chunk that is no number": b"transfer-encoding: chunked\r\n\r\nxyz\r\n",
    "chunked, but not last": b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a folded header": b"x: a\r\n b\r\ncontent-length : 5\r\n\r\n",
}


@pytest.mark.parametrize("rest", FRAMES.values(), ids=FRAMES.keys())
def test_framing_that_can_be_read_in_two_ways_runs_nothing(llm, port, rest):
    num_calls = len(llm.calls)
    received = send(port, REQUEST + rest + BODY)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert error_code(received) == "invalid_http"
    assert len(llm.calls) == num_calls


def test_a_thousand_requests_on_one_connection(llm, port):
    num_calls, num_threads = len(llm.calls), threading.active_count()
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(1000):
            assert client.post(CHAT, json={"messages": USER}).status_code == 200
    assert len(llm.calls) - num_calls == 1000
    assert threading.active_count() < num_threads + 10


@pytest.mark.parametrize("num_bytes", [0, 2**12, 3 * 2**20])
@pytest.mark.parametrize("bad", [b"GET / HTTP/9.9\r\n\r\n", b"no request at all\r\n\r\n", b"GET /" + b"a" * 2**17])
def test_a_client_that_still_writes_reads_why_it_is_refused(port: int, bad: bytes, num_bytes: int) -> None:
    """Without a reset, which would drop the answer before the client has read it."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(bad + b"x" * num_bytes)
        time.sleep(0.1)
        assert error_code(read_until(connection, b"")) in ("invalid_http", "head_too_large")


def test_a_client_that_never_stops_writing_is_dropped(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"no request at all\r\n\r\n")
        watch = time.monotonic()
        with pytest.raises(ConnectionError):
            for _ in range(4 * Hasty.lingering.max_bytes // 2**16):
                connection.sendall(b"x" * 2**16)
        assert time.monotonic() - watch < 10


def test_a_client_that_stays_behind_a_refusal_is_dropped(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"no request at all\r\n\r\n")
        assert error_code(read_until(connection, b"")) == "invalid_http"
        with pytest.raises(ConnectionError):
            for _ in range(100):
                time.sleep(0.1)
                connection.sendall(b"x")
