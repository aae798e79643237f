"""The grammars of tool calls as llguidance reads them: each form lets through calls of the tools' schemas, and no
others; what it lets through its reader reads as the same arguments.
"""

import json
from typing import Any

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.tools.grammar import tool_grammar
from jaxinfer.text.tools.reader import ToolReader, ToolUse
from jaxinfer.text.tools.xml_call import types_of
from tests.support.grammars import takes
from tests.support.schemas.tools import TOOLS

FORMS = ("hermes", "llama3_json", "qwen3_coder", "pythonic")
BY_NAME = ("qwen3_coder", "pythonic")  # forms that write each argument by itself, of those that the schema names
# whose schemas ask something of a text beside its being one, which qwen3_coder writes as it is
OF_TEXTS = {
    name
    for name, (schema, *_) in TOOLS.items()
    for inner in schema.get("properties", {}).values()
    if inner.keys() & {"pattern", "format", "minLength", "maxLength"}
}


def written(form: str, name: str, arguments: dict[str, Any]) -> str:
    """A call as a model of that form writes it."""
    match form:
        case "hermes":
            return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
        case "llama3_json":
            return f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}'
        case "qwen3_coder":
            texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
            inner = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
            return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"
    return f"[{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in arguments.items())})]"


def in_order(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: arguments[key] for key in schema.get("properties", {}) if key in arguments}


def read(form: str, use: ToolUse, text: str) -> list[tuple[str, Any]]:
    reader = ToolReader(form, use)
    calls: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    for _, deltas in (reader.feed(text), reader.finish()):
        for delta in deltas:
            calls.setdefault(delta.index, []).append(delta.arguments)
            names.setdefault(delta.index, delta.name or "")
    return [(names[index], json.loads("".join(parts))) for index, parts in calls.items()]


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TOOLS)
def test_calls_of_the_schema_pass_and_are_read_again_and_others_do_not(form, name, strict, vocabulary, tokenizer):
    schema, valid, invalid = TOOLS[name]
    use = ToolUse({name: schema}, due=True, strict=frozenset([name] if strict else ()))
    if form == "qwen3_coder" and name in OF_TEXTS and strict:
        with pytest.raises(InvalidRequest, match="must be one that can be enforced"):
            tool_grammar(form, use, due=True, control_tokens=tokenizer.control_tokens)
        return
    matcher = new_matcher(vocabulary, tool_grammar(form, use, due=True, control_tokens=tokenizer.control_tokens))
    properties = schema.get("properties", {})

    def can_be_written(arguments: Any) -> bool:
        return isinstance(arguments, dict) and (form not in BY_NAME or arguments.keys() <= properties.keys())

    for arguments in filter(can_be_written, valid):
        ordered = in_order(schema, arguments) if form in BY_NAME else arguments
        text = written(form, name, ordered)
        assert takes(matcher, tokenizer, text), text
        assert read(form, use, text) == [(name, arguments)]
    for arguments in filter(can_be_written, invalid):
        ordered = in_order(schema, arguments) if form in BY_NAME else arguments
        text = written(form, name, ordered)
        if read(form, use, text) == [(name, ordered)] and not (form == "qwen3_coder" and name in OF_TEXTS):
            assert not takes(matcher, tokenizer, text), text


@pytest.mark.parametrize("form", BY_NAME)
def test_definitions_that_stand_with_each_argument_are_not_written_without_end(form):
    """Tools of 250 KB would be a grammar of half a gigabyte."""
    properties = {f"p{i}": {"$ref": "#/$defs/x"} for i in range(4000)}
    schema = {"type": "object", "properties": properties, "$defs": {"x": {"type": "object", "title": "x" * 130_000}}}
    with pytest.raises(InvalidRequest, match="written as a grammar of at most"):
        tool_grammar(form, ToolUse({"f": schema}, due=True), due=True, control_tokens={})


def test_alternatives_that_refer_to_themselves_are_looked_at_once():
    own = {"$ref": "#/$defs/x"}
    whole = {"$defs": {"x": {"anyOf": [*[own] * 9, {"type": "integer"}, {"const": "a"}]}}}
    assert types_of(own, whole) == {"integer", "string"}
