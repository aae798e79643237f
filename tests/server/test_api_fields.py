"""Every field that clients of the Responses API and of Anthropic's know: carried out, refused by name, or accepted by
design. test_fields.py has those of chat and completions, and the names that all routes refuse.
"""

from typing import Any

import msgspec
import pytest
from openai.types.responses import response_create_params

from jaxinfer.protocol.anthropic import MESSAGES_REFUSED, CountTokensWire, MessagesIgnored, MessagesWire
from jaxinfer.protocol.fields import SAMPLING_FIELDS, Ignored, ignored_by
from jaxinfer.protocol.open_responses import RESPONSE_REFUSED, ResponseWire
from jaxinfer.protocol.structured import STRUCTURED
from tests.server.fakes import FakeLLM
from tests.server.http import MESSAGES, RESPONSES, USER, error_of, post
from tests.server.test_fields import ACCEPTED, FORMS, REFUSED, SAMPLING, TOOL

COUNT = f"{MESSAGES}/count_tokens"
ROUTES = (RESPONSES, MESSAGES, COUNT)
LEAST: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": USER, "max_tokens": 9},
    COUNT: {"messages": USER},
}
WIRES = {RESPONSES: ResponseWire, MESSAGES: MessagesWire, COUNT: CountTokensWire}
TABLES = {RESPONSES: RESPONSE_REFUSED, MESSAGES: MESSAGES_REFUSED, COUNT: MESSAGES_REFUSED}
IGNORING = {
    RESPONSES: ignored_by(Ignored),
    MESSAGES: ignored_by(MessagesIgnored),
    COUNT: ignored_by(MessagesIgnored),
}
# The names of Anthropic's reference, in its order: of /v1/messages, the beta's among them
ANTHROPIC_FIELDS = """
model max_tokens messages system stop_sequences temperature top_k top_p stream tools tool_choice thinking metadata
service_tier container mcp_servers context_management output_config output_format inference_geo cache_control
diagnostics speed user_profile_id workspace_id
"""
EVERYWHERE: dict[str, Any] = {
    "n": 2,
    "prompt_logprobs": 1,
    "session_append": True,
    "session_history": False,
    "functions": [TOOL],
    "function_call": "auto",
    "modalities": ["audio"],
    "best_of": 2,
}
OF_MESSAGES: dict[str, Any] = {
    "stop": ["x"],
    "logprobs": True,
    "container": "x",
    "mcp_servers": [{}],
    "inference_geo": "eu",
    "diagnostics": {},
    "speed": "fast",
}
THOUGHTS = ("reasoning", "thinking_token_budget")  # carried out by some; see test_thoughts.py
REFUSED_BY: dict[str, dict[str, Any]] = {
    RESPONSES: {name: value for name, value in REFUSED.items() if name not in THOUGHTS}
    | EVERYWHERE
    | {
        "max_tool_calls": 3,
        "background": True,
        "conversation": "conv_1",
        "prompt": {"id": "x"},
        "messages": USER,
        "context_management": [{"type": "compaction"}],
        "moderation": {},
        "image": {},
        "access_programs": {},
        "max_tokens": 5,
        "max_completion_tokens": 5,
        "logprobs": True,
    },
    MESSAGES: {name: value for name, value in REFUSED.items() if name not in THOUGHTS[1:]} | EVERYWHERE | OF_MESSAGES,
}
REFUSED_BY[COUNT] = REFUSED_BY[MESSAGES]
ACCEPTED_BY: dict[str, dict[str, Any]] = {
    RESPONSES: {name: value for name, value in ACCEPTED.items() if name not in ("store", "user")}
    | {"stream_options": {"include_obfuscation": True}, "user": "u", "include": ["reasoning.encrypted_content"]},
    MESSAGES: {
        "metadata": {"user_id": "u"},
        "service_tier": "standard_only",
        "cache_control": {"type": "ephemeral"},
        "user_profile_id": "x",
        "workspace_id": "x",
    },
}
ACCEPTED_BY[COUNT] = ACCEPTED_BY[MESSAGES]
PARAMS = {
    RESPONSES: {name: value for name, value in SAMPLING.items() if name not in RESPONSE_REFUSED},
    MESSAGES: {name: value for name, value in SAMPLING.items() if name not in MESSAGES_REFUSED},
}
ECHOED: dict[str, Any] = {
    "instructions": "be brief",
    "metadata": {"a": "b"},
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "parallel_tool_calls": False,
    "tool_choice": "none",
    "store": False,
    "truncation": "auto",
    "max_output_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.25,
    "presence_penalty": 1.5,
    "frequency_penalty": -1.5,
}


def cases(tables: dict[str, dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(path, name, value, id=f"{path.removeprefix('/v1/')} {name}")
        for path, table in tables.items()
        for name, value in table.items()
    ]


def known(path: str) -> set[str]:
    sampling = SAMPLING_FIELDS | STRUCTURED if path != COUNT else frozenset[str]()
    wired = {field.name for field in msgspec.structs.fields(WIRES[path])}
    return wired | TABLES[path].keys() | IGNORING[path] | sampling


def test_every_field_of_the_clients_is_known():
    params = response_create_params
    own = params.ResponseCreateParamsBase.__annotations__ | params.ResponseCreateParamsStreaming.__annotations__
    assert own.keys() - known(RESPONSES) == set()
    assert set(ANTHROPIC_FIELDS.split()) - known(MESSAGES) == set()


@pytest.mark.parametrize("path", ROUTES)
def test_every_refusal_has_an_example(path):
    assert REFUSED_BY[path].keys() == TABLES[path].keys()


@pytest.mark.parametrize(("path", "name", "value"), cases(PARAMS))
def test_a_sampling_field_is_carried_out(path, name, value):
    llm = FakeLLM()
    response = post(llm, path, LEAST[path] | {name: value})
    assert response.status_code == 200, response.text
    assert getattr(llm.calls[0].params, name) == value
    assert "x-jaxinfer-warnings" not in response.headers


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
@pytest.mark.parametrize("name", FORMS)
def test_what_an_answer_must_be_is_carried_out(path, name):
    llm, (given, field, value) = FakeLLM(), FORMS[name]
    response = post(llm, path, LEAST[path] | {name: given})
    assert response.status_code == 200, response.text
    assert getattr(llm.calls[0].params, field) == value
    assert "x-jaxinfer-warnings" not in response.headers


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("fields", "seen", "expected"),
    [
        ({"model": "org/tiny-1B"}, lambda llm, response: response.json()["model"], "org/tiny-1B"),
        ({"session_id": "s"}, lambda llm, _: len(llm.kept), 1),
        ({"priority": -3}, lambda llm, _: llm.calls[0].priority, -3),
        ({"cache_salt": "x"}, lambda llm, _: llm.calls[0].salt, "/x"),
        ({"truncate_prompt_tokens": 2}, lambda llm, _: llm.calls[0].prompt, "t:"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, lambda llm, _: llm.calls[0].prompt, "us"),
        ({"chat_template_kwargs": {"thinking": True}}, lambda llm, _: llm.rendered[0]["kwargs"], {"thinking": True}),
        ({"stream": True}, lambda _, response: response.headers["content-type"][:17], "text/event-stream"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_all_routes_share_is_carried_out(path, fields, seen, expected):
    llm = FakeLLM()
    response = post(llm, path, LEAST[path] | fields)
    assert response.status_code == 200, response.text
    assert seen(llm, response) == expected


@pytest.mark.parametrize(("name", "value"), ECHOED.items())
def test_a_response_repeats_what_it_was_made_with(name, value):
    assert post(FakeLLM(), RESPONSES, LEAST[RESPONSES] | {name: value}).json()[name] == value


@pytest.mark.parametrize(("path", "name", "value"), cases(REFUSED_BY))
def test_it_is_refused_by_name(path, name, value):
    llm = FakeLLM()
    response = post(llm, path, LEAST[path] | {name: value})
    assert response.status_code == 400
    assert error_of(response)["message"].startswith(f"{name} is not supported")
    assert error_of(response)["param"] == (name if path == RESPONSES else None)
    assert not llm.calls and not llm.rendered and not llm.encoded


@pytest.mark.parametrize(("path", "name", "refusal"), cases(TABLES))
def test_a_null_and_what_asks_for_nothing_pass(path, name, refusal):
    for value in (None, *refusal.neutral):
        response = post(FakeLLM(), path, LEAST[path] | {name: value})
        assert response.status_code == 200
        assert "x-jaxinfer-warnings" not in response.headers


@pytest.mark.parametrize(("path", "name", "value"), cases(ACCEPTED_BY))
def test_it_is_accepted_without_effect(path, name, value):
    llm = FakeLLM()
    response = post(llm, path, LEAST[path] | {name: value})
    assert response.status_code == 200, response.text
    assert "x-jaxinfer-warnings" not in response.headers
    post(llm, path, LEAST[path])
    assert llm.rendered[0] == llm.rendered[1]
    assert [call.params for call in llm.calls[:1]] == [call.params for call in llm.calls[1:]]


@pytest.mark.parametrize("path", ROUTES)
def test_what_nobody_reads_is_named_in_the_answer(path):
    response = post(FakeLLM(), path, LEAST[path] | {"verbosity": "low"})
    assert response.headers["x-jaxinfer-warnings"] == "ignored: verbosity"
