"""Misread: an expression that llguidance takes is read as itself, and others are refused with the reason."""

import itertools
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
from jaxinfer.text.grammar.trial import try_one
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
    "a&&b--",
    "[:alpha:]",
    r"[\[]",
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


@pytest.mark.parametrize("pattern", [*SETS, "[[:alpha:]]", r"\pL", r"\x{41}", r"\U00000041"])
def test_sets_and_names_of_classes_are_rusts_outside_of_schemas(pattern):
    assert misread(pattern) == ""


@settings(max_examples=150)
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


@settings(max_examples=150)
@given(st.sampled_from("AZaz<>bBGQEhHK"), st.sampled_from(["", "x", "[ab]"]), st.sampled_from(["", "[ab]"]))
def test_an_escape_that_is_the_sign_itself_to_ecma_is_read_so_or_refused(vocabulary, tokenizer, sign, before, behind):
    """But for the ends of words, which both know."""
    pattern = f"^{before}\\{sign}{behind}$"
    schema = {"type": "string", "pattern": pattern}
    if sign in "bB" or misread_in_schema(schema):
        assert sign not in "ZQ"
        return
    try:
        matcher = new_matcher(vocabulary, JSON_SCHEMA + guided(schema, strict=True))
    except InvalidRequest:
        return
    text = before.replace("[ab]", "a") + sign + behind.replace("[ab]", "a")
    assert takes(matcher, tokenizer, json.dumps(text))


@pytest.mark.parametrize(
    "pattern", ["^[]a]$", "^[^]a]$", "a[]", "[^]", "[^]]", r"\Aa\z", r"a\z", "[[:alpha:]][]b]", r"\a", r"\<b", r"b\>"]
)
def test_what_ecma_reads_otherwise_is_refused_with_what_to_write(pattern):
    why = misread_in_schema({"type": "string", "pattern": pattern})
    assert "as ECMA has it, and is read" in why and "; write " in why and why.endswith("at '#/pattern'")
    assert misread(pattern) == ""


@pytest.mark.parametrize("pattern", [r"^[\]a]$", r"[^\]]", r"\\A", r"[a]\]", r"\\z", r"^<b>$"])
def test_brackets_and_letters_that_are_escaped_as_ecma_has_them_stay(pattern):
    assert misread_in_schema({"type": "string", "pattern": pattern}) == ""


CODES = {"x00": "\0", "u0000": "\0", "x41": "A", "u0041": "A", "u{41}": "A", "u{2}": "\x02", "u{d}": "\r", "cJ": "\n"}
CODES |= {"f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
BEHIND = ["", "{41}", "{2}", "{L}", "{Lu}", "L", "41", "0041", "00000041", "{start}", "{d}", "x"]


def texts_of(sign, behind):
    """By ECMA-262, of an escape with the flag u or without, Annex B.1.2; None: of a class, or of no text."""
    code = next((code for code in CODES if (sign + behind).startswith(code)), "")
    rest = (sign + behind)[len(code) :] if code else behind
    times = re.fullmatch(r"\{(\d+)\}", rest)
    one = CODES[code] if code else sign
    if sign in "dDwWsSbBckpP" + "0123456789" and not (sign in "pP" and behind[:1] != "{"):
        return None
    return one * int(times[1]) if times else one + rest


@pytest.mark.parametrize("sign", [*map(chr, range(0x21, 0x7F))])
def test_no_escape_is_taken_for_what_ecma_has_not(vocabulary, tokenizer, sign):
    """Alone and in a class, whatever comes behind it."""
    for behind in BEHIND:
        text = texts_of(sign, behind)
        if text is None or sign == "\\":
            continue
        rows = [(f"^\\{sign}{behind}$", text)]
        if not behind:
            rows.append((f"^[\\{sign}]$", text))
        if sign + behind in ("x{41}", "U{41}", "U00000041"):
            rows += [(rf"^[\{sign}{behind}]$", char) for char in (sign, *behind)]
        for pattern, said in rows:
            schema = json.dumps({"pattern": pattern})
            found = try_one(vocabulary, Constraint("json_schema", schema, strict=True, param="x"), {})
            if not found.error:
                matcher = new_matcher(vocabulary, found.text)
                assert takes(matcher, tokenizer, json.dumps(said)), (pattern, said)


PROPERTIES = [r"\p{L}", r"\P{Lu}", r"\p{gc=Lu}", r"\p{Script=Greek}", r"\p{scx=Greek}", r"\p{White_Space}"]


OF_ECMA = ("gc", "General_Category", "sc", "Script", "scx", "Script_Extensions")


@pytest.mark.parametrize("name", [*OF_ECMA, "age", "wb", ""])
@pytest.mark.parametrize("between", ["=", "!=", ":", "==", " = "])
def test_a_class_by_name_that_ecma_has_not_is_refused_with_strict(name, between):
    for sign, value in itertools.product("pP", ["Lu", "Greek", "greek letter", "^L", "3.0"]):
        one = f"\\{sign}{{{name}{between if name else ''}{value}}}"
        is_ecmas = value in ("Lu", "Greek") and (not name or between == "=" and name in OF_ECMA)
        for pattern in (f"^{one}+$", f"[a{one}]"):
            schema = {"items": {"pattern": pattern}}
            why = misread_in_schema(schema, strict=True)
            assert (why == "") == is_ecmas
            assert not why or why.startswith(f"{one} must be a class that ECMA has")
            assert not why or why.endswith("at '#/items/pattern'")
            assert misread_in_schema(schema) == ""


@pytest.mark.parametrize("pattern", PROPERTIES)
def test_classes_by_name_as_ecma_has_them_stay(pattern):
    assert misread_in_schema({"pattern": pattern}, strict=True) == ""


@pytest.mark.parametrize("pattern", [r"^\p{gc!=Lu}$", r"^[\p{sc:Latin}]$", r"^\p{age=3.0}$"])
def test_what_strict_refuses_of_them_is_followed_without(vocabulary, pattern):
    schema = json.dumps({"type": "string", "pattern": pattern})
    strict, lenient = (
        try_one(vocabulary, Constraint("json_schema", schema, strict, param="x"), {}) for strict in (True, False)
    )
    assert "must be a class that ECMA has" in strict.error and not lenient.error


NAMES = ["alpha", "digit", "space", "punct", "word", "xdigit", "nope", "a"]
MEMBERS = st.one_of(
    st.builds("[:{}{}:]".format, st.sampled_from(["", "^"]), st.sampled_from(NAMES)),
    st.sampled_from(["[", "[.a.]", "[=a=]", "[a-z]", "[a", "a", "0-9", r"\d", "_", ":", r"\[", "a-z"]),
)


@settings(max_examples=200)
@given(st.sampled_from(["[", "[^"]), st.lists(MEMBERS, min_size=1, max_size=3).map("".join), st.booleans())
def test_a_bracket_within_a_class_of_a_schema_is_refused(begin, members, is_name):
    """To ECMA it is a sign of the class, and a class by name ends at its first bracket."""
    pattern = f"^{begin}{members}]{{2}}$"
    schema = {"patternProperties": {pattern: {}}} if is_name else {"pattern": pattern}
    why = misread_in_schema(schema)
    if re.search(r"(?<!\\)\[", members):
        assert "in a class must stand for its" in why and r"write \[" in why
    else:
        assert "must stand for its" not in why
