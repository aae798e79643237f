"""What a model writes that JSON or UTF-8 cannot carry: numbers beyond a float, halves of a character, None."""

import json
from typing import Any

import pytest

from jaxinfer.text.tools.formats import Format
from tests.server.http import named_events as events
from tests.server.scripted import ScriptedLLM
from tests.server.test_tools import PIECES, answer, said, streamed, whole
from tests.server.test_tools_of_others import (
    blocks_of,
    message,
    parts_of_message,
    parts_of_response,
    put_together,
    respond,
)

SCHEMA = {"type": "object", "properties": {"n": {"type": "number"}, "all": {"type": "array"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "measure", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "measure", "parameters": SCHEMA}
BLOCK = {"name": "measure", "input_schema": SCHEMA}
HERMES = '<tool_call>\n{"arguments": %s, "name": "measure"}\n</tool_call>'
XML = "<tool_call>\n<function=measure>\n<parameter=%s>\n%s\n</parameter>\n</function>\n</tool_call>"
TEXTS: dict[str, tuple[Format, str]] = {
    "hermes 1e999": ("hermes", HERMES % '{"n": 1e999}'),
    "hermes surrogate": ("hermes", HERMES % r'{"n": "\ud800"}'),
    "hermes surrogate in a string": ("hermes", HERMES % r'"{\"n\": \"\ud800\"}"'),
    "pythonic 1e999": ("pythonic", "[measure(n=1e999)]"),
    "pythonic surrogate": ("pythonic", r'[measure(n="\ud800")]'),
}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "xml 1e999": (XML % ("n", "1e999"), {"n": "1e999"}),
    "xml surrogate": (XML % ("all", r'["\ud800"]'), {"all": r'["\ud800"]'}),
}
CASES: dict[str, tuple[Format, str, list[Any]]] = {
    **{name: (form, says, [says]) for name, (form, says) in TEXTS.items()},
    **{name: ("qwen3_coder", says, [("measure", json.dumps(read))]) for name, (says, read) in CALLS.items()},
}
cases = pytest.mark.parametrize(("form", "says", "parts"), CASES.values(), ids=CASES)


@cases
def test_a_chat_tells_it_as_text(form, says, parts):
    (part,) = parts
    expected = answer(part) if isinstance(part, str) else answer(None, parts, finish="tool_calls")
    assert said(whole(ScriptedLLM(says, form=form), tools=[CHAT_TOOL])[0]) == expected
    assert said(streamed(ScriptedLLM(says, form=form), tools=[CHAT_TOOL])[0]) == expected


@cases
def test_a_response_tells_it_as_text(form, says, parts):
    body = respond(ScriptedLLM(says, form=form), tools=[FLAT])
    assert body.status_code == 200 and parts_of_response(body.json()) == parts
    frames = events(respond(ScriptedLLM(says, form=form), tools=[FLAT], stream=True).text)
    assert frames[-1]["type"] == "response.completed" and parts_of_response(frames[-1]["response"]) == parts
    assert len(put_together(frames)) == 1


@cases
def test_a_message_tells_it_as_text(form, says, parts):
    body = message(ScriptedLLM(says, form=form), tools=[BLOCK])
    assert body.status_code == 200 and parts_of_message(body.json()) == parts
    frames = events(message(ScriptedLLM(says, form=form), tools=[BLOCK], stream=True).text)
    assert frames[-1]["type"] == "message_stop" and blocks_of(frames) == parts


@pytest.mark.parametrize("piece", PIECES)
def test_what_a_stream_has_shown_of_a_call_is_the_beginning_of_json(piece):
    """Anthropic's own client raises for what is not."""
    says = '{"name": "measure", "parameters": {"n": None}}'
    frames = events(message(ScriptedLLM(says, piece=piece, form="llama3_json"), tools=[BLOCK], stream=True).text)
    assert sorted(map(str, blocks_of(frames))) == sorted(["None}}", str(("measure", '{"n": '))])
