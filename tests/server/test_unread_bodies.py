"""Bodies that nobody reads: their client reads its answer whatever it still writes, and its connection ends."""

import contextlib
import http.client
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from jaxinfer.offline.files import KeptLimits
from jaxinfer.server.app import create_app
from jaxinfer.server.linger import DROPPED_BYTES_PER_S, MAX_LINGER_S, Lingering
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from jaxinfer.server.wire import SPARE_BYTES, BoundedProtocol
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, USER, live, read_until

PEM = Path(__file__).parent / "localhost.pem"
KEY = "sk-unread-0123456789"
GIVEN_UP_BYTES = 2**20
KERNEL_BYTES = 16 * 2**20  # of both sockets, at most
JSON = "application/json"


class Short(BoundedProtocol):
    """Gives up sooner."""

    lingering = Lingering(quiet_s=0.3, max_bytes=GIVEN_UP_BYTES)


class Kind(NamedTuple):
    """A request that is answered without its body."""

    method: str
    path: str
    status: int
    content_type: str = JSON
    key: str = KEY
    host: str = "test"


KINDS = {
    "no key": Kind("POST", CHAT, 401, key="sk-other"),
    "another host": Kind("POST", CHAT, 403, host="elsewhere.example"),
    "no such route": Kind("POST", "/v1/nowhere", 404),
    "a route of others": Kind("POST", "/v1/images/generations", 404),
    "another method": Kind("PUT", CHAT, 405),
    "no JSON": Kind("POST", CHAT, 415, "text/plain"),
    "a route that takes no body": Kind("POST", "/v1/responses/resp_x/cancel", 404),
    "GET with a body": Kind("GET", "/health", 200),
    "DELETE with a body": Kind("DELETE", "/v1/sessions/x", 404),
}
REFUSED = {  # for its size
    "a large body": Kind("POST", CHAT, 413),
    "a large file": Kind("POST", "/v1/files", 413, "multipart/form-data; boundary=xx"),
}
FRAMINGS = {
    "a length": "1.1\r\ncontent-length: {}\r\n",
    "chunks": "1.1\r\ntransfer-encoding: chunked\r\n",
    "HTTP/1.0": "1.0\r\ncontent-length: {}\r\n",
    "expected": "1.1\r\ncontent-length: {}\r\nexpect: 100-continue\r\n",
}
FILE = b'--xx\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n'


def asked(kind: Kind, framing: str, num_bytes: int) -> bytes:
    """The head."""
    line = f"{kind.method} {kind.path} HTTP/{FRAMINGS[framing].format(num_bytes)}"
    key = f"authorization: Bearer {kind.key}"
    return f"{line}host: {kind.host}\r\n{key}\r\ncontent-type: {kind.content_type}\r\n\r\n".encode()


def framed(framing: str, body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if framing == "chunks" else body


def served(folder: Path | None = None) -> Starlette:
    settings = ServerSettings(
        api_keys=(ApiKey("unread", KEY),),
        allowed_hosts=("test", "127.0.0.1", "localhost"),
        max_body_bytes=2**20,
        files_folder=folder,
        kept=KeptLimits(max_file_bytes=2**20),
    )
    return create_app(FakeLLM(), settings)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    app = served(tmp_path_factory.mktemp("files"))
    with contextlib.closing(app.state.storage), live(app) as port:
        yield port


@pytest.fixture(scope="module")
def short_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    app = served(tmp_path_factory.mktemp("files"))
    with contextlib.closing(app.state.storage), live(app, protocol=Short) as port:
        yield port


def check(answer: bytes, kind: Kind) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % kind.status), answer[:200]
    assert b"HTTP/1.1 " not in body and isinstance(json.loads(body), dict)


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("kind", (KINDS | REFUSED).values(), ids=KINDS | REFUSED)
def test_who_writes_all_of_a_body_first_reads_the_answer_then_and_the_end(port, kind, framing):
    """It is no use to a client that its answer was there when the kernel has forgotten it."""
    body = FILE + b"x" * (5 * 2**20)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(asked(kind, framing, len(body)) + framed(framing, body))
        time.sleep(0.02)
        check(read_until(connection, b"").removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"), kind)


@pytest.mark.parametrize("framing", ["a length", "chunks", "HTTP/1.0"])
@pytest.mark.parametrize("kind", (KINDS | REFUSED).values(), ids=KINDS | REFUSED)
def test_a_body_without_end_is_not_read_without_end(short_port, kind, framing):
    piece = b"x" * 2**18
    if framing == "chunks":
        piece = framed(framing, piece).removesuffix(b"0\r\n\r\n")
    most = GIVEN_UP_BYTES + SPARE_BYTES + 2**20 + KERNEL_BYTES
    sent = 0
    with socket.create_connection(("127.0.0.1", short_port), timeout=10) as connection:
        connection.sendall(asked(kind, framing, 10**12))
        connection.sendall(framed("chunks", FILE)[:-5] if framing == "chunks" else FILE)
        with pytest.raises(ConnectionError):
            while sent < 4 * most:
                sent += connection.send(piece)
    assert sent < most


@pytest.mark.parametrize("framing", ["a length", "chunks"])
@pytest.mark.parametrize("num_bytes", [1, 1000, SPARE_BYTES])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_behind_an_ordinary_body_that_nobody_read_the_connection_is_as_good_as_before(port, kind, num_bytes, framing):
    """Whether its body comes with the head, behind the answer, or before others in the same piece."""
    head, body = asked(kind, framing, num_bytes), framed(framing, b"x" * num_bytes)
    last = f"GET /health HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head)
        answer = connection.recv(2**16)
        connection.sendall(body + (head + body) * 2 + last)
        answers = (answer + read_until(connection, b"")).split(b"HTTP/1.1 ")[1:]
    assert [int(each[:3]) for each in answers] == [kind.status] * 3 + [200]
    assert [b"connection: close" in each for each in answers] == [False] * 3 + [True]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_body_that_was_not_asked_for_may_never_come(port, kind):
    """So that its connection cannot be used again: what comes next may be that body or another request."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(asked(kind, "expected", 5))
        answer = read_until(connection, b"")
        check(answer, kind)
        assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize("framing", ["a length", "chunks", "expected"])
def test_a_large_body_that_was_read_leaves_the_connection_open(port, framing):
    body = json.dumps({"messages": USER, "user": "x" * 2 * SPARE_BYTES}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for _ in range(2):
            connection.sendall(asked(Kind("POST", CHAT, 200), framing, len(body)))
            if framing == "expected":
                assert read_until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(framed(framing, body))
            answer = read_until(connection, b"}}")
            assert answer.startswith(b"HTTP/1.1 200 ") and b"connection: close" not in answer


def test_an_answer_says_that_it_is_the_last_when_more_of_its_body_is_due_than_is_read(port):
    for kind in KINDS.values():
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(asked(kind, "a length", SPARE_BYTES + 1))
            answer = read_until(connection, b"")
            check(answer, kind)
            assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "last"])
def test_a_client_that_stays_and_writes_nothing_is_dropped(short_port, is_kept):
    """Or a little, which is as good."""
    kind = KINDS["no such route"]
    with socket.create_connection(("127.0.0.1", short_port), timeout=10) as connection:
        connection.sendall(asked(kind, "chunks" if is_kept else "HTTP/1.0", 10**9))
        if is_kept:
            connection.sendall(b"7fffffff\r\n" + b"x" * 2 * SPARE_BYTES)
            time.sleep(0.1)
            connection.sendall(b"x")
        check(read_until(connection, b""), kind)
        with pytest.raises(ConnectionError):
            for _ in range(30):
                time.sleep(0.1)
                connection.sendall(b"x")


def by_http_client(url: str, body: bytes) -> int:
    is_tls = url.startswith("https")
    kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    trust = {"context": ssl.create_default_context(cafile=str(PEM))} if is_tls else {}
    with contextlib.closing(kind(url.split("/")[2], timeout=10, **trust)) as client:
        client.request("POST", CHAT, body, {"content-type": JSON, "authorization": f"Bearer {KEY}"})
        with client.getresponse() as response:
            return response.status


def by_urllib(url: str, body: bytes) -> int:
    asked = urllib.request.Request(url, body, {"content-type": JSON, "authorization": f"Bearer {KEY}"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=10)
    with refused.value as error:
        return error.code


def by_httpx(url: str, body: bytes) -> int:
    headers = {"content-type": JSON, "authorization": f"Bearer {KEY}"}
    return httpx2.post(url, content=iter([body]), headers=headers, timeout=10).status_code


@pytest.mark.parametrize("ask", [by_http_client, by_urllib, by_httpx])
def test_common_clients_are_told_that_a_body_is_too_large(port, ask):
    assert ask(f"http://127.0.0.1:{port}{CHAT}", b" " * 20_000_000) == 413


def test_so_they_are_over_tls():
    with live(served(), pem=PEM) as port:
        assert by_http_client(f"https://localhost:{port}{CHAT}", b" " * 20_000_000) == 413
        trust = ssl.create_default_context(cafile=str(PEM))
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
            trust.wrap_socket(connection, server_hostname="localhost") as wrapped,
        ):
            wrapped.sendall(asked(KINDS["no key"], "chunks", 0) + b"7fffffff\r\n" + b"x" * 2**20)
            check(read_until(wrapped, b"}}"), KINDS["no key"])


def test_a_request_behind_one_whose_body_was_too_much_is_not_begun():
    app = served()
    body = json.dumps({"messages": USER}).encode()
    with live(app) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        unread = asked(KINDS["no such route"], "a length", 2**20) + b"x" * 2**20
        connection.sendall(unread + asked(Kind("POST", CHAT, 200), "a length", len(body)) + body)
        check(read_until(connection, b""), KINDS["no such route"])
    assert not app.state.llm.calls


@given(st.lists(st.integers(1, 2**18), min_size=1, max_size=200), st.floats(0, 10**6))
def test_all_together_read_no_faster_than_one_may(reads, now_s):
    lingering = Lingering()
    due_s = [lingering.pause_s(now_s, num_bytes) for num_bytes in reads]
    assert due_s == sorted(due_s) and due_s[-1] == pytest.approx(sum(reads) / DROPPED_BYTES_PER_S, abs=1e-6)
    assert lingering.pause_s(now_s + MAX_LINGER_S, 2**18) == pytest.approx(2**18 / DROPPED_BYTES_PER_S, abs=1e-6)
