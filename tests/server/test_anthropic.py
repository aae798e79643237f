"""/v1/messages and its count_tokens: the answer, the events in their order, and errors in Anthropic's shape."""

from typing import Any

import pytest

from jaxinfer.errors import ApiError
from jaxinfer.llm.types import Delta
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from jaxinfer.server.wire import MAX_HEAD_BYTES
from jaxinfer.text.tools.reader import CallDelta
from tests.server.fakes import FakeLLM
from tests.server.http import (
    CHAT,
    MESSAGES,
    USER,
    ask,
    error_of,
    live,
    named_events,
    post,
    raw_request,
    read_until,
    wait_until,
)

COUNT = f"{MESSAGES}/count_tokens"
LEAST: dict[str, Any] = {"messages": USER, "max_tokens": 9}
GOLDEN = """event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"tiny","content":[],\
"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":9,"cache_creation_input_tokens":0,\
"cache_read_input_tokens":9,"output_tokens":2}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: ping
data: {"type":"ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"lo"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":9,\
"cache_creation_input_tokens":0,"cache_read_input_tokens":9,"output_tokens":5}}

event: message_stop
data: {"type":"message_stop"}

"""


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_a_stream_is_the_golden_trace():
    response = post(FakeLLM(), MESSAGES, LEAST | {"stream": True}, x_request_id="1", anthropic_version="2023-06-01")
    assert response.text == GOLDEN
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["request-id"] == response.headers["x-request-id"] == "1"


def test_a_message_is_answered():
    response = post(FakeLLM(), MESSAGES, LEAST, x_request_id="1")
    assert response.json() == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 9,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 9,
            "output_tokens": 5,
        },
    }


@pytest.mark.parametrize(
    ("finish", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", 7, ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("length", None, ("max_tokens", None)),
        ("abort", None, (None, None)),
    ],
)
def test_a_message_says_how_it_ended(finish, stop, expected):
    llm = FakeLLM(lambda ids, params: [Delta(0, "x", [1] * 9, finish, stop)])
    delta = named_events(post(llm, MESSAGES, LEAST | {"stream": True}).text)[-2]["delta"]
    whole = post(llm, MESSAGES, LEAST).json()
    for found in (delta, whole):
        assert (found["stop_reason"], found["stop_sequence"]) == expected


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"system": "Be."}, "system:Be.\nuser:hi\nassistant:"),
        ({"system": [text("A") | {"cache_control": {"type": "ephemeral"}}]}, "system:A\nuser:hi\nassistant:"),
        ({"messages": [said("user", [text("a"), text("b")])]}, "user:a\nb\nassistant:"),
        ({"messages": [*USER, said("assistant", "yo"), *USER]}, "user:hi\nassistant:yo\nuser:hi\nassistant:"),
        ({"messages": [*USER, said("system", "Be.")]}, "user:hi\nsystem:Be.\nassistant:"),
    ],
)
def test_a_conversation_is_what_a_chat_s_would_be(fields, prompt):
    llm = FakeLLM()
    response = post(llm, MESSAGES, LEAST | fields)
    assert (response.status_code, llm.calls[0].prompt) == (200, prompt)
    assert post(llm, COUNT, {"messages": USER} | fields).json() == {"input_tokens": len(prompt)}
    assert llm.rendered[0] == llm.rendered[1]


def test_an_answer_that_the_client_began_goes_on():
    llm = FakeLLM()
    begun = {"messages": [*USER, said("assistant", "It is")]}
    assert post(llm, MESSAGES, LEAST | begun).status_code == 200
    assert post(llm, COUNT, begun).status_code == 200
    assert [(asked["add"], asked["go_on"]) for asked in llm.rendered] == [(False, True)] * 2


def drawn(token: int, **beside: Any) -> FakeLLM:
    """One token is drawn, with what a reading makes of it."""
    return FakeLLM(lambda ids, params: [Delta(0, "x", [token], **({"finish_reason": "length"} | beside))])


@pytest.mark.parametrize(
    "llm",
    [
        drawn(1),
        drawn(257, finish_reason="stop"),
        drawn(1, finish_reason="stop", stop_reason="x"),
        drawn(1, reasoning="Hm.", thinking_tokens=1),
        drawn(1, finish_reason="tool_calls", calls=[CallDelta(0, "a", "f", "{}")]),
        FakeLLM(),
    ],
)
def test_with_max_tokens_0_the_prompt_is_computed_and_the_answer_is_empty(llm):
    usage = {"input_tokens": 9, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 9, "output_tokens": 0}
    answer = post(llm, MESSAGES, LEAST | {"max_tokens": 0})
    assert (answer.status_code, llm.calls[0].prompt) == (200, "user:hi\nassistant:")
    body = answer.json()
    assert (body["content"], body["stop_reason"], body["stop_sequence"]) == ([], "max_tokens", None)
    assert body["usage"] == usage
    begun, ended, last = named_events(post(llm, MESSAGES, LEAST | {"max_tokens": 0, "stream": True}).text)
    assert begun["message"]["content"] == [] and begun["message"]["usage"] == usage
    assert ended["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None} and ended["usage"] == usage
    assert last == {"type": "message_stop"}


def test_stop_sequences_are_the_stop_strings():
    llm = FakeLLM()
    post(llm, MESSAGES, LEAST | {"stop_sequences": ["a", "b"]})
    assert llm.calls[0].params.stop == ["a", "b"]


def test_a_failure_in_mid_stream_is_an_error_event():
    llm = FakeLLM(lambda ids, params: [Delta(0, "Hel", [1]), ApiError("not finite", code="non_finite")])
    response = post(llm, MESSAGES, LEAST | {"stream": True}, x_request_id="1")
    error = {"type": "api_error", "message": "not finite"}
    assert named_events(response.text)[-1] == {"type": "error", "error": error, "request_id": "1"}


def test_a_silence_is_broken_by_a_ping_of_theirs():
    llm = FakeLLM(lambda ids, params: [0.1, Delta(0, "x", [1], "stop")])
    response = post(llm, MESSAGES, LEAST | {"stream": True}, ServerSettings(ping_interval_s=0.02))
    assert response.text.startswith('event: ping\ndata: {"type":"ping"}\n\n')


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": None}, "messages must be given"),
        ({"messages": []}, "messages must be a list of 1 to"),
        ({"messages": [said("user", [{"type": "image"}])]}, "messages[0].content[0] of type image is not supported"),
        (
            {"messages": [said("system", [{"type": "tool_result"}])]},
            "messages[0].content[0] of type tool_result is not",
        ),
        ({"messages": [said("developer", "x")]}, "messages[0].role must be one of user, assistant, system"),
        ({"system": 5}, "system must be"),
        ({"system": [{"type": "image"}]}, "system[0] of type image is not supported"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs may hold"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2}, "max_tokens": 9}, "thinking needs a model that thinks"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_name(path, fields, named):
    response = post(FakeLLM(), path, LEAST | fields)
    assert (response.status_code, error_of(response)["type"]) == (400, "invalid_request_error")
    assert error_of(response)["message"].startswith(named)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens must be given"),
        ({"max_tokens": -1}, "max_tokens must be an integer"),
        ({"output_config": {"format": {"type": "x"}}}, "output_config.format.type must be json_schema"),
        ({"output_format": {"type": "x"}}, "output_format.type must be json_schema"),
        ({"output_format": {"type": "json_schema", "schema": 5}}, "output_format.schema must be a JSON schema"),
        ({"stop_sequences": [""]}, "stop_sequences must be made of"),
        ({"stop_sequences": "x"}, "stop_sequences must be"),
        ({"temperature": 3}, "temperature must be"),
    ],
)
def test_so_are_the_fields_of_an_answer(fields, named):
    response = post(FakeLLM(), MESSAGES, LEAST | fields)
    assert response.status_code == 400 and error_of(response)["message"].startswith(named)


def test_every_refusal_of_the_server_has_the_shape_that_the_clients_read():
    """error_of checks the shape; the statuses are those of chat."""
    llm, locked = FakeLLM(), ServerSettings(api_keys=(ApiKey("a", "sk-0123456789"),))
    small = ServerSettings(max_body_bytes=100)
    named = ServerSettings(allowed_hosts=("localhost",))
    strict = ServerSettings(strict=True)
    found = [
        (post(llm, MESSAGES, LEAST, locked), 401, "authentication_error"),
        (post(llm, MESSAGES, LEAST, named), 403, "permission_error"),
        (post(llm, MESSAGES, LEAST | {"model": "gpt-9"}), 404, "not_found_error"),
        (ask(llm, "GET", f"{MESSAGES}/batches"), 404, "not_found_error"),
        (ask(llm, "GET", MESSAGES), 405, "invalid_request_error"),
        (post(llm, MESSAGES, LEAST | {"metadata": {"user_id": "x" * 200}}, small), 413, "request_too_large"),
        (post(llm, MESSAGES, LEAST, content_type="text/plain"), 415, "invalid_request_error"),
        (post(llm, MESSAGES, b'{"messages": '), 400, "invalid_request_error"),
        (post(llm, MESSAGES, LEAST | {"speling": 1}, strict), 400, "invalid_request_error"),
        (post(FakeLLM(max_running=0), MESSAGES, LEAST), 429, "rate_limit_error"),
        (post(FakeLLM(status="starting"), MESSAGES, LEAST), 503, "overloaded_error"),
        (post(FakeLLM(lambda ids, params: [ApiError("no")]), MESSAGES, LEAST), 500, "api_error"),
        (post(FakeLLM(lambda ids, params: [ZeroDivisionError()]), MESSAGES, LEAST), 500, "api_error"),
    ]
    for response, status, kind in found:
        assert (response.status_code, error_of(response)["type"]) == (status, kind)
        assert ("retry-after" in response.headers) == (status in (429, 503))
    assert error_of(post(llm, "/v1/messagesx", LEAST))["code"] == "not_found", "no path of theirs"


def test_what_never_reached_the_app_has_it_too():
    with (
        live(create_app(FakeLLM())) as port,
        raw_request(port, MESSAGES, LEAST, x_large="x" * (MAX_HEAD_BYTES + 1)) as connection,
    ):
        received = read_until(connection, b"").decode()
    assert (
        received.startswith("HTTP/1.1 431 ") and '{"type":"error","error":{"type":"invalid_request_error"' in received
    )


def test_a_client_that_leaves_frees_what_it_held():
    def endless(ids: list[int], params: Any) -> Any:
        while True:
            yield Delta(0, "x", [1])
            yield 0.01

    llm = FakeLLM(endless)
    with live(create_app(llm)) as port:
        for streamed in (True, False):
            with raw_request(port, MESSAGES, LEAST | {"stream": streamed}):
                wait_until(lambda: len(llm.running) == 1)
            wait_until(lambda: not llm.running)


def test_what_is_sent_is_what_chat_sends():
    """The same prompt and parameters reach the engine."""
    llm = FakeLLM()
    post(llm, MESSAGES, LEAST | {"system": "Be.", "temperature": 0.5, "top_k": 7, "stop_sequences": ["a"]})
    messages = [{"role": "system", "content": "Be."}, *USER]
    post(llm, CHAT, {"messages": messages, "max_tokens": 9, "temperature": 0.5, "top_k": 7, "stop": ["a"]})
    first, second = llm.calls
    assert (first.prompt_ids, first.params, first.chat) == (second.prompt_ids, second.params, second.chat)
