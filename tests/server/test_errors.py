"""Every answer that is not a 2xx: its status, and the one shape of its body."""

import json
import os
import socket

import httpx2
import pytest

from jaxinfer.protocol.body import MAX_VALUES
from jaxinfer.server.app import ROUTES, create_app
from jaxinfer.server.settings import ServerSettings
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, USER, ask, chat, error_of, live, post, raw_request, read_until
from tests.support.processes import footprint

SMALL = ServerSettings(max_body_bytes=1000)


@pytest.mark.parametrize(
    "path", ["/index.html", "/v1", "/v2/models", "/v1/models/x", "/healthy/", "//v2/models", "/v1/embeddings/x"]
)
def test_an_unknown_path_is_a_404(path):
    response = ask(FakeLLM(), "GET", path)
    assert response.status_code == 404
    assert error_of(response)["code"] in ("not_found", "model_not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", CHAT), ("GET", COMPLETIONS), ("POST", "/v1/models"), ("DELETE", "/health")]
    + [("PUT", "/v1/responses/x"), ("GET", "/v1/responses")],
)
def test_another_method_is_a_405_that_names_the_right_ones(method, path):
    response = ask(FakeLLM(), method, path)
    assert response.status_code == 405
    assert response.headers["allow"]
    assert error_of(response)["code"] == "method_not_allowed"
    assert response.headers["allow"] in error_of(response)["message"]


POSTED = [route.path for route in ROUTES if route.methods == {"POST"} and route.endpoint.__name__ != "refuse"]


@pytest.mark.parametrize("path", [path for path in POSTED if path != "/v1/responses/input_tokens"])  # GET's {id} may be
def test_a_head_of_what_is_only_posted_is_a_405_as_a_put_is(path):
    head, put = (ask(FakeLLM(), method, path) for method in ("HEAD", "PUT"))
    assert (head.status_code, head.headers["allow"]) == (put.status_code, put.headers["allow"])
    assert head.status_code == 405


def test_a_byte_order_mark_before_a_body_is_passed_over():
    for text in ("hi", "x" * 400):
        raw = b"\xef\xbb\xbf" + json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        llm = FakeLLM()
        assert post(llm, CHAT, raw).status_code == 200
        assert llm.rendered[0]["messages"][0]["content"] == text


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "multipart/form-data"]
)
def test_a_body_that_does_not_say_it_is_json_is_a_415(content_type):
    response = post(FakeLLM(), CHAT, {"messages": USER}, content_type=content_type)
    assert response.status_code == 415
    assert error_of(response)["code"] == "unsupported_media_type"


def test_the_content_type_may_have_parameters_and_any_case():
    assert post(FakeLLM(), CHAT, {"messages": USER}, content_type="Application/JSON; charset=utf-8").status_code == 200


def test_a_compressed_body_is_a_415():
    assert post(FakeLLM(), CHAT, {"messages": USER}, content_encoding="gzip").status_code == 415


BAD_JSON = {
    "empty": b"",
    "not json": b"hello",
    "cut short": b'{"messages": [',
    "a list": b"[]",
    "a number": b"5",
    "a string": b'"x"',
    "null": b"null",
    "trailing bytes": b'{"messages": []} x',
    "two byte order marks": b'\xef\xbb\xbf\xef\xbb\xbf{"messages": []}',
    "byte order mark within": b'{\xef\xbb\xbf"messages": []}',
    "utf-16": '{"messages": []}'.encode("utf-16"),
    "invalid utf-8": b'{"messages": "\xff"}',
    "lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "lone low surrogate in a key": b'{"\\uDC00": 1}',
    "duplicate key": b'{"model": "tiny", "model": "x"}',
    "duplicate key inside": b'{"messages": [{"role": "user", "role": "system"}]}',
    "nested lists": b'{"messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "nested lists, deeper": b'{"messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "nested objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "65 levels": b'{"a":' * 65 + b"1" + b"}" * 65,
    "only opened": b"[" * 100_000,
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "a number of 5000 digits": b'{"seed": ' + b"9" * 5000 + b"}",
    "a control character": b'{"model": "a\nb"}',
    "too many values": b'{"stop": [' + b"1, " * 2**18 + b"1]}",
    "too many lists": b'{"prompt": [' + b"[]," * 2**18 + b"1]}",
    "too many fields": json.dumps({str(number): 1 for number in range(257)}).encode(),
}


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
@pytest.mark.parametrize("raw", BAD_JSON.values(), ids=BAD_JSON.keys())
def test_json_that_can_be_read_in_two_ways_or_not_at_all_is_a_400(raw, path):
    response = post(FakeLLM(), path, raw)
    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_json"


def test_a_number_that_is_not_json_names_its_field():
    assert error_of(post(FakeLLM(), CHAT, b'{"temperature": NaN, "messages": []}'))["param"] == "temperature"
    assert error_of(post(FakeLLM(), CHAT, b'{"model": "a", "model": "b"}'))["param"] == "model"
    body = b'{"temperature": 1e309, "messages": [{"role": "user", "content": "x"}]}'
    assert error_of(post(FakeLLM(), CHAT, body))["param"] == "temperature"


def test_sixty_four_levels_and_a_whole_surrogate_pair_pass():
    nested = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00 \\\\ud800"}], "metadata": {"a": '
    nested += b"[" * 61 + b"]" * 61 + b"}}"
    llm = FakeLLM()
    assert post(llm, CHAT, nested).status_code == 200
    assert llm.rendered[0]["messages"][0]["content"] == "\U0001f600 \\ud800"


def test_a_large_body_is_read_too():
    llm = FakeLLM(max_model_len=10**6)
    assert chat(llm, user="u" * 200_000).status_code == 200


@pytest.mark.parametrize("text", ["1,2,3:[{", '","', '\\"[[', "\\\\,", '\\\\"{,\\'], ids=ascii)
def test_what_stands_in_a_string_is_no_value(text):
    assert post(FakeLLM(), COMPLETIONS, {"prompt": "x", "user": text * 2**18}).status_code == 200


def test_as_many_values_as_the_limit_allows_pass():
    raw = b'{"prompt": "x", "metadata": {"a": [%s1]}}'
    fitting = MAX_VALUES - raw.count(b":") - raw.count(b",") - raw.count(b"[") - raw.count(b"{")
    assert post(FakeLLM(), COMPLETIONS, raw % (b"1," * fitting)).status_code == 200
    assert post(FakeLLM(), COMPLETIONS, raw % (b"1," * (fitting + 1))).status_code == 400


def test_a_body_over_the_limit_is_a_413():
    response = post(FakeLLM(), CHAT, {"messages": USER, "user": "u" * 1000}, SMALL)
    assert response.status_code == 413
    assert error_of(response)["code"] == "body_too_large"
    assert response.headers["connection"] == "close"
    assert post(FakeLLM(), CHAT, {"messages": USER, "user": "u" * 900}, SMALL).status_code == 200


def test_a_chunked_body_is_cut_off_at_the_limit():
    async def chunks():
        for _ in range(20):
            yield b" " * 100
        raise AssertionError("more was read than the limit allows")

    response = ask(FakeLLM(), "POST", CHAT, SMALL, content=chunks(), headers={"content-type": "application/json"})
    assert response.status_code == 413


def test_a_body_that_announces_too_much_is_refused_before_it_is_sent():
    with live(create_app(FakeLLM())) as port:
        connection = raw_request(port, CHAT, b"", content_length=str(64 * 2**20))
        with connection:
            head = read_until(connection, b"}}")
        assert head.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("request_id", ["abc-1.2:3", "x" * 128])
def test_a_clients_request_id_comes_back(request_id):
    assert post(FakeLLM(), CHAT, {"messages": USER}, x_request_id=request_id).headers["x-request-id"] == request_id
    assert ask(FakeLLM(), "GET", "/nowhere", headers={"x-request-id": request_id}).headers["x-request-id"] == request_id


@pytest.mark.parametrize("request_id", ["", "a b", "x" * 129, "é", "a\x7f", '"><script>'])
def test_an_id_that_cannot_be_used_is_replaced(request_id):
    headers = {"x-request-id": request_id.encode()}
    got = ask(FakeLLM(), "GET", "/version", headers=headers).headers["x-request-id"]
    assert got != request_id and len(got) == 32


def test_one_request_id_may_be_in_use_twice_at_once():
    llm = FakeLLM()
    for _ in range(2):
        assert post(llm, CHAT, {"messages": USER}, x_request_id="same").json()["id"] == "chatcmpl-same"
    assert len({call.request_id for call in llm.calls}) == 2


def test_no_error_is_long_whatever_was_sent():
    responses = [post(FakeLLM(), CHAT, raw) for raw in BAD_JSON.values()]
    responses += [chat(FakeLLM(), n=value) for value in ("x" * 500, [1] * 500, {"a": "b"}, 10**300, -1)]
    for response in responses:
        assert error_of(response) and len(response.text) < 500


def test_a_body_of_64_mib_costs_no_more_than_the_limit_and_leaves_nothing():
    """A09: whether it says so first or comes in chunks."""
    blank = b" " * 2**16
    framings = {b"content-length: 67108864": blank, b"transfer-encoding: chunked": b"10000\r\n" + blank + b"\r\n"}
    head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n".encode()
    with live(create_app(FakeLLM())) as port:

        def send(framing: bytes, piece: bytes, num_pieces: int = 1024) -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(head + framing + b"\r\n\r\n")
                for _ in range(num_pieces):
                    connection.sendall(piece)
                return read_until(connection, b"")

        for framing, piece in framings.items():
            send(framing, piece, 300)  # the first may import and cache
            before = footprint(os.getpid()).kib
            assert send(framing, piece).startswith(b"HTTP/1.1 413 ")
            assert footprint(os.getpid()).kib - before < 10 * 2**10
        assert httpx2.post(f"http://127.0.0.1:{port}{CHAT}", json={"messages": USER}).status_code == 200
