"""Patterns: two texts in one state may go on in the same ways, as Python's own regular expressions see it."""

import itertools
import random
import re

import pytest

from jaxinfer.text.grammar import patterns
from jaxinfer.text.grammar.patterns import pattern_of
from tests.support.attempts import assert_below, processor_s
from tests.support.patterns import drawn


def state_after(pattern, text):
    state = 0
    for byte in text.encode():
        state = None if state is None else pattern.after(state, byte)
    return state


TEXTS = ["".join(letters) for length in range(6) for letters in itertools.product("ab1@", repeat=length)]


@pytest.mark.parametrize("seed", range(40))
def test_a_text_has_a_state_if_it_can_go_on_and_all_of_one_state_go_on_alike(seed):
    draw = random.Random(seed)
    text = "".join(drawn(draw) for _ in range(draw.randint(1, 4)))
    pattern, judge = pattern_of(f"^{text}$"), re.compile(text, re.ASCII)
    assert pattern is not None, text
    whole = {one for one in TEXTS if judge.fullmatch(one)}
    ways = {}
    for one in TEXTS:
        state = state_after(pattern, one)
        endings = {other[len(one) :] for other in whole if other.startswith(one)}
        if state is None:
            assert not endings, (text, one)
        elif len(one) <= 2:  # so that what goes on is within TEXTS
            known = ways.setdefault(state, {})
            for length in range(4):
                found = frozenset(end for end in endings if len(end) == length)
                assert known.setdefault(length, found) == found, (text, one)


def test_who_loses_a_place_is_found_out(monkeypatch):
    monkeypatch.setattr(patterns, "_bits", lambda places: [places.bit_length() - 1] if places else [])
    with pytest.raises(AssertionError):
        for seed in range(40):
            test_a_text_has_a_state_if_it_can_go_on_and_all_of_one_state_go_on_alike(seed)


@pytest.mark.parametrize(
    ("text", "start", "is_open"),
    [
        ("^a{2,3}@$", "", False),
        ("^a{2,3}@$", "aa", True),
        ("^a{2,3}@$", "aaa", False),
        ("^ab?$", "a", True),
        ("^[ab]$", "", True),
        ("^[ab]$", "a", False),
    ],
)
def test_what_is_open_may_go_on_in_several_ways(text, start, is_open):
    pattern = pattern_of(text)
    assert pattern.is_open(state_after(pattern, start)) == is_open


@pytest.mark.parametrize(
    "text",
    [
        *("", "^", "$", "a", "a$", "^a", "^a|b$", "^a$|^b$", r"^a\$", "^a**$", "^a+?$", "^a{2}{3}$", "^(a$", "^a)$"),
        *("^(?i)a$", "^(?=a)b$", r"^(a)\1$", r"^\bab$", r"^\p{L}$", r"^\x41$", r"^\n$", "^[[:alpha:]]$", "^[a&&b]$"),
        *(
            "^[]a]$",
            "^[b-a]$",
            "^[a-\\d]$",
            "^[a",
            "^a{,3}$",
            "^a{x}$",
            "^a{0}$",
            "^a{3,2}$",
            "^é$",
            "^[é]$",
            "^a{1001}$",
        ),
        *("^[a~~b]$", "^[a--b]$", "^a{401}$", "^" + "a" * 500 + "$", "^a{٣}$", "^*$", "^]$", "^}$"),
    ],
)
def test_what_is_not_understood_is_no_pattern(text):
    assert pattern_of(text) is None


def test_hostile_expressions_take_no_time_and_states_have_a_bound():
    nested = "()"
    for _ in range(29):
        nested = f"({nested}{{999}})"
    draw = random.Random(1)

    def walk() -> None:
        assert pattern_of(f"^{nested}$") is None
        many = pattern_of("^(a|b)*a(a|b){12}$")  # thousands of states, were they all made
        for _ in range(300):
            state = 0
            for byte in draw.choices(b"ab", k=60):
                state = many.after(state, byte)
                if state is None:
                    break
        assert len(many._next) == patterns.MAX_STATES

    assert_below(2, lambda: processor_s(walk), "the processor time of hostile expressions")
