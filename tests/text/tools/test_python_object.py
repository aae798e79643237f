"""A call that is written as a literal of Python's in a form of JSON's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.tools.formats import LAYOUTS, Format
from tests.text.tools.test_mutated_calls import read

OPENINGS: dict[Format, str] = {form: layout.opening for form, layout in LAYOUTS.items() if layout.start == "{"}
OPENINGS["xlam"] = "["
VALUES = st.none() | st.booleans() | st.integers() | st.text("a'\"\\{}[]\n<", max_size=8)
ARGUMENTS = st.dictionaries(
    st.sampled_from(["city", "a b"]), VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(st.just("k"), VALUES)
)


@pytest.mark.parametrize("form", OPENINGS)
@settings(max_examples=25)
@given(arguments=ARGUMENTS, data=st.data())
def test_a_literal_of_a_name_and_arguments_is_a_call(form, arguments, data):
    call = {"name": "weather", "arguments": arguments}
    if data.draw(st.booleans()):
        call = dict(reversed(call.items()))
    text = f"{OPENINGS[form]}{call}{LAYOUTS[form].closing}"
    for cuts in ([], list(range(len(text))), data.draw(st.lists(st.integers(0, 200), max_size=5))):
        assert read(form, text, cuts) == ("", [("weather", arguments)], True)


NONE = [
    "{'name': 'other', 'arguments': {}}",
    "{'name': 'weather', 'arguments': {}, 'id': 1}",
    "{'name': 'weather'}",
    "{'name': 'weather', 'arguments': [1]}",
    "{'name': 'weather' 'arguments': {}}",
    "{'name': 'weather', 'arguments': {'city': x}}",
    "{'name': 'weather', 'arguments': {'city': 'a",
    "{'na",
    "{'city': 'a'}",
]


@pytest.mark.parametrize("form", OPENINGS)
@pytest.mark.parametrize("literal", NONE)
def test_every_other_literal_is_content_as_it_stands(form, literal):
    text = f"{OPENINGS[form]}{literal}{LAYOUTS[form].closing}"
    for cuts in ([], list(range(len(text)))):
        assert read(form, text, cuts) == (text, [], False)
