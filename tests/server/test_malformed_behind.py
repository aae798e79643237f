"""A malformed request behind others on its connection: they get their whole answers, it its refusal, then the end."""

import contextlib
import itertools
import json
import logging
import os
import socket
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jaxinfer.llm.types import Delta
from jaxinfer.server.app import create_app
from jaxinfer.server.wire import MAX_HEAD_BYTES, MAX_HEADERS
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, MESSAGES, RESPONSES, USER, live, raw_request, read_until, wait_until
from tests.support.processes import footprint

HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n".encode()
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
MALFORMED = {
    "no HTTP": (b"\x00\x16\x03\x01 garbage\r\n\r\n", 400),
    "a body longer than was said": (b'{"a": 1}', 400),
    "another method": (b"FETCH / HTTP/1.1\r\n\r\n", 400),
    "a line end and no HTTP": (b"\r\n\r\n\x80", 400),
    "a URL with a control character": (b"GET /\x01 HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "a URL of no form": (b"GET http://[::1 HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "a tunnel": (b"CONNECT test:1 HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "a name with a space": (HEAD + b"a b: c\r\n\r\n", 400),
    "a value with a null": (HEAD + b"a: \x00\r\n\r\n", 400),
    "two lengths": (HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n", 400),
    "a length and chunks": (HEAD + b"content-length: 5\r\n" + CHUNKED + b"0\r\n\r\n", 400),
    "a length that is no number": (HEAD + b"content-length: +5\r\n\r\n", 400),
    "a folded header": (HEAD + b"x: a\r\n b\r\ncontent-length : 5\r\n\r\n", 400),
    "a chunk that is no number": (HEAD + CHUNKED + b"xyz\r\n", 400),
    "a later chunk that is no number": (HEAD + CHUNKED + b"2\r\n{}\r\nxyz\r\n", 400),
    "a chunk that is longer than was said": (HEAD + CHUNKED + b"2\r\n{}}\r\n", 400),
    "a coding other than chunked": (HEAD + b"transfer-encoding: gzip\r\n\r\n", 400),
    "chunked, but not last": (HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    "a coding before chunked": (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 501),
    "an offer and a bad chunk": (HEAD + b"connection: Upgrade\r\nupgrade: h2c\r\n" + CHUNKED + b"xyz\r\n", 400),
    "an offer and a coding": (HEAD + b"connection: Upgrade\r\nupgrade: h2c\r\ntransfer-encoding: gzip\r\n\r\n", 400),
    "another charset": (HEAD[:-2] + b"; charset=latin-1\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}", 415),
    "another version": (HEAD.replace(b"/1.1", b"/2.0") + b"\r\n", 505),
    "HTTP/2 at once": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "one header too many": (HEAD + b"x: y\r\n" * (MAX_HEADERS - 1) + b"\r\n", 431),
    "a header that is too long": (HEAD + b"x: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
    "trailers that are too long": (HEAD + CHUNKED + b"0\r\nx: " + b"a" * (MAX_HEAD_BYTES + 10) + b"\r\n\r\n", 431),
}
ASKED = {
    CHAT: {"messages": USER},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": USER, "max_tokens": 9},
}
ENDS = (b"[DONE]", b"response.completed", b"message_stop")
GOOD = st.tuples(st.sampled_from([*ASKED, "/v1/models"]), st.booleans(), st.booleans())  # streamed, in chunks


def halting(prompt_ids, params):
    """An answer in whose midst more of what is sent comes."""
    yield Delta(0, "Hel", [1])
    yield 0.01
    yield Delta(0, "lo", [2, 257], "stop")


@pytest.fixture(scope="module")
def llm():
    return FakeLLM(halting)


@pytest.fixture(scope="module")
def port(llm):
    with live(create_app(llm)) as port:
        yield port


def request(path, stream, chunks):
    if path not in ASKED:
        return f"GET {path} HTTP/1.1\r\nhost: test\r\n\r\n".encode()
    body = json.dumps(ASKED[path] | {"stream": stream}).encode()
    framing = b"content-length: %d\r\n\r\n%b" % (len(body), body)
    if chunks:
        framing = CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return HEAD.replace(CHAT.encode(), path.encode()) + framing


def exchange(port, sent, cuts=(), *, half_closes=False):
    """The status and the body of each answer until the server closes. cuts: where what is sent comes in pieces."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bounds = sorted({0, len(sent), *(cut % len(sent) for cut in cuts)})
        with contextlib.suppress(OSError):  # it may close before it has read what follows the malformed one
            for start, end in itertools.pairwise(bounds):
                connection.sendall(sent[start:end])
                time.sleep(0.002)  # a read of its own
            if half_closes:
                connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                received += chunk
    return answers_in(received)


def answers_in(received):
    found = []
    while received := received.replace(INTERIM, b""):
        head, _, received = received.partition(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        body = b""
        if b"content-length" in fields:
            size = int(fields[b"content-length"])
            body, received = received[:size], received[size:]
            assert len(body) == size
        else:
            while size := int(received.partition(b"\r\n")[0], 16):
                begin = received.index(b"\r\n") + 2
                body, received = body + received[begin : begin + size], received[begin + size + 2 :]
            received = received.removeprefix(b"0\r\n\r\n")
        found.append((int(head.split(b" ")[1]), body))
    return found


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(
    goods=st.lists(GOOD, min_size=1, max_size=3),
    kind=st.sampled_from(sorted(MALFORMED)),
    behind=st.sampled_from([b"", b"\x00", request(CHAT, False, False)]),
    cuts=st.lists(st.integers(0, 2000), max_size=4),
    half_closes=st.booleans(),
)
@example([(CHAT, True, False)], "no HTTP", b"", [], False)
@example([(CHAT, False, False)], "a chunk that is no number", b"", [], False)
def test_what_was_asked_before_a_malformed_request_is_answered_whole(llm, port, goods, kind, behind, cuts, half_closes):
    malformed, status = MALFORMED[kind]
    num_calls, sent = len(llm.calls), b"".join(request(*good) for good in goods) + malformed + behind
    *answers, refusal = exchange(port, sent, cuts, half_closes=half_closes)
    assert [answer[0] for answer in answers] == [200] * len(goods), (answers, refusal)
    for (path, stream, _), (_, body) in zip(goods, answers, strict=True):
        if stream and path in ASKED:
            assert b"Hel" in body and any(end in body for end in ENDS)
        else:
            assert json.loads(body)
    assert refusal[0] == status and b'"error"' in refusal[1], refusal
    assert len(llm.calls) - num_calls == sum(path in ASKED for path, _, _ in goods)


@pytest.mark.parametrize("kind", MALFORMED)
def test_it_is_refused_as_it_would_be_alone(port, kind):
    malformed, status = MALFORMED[kind]
    (alone,) = exchange(port, malformed)
    assert alone[0] == status
    assert exchange(port, request(CHAT, True, False) + malformed)[1:] == [alone]


def test_a_body_that_turns_malformed_behind_its_answer_has_no_other(port):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: test\r\n" + CHUNKED)
        answer = read_until(connection, b"}}")
        connection.sendall(b"xyz\r\n")
        assert answer.startswith(b"HTTP/1.1 404 ") and read_until(connection, b"") == b""


@pytest.mark.parametrize("asked", ["GET /health", "GET /v1/models", "POST /v1/nope", f"POST {CHAT}", f"DELETE {CHAT}"])
def test_a_request_that_is_refused_at_its_first_chunk_writes_nothing_more(port, asked, caplog):
    head = f"{asked} HTTP/1.1\r\nhost: test\r\n".encode() + CHUNKED
    ((status, body),) = exchange(port, head + b"zz\r\nx")
    assert status == 400 and b'"error"' in body
    (after,) = exchange(port, b"GET /health HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
    assert after[0] == 200  # by then the first has ended
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_nothing_that_comes_behind_a_malformed_request_is_held():
    """It waits for an answer before its own, while its client sends on."""
    llm = FakeLLM(lambda ids, params: [60.0])
    with live(create_app(llm)) as port, raw_request(port, CHAT, {"messages": USER, "stream": True}) as connection:
        wait_until(lambda: len(llm.running) == 1)
        connection.sendall(b"\x00")
        before = footprint(os.getpid()).kib
        for _ in range(64):
            connection.sendall(b"x" * 2**20)
        assert footprint(os.getpid()).kib - before < 10 * 2**10
        assert len(llm.running) == 1
