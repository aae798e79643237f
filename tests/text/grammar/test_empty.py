"""A definition that no value is of is passed over where it is referred to, as it is where it is written."""

import json

import pytest

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.empty import with_empty_written
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import try_one
from tests.support.grammars import takes

REF = {"$ref": "#/$defs/y"}
EMPTY = [
    {"const": 5, "maximum": 4},
    {"enum": [1, "x"], "type": "boolean"},
    {"enum": ["abc"], "maxLength": 2},
    {"type": "integer", "minimum": 3, "maximum": 2},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "array", "minItems": 3, "maxItems": 2},
    {"allOf": [{"type": "number"}, {"$ref": "#/$defs/z"}]},
    {"anyOf": [{"$ref": "#/$defs/z"}, {"const": 1, "minimum": 2}]},
    {"$ref": "#/$defs/z"},
]
DEFS = {"z": {"const": None, "type": "string"}}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("empty", EMPTY, ids=json.dumps)
def test_an_empty_definition_is_passed_over(vocabulary, tokenizer, empty, strict):
    schemas = {
        "false": {"anyOf": [{"const": False}, REF]},
        "{}": {"type": "object", "properties": {"q": REF}, "additionalProperties": False},
        '{"a":false}': {
            "type": "object",
            "properties": {"a": {"anyOf": [REF, {"type": "boolean"}]}},
            "additionalProperties": False,
        },
    }
    for answer, schema in schemas.items():
        written = json.dumps({**schema, "$defs": {"y": empty, **DEFS}})
        found = try_one(vocabulary, Constraint("json_schema", written, strict, param="x"), {})
        assert not found.error, (schema, found.error)
        matcher = new_matcher(vocabulary, found.text)
        assert takes(matcher, tokenizer, answer)
        assert not any(takes(matcher, tokenizer, other) for other in ("5", "null", '{"q":5}', '{"a":5}'))


@pytest.mark.parametrize("empty", EMPTY, ids=json.dumps)
def test_what_must_be_of_it_is_refused_still(vocabulary, empty):
    for schema in (REF, {"type": "array", "items": REF, "minItems": 1}):
        written = json.dumps({**schema, "$defs": {"y": empty, **DEFS}})
        assert try_one(vocabulary, Constraint("json_schema", written, True, param="x"), {}).error


DOUBLING = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": {"type": "null"}}


@pytest.mark.parametrize(
    "schema",
    [
        {**REF, "$defs": {"y": {"const": 5, "maximum": 5}}},
        {**REF, "$defs": {"y": {"enum": ["x", 1], "type": "string"}}},
        {**REF, "$defs": {"y": {"type": "integer", "const": 3.0}}},
        {**REF, "$defs": {"y": {"anyOf": [{"const": 1}, REF]}}},
        {**REF, "$defs": {"y": {"minimum": 3, "maximum": 2}}},
        {"$ref": "#/$defs/d0", "$defs": DOUBLING},
        {"$ref": "#"},
        {"$ref": 3, "allOf": 3, "enum": 4},
    ],
)
def test_what_may_have_a_value_stays_as_it_is(schema):
    assert with_empty_written(schema) is schema


@pytest.mark.parametrize("kind", [[{}], {}, 3, None, [["string"]]])
def test_a_definition_of_no_type_is_no_fault_of_ours(vocabulary, kind):
    written = json.dumps({"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": kind, "const": 1}}})
    assert try_one(vocabulary, Constraint("json_schema", written, True, param="x"), {}).error
