"""Lark, as llguidance takes it: which rules have no text that is whole, and how much is repeated."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.grammar.lark import fault_of_signs, rules_of, without_end
from jaxinfer.text.grammar.lexemes import heavy_lexemes
from jaxinfer.text.grammar.source import AS_SENT

NAMES = ["start", "a", "_b", "c-d"]
TEXTS = ['"x"', '"|"i', "/[:(]+/", '"a".."z"', "WORD", "<[1]>", '%json {"a": ":"}', '"#"']
OFTEN = ["", "+", "{2}", "{1,3}", "~ 2", "~ 1..2", "{4,}"]
SELDOM = ["?", "*", "{0,3}", "{,3}", "~ 0..2"]
LINES = ["\n", "\n\n", " # a: b\n", " // |\n", '\n%llguidance {"no_forcing": true}\n', "\n%import common.INT -> INT\n"]
BARS = [" | ", "|", "\n  | ", " # (\n| "]


@st.composite
def atoms(draw, depth):
    """A text and whether it has an end, given the rules that have one."""
    kind = draw(st.sampled_from(["text", "name", "name", "group"] if depth else ["text", "name"]))
    if kind == "text":
        return draw(st.sampled_from(TEXTS)), lambda met: True
    if kind == "name":
        name = draw(st.sampled_from(NAMES))
        return name, lambda met: name in met
    text, ends = draw(bodies(depth - 1))
    if draw(st.booleans()):
        return f"[{text}]", lambda met: True
    return f"({text})", ends


@st.composite
def bodies(draw, depth=2):
    alternatives = draw(
        st.lists(st.lists(st.tuples(atoms(depth), st.sampled_from(OFTEN + SELDOM)), max_size=3), min_size=1, max_size=3)
    )
    written = draw(st.sampled_from(BARS if depth == 2 else BARS[:2])).join(
        " ".join(text + often for (text, _), often in parts) for parts in alternatives
    )
    return written, lambda met: any(
        all(often in SELDOM or ends(met) for (_, ends), often in parts) for parts in alternatives
    )


def named_in(body):
    return re.findall(r"[\w-]+", re.sub("|".join(map(re.escape, TEXTS)), " ", body))


@settings(max_examples=25)
@given(rules=st.fixed_dictionaries({name: bodies() for name in NAMES}), line=st.sampled_from(LINES))
def test_a_rule_without_a_whole_text_that_may_come_is_found(rules, line):
    text = line.join([*(f"{name}: {body}" for name, (body, _) in rules.items()), "WORD.2: /a/ | WORD_2", 'WORD_2: "b"'])
    met: set[str] = set()
    while more := {name for name, (_, ends) in rules.items() if name not in met and ends(met)}:
        met |= more
    let_in = {"start"}
    while more := {name for each in let_in for name in named_in(rules[each][0])} & rules.keys() - let_in:
        let_in |= more
    read = rules_of(text)
    assert read is not None
    found = without_end(read)
    assert (found is None) == (let_in <= met) and found not in met


@pytest.mark.parametrize(
    "text",
    [
        "start: a & b",
        "start: a::0",
        "start: ~/a/",
        "start: (a",
        "start: a)",
        "start a",
        "start: b\nb{c}: c",
        "start: %lark {\n}",
        "start: a\nstart: a",
        "start: ?a",
    ],
)
def test_of_what_is_not_understood_nothing_is_known(text):
    assert rules_of(text) is None


A = "A: /x{1,280}/"
HEAVY = {
    "a rule repeats a terminal": (f"start: A{{320}}\n{A}", "start: A{320}"),
    "a terminal repeats another": (f"start: B\nB: A~1..320\n{A}", "start: REPEATED\nREPEATED: A~1..320"),
    "a group of both": (f'start: b\nb: ("," A | C){{320}}\nC: "c"\n{A}', 'start: ("," A | C){320}'),
    "a terminal of terminals": (f"start: B{{40}}\nB: A A{{10}}\n{A}", "start: B{40}"),
}


@pytest.mark.parametrize(("text", "first"), HEAVY.values(), ids=HEAVY)
def test_large_repetitions_of_terminals_are_found(text, first):
    found = heavy_lexemes(text, rules_of(text))[0]
    assert found.startswith(f"%llguidance {{}}\n{first}\n") and found.endswith(f"{A}{AS_SENT}")


@pytest.mark.parametrize("text", ['start: b{900}\nb: "x"', f"start: A\n{A}", "start: A{9}\nA: /x{20}/"])
def test_repetitions_of_rules_and_small_ones_are_not(text):
    assert heavy_lexemes(text, rules_of(text)) == []


NO_SIGNS = ['"x', "'x'", "/a", r'"\q"', '"a\tb"', ";", "\u00a7", "`b`", "<a", "@", '"\\u12"']


@settings(max_examples=60)
@given(st.sampled_from(NO_SIGNS), st.lists(st.sampled_from([*TEXTS, "a |", "# \" '\n", "\n"]), max_size=4))
def test_what_is_no_sign_is_named_with_its_place_and_a_cure(sign, before):
    text = " ".join(["start:", *before, sign])
    fault = fault_of_signs(text)
    line, column = text.count("\n") + 1, len(text) - len(sign) - text.rfind("\n")
    assert f", got {sign} in line {line}, column {column}; " in fault
    assert " must " in fault


@pytest.mark.parametrize("text", ['start: "a" /b/i <[1]> @sub', 'start: "\\n\\u00e9"i', "start: %json {} // '"])
def test_what_is_all_signs_has_no_fault_of_its_own(text):
    assert "in line" not in fault_of_signs(text)
