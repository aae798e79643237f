"""Null within tools and schemas, as clients in Go and C# write what they leave out: to every door as if left out."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.anthropic import read_message_request
from jaxinfer.protocol.chat import read_chat
from jaxinfer.protocol.completions import read_completion
from jaxinfer.protocol.null_keywords import without_nulls
from jaxinfer.protocol.ollama import read_ollama_chat
from jaxinfer.protocol.open_responses import read_response_request
from jaxinfer.protocol.structured import constraint_of
from jaxinfer.protocol.tools import Tools, read_tools

USER = [{"role": "user", "content": "x"}]
NULLS: dict[str, Any] = dict.fromkeys(
    ("properties", "required", "enum", "pattern", "maxItems", "anyOf", "additionalProperties", "description", "$ref")
)
WITHIN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string"} | NULLS,
        "b": {"type": "array", "items": {"anyOf": [{"type": "integer"} | NULLS, {"type": "null"}]} | {"enum": None}},
    },
    "required": None,
}
MEANT = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "b": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    },
}


def ollama(**fields: Any) -> Any:
    return read_ollama_chat({"messages": USER, **fields}, max_model_len=100).request


def messages(**fields: Any) -> Any:
    return read_message_request({"messages": USER, "max_tokens": 9, **fields})


def of_responses(**fields: Any) -> Any:
    return read_response_request({"input": "x", **fields}, lambda _: [], lambda _: None).chat


def tool(schema: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema} | more}]


TOOL_DOORS: dict[str, Callable[[Any], Tools | None]] = {
    "chat": lambda schema: read_chat({"messages": USER, "tools": tool(schema)}).tools,
    "auto": lambda schema: read_chat({"messages": USER, "tools": tool(schema), "tool_choice": "auto"}).tools,
    "responses": lambda schema: of_responses(tools=[{"type": "function", "name": "f", "parameters": schema}]).tools,
    "messages": lambda schema: messages(tools=[{"name": "f", "input_schema": schema}]).tools,
    "ollama": lambda schema: ollama(tools=tool(schema)).tools,
    "LLM.chat": lambda schema: read_tools(tool(schema), None, True),
}


@pytest.mark.parametrize("door", TOOL_DOORS)
@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"type": "object", "properties": None}, {"type": "object"}),
        ({"type": "object", "properties": None, "required": None}, {"type": "object"}),
        (NULLS | {"type": None}, {}),
        (WITHIN, MEANT),
    ],
)
def test_a_null_keyword_of_a_tool_is_left_out_for_the_model_and_for_its_calls(door, sent, meant):
    given = copy.deepcopy(sent)
    read = TOOL_DOORS[door](given)
    assert read is not None and read.use is not None
    assert [each["function"]["parameters"] for each in read.shown] == [meant]
    assert read.use.schemas == {"f": meant}
    assert given == sent, "a caller's own schema stays as it is"


def test_null_fields_of_a_tool_are_not_shown_to_the_model():
    read = read_tools(tool(None, description=None, strict=None), None, True)
    assert read is not None and read.shown == [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize("schema", [{"properties": {"a": None}}, {"properties": {"a": {}}, "required": [None]}])
def test_a_null_in_the_place_of_a_schema_or_a_name_is_refused(schema):
    with pytest.raises(InvalidRequest, match=r"tools\[0\]\.function\.parameters\.(properties\.a|required) must be"):
        read_tools(tool(schema), None, True)


FORM_DOORS: dict[str, Callable[[Any], Any]] = {
    "chat": lambda schema: read_chat({"messages": USER, "response_format": form(json_schema={"schema": schema})}),
    "completions": lambda schema: read_completion({"prompt": "x", "guided_json": schema}, vocab_size=9),
    "responses": lambda schema: of_responses(text={"format": form(schema=schema, name="x", json_schema=None)}),
    "messages": lambda schema: messages(output_config={"format": form(schema=schema)}),
    "a text": lambda schema: read_completion({"prompt": "x", "json_schema": json.dumps(schema)}, vocab_size=9),
}


def form(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", **fields}


def schema_of(request: Any) -> Any:
    constraint = constraint_of(request.sampling)
    assert constraint is not None
    return json.loads(constraint.value)


@pytest.mark.parametrize("door", FORM_DOORS)
def test_a_null_keyword_of_what_an_answer_must_be_is_left_out(door):
    assert schema_of(FORM_DOORS[door](WITHIN)) == MEANT


def test_an_object_that_says_null_of_other_names_has_no_others_below_api():
    read = ollama(format={"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": None})
    assert schema_of(read)["additionalProperties"] is False


def test_the_schema_of_a_structural_tag_has_no_null_keywords():
    tags = {"structures": [{"begin": "<f>", "schema": WITHIN, "end": ""}], "triggers": ["<f>"]}
    read = read_completion({"prompt": "x", "structural_tag": tags}, vocab_size=9)
    assert schema_of(read)["structures"][0]["schema"] == MEANT


@pytest.mark.parametrize(
    "schema",
    [
        {"const": None},
        {"enum": [None, "a"], "default": None, "examples": [None], "example": None},
        {"properties": {"a": {"const": None}, "b": {"enum": [{"pattern": None}], "default": {"pattern": None}}}},
    ],
)
def test_a_null_that_is_a_value_stays(schema):
    assert without_nulls(schema) == schema
