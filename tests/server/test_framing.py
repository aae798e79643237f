"""How bodies and answers are framed: for clients of HTTP/1.0, in transfer codings, in character sets."""

import itertools
import json
import re
import socket
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, MESSAGES, RESPONSES, USER, ask_app, error_of, events, live, read_until
from tests.server.storage import FILES

STREAMS = {
    CHAT: {"messages": USER},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": USER, "max_tokens": 9},
}


@pytest.fixture(scope="module")
def llm():
    return FakeLLM()


@pytest.fixture(scope="module")
def app(llm, tmp_path_factory):
    app = create_app(llm, ServerSettings(files_folder=tmp_path_factory.mktemp("files") / "kept"))
    yield app
    app.state.storage.close()


@pytest.fixture(scope="module")
def port(app):
    with live(app) as port:
        yield port


def exchange(port, head, body=b""):
    """The head of the answer, in small letters, and what follows until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
        received = read_until(connection, b"")
    head, _, rest = received.partition(b"\r\n\r\n")
    return head.decode("latin-1").lower(), rest


def send(port, path, body, version="1.0", method="POST", more=""):
    content = json.dumps(body).encode()
    lines = (
        f"{method} {path} HTTP/{version}\nhost: test\ncontent-type: application/json\ncontent-length: {len(content)}"
    )
    return exchange(port, lines + more, content)


@pytest.mark.parametrize("more", ["", "\nconnection: keep-alive"])
@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_to_a_client_of_http_1_0_ends_with_the_connection_and_has_no_chunks(port, path, more):
    plain_head, plain = send(port, path, STREAMS[path] | {"stream": True}, more=more)
    chunked_head, chunked = send(port, path, STREAMS[path] | {"stream": True}, "1.1", more="\nconnection: close")
    assert "transfer-encoding: chunked" in chunked_head and chunked.endswith(b"0\r\n\r\n")
    assert "transfer-encoding" not in plain_head and "content-length" not in plain_head
    assert "connection: close" in plain_head
    assert plain.startswith((b"data: ", b"event: ")) and plain.endswith(b"\n\n")
    assert plain.count(b"\n\n") == chunked.count(b"\n\n")
    if path in (CHAT, COMPLETIONS):
        assert [choice["finish_reason"] for event in events(plain.decode()) for choice in event["choices"]][
            -1
        ] == "stop"


OFFERS = ("h2c", "websocket", "TLS/1.2, HTTP/1.1", "h2c\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")


def framed(content, chunks):
    """A body and the header that says where it ends. chunks: 0 for a length."""
    if not chunks:
        return f"content-length: {len(content)}", content
    size = max(1, len(content) // chunks)
    parts = [content[start : start + size] for start in range(0, len(content), size)]
    return "transfer-encoding: chunked", b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(st.tuples(st.sampled_from([None, *OFFERS]), st.integers(-1, 3)), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 2000), max_size=4),
)
def test_another_protocol_that_is_offered_is_passed_over(port, requests, cuts):
    """As by Java's client and by curl --http2: each request is answered once, wherever the bytes are cut."""
    sent = b""
    for number, (offer, chunks) in enumerate(requests):
        lines = "host: test\ncontent-type: application/json\n"
        lines += f"connection: Upgrade, HTTP2-Settings\nupgrade: {offer}\n" if offer else ""
        if chunks < 0:
            sent += f"GET /v1/models/{number} HTTP/1.1\n{lines}\n".replace("\n", "\r\n").encode()
        else:
            content = json.dumps(STREAMS[COMPLETIONS] | {"user": str(number), "logprobs": number}).encode()
            framing, body = framed(content, chunks)
            sent += f"POST {COMPLETIONS} HTTP/1.1\n{lines}{framing}\n\n".replace("\n", "\r\n").encode() + body
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bounds = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
        for start, end in itertools.pairwise(bounds):
            connection.sendall(sent[start:end])
            time.sleep(0.002)  # a read of its own
        connection.sendall(b"GET /nowhere HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
        received = read_until(connection, b"")
    codes = re.findall(rb"HTTP/1.1 (\d+) ", received)
    assert codes == [b"404" if chunks < 0 else b"200" for _, chunks in requests] + [b"404"], received


@pytest.mark.parametrize("coded", ["0", "gzip", "chunked, gzip"])
def test_an_offer_lets_no_body_pass_whose_end_no_coding_tells(port, coded):
    offer = f"host: test\nconnection: Upgrade\nupgrade: h2c\ntransfer-encoding: {coded}"
    head, rest = exchange(port, f"POST {COMPLETIONS} HTTP/1.1\n{offer}", b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
    assert head.startswith("http/1.1 4") and b"HTTP/1.1" not in rest.partition(b'"error"')[0], (head, rest)


def test_whole_answers_to_http_1_0_have_their_length_as_ever(port):
    head, rest = send(port, CHAT, STREAMS[CHAT])
    assert f"content-length: {len(rest)}" in head and json.loads(rest)["choices"]
    head, rest = exchange(port, "HEAD /v1/models HTTP/1.0")
    assert " 200 " in head and rest == b""
    head, rest = exchange(port, "GET /nowhere HTTP/1.0")
    assert " 404 " in head and json.loads(rest)["error"]


def test_a_stream_that_fails_before_http_1_0_is_answered_is_a_plain_error(port):
    head, rest = send(port, CHAT, {"messages": [], "stream": True})
    assert " 400 " in head and f"content-length: {len(rest)}" in head


def test_http_1_0_is_not_told_to_continue(port):
    head, rest = send(port, CHAT, STREAMS[CHAT], more="\nexpect: 100-continue")
    assert head.startswith("http/1.1 200 ") and json.loads(rest)["choices"]
    head, _ = send(port, CHAT, STREAMS[CHAT], "1.1", more="\nexpect: 100-continue\nconnection: close")
    assert head.startswith("http/1.1 100 continue")


CODINGS = st.lists(st.sampled_from(["gzip", "deflate", "br", "compress", "identity", "x-own", "GZIP"]), min_size=1)
SPLITS = st.sampled_from([", ", ",", " ,\t", "\ntransfer-encoding: "])
CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(CODINGS, SPLITS, st.sampled_from(["chunked", "Chunked"]), st.sampled_from(["1.1", "1.0"]))
def test_transfer_codings_before_chunked_are_a_501_that_names_them(llm, port, codings, split, last, version):
    num_calls = len(llm.calls)
    coded = split.join([*codings, last])
    head = f"POST {CHAT} HTTP/{version}\nhost: test\ncontent-type: application/json\ntransfer-encoding: {coded}"
    head, rest = exchange(port, head, CHUNKED)
    assert head.startswith("http/1.1 501 ") and "connection: close" in head
    error = json.loads(rest)["error"]
    assert error["code"] == "unsupported_transfer_coding" and codings[0].lower() in error["message"]
    assert len(llm.calls) == num_calls


@pytest.mark.parametrize("coded", ["gzip", "chunked, gzip", "chunked, chunked", "chunked;q=1", "xchunked", "identity"])
def test_a_body_whose_end_no_coding_tells_is_a_400(port, coded):
    head = f"POST {CHAT} HTTP/1.1\nhost: test\ncontent-type: application/json\ntransfer-encoding: {coded}"
    head, rest = exchange(port, head, CHUNKED)
    error = json.loads(rest)["error"]
    assert head.startswith("http/1.1 400 ") and error["code"] == "invalid_http"
    if not coded.startswith("chunked,"):  # of which the parser tells us nothing
        assert error["message"].startswith(f"a transfer-encoding must be chunked and nothing else, got {coded!r}")


@pytest.mark.parametrize("coded", ["chunked", "CHUNKED", ", chunked", "\tchunked "])
def test_chunks_alone_are_read(port, coded):
    content = json.dumps(STREAMS[CHAT]).encode()
    head = f"POST {CHAT} HTTP/1.1\nhost: test\ncontent-type: application/json\nconnection: close"
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    head, _ = exchange(port, f"{head}\ntransfer-encoding: {coded}", chunks)
    assert head.startswith("http/1.1 200 ")


@pytest.mark.parametrize("path", [MESSAGES, f"/{MESSAGES}/"])
def test_below_messages_a_501_has_anthropic_s_form(port, path):
    head = f"POST {path} HTTP/1.1\nhost: test\ntransfer-encoding: gzip, chunked"
    assert json.loads(exchange(port, head, CHUNKED)[1])["type"] == "error"


UTF_8 = ["", "; charset=utf-8", '; charset="UTF-8"', ";charset=utf8", "; boundary=x ; Charset=Utf-8"]
OTHERS = [
    "latin-1",
    "iso-8859-1",
    "utf-16",
    "utf-16le",
    "UTF-32",
    "us-ascii",
    "shift_jis",
    "utf-7",
    '""',
    "utf-8-sig",
    "x",
]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/batches"])
@pytest.mark.parametrize("charset", OTHERS)
def test_a_body_in_another_charset_than_utf_8_is_a_415(app, path, charset):
    headers = {"content-type": f"application/json; charset={charset}"}
    response = ask_app(app, "POST", path, content='{"é": 1}'.encode("latin-1"), headers=headers)
    assert response.status_code == 415
    assert "charset must be utf-8" in error_of(response)["message"]


@pytest.mark.parametrize(
    "kinds",
    [
        ["application/json", "application/json; charset=latin1"],
        ["application/json", "application/json"],
        ["application/json; charset*=utf-8''latin1"],
        ["application/json; Charset*0=latin1"],
    ],
    ids=str,
)
def test_a_content_type_that_can_be_read_in_two_ways_is_a_415(app, kinds):
    headers = [("content-type", kind) for kind in kinds]
    response = ask_app(app, "POST", CHAT, content=json.dumps(STREAMS[CHAT]), headers=headers)
    assert response.status_code == 415 and "the content-type must be one" in error_of(response)["message"]


@pytest.mark.parametrize("version", ["2.0", "0.9"])
def test_another_version_of_http_is_a_505(port, version):
    head, rest = send(port, CHAT, STREAMS[CHAT], version)
    assert head.startswith("http/1.1 505 ") and json.loads(rest)["error"]["code"] == "invalid_http"


def test_so_is_a_form_in_one(app):
    form = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=x; charset=latin-1"}
    assert ask_app(app, "POST", FILES, content=form, headers=headers).status_code == 415


@pytest.mark.parametrize("parameters", UTF_8)
def test_utf_8_is_what_it_is_however_that_is_said(app, parameters):
    headers = {"content-type": f"application/json{parameters}"}
    response = ask_app(app, "POST", CHAT, content=json.dumps(STREAMS[CHAT]), headers=headers)
    assert response.status_code == 200


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=20))
def test_no_content_type_is_a_5xx(app, text):
    for value in (text, f"application/json;{text}", f"application/json; charset={text}"):
        headers = [(b"content-type", value.encode("latin-1"))]
        response = ask_app(app, "POST", CHAT, content=b"{}", headers=headers)
        assert response.status_code in (400, 415)


@pytest.mark.parametrize(
    ("codings", "status"),
    [([""], 200), ([" "], 200), (["Identity"], 200), (["gzip"], 415), (["identity", "gzip"], 415), (["", "br"], 415)],
)
def test_no_content_coding_is_the_body_as_it_is_and_any_is_a_415(app, codings, status):
    headers = [("content-type", "application/json"), *(("content-encoding", coding) for coding in codings)]
    response = ask_app(app, "POST", CHAT, content=json.dumps(STREAMS[CHAT]), headers=headers)
    assert response.status_code == status
