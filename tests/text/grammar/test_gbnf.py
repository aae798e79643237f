"""A grammar of llama.cpp's EBNF takes the characters that its escapes stand for, in texts and in classes."""

import pytest

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.source import Constraint, source_of
from jaxinfer.text.grammar.trial import try_one
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
    return new_matcher(vocabulary, source_of(Constraint("grammar", f"root ::= {rules}"), {}))


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
