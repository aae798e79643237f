"""Inexact: integers of const and enum that a double does not hold are found, with their place, and no others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.text.grammar.inexact import inexact

LARGE = 2**53 + 1
FOUND = {
    "const": ({"const": LARGE}, "'#/const'"),
    "enum": ({"enum": [1, -LARGE]}, "'#/enum'"),
    "a list": ({"const": [{"a": LARGE}]}, "'#/const'"),
    "a property": ({"properties": {"a": {"const": LARGE}}}, "'#/properties/a/const'"),
    "a property named so": ({"properties": {"const": {"enum": [LARGE]}}}, "'#/properties/const/enum'"),
    "an alternative": ({"anyOf": [{}, {"const": 10**30 + 1}]}, "'#/anyOf/1/const'"),
}
LEFT = [
    {"const": 2**53},
    {"const": 1e300},
    {"const": True},
    {"type": "integer", "maximum": 2**63 - 1},
    {"default": LARGE, "examples": [LARGE, {"const": LARGE}]},
    {"properties": {"const": {"maximum": LARGE}, "enum": {}}},
]


@pytest.mark.parametrize(("schema", "place"), FOUND.values(), ids=FOUND)
def test_an_integer_that_no_double_holds_is_found_with_its_place(schema, place):
    assert place in inexact(schema)


@pytest.mark.parametrize("schema", LEFT, ids=str)
def test_what_a_double_holds_and_what_no_answer_must_be_is_left(schema):
    assert inexact(schema) is None


@given(st.integers(-(2**80), 2**80) | st.integers(0, 100).map(lambda n: 2**n))
def test_an_integer_is_inexact_where_its_double_is_another(number):
    assert (inexact({"items": {"enum": [number]}}) is None) == (int(float(number)) == number)
