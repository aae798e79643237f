"""Calls whose arguments stand under another key than the form's, or under two: none is sent with fewer than it has."""

import itertools
import json

import pytest

from jaxinfer.text.tools.formats import FORMATS, LAYOUTS
from tests.text.tools.test_cut_arguments import SCHEMAS
from tests.text.tools.test_enclosed import OBJECT_FORMS, whole
from tests.text.tools.test_mutated_calls import read
from tests.text.tools.test_torn_calls import WORDS

NAME, FILLED, OTHER = '"name": "weather"', '{"a": 1}', '{"b": 2}'
WRONG_KEYS = ["args", "input", "inputs", "params", "kwargs", "argument", "tool_input", "Arguments", "x"]
EMPTY = ["{}", "null", "{ }", '"{}"', '""']


def answers(form, *entries):
    """An object with these entries in every order, and one that ends behind its name, too early."""
    for order in itertools.permutations(entries):
        yield whole(form, f"{{{', '.join(order)}}}")
    for between in ("}, ", "}\n{"):
        yield whole(form, f"{{{NAME}{between}{', '.join(entries[1:])}}}")


def check(form, text, expected):
    for cuts in ([], list(range(len(text)))):
        assert read(form, text, cuts, SCHEMAS) == (("", expected, True) if expected else (text, [], False))


@pytest.mark.parametrize("form", OBJECT_FORMS)
@pytest.mark.parametrize("key", WRONG_KEYS)
def test_a_call_with_its_arguments_under_another_key_is_content(form, key):
    for value in (FILLED, json.dumps(FILLED)):
        for text in answers(form, NAME, f'"{key}": {value}'):
            check(form, text, [])
        for empty in EMPTY:
            for text in answers(form, NAME, f'"arguments": {empty}', f'"{key}": {value}'):
                assert not read(form, text, [], SCHEMAS)[1]
                assert not read(form, text, list(range(len(text))), SCHEMAS)[1]


@pytest.mark.parametrize("form", OBJECT_FORMS)
def test_an_object_under_a_key_that_has_words_may_be_the_arguments(form):
    for value in (FILLED, json.dumps(FILLED)):
        for order in itertools.permutations([NAME, f'"function": {value}']):
            check(form, whole(form, f"{{{', '.join(order)}}}"), [])


@pytest.mark.parametrize("form", OBJECT_FORMS)
@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_a_call_with_two_arguments_that_are_filled_is_content(form, key):
    for as_json in answers(form, NAME, f'"arguments": {FILLED}', f'"{key}": {OTHER}'):
        for text in (as_json, as_json.replace('"', "'")):
            assert not read(form, text, [], SCHEMAS)[1]
            assert not read(form, text, list(range(len(text))), SCHEMAS)[1]


@pytest.mark.parametrize("form", OBJECT_FORMS)
@pytest.mark.parametrize("empty", EMPTY)
@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_arguments_that_are_filled_are_taken_beside_empty_ones(form, empty, key):
    for order in itertools.permutations([NAME, f'"arguments": {FILLED}', f'"{key}": {empty}']):
        check(form, whole(form, f"{{{', '.join(order)}}}"), [("weather", {"a": 1})])


@pytest.mark.parametrize("form", OBJECT_FORMS)
@pytest.mark.parametrize("beside", ['"id": "x"', '"type": "function"', '"index": 0'])
def test_a_call_without_arguments_may_have_keys_that_no_arguments_stand_under(form, beside):
    for order in itertools.permutations([NAME, beside]):
        check(form, whole(form, f"{{{', '.join(order)}}}"), [("weather", {})])


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in OBJECT_FORMS and LAYOUTS[form].inner])
def test_an_object_of_another_key_is_not_the_last_tools_arguments(form):
    words = WORDS[form]
    for key in WRONG_KEYS:
        text = words.opening + words.call("now", {}) + f'{{{NAME}, "{key}": {FILLED}}}'
        assert read(form, text, [], SCHEMAS)[1] == [("now", {})]
