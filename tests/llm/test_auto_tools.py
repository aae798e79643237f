"""Calls that a model need not make: once one has begun, its arguments are of its tool's schema."""

import dataclasses
import json
import re

import jsonschema_rs
import pytest
from msgspec.structs import replace

from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.text.chat_template import ChatTemplate

ASK = [{"role": "user", "content": "hi"}]
SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Oslo", "Rome"]},
            "unit": {"enum": ["celsius", "kelvin"]},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
BAD = {
    "type": "object",
    "properties": {"x": {"type": "array", "items": {"type": "string", "pattern": "("}}},
    "required": ["x"],
}


def tools_of(schemas, **fields):
    return [
        {"type": "function", "function": {"name": name, "parameters": schema, **fields}}
        for name, schema in schemas.items()
    ]


@pytest.fixture(params=["hermes", "qwen3_coder"])
def llm(engine, request):
    """With a template of a few tokens: this vocabulary has letters, and tools are long."""
    llm = LLM.over(*engine)
    llm._text = dataclasses.replace(llm._text, template=ChatTemplate("{{ tools|length }}"), tool_format=request.param)
    llm.info = dataclasses.replace(llm.info, tool_format=request.param)
    return llm


@pytest.fixture
def eager(llm):
    """A model that begins a call now and then."""
    opening = llm._text.tokenizer.control_tokens["<tool_call>"]
    return SamplingParams(temperature=1, seed=4, n=8, max_tokens=200, logit_bias={opening: 4.0})


def test_the_arguments_of_every_call_are_of_their_schema(llm, eager):
    before = llm.stats()
    choices = llm.chat(ASK, eager, tools=tools_of(SCHEMAS))[0].outputs
    calls = [call for choice in choices for call in choice.tool_calls]
    assert len(calls) > 5 and {call.name for call in calls} == set(SCHEMAS)
    assert all(jsonschema_rs.is_valid(SCHEMAS[call.name], json.loads(call.arguments)) for call in calls)
    assert llm.stats().forwarded_tokens > before.forwarded_tokens


def test_where_no_call_begins_nothing_is_masked_and_nothing_changes(llm, eager):
    opening = llm._text.tokenizer.control_tokens["<tool_call>"]
    quiet = replace(eager, logit_bias={opening: -100.0}, max_tokens=40)
    before = llm.stats()
    choices = llm.chat(ASK, quiet, tools=tools_of(SCHEMAS))[0].outputs
    assert llm.stats().masked_tokens == before.masked_tokens
    assert not any(choice.tool_calls for choice in choices)
    prompt = llm._text.tokenizer.encode("2", add_special_tokens=False)
    assert [choice.token_ids for choice in choices] == [
        choice.token_ids for choice in llm.generate([prompt], quiet)[0].outputs
    ]


def test_a_schema_that_cannot_be_compiled_is_left_free_alone_and_said(llm, eager, caplog):
    choices = llm.chat(ASK, eager, tools=tools_of({**SCHEMAS, "bad": BAD}))[0].outputs
    assert re.search('arguments of "?bad"? are not held to their schema: .*unclosed group', caplog.text)
    calls = [call for choice in choices for call in choice.tool_calls]
    assert {call.name for call in calls} == {*SCHEMAS, "bad"}
    schemas = {**SCHEMAS, "bad": {"type": "object"}}
    assert all(jsonschema_rs.is_valid(schemas[call.name], json.loads(call.arguments)) for call in calls)
