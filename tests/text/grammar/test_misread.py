"""Misread: an expression that llguidance takes is read as itself, and others are refused with the reason."""

import json
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.misread import misread, misread_in_schema
from jaxinfer.text.grammar.source import JSON_SCHEMA, Constraint, guided, source_of
from tests.support.grammars import takes

LONE = ["\\", "a\\", "a|\\", "\\d\\", "\\\\\\", "[a\\"]
RANGES = [r"[!-\d]", r"[^a!-\D]", r"[\x{21}-\d]", r"[]-\d]", r"[\\-\w]"]
SEVERAL_LINES = ["(?x)a\nb", "(?ix-s:a\n)", "(?x)[a\nb]"]
POSSESSIVE = ["a++", "a*+b", "a?+a", "x{2,3}+", "(ab)?+ab", "[ab]{2}+", "a{2,}+", r"\d++", "a+?+"]
SETS = ["[a&&b]", "[+--]", "[a~~b]", "[^[\\]]", "[a[b]"]
LEFT = [
    r"\\",
    r"[-\d]",
    r"[a-z-\d]",
    r"[\w-\d]",
    r"[a-z\-\d]",
    "(?i)a\nb",
    "(?-x)a\nb",
    "(?x)a\\\nb",
    "[(?x)]\n",
    "[[:alpha:]]",
    "a&&b--",
    r"[\[]",
    "[^]]",
    r"a\++",
    r"\?+",
    "[+]+",
    "[a+][?]+",
    "a+?",
    "(a+)+",
    "a{2,3}?",
]
PIECES = [
    "a",
    "b",
    "5",
    "!",
    "-",
    "[",
    "]",
    "[^",
    "\\",
    "\\d",
    "\\D",
    "\\\\",
    "\\-",
    "\n",
    "/",
    "|",
    "(?:",
    ")",
    "*",
    "^",
]


@pytest.mark.parametrize("pattern", LONE + RANGES + SEVERAL_LINES + POSSESSIVE)
def test_an_expression_that_would_become_another_is_refused(pattern):
    assert misread(pattern) != ""
    with pytest.raises(ValueError, match=re.escape(misread(pattern))):
        source_of(Constraint("regex", pattern), {})


@pytest.mark.parametrize("pattern", LEFT)
def test_an_expression_that_is_read_as_it_is_is_left(pattern):
    assert misread(pattern) == misread(pattern, is_of_schema=True) == ""


@pytest.mark.parametrize("pattern", LONE + RANGES + SEVERAL_LINES + POSSESSIVE + SETS)
def test_a_pattern_of_a_schema_is_refused_with_its_place(pattern):
    assert "'#/items/pattern'" in misread_in_schema({"items": {"pattern": pattern}})
    assert "'#/patternProperties'" in misread_in_schema({"patternProperties": {pattern: {}}})
    assert misread_in_schema({"properties": {"pattern": {"const": {"pattern": pattern}}}, "pattern": "a"}) == ""


@pytest.mark.parametrize("pattern", SETS)
def test_sets_of_classes_are_rusts_outside_of_schemas(pattern):
    assert misread(pattern) == ""


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=7).map("".join), st.booleans())
def test_an_expression_that_is_taken_has_the_texts_that_python_gives_it(vocabulary, tokenizer, pattern, is_of_schema):
    if misread(pattern, is_of_schema=True):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of sets
            expected = re.compile(pattern)
        schema = {"type": "string", "pattern": pattern}
        regex = Constraint("regex", pattern)
        text = JSON_SCHEMA + guided(schema, strict=True) if is_of_schema else source_of(regex, {})
        matcher = new_matcher(vocabulary, text)
    except (re.error, InvalidRequest):
        return
    for said in ("", "a", "b", "5", "!", "-", "]", "/", "\\", "d", "\n", "A-9]", "a5", "ab"):
        is_match = expected.search(said) if is_of_schema else expected.fullmatch(said)
        assert takes(matcher, tokenizer, json.dumps(said) if is_of_schema else said) == (is_match is not None), said
