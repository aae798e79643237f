"""Hiding: where a lexeme of a recursive grammar hides another it is told, and where none is told none does."""

import random
import re

import pytest

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.gbnf import Gbnf
from jaxinfer.text.grammar.hiding import hidden_in, told
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import try_one
from tests.support.gbnf import grammar_and_pattern, text_near
from tests.support.grammars import takes

JSON = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
HIDDEN = {
    'root ::= "abc" | [a-z]+ | "(" root ")"': ("[a-z]", '"abc"'),
    'root ::= word | "in" expr\nexpr ::= word | "(" root ")"\nword ::= [a-z]+': ('"in"', "word"),
    'root ::= a "xy" | "(" root ")"\na ::= [a-z]{2,3}': ("a", "a"),
}
PLAIN = [
    JSON,
    'root ::= "if" " " word | word | "(" root ")"\nword ::= [a-z]+',
    'root ::= [a-z] root | "1"',
    'root ::= "a" | root "bc"',
]


@pytest.mark.parametrize("grammar", HIDDEN)
def test_a_lexeme_that_hides_another_is_told_with_both_and_their_lines(vocabulary, grammar):
    asked = Gbnf(grammar)
    hidden = hidden_in(asked)
    assert tuple(asked.text[piece.start : piece.end] for piece in hidden) == HIDDEN[grammar]
    (warning,) = try_one(vocabulary, Constraint("grammar", grammar, param="x"), {}).warnings
    assert warning == told(asked, hidden)
    assert f"where {HIDDEN[grammar][0]} in line " in warning and f"goes on with {HIDDEN[grammar][1]} in line" in warning


@pytest.mark.parametrize("grammar", PLAIN)
def test_where_nothing_is_hidden_nothing_is_told(vocabulary, grammar):
    tried = try_one(vocabulary, Constraint("grammar", grammar, param="x"), {})
    assert (tried.error, tried.warnings) == ("", ())


@pytest.mark.parametrize("seed", range(200))
def test_a_text_that_may_not_come_is_told_of(vocabulary, tokenizer, seed):
    draw = random.Random(seed)
    grammar, pattern = grammar_and_pattern(draw)
    grammar = grammar.replace("root ::= ", 'root ::= "%" root "%" | ')
    tried = try_one(vocabulary, Constraint("grammar", grammar, param="x"), {})
    assert not tried.error, (grammar, tried.error)
    matcher = new_matcher(vocabulary, tried.text)
    for _ in range(30):
        text = text_near(draw, pattern)
        if re.fullmatch(pattern, text, re.DOTALL):
            assert tried.warnings or takes(matcher, tokenizer, text), (grammar, text)
            assert tried.warnings or takes(matcher, tokenizer, f"%{text}%"), (grammar, text)
