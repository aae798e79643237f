"""What an answer must be, through the whole server over an engine that draws: its bytes are those that were sent, and
what cannot be carried out is a 400 that says so, in a stream that has begun an error event with the same code.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from jaxinfer.server.app import create_app
from tests.server.dry import dry_llm
from tests.server.http import CHAT, COMPLETIONS, LEAKS, MESSAGES, RESPONSES, USER, error_of, events, live, named_events
from tests.support.spelt import TEXTS

APART, FACES = TEXTS["letters with marks"], TEXTS["beyond the first plane"]
INSIDE = (
    "NoExtension",
    "<non-verbose",
    "lexer",
    "parser",
    "fuel",
    "Error:",
    "panic",
    "SearchRegex",
    "Some(",
    "registry",
)
COMPLEX = "(x{1,280}){320}"
SELF: dict[str, Any] = {"$ref": "#"}
NODE = {"type": "object", "properties": {"next": SELF}, "required": ["next"], "additionalProperties": False}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an expression of many states": ({"regex": COMPLEX}, "must be small enough"),
    "a pattern of many states": ({"json": {"type": "string", "pattern": f"^{COMPLEX}$"}}, "must be small enough"),
    "a required property that is itself": ({"json": NODE}, "'#' in it asks for another value of itself"),
    "a reference to itself": ({"json": SELF}, "'#' in it asks for another value of itself"),
    "alternatives that are all itself": ({"json": {"anyOf": [SELF, NODE]}}, "'#' in it asks"),
    "items that are itself": ({"json": {"type": "array", "items": SELF, "minItems": 1}}, "'#' in it asks"),
    "a class of nothing": ({"regex": r"[^\x00-\U0010FFFF]"}, "there is no text of it"),
    "rules without an end": ({"grammar": "start: x\nx: y\ny: x"}, "each rule must have a text that ends, and rule"),
    "numbers out of reach": ({"json": {"type": "integer", "minimum": 1e300}}, "bring it nearer to 0"),
    "a part elsewhere": (
        {"json": {"$ref": "other.json#/x"}},
        "$ref must name a part of this schema (#/...), got other.json",
    ),
    "a pattern longer than its bound": (
        {"json": {"type": "string", "pattern": "^a{5}$", "maxLength": 3}},
        "no text is of",
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    llm = dry_llm(0.001, max_model_len=2048)
    with (
        live(create_app(llm), llm.start, llm.close) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


def streamed(client: httpx2.Client, **body: Any) -> tuple[str, dict[str, Any] | None]:
    """The text of a completion that is streamed, and its error."""
    frames = events(client.post(COMPLETIONS, json={"prompt": "x", "stream": True, "seed": 1} | body).text)
    text = "".join(frame["choices"][0]["text"] for frame in frames if frame.get("choices"))
    return text, next((frame["error"] for frame in frames if "error" in frame), None)


@pytest.mark.parametrize(
    "name", ["letters with marks", "letters of Hangul", "names of control tokens", "beyond the first plane"]
)
def test_a_choice_is_streamed_and_whole_as_it_was_sent_cut_anywhere(client, name):
    form = {"structured_outputs": {"choice": [TEXTS[name]]}}
    for length in (*range(1, 9), 60):
        body = {"prompt": "x", "max_tokens": length, "logprobs": 0, **form}
        choice = client.post(COMPLETIONS, json=body).json()["choices"][0]
        whole = choice["text"]
        assert all(offset <= len(whole) for offset in choice["logprobs"]["text_offset"])
        text, error = streamed(client, **body)
        assert text == whole and error is None
        assert TEXTS[name].startswith(text)
    assert text == TEXTS[name]


@pytest.mark.parametrize(
    "schema", [{"enum": [APART]}, {"const": APART}, {"type": "string", "pattern": f"^{APART}$"}], ids=str
)
def test_values_of_schemas_are_as_they_were_sent_on_every_route(client, schema):
    form = {"name": "n", "schema": {"type": "object", "properties": {APART: schema}, "required": [APART]}}
    form["schema"]["additionalProperties"] = False
    nested = {"response_format": {"type": "json_schema", "json_schema": form}}
    chat = client.post(CHAT, json={"messages": USER, "max_tokens": 90, **nested}).json()
    flat = {"text": {"format": {"type": "json_schema", **form}}}
    response = client.post(
        RESPONSES, json={"input": "x", "max_output_tokens": 90, "reasoning": {"effort": "none"}, **flat}
    )
    (message,) = [item for item in response.json()["output"] if item["type"] == "message"]
    for text in (chat["choices"][0]["message"]["content"], message["content"][0]["text"]):
        assert json.loads(text) == {APART: APART}


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_no_route_ends_a_bound_answer_within_a_character(client, choice):
    """Where tools go with it too, and in a stream."""
    schema = {"type": "object", "properties": {FACES: {"const": FACES}}, "required": [FACES]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema | {"additionalProperties": False}}}
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    for length in range(1, 24, 2):
        body = {"messages": USER, "max_tokens": length, "tools": [tool], "tool_choice": choice}
        body |= form if choice == "auto" else {}
        for is_stream in (False, True):
            text = client.post(CHAT, json=body | {"stream": is_stream}).text
            assert "max_tokens" not in text and "\\ufffd" not in text and "\ufffd" not in text


def test_arguments_that_are_due_are_as_the_tool_says(client):
    schema = {"type": "object", "properties": {APART: {"enum": [APART]}}, "required": [APART]}
    schema["additionalProperties"] = False
    function = {"name": "f", "parameters": schema, "strict": True}
    body = {"messages": USER, "max_tokens": 150, "tools": [{"type": "function", "function": function}]}
    answer = client.post(CHAT, json=body | {"tool_choice": "required", "parallel_tool_calls": False}).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {APART: APART}
    tool = {"name": "f", "input_schema": schema}
    body = {"messages": USER, "max_tokens": 150, "tools": [tool]}
    answer = client.post(MESSAGES, json=body | {"tool_choice": {"type": "any"}}).json()
    assert [block["input"] for block in answer["content"] if block["type"] == "tool_use"] == [{APART: APART}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("form", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_carried_out_is_refused_in_a_client_s_words(client, form, why, stream):
    body = {"prompt": "x", "max_tokens": 20, "stream": stream, "structured_outputs": form}
    response = client.post(COMPLETIONS, json=body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["param"], error["code"]) == ("structured_outputs", "invalid_grammar")
    assert why in error["message"] and not any(words in error["message"] for words in (*INSIDE, *LEAKS))


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_tool_that_is_due_and_asks_for_itself_is_refused_on_every_route(client, path):
    least: dict[str, Any] = {"messages": USER, "max_tokens": 20}
    body = {
        CHAT: least
        | {"tools": [{"type": "function", "function": {"name": "f", "parameters": NODE}}], "tool_choice": "required"},
        RESPONSES: {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": NODE}]}
        | {"tool_choice": "required"},
        MESSAGES: least | {"tools": [{"name": "f", "input_schema": NODE}], "tool_choice": {"type": "any"}},
    }[path]
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert "in it asks for another value of itself" in error_of(response)["message"]


# forms that nothing is wrong with until some tokens have come
LATE: dict[str, dict[str, Any]] = {
    "nothing is left": {"regex": "[a-c]{3}x", "allowed_token_ids": [64, 65, 66]},
    "too complex after some": {"structured_outputs": {"grammar": "start: s\ns: s s | A | s s s\nA: /[a-z ]/"}},
}


@pytest.mark.parametrize("form", LATE.values(), ids=LATE)
def test_an_answer_that_no_token_is_left_for_is_a_400_and_in_a_stream_an_event_of_that_code(client, form):
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "seed": 1, **form}
    response = client.post(COMPLETIONS, json=body)
    assert response.status_code == 400, response.text
    whole = error_of(response)
    assert (whole["type"], whole["code"]) == ("invalid_request_error", "no_token_left")
    assert not any(words in whole["message"] for words in INSIDE)
    text, error = streamed(client, **body)
    assert text and error == whole
    body = {"input": "x", "stream": True, "max_output_tokens": 200, "ignore_eos": True, "seed": 1, **form}
    last = named_events(client.post(RESPONSES, json=body).text)[-1]
    assert last["response"]["error"] == {"code": "no_token_left", "message": whole["message"]}
