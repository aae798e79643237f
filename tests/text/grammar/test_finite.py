"""Finite names: of a closed object whose patterns have few names each comes once, and no comma is offered behind the
last."""

import itertools
import json
import re

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.finite import names_of
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import try_one
from tests.support.grammars import takes

ONE = {"enum": [1]}
PATTERNS = ["^(a|b)$", "^a$|^b$", "^[ab]$", "^[a-c]$", "^(?:a)$", "^a?b$", "^b{1,2}$"]
TEXTS = ["".join(chars) for size in range(5) for chars in itertools.product("ab-1", repeat=size)]
PARTS = st.recursive(
    st.sampled_from(["a", "b", "1", r"\-", "[ab]", "[^a]", "[a-b]", "[-a]", "[a-]", ".", r"[\-1]", "^", "$"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map("({})".format),
        inner.map("(?:{})".format),
        st.tuples(inner, st.sampled_from(["?", "??", "*", "+", "{2}", "{0,1}", "{1,}"])).map(
            lambda it: f"({it[0]}){it[1]}"
        ),
    ),
    max_leaves=6,
)


@given(st.sampled_from(["^{}$", "{}", "^{}", "{}$", "^({})$"]), PARTS)
def test_the_names_of_a_pattern_are_those_that_it_finds(form, part):
    pattern = form.format(part)
    names = names_of(pattern, 32)
    if names is not None:
        assert len(names) == len(set(names))
        found = re.compile(pattern)
        assert [text for text in TEXTS if found.search(text)] == [text for text in TEXTS if text in names]
        assert all(found.search(name) for name in names)


@pytest.mark.parametrize(
    "pattern",
    ["^a", "a$", "^a|b$", "^a*$", "^a{2,}$", "^.$", "^[^a]$", r"^\D$", "^(?=a)a$", r"^\p{L}$", "^[a&&b]$", "(", "^(a$"],
)
def test_no_names_are_told_where_they_are_not_known_to_be_few(pattern):
    assert names_of(pattern, 32) is None


def test_no_more_names_are_looked_at_than_asked_for():
    assert names_of(r"^\d$", 10) == [*"0123456789"]
    for pattern in (r"^\d$", "^(a|b){9}$", "^[a-z]{99}$", f"^({'|'.join(map(str, range(10)))})$"):
        assert names_of(pattern, 9) is None


def closed_schemas():
    for pattern in PATTERNS:
        for size in range(4):
            for required in ([], ["a"], ["b", "a"]):
                schema = {"type": "object", "properties": dict.fromkeys("abc"[:size], ONE), "required": required}
                yield schema | {"patternProperties": {pattern: ONE}, "additionalProperties": False}


def dead_ends(matcher, pieces, text=""):
    """Beginnings of answers behind which no token may come, nor the end."""
    mask = np.frombuffer(matcher.deep_copy().compute_bitmask(), np.uint8)
    may_come = [token for token in pieces if mask[token // 8] >> token % 8 & 1]
    if not may_come and not matcher.is_accepting():
        yield text
    for token in may_come:
        after = matcher.deep_copy()
        assert after.try_consume_tokens([token]) == 1
        yield from dead_ends(after, pieces, text + pieces[token])


@pytest.mark.parametrize("strict", [True, False])
def test_each_name_of_a_finite_pattern_comes_once_and_no_comma_behind_the_last(vocabulary, tokenizer, strict):
    pieces = {tokenizer.encode(sign, add_special_tokens=False)[0]: sign for sign in '{}":,abc1'}
    for schema in closed_schemas():
        found = try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict, param="x"), {})
        validator = jsonschema_rs.validator_for(schema)
        if found.error:
            assert not any(validator.is_valid(dict.fromkeys(names, 1)) for names in (["a", "b"], ["a", "b", "c"]))
            continue
        matcher = new_matcher(vocabulary, found.text)
        for answer in ({}, *({name: 1} for name in ("a", "b", "c", "ab", "bb"))):
            text = json.dumps(answer, separators=(",", ":"))
            assert takes(matcher, tokenizer, text) == validator.is_valid(answer), schema
        assert not list(dead_ends(matcher, pieces)), schema
