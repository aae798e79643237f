"""Inexact: numbers of a schema that llguidance has as others are found, with their place, and no others."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.inexact import inexact
from jaxinfer.text.grammar.source import JSON_SCHEMA, Constraint, guided
from jaxinfer.text.grammar.trial import try_one
from tests.support.grammars import takes

LARGE = 2**53 + 1
FOUND = {
    "const": ({"const": LARGE}, "'#/const'"),
    "enum": ({"enum": [1, -LARGE]}, "'#/enum'"),
    "a list": ({"const": [{"a": LARGE}]}, "'#/const'"),
    "a property": ({"properties": {"a": {"const": LARGE}}}, "'#/properties/a/const'"),
    "a property named so": ({"properties": {"const": {"enum": [LARGE]}}}, "'#/properties/const/enum'"),
    "more digits than its double": ({"const": 2**64}, "'#/const'"),
    "the least of 64 bits": ({"enum": [-(2**63), 1]}, "'#/enum'"),
    "an integer beyond 64 bits": ({"type": "integer", "const": 1e19}, "'#/const'"),
    "one of several": ({"type": "integer", "enum": [5, 1e300]}, "'#/enum'"),
    "one of several types": ({"type": ["integer", "string"], "const": -1e20}, "'#/const'"),
    "two parts for one value": ({"allOf": [{"type": "integer"}, {"const": 2**63}]}, "'#/allOf/1/const'"),
    "a least": ({"type": "integer", "minimum": 1e30, "maximum": 2e30}, "'#/minimum'"),
    "an open least": ({"type": "integer", "exclusiveMinimum": 1e19, "maximum": 1e20}, "'#/exclusiveMinimum'"),
    "a least without a most": ({"items": {"minimum": 9.3e18}}, "'#/items/minimum'"),
    "a negative least": ({"minimum": -1e19, "maximum": -9.3e18}, "'#/m"),
    "a most between doubles": ({"type": "integer", "maximum": LARGE + 2}, "'#/maximum'"),
    "an open most of 64 bits": ({"type": "integer", "exclusiveMaximum": 2**63 - 1}, "'#/exclusiveMaximum'"),
    "what is more than any double": ({"minimum": 10**400}, "'#/minimum'"),
    "an open bound without a double beside it": ({"exclusiveMinimum": 0, "maximum": 1e-70}, "at '#'"),
    "a bound with other digits than its double": ({"minimum": 2**57, "maximum": 2**57}, "at '#'"),
    "a bound of too many places": ({"items": {"minimum": 1e-70}}, "at '#/items'"),
    "an alternative": ({"anyOf": [{}, {"const": 10**30 + 1}]}, "'#/anyOf/1/const'"),
}
LEFT = [
    {"const": 2**53},
    {"const": 1e300},
    {"const": 10**20},
    {"enum": [-1e19, 2**63 - 1024]},
    {"const": True, "minimum": None},
    {"type": "integer", "maximum": 2**63 - 1},
    {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    {"type": "integer", "minimum": 0, "exclusiveMaximum": 1e300},
    {"type": "number", "minimum": -0.5, "exclusiveMaximum": 0.5},
    {"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5},
    {"default": LARGE, "examples": [LARGE, {"const": LARGE}]},
    {"properties": {"const": {"type": "integer", "maximum": LARGE}, "enum": {}}, "default": {"minimum": 1e19}},
]


@pytest.mark.parametrize(("schema", "place"), FOUND.values(), ids=FOUND)
def test_a_number_that_would_become_another_is_found_with_its_place(schema, place):
    assert place in inexact(schema)


@pytest.mark.parametrize("schema", LEFT, ids=str)
def test_what_stays_the_number_that_it_is_and_what_no_answer_must_be_is_left(schema):
    assert inexact(schema) is None


NEAR = [sign * 2**power + step for sign in (1, -1) for power in (53, 56, 63, 64, 70) for step in range(-3, 4)]
BOUNDS = {
    "minimum": int.__ge__,
    "exclusiveMinimum": int.__gt__,
    "maximum": int.__le__,
    "exclusiveMaximum": int.__lt__,
    "const": int.__eq__,
}
NUMBERS = st.sampled_from(NEAR) | st.sampled_from(NEAR).map(float) | st.integers(-(2**65), 2**65) | st.integers(-9, 9)


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(sorted(BOUNDS)), NUMBERS, min_size=1, max_size=2), st.booleans())
def test_an_integer_that_llguidance_takes_is_of_its_schema(vocabulary, tokenizer, bounds, is_integer):
    """Or the schema is refused for a number that is inexact."""
    schema = bounds | ({"type": "integer"} if is_integer or bounds.keys() != {"const"} else {})
    if inexact(schema) is not None:
        return
    try:
        matcher = new_matcher(vocabulary, JSON_SCHEMA + guided(schema, strict=True))
    except InvalidRequest:
        return  # as one that no value is of
    for number in {int(bound) + step for bound in bounds.values() for step in (-2, -1, 0, 1, 2)}:
        is_taken = takes(matcher, tokenizer, str(number))
        assert not is_taken or all(BOUNDS[name](number, int(bound)) for name, bound in bounds.items())


@pytest.mark.parametrize("count", [2**32, 2**53 - 1, 2**64, 10**30, 1e300])
@pytest.mark.parametrize("name", ["Length", "Items", "Properties"])
@pytest.mark.parametrize("end", ["min", "max"])
def test_a_count_beyond_the_librarys_is_the_most_that_it_has(vocabulary, name, end, count):
    kind = {"Length": "string", "Items": "array", "Properties": "object"}[name]
    schema = {"type": "object", "properties": {"a": {"type": kind, end + name: count}}, "const": {end + name: count}}
    written = json.loads(guided(schema, strict=True))
    assert written["properties"]["a"][end + name] == 2**32 - 1
    assert (schema["properties"]["a"][end + name], float(written["const"][end + name])) == (count, float(count))
    new_matcher(vocabulary, JSON_SCHEMA + guided(schema["properties"]["a"], strict=True))


OPEN = [
    ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0"], ["0.5", "0.25", "0.001"]),
    ({"exclusiveMinimum": 2, "maximum": 2.25}, ["2"], ["2.25", "2.1"]),
    ({"exclusiveMaximum": 0.0, "minimum": -0.5}, ["-0", "0"], ["-0.5", "-0.25"]),
    ({"exclusiveMaximum": -2, "exclusiveMinimum": -2.25}, ["-2"], ["-2.1"]),
    ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, ["0"], ["0.5"]),
]


@pytest.mark.parametrize(("bounds", "outside", "inside"), OPEN, ids=str)
def test_an_open_bound_is_not_taken_beside_another_less_than_one_away(vocabulary, tokenizer, bounds, outside, inside):
    matcher = new_matcher(vocabulary, JSON_SCHEMA + guided({"type": "number"} | bounds, strict=True))
    assert [text for text in outside + inside if takes(matcher, tokenizer, text)] == inside


@pytest.mark.parametrize("beside", [None, "x", True])
def test_a_bound_that_is_no_number_is_the_library_s_to_refuse(beside):
    schema = {"exclusiveMinimum": 0, "maximum": 0.5, "minimum": beside}
    assert json.loads(guided(schema, strict=True))["exclusiveMinimum"] == 0


def test_a_closed_bound_never_passes_the_other():
    assert json.loads(guided({"exclusiveMinimum": 0, "maximum": 1e-70}, strict=True))["exclusiveMinimum"] == 0


@pytest.mark.parametrize("strict", [False, True])
def test_a_definition_that_nothing_refers_to_is_not_read(vocabulary, tokenizer, strict):
    faulty = [schema for schema, _ in FOUND.values()]
    faulty += [{"pattern": "("}, {"$ref": "#/none"}, {"type": "strin"}, {"minLength": -1}, {"$ref": "#/$defs/0"}]
    unused = {f"{number}": schema for number, schema in enumerate(faulty)}
    schema = {"anyOf": [{"$ref": "#/$defs/Used"}], "$defs": {**unused, "Used": {"type": "boolean", "$defs": unused}}}
    tried = try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict=strict, param="x"), {})
    assert (tried.error, tried.warnings) == ("", ())
    assert takes(new_matcher(vocabulary, tried.text), tokenizer, "true")
