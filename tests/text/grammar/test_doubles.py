"""Doubles of a schema: an answer that must be one is that one, or the schema is refused with the number's place."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.doubles import spelling, spelling_of_integer
from jaxinfer.text.grammar.inexact import inexact
from jaxinfer.text.grammar.source import JSON_SCHEMA, guided

DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
UNREADABLE = 0.9419709336376999  # no digits are read as it


def answer(vocabulary, schema):
    """The text that a schema of one value forces."""
    matcher, text = new_matcher(vocabulary, JSON_SCHEMA + guided(schema, strict=True)), b""
    while not matcher.is_accepting():
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        token = next(each for each in np.flatnonzero(mask).tolist() if not vocabulary.is_special_token(each))
        text += vocabulary.decode_bytes([token])
        matcher.consume_token(token)
    return json.loads(text)


@settings(max_examples=30)
@given(number=DOUBLES)
@example(number=94.28573162546175)  # which was answered as 94.28573162546176
@example(number=0.009819792897376303)
@example(number=-8.57789382212775e204)
@example(number=5e-324)
def test_a_double_is_answered_as_itself(vocabulary, number):
    if inexact({"const": number}) is None:
        assert float(answer(vocabulary, {"const": number})) == number
    else:
        assert number.is_integer() or spelling(number) is None


@settings(max_examples=100)
@given(number=DOUBLES)
def test_a_spelling_is_the_double_to_all_who_read_it(number):
    assert spelling(number) is None or float(spelling(number)) == number


@pytest.mark.parametrize("name", ["const", "minimum", "multipleOf"])
def test_a_double_without_a_spelling_is_refused_with_its_place(name):
    assert spelling(UNREADABLE) is None
    said = inexact({"properties": {"a": {name: UNREADABLE}}})
    assert f"'#/properties/a/{name}' has {UNREADABLE}; use fewer digits" in said


def test_numbers_in_strings_and_names_stay_as_they_are():
    schema = {
        "enum": ["94.28573162546175", "\\94.28573162546175"],
        "properties": {"94.28573162546175": {}},
        "const": 3.0,
    }
    written = json.loads(guided(schema, strict=False))
    assert {**schema, "const": 3} == {key: written[key] for key in schema} and isinstance(written["const"], int)


def test_integers_beyond_64_bits_are_spelt_where_their_digits_are_a_double_s():
    assert spelling_of_integer(10**23) is not None and spelling_of_integer(2**64) is None
    assert spelling_of_integer(10**400) is None
