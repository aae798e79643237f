"""A grammar of llama.cpp's EBNF takes the characters that its escapes stand for, in texts and in classes."""

import random
import re

import pytest

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.gbnf import Gbnf
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import try_one
from tests.support.gbnf import grammar_and_pattern, text_near
from tests.support.grammars import takes

CHARS = [*map(chr, range(0x80)), *"\x80\xa0\xe9\xff\u0300\u0fff\u1000\u2028\u4e2d\ufffd\U0001f600\U0010ffff"]
BEHIND = ["", "b", "1", "é", "g"]
NAMED = {"\n": "n", "\r": "r", "\t": "t", "\\": "\\", '"': '"', "[": "[", "]": "]"}


def escapes(char):
    """Each way in which GBNF spells a character."""
    code = ord(char)
    yield from [f"\\x{code:02x}", f"\\x{code:02X}"] if code < 0x100 else []
    yield from [f"\\u{code:04x}", f"\\u{code:04X}"] if code < 0x10000 else []
    yield f"\\U{code:08x}"
    yield from [f"\\{NAMED[char]}"] if char in NAMED else []


def matcher_of(vocabulary, rules):
    return new_matcher(vocabulary, try_one(vocabulary, Constraint("grammar", f"root ::= {rules}"), {}).text)


def test_an_escape_in_a_text_is_its_character(vocabulary, tokenizer):
    for behind in BEHIND:
        spelt = [(f"\\u{ord(char):04x}", char) for char in "A\xe9\n\0\u0300"] if behind else []
        spelt = spelt or [(escape, char) for char in CHARS for escape in escapes(char)]
        matcher = matcher_of(vocabulary, " ".join(f'"x{escape}{behind}"' for escape, _ in spelt))
        assert takes(matcher, tokenizer, "".join(f"x{char}{behind}" for _, char in spelt)), behind


def test_a_character_stands_for_itself_in_a_text(vocabulary, tokenizer):
    plain = [char for char in CHARS if char not in '"\\']
    assert takes(matcher_of(vocabulary, " ".join(f'"{char}x"' for char in plain)), tokenizer, "x".join([*plain, ""]))


def test_an_escape_in_a_class_is_its_character(vocabulary, tokenizer):
    spelt = [(escape, char) for char in CHARS for escape in escapes(char)]
    text, other = "".join(char for _, char in spelt), "".join("c" if char == "b" else "b" for _, char in spelt)
    for pattern, taken in (("[%s]", text), ("[x%s1]", text), ("[^%s]", other)):
        matcher = matcher_of(vocabulary, " ".join(pattern % escape for escape, _ in spelt))
        assert takes(matcher, tokenizer, taken), pattern
        for escape, char in spelt[::9]:
            refused = char if "^" in pattern else "c" if char == "b" else "b"
            assert not takes(matcher_of(vocabulary, pattern % escape), tokenizer, refused)


def test_a_dot_is_any_one_character(vocabulary, tokenizer):
    for rules in (" ".join("." * len(CHARS)), ".*", f".{{{len(CHARS)}}}", "( . | [^.] )+", "(.)* # ."):
        assert takes(matcher_of(vocabulary, rules), tokenizer, "".join(CHARS)), rules
    for char in CHARS:
        dot = matcher_of(vocabulary, '"<" . ">"')
        assert takes(dot, tokenizer, f"<{char}>"), char
    for wrong in ("<>", "<ab>", "<\n\n>", "<\r\n>"):
        assert not takes(matcher_of(vocabulary, '"<" . ">"'), tokenizer, wrong), wrong
    assert not takes(matcher_of(vocabulary, '"." [.]'), tokenizer, "aa"), "in a text and a class it is a sign"
    error = try_one(vocabulary, Constraint("grammar", "root ::= .{5} & x", param="x"), {}).error
    assert "got & x in line 1, column 15;" in error


@pytest.mark.parametrize(
    ("rules", "taken", "refused"),
    [
        (r'"\u0041bc"', ["Abc"], ["\u41bc"]),
        (r"[\u0041bc]", ["A", "b"], ["\u41bc"]),
        (r'[\u0300-\u036f]+ "x"', ["\u0300\u036fx"], ["x", "ax"]),
        (r'[^\u0022\u005c]* "\u0022"', ['a\n"'], ['a\\"', '""']),
        ("[a&&b]", ["a", "&", "b"], ["c"]),
        ("[a~~b] [--/]", ["~-", "a."], ["c.", "a0"]),
        ("[+--] [a^b] [^^]", ["+^a", ",ab"], ["+^^", ".aa"]),
        (r'"#\u0031" # \u00e9 " [', ["#1"], ["#"]),
    ],
)
def test_what_stands_beside_an_escape_stays_what_it_is(vocabulary, tokenizer, rules, taken, refused):
    for text in [*taken, *refused]:
        assert takes(matcher_of(vocabulary, rules), tokenizer, text) == (text in taken), text


@pytest.mark.parametrize("escape", [r"\ud83d", r"\U0000dFFF", r"\U00110000"])
def test_what_is_the_code_of_no_character_is_refused(vocabulary, escape):
    for rules in (f'"{escape}"', f"[a{escape}]"):
        error = try_one(vocabulary, Constraint("grammar", f"root ::= {rules}", param="x"), {}).error
        assert "must be the code of a character, which is at most 10FFFF and no half of a pair" in error
        assert f"got {escape};" in error


@pytest.mark.parametrize("seed", range(150))
def test_a_grammar_without_recursion_takes_its_texts_and_no_others(vocabulary, tokenizer, seed):
    draw = random.Random(seed)
    grammar, pattern = grammar_and_pattern(draw)
    tried = try_one(vocabulary, Constraint("grammar", grammar, param="x"), {})
    assert not tried.error and not tried.warnings, (grammar, tried)
    matcher = new_matcher(vocabulary, tried.text)
    for _ in range(20):
        text = text_near(draw, pattern)
        is_of_it = re.fullmatch(pattern, text, re.DOTALL) is not None
        assert not text or takes(matcher, tokenizer, text) == is_of_it, (grammar, text)


REPEATED = ["*", "+", "?", "{2}", "{0,2}", "{1,}", "{0}"]


@pytest.mark.parametrize("inner", ['"a"', "[ab]", "b", '"a" b', '"a" | b', ".", '""'])
def test_what_is_repeated_may_be_repeated_again(vocabulary, tokenizer, inner):
    for first in REPEATED:
        for second in REPEATED:
            for rules in (f"(({inner}){first}){second}", f"(({inner}){first} ){second} | root root"):
                grammar = f'root ::= {rules}\nb ::= "b"'
                tried = try_one(vocabulary, Constraint("grammar", grammar, param="x"), {})
                assert not tried.error, (grammar, tried.error)
            pattern = f"(?:(?:{inner}){first}){second}".replace('"', "").replace(" b", "b")
            matcher = matcher_of(vocabulary, f'(({inner}){first}){second}\nb ::= "b"')
            for text in ("a", "b", "aa", "ab", "abab", "aaa", "aaaaa"):
                is_of_it = re.fullmatch(pattern.replace(" ", ""), text) is not None
                assert takes(matcher, tokenizer, text) == is_of_it, (rules, text)


FAULTS = {
    'start ::= "a"': "must have a rule root",
    'root ::= "a" x "b"': 'got x "b" in line 2, column 14;',
    'root ::= ("a" "b"': 'got ("a" "b" in line 2, column 10;',
    'root ::= "a': 'got "a in line 2, column 10;',
    "root ::= [a": "got [a in line 2, column 10;",
    "root ::= [z-a]": "got z-a] in line 2, column 11;",
    "root ::= []": "got [] in line 2, column 10;",
    r'root ::= "\q"': r'got \q" in line 2, column 11;',
    'root ::= "a"{,3}': "got {,3} in line 2, column 13;",
    'root ::= "a"{3,2}': "got {3,2} in line 2, column 13;",
    'root ::= "a" <[5]>': "got <[5]> in line 2, column 14;",
    '::= "a"': 'got ::= "a" in line 2, column 1;',
    "root ::= a-B\na-B ::= a-B": "rule a-B of the grammar asks for another of itself",
    'root ::= ([a-z]? [a-f]?){900} | "(" root ")"': "([a-z]? [a-f]?){900} has up to 1800 parts",
}


@pytest.mark.parametrize("grammar", FAULTS)
def test_a_fault_is_told_at_its_place_in_what_the_client_wrote(vocabulary, grammar):
    error = try_one(vocabulary, Constraint("grammar", f"# one\n{grammar}", param="x"), {}).error
    assert FAULTS[grammar] in error, error
    assert not re.search(r"\d\(\d+\)|\^|start", error), error


def test_each_rule_has_a_name_of_its_own(vocabulary, tokenizer):
    names = ["start", "Start", "START", "a-b", "a_b", "aB", "A-B", "_x", "1", "é", "root2", "ROOT"]
    rules = "\n".join(f'{name} ::= "<{number}>" | "(" root ")"' for number, name in enumerate(names))
    matcher = matcher_of(vocabulary, f"{' '.join(names)}\n{rules}")
    assert takes(matcher, tokenizer, "".join(f"<{number}>" for number in range(len(names))))
    grammar = Gbnf(f"root ::= {' '.join(names)}\n{rules}")
    lark_names = [line.partition(":")[0] for line in grammar.lark(whole=False).splitlines()[1:]]
    assert [grammar.name_of(name) for name in lark_names] == ["root", *names]
