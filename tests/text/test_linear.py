"""Patterns that are held to be linear take time in proportion to a text; published ones are found to be so."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from jaxinfer.text.linear import MAX_PATTERN_CHARS, MAX_STEPS, is_linear, nonlinear_rules, pattern_of, steps_of
from tests.text.samples import LINEAR, NONLINEAR, replace, split

MAX_S_PER_CHAR = 12e-6  # linear patterns take 0.06 to 1.2 us, those that take the square of a run of 2**14 60 us
RUN_CHARS = 2**14
UNITS = [
    "a",
    "A",
    "1",
    " ",
    "\n",
    ".",
    "'s",
    "\u0301",
    "\u65e5",
    " \n",
    "a1",
    "A\u65e5",
    " a",
    "1 ",
    "aA",
    "\u00e9\u0301",
]
CLASSES = ["a", r"\s", r"\p{L}", "[aA]", r"[^\s\p{L}]", "[\r\n]", "."]
ITEMS = [f"{one}{times}" for one in CLASSES for times in ("", "?", "+", "*", "++", "?+", "{1,3}")] + [
    "(?:a|A1)?",
    "(?i:'s)",
]
KNOWN = [r"\s*[\r\n]+|\s+(?!\S)", r"\s+(?!\S)", "[aA]?[A1]*[1a]+|[aA]?[A1]+[1a]*"]
ALTERNATIVES = st.one_of(st.sampled_from(KNOWN), st.lists(st.sampled_from(ITEMS), min_size=1, max_size=4).map("".join))
TAILS = st.sampled_from(["", "(", "(?=x)", "]+b", "[a"])
PATTERNS = st.lists(ALTERNATIVES, min_size=1, max_size=3).map("|".join)


def assert_linear(pattern: str, unit: str) -> None:
    """In one of three attempts: others use this machine too."""
    rule = Split(Regex(pattern), "isolated")
    text = unit * (RUN_CHARS // len(unit)) + "\0\n" + "b1" + unit
    took_s = []
    for _ in range(3):
        began_s = time.thread_time()
        rule.pre_tokenize_str(text)
        took_s.append(time.thread_time() - began_s)
        if took_s[-1] <= MAX_S_PER_CHAR * len(text):
            return
    pytest.fail(f"{pattern!r} took {min(took_s):.2f} s for a run of {unit!r}")


@pytest.mark.parametrize("name", LINEAR)
def test_published_patterns_are_held_to_be_linear_and_are(name: str) -> None:
    assert nonlinear_rules(LINEAR[name]) == []
    patterns = [pattern for step in steps_of(LINEAR[name]) if (pattern := pattern_of(step))]
    assert patterns
    for unit in UNITS[:8]:
        for pattern in patterns:
            assert_linear(pattern, unit)


@pytest.mark.parametrize("name", NONLINEAR)
def test_published_patterns_that_take_the_square_of_a_text_are_named(name: str) -> None:
    assert len(nonlinear_rules(NONLINEAR[name])) == 1


@settings(max_examples=60)
@given(PATTERNS.filter(is_linear), st.sampled_from(UNITS))
def test_whatever_is_held_to_be_linear_is(pattern: str, unit: str) -> None:
    assert_linear(pattern, unit)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\s+$", "(a+)+b", "a*a*a*b", "(?:abcd)+(?:abcd)+w", r"\s{1,600}\s{1,600}$", "a+b", "a+?b", "a*+b", r".*\d"),
        *(
            r"\s*[\r\n]+",
            r"\s+(?!\S)x",
            "(?i:a+)b",
            "(?:a|b)*",
            "a{1,9}a{1,9}b",
            r"\p{L}+(?!x)",
            r"(?<=a)\s+",
            r"(.)\1+",
        ),
        "(?i:a|aa|aaa|aaaa)" * 8 + "b+",
        "a?a?a?a?a?a?a?a?b+",
        "[" + r"\p{L}" * 40 + "]+b",
        *("[ab]?[a]*[b]+|[ab]?[a]+[c]*", "x|a+b|c", "[[:alpha:]]+b", "a?" * 20 + "a" * 20, "a|" * 600 + "b"),
    ],
)
def test_a_pattern_that_may_fail_behind_a_run_is_not(pattern: str) -> None:
    assert not is_linear(pattern)


@settings(max_examples=200)
@given(st.lists(st.sampled_from([*ITEMS, *KNOWN, r"\p{L}", "[", "]", "(?:", ")", "|"]), min_size=1, max_size=3), TAILS)
def test_a_form_is_told_in_little_time_whatever_it_is(parts: list[str], tail: str) -> None:
    pattern = "".join(parts)
    pattern = pattern * ((MAX_PATTERN_CHARS - len(tail)) // len(pattern)) + tail
    began_s = time.thread_time()
    is_linear(pattern)
    assert time.thread_time() - began_s < 0.1


def test_what_is_wrong_is_named_once_for_each_rule() -> None:
    rules = {"type": "Sequence", "normalizers": [replace({"String": "a"}, "b")] * MAX_STEPS}
    assert nonlinear_rules(rules) == []
    assert nonlinear_rules(rules, split("x" * 90 + "$")) == [
        f"pattern '{'x' * 60}...'",
        f"row of {MAX_STEPS + 1} steps",
    ]
    assert nonlinear_rules(replace({"String": "a" * 300}, "b")) == ["step that looks for 300 characters"]
