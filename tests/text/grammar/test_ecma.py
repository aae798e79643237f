"""ECMA: a schema's pattern takes what ECMA-262 says of its signs, and an open schema's answers are JSON of it."""

import json
import re

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.ecma import as_ecma, as_sent
from jaxinfer.text.grammar.patterns import pattern_of
from jaxinfer.text.grammar.source import JSON_SCHEMA, Constraint, guided
from jaxinfer.text.grammar.trial import try_one
from tests.support.grammars import takes

LINE_ENDS = "\n\r\u2028\u2029"
SPACES = "\t\v\f \xa0\u1680\u2003\u202f\u205f\u3000\ufeff" + LINE_ENDS
CHARS = SPACES + '\b\x01\x1b\x1c\x1f\x7f\x80\x85\x9f\u180e\u200b\ufefe\uff00a-"\\1é\U0001f600'
WORDS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
HOLDS = {  # of each sign, by ECMA-262, section 22.2.2
    ".": lambda char: char not in LINE_ENDS,
    r"\s": lambda char: char in SPACES,
    r"\S": lambda char: char not in SPACES,
    r"\w": lambda char: char in WORDS,
    r"\W": lambda char: char not in WORDS,
    r"\d": lambda char: char in "0123456789",
    "a": lambda char: char == "a",
    r"\x7f": lambda char: char == "\x7f",
    r"\-": lambda char: char == "-",
    r"\\": lambda char: char == "\\",
    r"\cJ": lambda char: char == "\n",
    r"\ca": lambda char: char == "\x01",
    r"\ud83d\uDE00": lambda char: char == "\U0001f600",
    "(?s:.)": lambda _: True,
    r"(?-s:.)": lambda char: char not in LINE_ENDS,
}
ALONE = {sign for sign in HOLDS if sign.endswith((".", ")"))}
RANGES = {  # of a class
    r"\b": lambda char: char == "\b",
    r"\cI-\cM": lambda char: "\t" <= char <= "\r",
    r"\ud83d\ude00-\ud83d\ude02": lambda char: char == "\U0001f600",
}
HOLDS_IN_CLASS = {sign: has for sign, has in HOLDS.items() if sign not in ALONE} | RANGES
MEMBERS = st.lists(st.sampled_from(sorted(HOLDS_IN_CLASS)), min_size=1, max_size=3)


def holds(is_not, signs, char):
    return is_not != any(HOLDS_IN_CLASS[sign](char) for sign in signs)


SIGNS = st.sampled_from(sorted(HOLDS)).map(lambda sign: (sign, HOLDS[sign])) | st.builds(
    lambda is_not, signs: (
        f"[{'^' * is_not}{''.join(signs)}]",
        lambda char: holds(is_not, signs, char),
    ),
    st.booleans(),
    MEMBERS,
)


def text_of(value):
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@settings(max_examples=60)
@given(SIGNS, st.sampled_from(["", "(?s:.)?", "((?s:q))?"]), st.sampled_from(["", "?", "{1,3}"]), st.booleans())
def test_a_sign_takes_the_characters_that_ecma_gives_it(vocabulary, tokenizer, sign, before, times, strict):
    """Whatever flags another group has."""
    written, has = sign
    schema = {"type": "string", "pattern": f"^{before}({written}){times}$"}
    found = try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict, param="x"), {})
    if found.error:  # a class of nothing
        assert "Unsatisfiable" in found.error and not any(map(has, CHARS))
        return
    matcher = new_matcher(vocabulary, found.text)
    may_come = "(?s:.)" in before and times == "?"
    taken = [char for char in CHARS if takes(matcher, tokenizer, text_of(char))]
    assert taken == [char for char in CHARS if may_come or has(char)]


@pytest.mark.parametrize("pattern", [r"\ud83d", r"^a\ude00$", r"[\ud83d\ud83d\ude00]", r"\ude00\ud83d", r"\\\uDBFF"])
def test_half_a_character_is_refused_with_its_place(vocabulary, pattern):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    error = try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict=True, param="x"), {}).error
    assert "is half a character" in error and "properties.a" in error.replace("/", ".")


@pytest.mark.parametrize("pattern", [r"^.+$", r"^\S+@\S+\.\S+$", r"^[\w\-\s.]*$", r"^[^\s,]{2,9}$", r"^\s*[-\S]\s*$"])
def test_an_expression_stays_known_sign_by_sign(pattern):
    assert as_ecma(pattern) != pattern
    assert pattern_of(as_ecma(pattern)) is not None
    assert as_sent(f"why: {as_ecma(pattern)}") == f"why: {pattern}"


@pytest.mark.parametrize("pattern", [r"^\.[.]\\s$", r"[\s\S]", r"(?s).", r"(?s:.)", r"[a-\s]", "[.]", r"[^\S\s]"])
def test_other_expressions_are_left_as_they_are(pattern):
    assert as_ecma(pattern) == pattern


@pytest.mark.parametrize("pattern", [r"^.(a", r"(?=\s)a.", r"^[\s-a]\S$"])
def test_a_refusal_shows_the_expression_as_it_was_sent(vocabulary, pattern):
    constraint = Constraint("json_schema", json.dumps({"type": "string", "pattern": pattern}), strict=True, param="x")
    error = try_one(vocabulary, constraint, {}).error
    assert pattern in error


CODES = {char: [f"\\u{ord(char):04x}", f"\\u{ord(char):04X}", char] for char in map(chr, (*range(0x20), 0x7F, 0x85))}
for _char, _sign in zip("\b\t\n\f\r", "btnfr", strict=True):
    CODES[_char].append(f"\\{_sign}")
SPELT = [code for codes in CODES.values() for code in codes] + ["a", "é", "", r"\"", r"\\", r"\/", r"\u0061", "ab"]
PATTERNS = ["^.$", "^[a-z]+$", r"^\s$", r"^\S+$", r"^[\x01-\x1f]$", r"^\x7f$", "^[^a]$", '^[^"]+$', r"^[^\x00-\x1f]+$"]
PATTERNS += [r"^\t$", "\n", "\x7f", r"^[^\x7f]$", r"^\W$", "", r"^\u001b$", r"^[\t\n]?$"]
BELOW = st.sampled_from([True, False, {}, {"type": "integer"}]) | st.sampled_from(PATTERNS).map(
    lambda pattern: {"type": ["string", "integer"], "pattern": pattern}
)
OPEN = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "additionalProperties": BELOW,
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), BELOW, max_size=2),
        "properties": st.dictionaries(st.sampled_from(["\n", "\x1b", "\x7f", "a"]), BELOW, max_size=2),
    },
)


@settings(max_examples=100)
@given(OPEN, st.lists(st.sampled_from(SPELT), min_size=12, max_size=12))
def test_what_a_strict_open_schema_takes_of_control_characters_is_json_of_it(vocabulary, tokenizer, schema, spelt):
    """In names and in values, in each spelling that JSON has, and as they are, which JSON has not."""
    found = try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict=True, param="x"), {})
    if found.error:
        return
    as_rust_has_it = json.loads(json.dumps(schema).replace('"^.$"', r'"^[^\\n\\r]$"'))  # the validator's . takes \r too
    matcher, validator = new_matcher(vocabulary, found.text), jsonschema_rs.validator_for(as_rust_has_it)
    for code in spelt:
        for text in (f'{{"{code}":1}}', f'{{"{code}":"a"}}', f'{{"a":"{code}"}}'):
            assert not takes(matcher, tokenizer, text) or validator.is_valid(json.loads(text)), text


@pytest.mark.parametrize("strict", [False, True])
@given(st.sampled_from([code for codes in CODES.values() for code in codes]))
def test_no_control_character_stands_for_itself_in_any_text(vocabulary, tokenizer, strict, code):
    """But U+007F, which JSON does not mind."""
    matcher = new_matcher(vocabulary, JSON_SCHEMA + guided({}, strict=strict))
    for text in (f'"{code}"', f'{{"{code}":1}}', f'["{code}"]'):
        is_json = re.search(r"[\x00-\x1f]", text) is None
        assert takes(matcher, tokenizer, text) <= is_json
        if code.startswith("\\") and json.loads(f'"{code}"') < "\x80":
            assert takes(matcher, tokenizer, text), text


NAMES = ["Cyrillic", "Hiragana", "Greek", "sc=Latin", "Script=Latin", "scx=Thai", "ID_Start", "gc=Letter", "Lu", "Any"]
NAMES += ["XID_Continue", "Emoji", "Alphabetic", "Script_Extensions=Greek", "General_Category=Decimal_Number"]
KNOWN = {"sc=Latin": "a", "ID_Start": "a", "Cyrillic": "ж", "Hiragana": "あ", "gc=Letter": "a", "Alphabetic": "ж"}
PIECES = [r"\p{", r"\P{", r"\u{", r"\x{", r"\u", r"\ud83d", r"\ude00", r"\c", "J", "[", "]", "^", "}", "-"]
PIECES += ["(", ")", "?", "Cyrillic", "12345678", "9" * 5000, "{", ",", "a", "\\", r"\b", "|", "$", ":alpha:", "*"]
PIECES += [r"\U", "٣"]


@given(st.sampled_from(["p", "P"]), st.sampled_from(NAMES) | st.text("abcXYZ_=", min_size=1, max_size=40))
def test_an_escape_with_a_name_stays_whatever_its_length(sign, name):
    for pattern in (rf"\{sign}{{{name}}}", rf"^[\{sign}{{{name}}}x]+$"):
        assert as_ecma(pattern) == pattern


@pytest.mark.parametrize(("name", "char"), KNOWN.items())
def test_a_name_takes_the_characters_that_have_it(vocabulary, tokenizer, name, char):
    for sign in "pP":
        schema = {"type": "string", "pattern": rf"^[\{sign}{{{name}}}\{sign}{{{name}}}]$"}
        found = try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict=True, param="x"), {})
        assert takes(new_matcher(vocabulary, found.text), tokenizer, text_of(char)) is (sign == "p"), found.error


@settings(max_examples=150)
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.booleans())
def test_any_text_is_written_as_a_pattern_and_no_refusal_is_pythons(vocabulary, pattern, strict):
    """A tool's schema is written where nothing but a refusal is expected."""
    parts = [{"type": "string", "pattern": pattern}, {"patternProperties": {pattern: {}}}]
    schema = {"anyOf": [*parts, {"$ref": f"#/anyOf/{pattern}"}]}
    guided(schema, strict=strict)
    error = try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict, param="x"), {}).error
    assert not re.search("invalid literal|integer string|the server's log", error)
