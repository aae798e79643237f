"""Quoting: what a strict schema's class takes in a JSON string is what it says, or the schema is refused."""

import json
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.misread import misread_in_schema
from jaxinfer.text.grammar.patterns import pattern_of
from jaxinfer.text.grammar.quoting import misquoted, quotable
from jaxinfer.text.grammar.source import JSON_SCHEMA, guided
from tests.support.attempts import assert_below, processor_s
from tests.support.grammars import takes

NEGATED = ['^[^"]{1,3}$', '^[^"]+$', '[^"]', r'^\w[^"]\w$', '^[^"<]{1,3}$', r"^[^\\]{1,3}$", r'^[^"\n]+$', r'^[^"\\]*$']
RIGHT = [
    r'^[^\x00-\x1f"]+$',
    r"^[^\n]{1,3}$",
    "^[^x]+$",
    r"[\s\S]",
    r"\P{L}",
    r"[^\p{L}]",
    "^.+$",
    r"[\x00-\x7f]",
    "a",
    r"a\x00",
    "[\\u0000a]",
    r"\x00|[\x01-\x1e]",
]
REFUSED = [r"[\x00-\x1f]", r"[\x00-\x0f]|[\x10-!]", r"\p{Cc}", r"\P{Po}", r"[[:cntrl:]a]", r"\x00|[\x01-\x1f]"]
REFUSED += [r"\x00|\P{L}", r"\x00(?s:.)", r"\x00\D"]
MEMBERS = [
    "a",
    '"',
    r"\"",
    r"\\",
    "-",
    "]",
    "^",
    r"\n",
    r"\s",
    r"\S",
    r"\w",
    r"\x22",
    r"\u005c",
    r"\x00-\x1f",
    "!-a",
    r"\0",
    r"\x00-\x0f",
    r"\x10-\x1f",
]
CLASSES = st.tuples(st.sampled_from(["[", "[^", "[^"]), st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=3))
EXPRESSIONS = st.lists(CLASSES.map(lambda drawn: f"{drawn[0]}{''.join(drawn[1])}]"), min_size=1, max_size=2)
LITERALS = [*map(json.dumps, ('"', "\\", "a", "<", "-", "]", "^", "\n", "\t", "/", "\x01", "\x0e", "é", 'a"', '""'))]
LITERALS += [r'"\u0000"', r'"\u0022"', r'"\u005C"', r'"\u0001"', r'"\/"']


def matcher_of(vocabulary, pattern):
    written = guided({"type": "string", "pattern": pattern}, strict=True)
    if why := misread_in_schema(json.loads(written)):
        raise InvalidRequest(why)
    return new_matcher(vocabulary, JSON_SCHEMA + written)


def wrongly_taken(vocabulary, tokenizer, pattern):
    matcher = matcher_of(vocabulary, pattern)
    return [text for text in LITERALS if takes(matcher, tokenizer, text) and not re.search(pattern, json.loads(text))]


@pytest.mark.parametrize("pattern", NEGATED)
def test_a_negated_class_takes_no_escape_of_what_it_excludes(vocabulary, tokenizer, pattern):
    assert wrongly_taken(vocabulary, tokenizer, pattern) == []
    assert takes(matcher_of(vocabulary, pattern), tokenizer, json.dumps("aaa"))
    assert pattern_of(quotable(pattern)) is not None or pattern_of(pattern) is None


@pytest.mark.parametrize("pattern", RIGHT)
def test_an_expression_that_is_read_as_it_is_stays_as_it_is(pattern):
    assert quotable(pattern) == pattern
    assert misquoted(pattern) == ""


@pytest.mark.parametrize(
    "one", ["[a--]", r"[\w--a]", "[a-b--c]", "[!--]", "[--/]", "[a||b]", "[^a&&b]", "[[a]", "[a~~b]"]
)
def test_signs_of_sets_are_read_without_a_warning(one):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quotable(f"^{one}$").replace(r"\x00", "") == f"^{one}$"
        misquoted(one)


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_class_with_nul_that_would_be_misread_is_refused_with_its_place(pattern):
    assert "'#/items/pattern'" in misread_in_schema({"items": {"pattern": quotable(pattern)}})


NULS = [
    (r"^\0?$", ["", "\0"]),
    (r"^[\0a]b$", ["\0b", "ab"]),
    (r"^\x00{2}$", ["\0\0"]),
    (r"^(?:\0|[\x01-\x1e])$", ["\0"]),
]


@pytest.mark.parametrize(("pattern", "texts"), NULS)
def test_nul_is_itself_where_no_class_has_all_control_characters(vocabulary, tokenizer, pattern, texts):
    assert wrongly_taken(vocabulary, tokenizer, pattern) == []
    assert all(takes(matcher_of(vocabulary, pattern), tokenizer, json.dumps(text)) for text in texts)


def test_a_class_of_a_property_name_is_rewritten_too(vocabulary, tokenizer):
    schema = {"type": "object", "patternProperties": {'^[^"]$': {"type": "null"}}, "additionalProperties": False}
    matcher = new_matcher(vocabulary, JSON_SCHEMA + guided(schema, strict=True))
    assert takes(matcher, tokenizer, '{"a":null}')
    assert not takes(matcher, tokenizer, r'{"\"":null}')


def test_names_that_become_one_hold_together():
    schema = {"patternProperties": {'[^"]': {"type": "null"}, r'[^\x00"]': {"const": None}}}
    written = json.loads(guided(schema, strict=True))
    assert written["patternProperties"] == {r'[^\x00"]': {"allOf": [{"type": "null"}, {"const": None}]}}


@pytest.mark.parametrize("piece", ["[", '[^"', "[:a", "[:^", "[^", "\\p{", "\\x{", "[]", "[\\", '[^"]'])
def test_an_expression_of_any_length_is_read_in_one_go(piece):
    pattern = piece * (30_000 // len(piece))
    law = "the processor time of an expression, where the square of its length took 40 s"
    assert_below(1, lambda: processor_s(lambda: (quotable(pattern), misquoted(pattern))), law)


@settings(max_examples=60)
@given(EXPRESSIONS, st.sampled_from(["", "|"]))
def test_no_class_takes_a_text_that_python_does_not_give_it(vocabulary, tokenizer, classes, sign):
    pattern = f"^(?:{sign.join(classes)})$"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of sets
        try:
            re.compile(pattern)
            assert wrongly_taken(vocabulary, tokenizer, pattern) == []
        except (re.error, InvalidRequest):
            return
