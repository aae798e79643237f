"""Repeated: of an answer that names a property twice the last value counts, and what counts is of the schema."""

import json

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import refuse, try_one
from tests.support.grammars import takes

NAMES = "abc"
OTHERS = [{"additionalProperties": value} for value in (True, {"const": 0}, {"enum": [0, 1]}, False)]
PATTERNED = [{"patternProperties": {"^[ab]$": value}} | rest for value in ({"const": 0}, {}) for rest in OTHERS]
SCHEMAS = st.builds(
    lambda names, others, limits: {"type": "object", "required": names, **others, **limits},
    st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
    st.sampled_from(OTHERS + PATTERNED),
    st.fixed_dictionaries({}, optional={"minProperties": st.integers(0, 4), "maxProperties": st.integers(2, 4)}),
)
ANSWERS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from("01"), st.booleans()), max_size=4)


def tried(vocabulary, schema, *, strict):
    return try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict, param="x"), {})


def spelt(name, is_escaped):
    return f'"\\u{ord(name):04x}"' if is_escaped else f'"{name}"'


def object_of(pairs):
    return "{" + ",".join(f"{spelt(name, is_escaped)}:{value}" for name, value, is_escaped in pairs) + "}"


@settings(max_examples=80, deadline=None)
@given(SCHEMAS, st.booleans(), st.lists(ANSWERS, min_size=12, max_size=12))
def test_what_a_strict_schema_takes_is_of_it_as_it_is_read(vocabulary, tokenizer, schema, has_properties, answers):
    if has_properties:
        schema = schema | {"properties": {name: {"const": 1} for name in schema["required"]}}
    found = tried(vocabulary, schema, strict=True)
    if found.error:
        return
    matcher, validator = new_matcher(vocabulary, found.text), jsonschema_rs.validator_for(schema)
    required = [(name, "1", False) for name in sorted(schema["required"])]
    for answer in answers:
        text = object_of([*required, *answer])
        assert not takes(matcher, tokenizer, text) or validator.is_valid(json.loads(text)), text


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("ab"), unique=True), st.integers(0, 5), st.sampled_from(OTHERS + PATTERNED))
def test_a_count_is_held_to_up_to_one_name_more_than_required(vocabulary, required, least, others):
    """Or it is warned of; a closed object has no names to repeat."""
    schema = {"type": "object", "required": required, "minProperties": least, **others}
    is_closed = others == {"additionalProperties": False}
    strict, lenient = (tried(vocabulary, schema, strict=strict) for strict in (True, False))
    is_told = least > len(required) + 1 and not is_closed
    assert ("a repeated name counts again" in strict.error) == is_told
    assert any("a repeated name counts again" in said for said in lenient.warnings) == is_told


@pytest.mark.parametrize("place", ["$defs/A", "anyOf/0", "properties/p/items"])
def test_the_refusal_names_the_place_and_what_to_do(vocabulary, place):
    schema = {"type": "object", "minProperties": 3, "required": ["a"]}
    for name in reversed(place.split("/")):
        schema = [schema] if name == "0" else {name: schema}
    with pytest.raises(InvalidRequest) as refusal:
        refuse(tried(vocabulary, schema, strict=True), Constraint("json_schema", param="x"))
    fact = "minProperties must be at most 2, one more than the names in required, since a repeated name counts again"
    assert f"{fact}; it is 3 at '#/{place}'; leave that out, or set strict to false" in str(refusal.value)


@pytest.mark.parametrize("part", [{"const": {"a": 1, "b": 2, "c": 3}}, {"type": "string"}, {"enum": [{"a": 1}, "x"]}])
def test_what_lists_its_values_or_is_no_object_is_left(vocabulary, part):
    assert "counts again" not in tried(vocabulary, {**part, "minProperties": 3}, strict=True).error
