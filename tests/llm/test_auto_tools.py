"""Calls that a model need not make: once one has begun, its arguments are of its tool's schema."""

import copy
import dataclasses
import itertools
import json
import re

import jsonschema_rs
import pytest
from msgspec.structs import replace

from jaxinfer.engine.sequence import Add, Request, Structure
from jaxinfer.errors import InvalidRequest
from jaxinfer.llm import structure
from jaxinfer.llm.llm import LLM
from jaxinfer.llm.structure import check_here, constraint_for, structure_of
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.reading import Reading
from jaxinfer.text.tools.formats import FORMATS
from jaxinfer.text.tools.opening import opening_of
from jaxinfer.text.tools.reader import ToolUse
from tests.support.grammars import takes
from tests.text.tools.test_tool_grammars import read

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


@pytest.fixture(scope="module")
def plain(engine):
    return LLM.over(*engine)


def with_tools(plain, form):
    """With a template of a few tokens: this vocabulary has letters, and tools are long."""
    llm = copy.copy(plain)
    llm._text = dataclasses.replace(llm._text, template=ChatTemplate("{{ tools|length }}"), tool_format=form)
    llm.info = dataclasses.replace(llm.info, tool_format=form)
    return llm


@pytest.fixture(params=["hermes", "qwen3_coder", "hermes, looked for as a text"])
def llm(plain, request, monkeypatch):
    form, _, as_text = request.param.partition(", ")
    if as_text:
        monkeypatch.setattr(structure, "opening_of", lambda form, names, _: opening_of(form, names, {}))
    return with_tools(plain, form)


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


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_tools_that_are_allowed_are_called(llm, eager, mode):
    now = {"type": "function", "function": {"name": "now"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [now]}}
    choices = llm.chat(ASK, eager, tools=tools_of(SCHEMAS), tool_choice=choice)[0].outputs
    called = {call.name for each in choices for call in each.tool_calls}
    assert called == {"now"}
    due = [each for each in choices if mode == "required" and each.finish_reason != "length"]
    assert all(each.tool_calls for each in due)


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


BEGUN = {"llama3_json": '{"name": "weather", "parameters":', "pythonic": "[weather("}


def test_what_an_answer_must_be_stands_behind_a_form_s_mark_of_text(plain):
    llm = with_tools(plain, "functionary_v3_2")
    grammars, tokenizer = llm._core.grammars, llm._text.tokenizer
    asked = {"5": {"json_schema": {"type": "integer"}}, "b": {"regex": "a|b"}, "c": {"choice": ["b", "c"]}}
    forms = {"functionary_v3_2": "all\n", "firefunction_v2": ""}
    for (text, fields), form, tools in itertools.product(asked.items(), forms, (None, ToolUse(SCHEMAS))):
        constraint, lead = constraint_for(SamplingParams(**fields), Reading(form=form, tools=tools), {}), forms[form]
        matcher = new_matcher(grammars.vocabulary, check_here(grammars, constraint, {}).text)
        assert takes(matcher, tokenizer, lead + text)
        assert not takes(matcher, tokenizer, text) or not lead


@pytest.mark.parametrize("form", BEGUN)
def test_a_call_without_an_opening_token_goes_on_as_its_schema_has_it(plain, form):
    """Of a model that has come so far; random weights would not."""
    llm, use = with_tools(plain, form), ToolUse(SCHEMAS)
    tried = check_here(llm._core.grammars, constraint_for(SamplingParams(), Reading(form=form, tools=use), {}), {})
    ends = frozenset(llm.info.eos_token_ids)
    held = Structure(tried.text, ends, after=tried.after)
    begun, texts = tuple(llm._text.tokenizer.encode(BEGUN[form])), []
    for seed in range(6):
        request = Request(
            f"{form} {seed}", (5, 6, 7), 220, temperature=1.0, seed=seed, eos_token_ids=ends, structure=held
        )
        llm._engine.inbox.put(Add(request, (begun,)))
        outputs = []
        while llm._engine.has_work or not any(output.finish_reason for output in outputs):
            outputs += llm._engine.step()
            if not (llm._engine.has_work or outputs):
                llm._engine.wait(10)  # for its grammar
        tokens = [*begun, *(token for output in outputs for token in output.token_ids)]
        assert outputs[-1].finish_reason in ("stop", "length"), outputs
        if outputs[-1].finish_reason == "stop":
            texts.append(llm._text.tokenizer.decode(tokens))
    calls = [call for text in texts for call in read(form, use, text)]
    assert len(calls) >= len(texts) > 0
    assert all(jsonschema_rs.is_valid(SCHEMAS[name], arguments) for name, arguments in calls)


@pytest.mark.parametrize("form", ["qwen3_coder", "pythonic"])
@pytest.mark.parametrize("fields", [{}, {"due": True}])
def test_what_a_form_cannot_hold_of_a_schema_is_said_and_leaves_the_others_held(plain, form, fields):
    llm = with_tools(plain, form)
    use = ToolUse({**SCHEMAS, "any": {"minProperties": 1}}, **fields)
    tried = check_here(llm._core.grammars, constraint_for(SamplingParams(), Reading(form=form, tools=use), {}), {})
    (said,) = tried.warnings
    assert said.startswith("arguments of any are not held to their schema: minProperties cannot be") and tried.text
    assert '"celsius"' in tried.text.replace("\\", "")


@pytest.mark.parametrize("form", BEGUN)
def test_a_strict_tool_is_refused_where_its_arguments_cannot_be_held(plain, form):
    llm = with_tools(plain, form)
    with pytest.raises(InvalidRequest, match="unclosed group"):
        llm.chat(ASK, SamplingParams(max_tokens=4), tools=tools_of({**SCHEMAS, "bad": BAD}, strict=True))
    (answer,) = llm.chat(ASK, SamplingParams(max_tokens=4), tools=tools_of(SCHEMAS, strict=True))
    assert answer.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("form", ["llama3_json", "pythonic"])
def test_the_engine_knows_of_a_call_that_need_not_be_made_whether_it_is_strict(plain, form):
    llm = with_tools(plain, form)
    for strict in (frozenset(), frozenset({"now"})):
        reading = Reading(form=form, tools=ToolUse(SCHEMAS, strict=strict))
        tried = check_here(llm._core.grammars, constraint_for(SamplingParams(), reading, {}), {})
        held = structure_of(tried, llm._text, [5], [0], SamplingParams(), chat=True)
        assert held.after is not None and held.strict == bool(strict) != held.may_be_left


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(json_schema=SCHEMAS["now"])], ids=["", "beside"])
def test_only_a_tool_s_own_schema_decides_whether_it_is_held(plain, form, params):
    llm = with_tools(plain, form)
    named = "a tool" if form == "minicpm5" else '"?bad"?'

    def tried(**fields):
        reading = Reading(form=form, tools=ToolUse({**SCHEMAS, "bad": BAD}, **fields))
        return check_here(llm._core.grammars, constraint_for(params, reading, {}), {})

    for strict in ((), ("weather",)):
        (warning,) = tried(strict=frozenset(strict)).warnings
        assert re.fullmatch(f"arguments of {named} are not held to their schema: .*unclosed group.*", warning)
    with pytest.raises(InvalidRequest, match=f"^tools must be .*: arguments of {named}: .*unclosed group"):
        tried(strict=frozenset({"bad"}))
    if params.json_schema is None:
        with pytest.raises(InvalidRequest, match=f"^tools must be .*: arguments of {named}: .*unclosed group"):
            tried(due=True)
