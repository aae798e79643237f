"""Calls written in a way that no form has, and calls that are none: what is a call, and what content."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.tools.formats import AROUND, FORMATS, LAYOUTS, TAGS, Format
from jaxinfer.text.tools.marks import is_closing
from tests.text.tools.test_mutated_calls import read

XML = "<tool_call>\n<function=weather>\n"
CITY = "<parameter=city>\nOslo\n</parameter>\n"
OSLO = {"city": "Oslo"}


@pytest.mark.parametrize(
    ("inside", "arguments"),
    {
        '{"city": "Oslo"}\n</function>\n</tool_call>': OSLO,
        '{"city": "Oslo"}\n<parameter=days>\n2\n</parameter>\n</function>': {**OSLO, "days": 2},
        "{}\n</function>": {},
        '{"city": 1e999}\n</function>': None,
        "{x}\n</function>": None,
        '{"city": "Oslo"': None,
        "<parameter=city\nOslo\n</parameter>\n</function>": OSLO,
        "<parameter=city\n>\nOslo\n</parameter>\n</function>": OSLO,
        f"{CITY}{CITY}</function>": OSLO,
        f"{CITY}{CITY.replace('Oslo', 'Rome')}</function>": None,
        CITY: OSLO,
        f"{CITY}</func": OSLO,
        f"{CITY}<param": None,
    }.items(),
)
def test_a_function_holds_its_arguments_or_is_content_as_it_stands(inside, arguments):
    text = XML + inside
    expected = (text, [], False) if arguments is None else ("", [("weather", arguments)], True)
    for cuts in ([], list(range(len(text)))):
        assert read("qwen3_coder", text, cuts) == expected


def test_a_call_that_the_answer_leaves_open_has_what_its_tool_requires():
    schemas = {"weather": {"type": "object", "properties": {"city": {}, "days": {}}, "required": ["city", "days"]}}
    assert read("qwen3_coder", XML + CITY, [], schemas)[1] == []
    assert read("qwen3_coder", XML + CITY + CITY.replace("city", "days"), [], schemas)[1] != []


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from(["city", "a b", "x"]), st.none() | st.integers() | st.text(max_size=5)), st.data()
)
def test_an_object_in_a_function_is_its_arguments(arguments, data):
    text = f"{XML}{json.dumps(arguments)}\n</function>\n</tool_call>"
    for cuts in ([], data.draw(st.lists(st.integers(0, 200), max_size=6))):
        assert read("qwen3_coder", text, cuts) == ("", [("weather", arguments)], True)


def as_text(value: str) -> dict[Format, str]:
    """A call of `weather` in every form, with this text of JSON as its city."""
    texts = {form: around_call(form, f'{{"city": {value}}}', "weather") for form in FORMATS}
    return texts | {
        "pythonic": f"[weather(city={value})]",
        "qwen3_coder": f"{XML}{{{json.dumps('city')}: {value}}}\n</function>\n</tool_call>",
    }


def around_call(form: Format, arguments: str, name: str) -> str:
    before, after = AROUND[form]
    layout, start = (
        LAYOUTS[form],
        {"xlam": "[", "functionary": "<function=", "functionary_v3_2": ">>>", "minicpm5": "<function"}.get(form, ""),
    )
    return f"{layout.opening}{start}{before.replace('NAME', name)}{arguments}{after}{layout.closing}"


NESTED = "[" * 60 + "]" * 60


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "value",
    ["1e999", "-1e999", "1e-999", "9" * 400, r'"\ud800"', r'"\udc00"', r'"\ud800\n\udc00"', r'{"\ud8ff": 1}', NESTED],
)
def test_what_could_not_be_sent_back_is_content_in_every_form(form, value):
    text = as_text(value)[form]
    for cuts in ([], list(range(len(text)))):
        assert read(form, text, cuts) == (text, [], False)
    lone = f'{{"name": "weather", "arguments": {{"city": {value}}}}}'
    assert read("hermes", lone, []) == (lone, [], False)


JSON_VALUES = st.recursive(
    st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=4) | st.just("\U0001f600"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=15)
@given(value=JSON_VALUES)
def test_what_can_be_sent_back_is_a_call_in_every_form(form, value):
    text = as_text(json.dumps(value))[form]
    assert (
        read(form, text, []) == read(form, text, list(range(len(text)))) == ("", [("weather", {"city": value})], True)
    )


def as_models_write(value: object, comma: str) -> str:
    """JSON with control characters as they are in its strings, and with this before each closer."""
    match value:
        case str():
            return f'"{"".join(char if char < " " else json.dumps(char)[1:-1] for char in value)}"'
        case list():
            inside = ", ".join(as_models_write(each, comma) for each in value)
            return f"[{inside}{comma if value else ''}]"
        case dict():
            entries = (f"{as_models_write(key, comma)}: {as_models_write(each, comma)}" for key, each in value.items())
            return f"{{{', '.join(entries)}{comma if value else ''}}}"
    return json.dumps(value)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=20)
@given(
    value=JSON_VALUES | st.text(alphabet='a\n\r\t\x00\x1f"\\,]}', max_size=6), comma=st.sampled_from(["", ",", " ,\n "])
)
def test_line_ends_in_strings_and_commas_before_closers_are_read_in_every_form(form, value, comma):
    written = as_models_write(value, comma)
    expected = ("", [("weather", {"city": value})], True)
    text = as_text(written)[form]
    assert read(form, text, []) == read(form, text, list(range(len(text)))) == expected
    for key in ("arguments", "parameters") if form == "hermes" else ():
        for arguments in (f'{{"city": {written}{comma}}}', as_models_write(f'{{"city": {written}{comma}}}', "")):
            for call in (f'"name": "weather", "{key}": {arguments}', f'"{key}": {arguments}, "name": "weather"'):
                text = f"<tool_call>{{{call}{comma}}}</tool_call>"
                assert read(form, text, []) == read(form, text, list(range(len(text)))) == expected
    lone = f'{{"name": "weather", "arguments": {{"city": {written}{comma}}}{comma}}}'
    assert form == "llama3_json" or read(form, lone, []) == read(form, lone, list(range(len(lone)))) == expected


def test_a_parameters_value_of_json_is_read_as_models_write_it():
    schemas = {"weather": {"properties": {"city": {"type": ["array", "object"]}}}}
    for value in (["a\nb"], {"x": "\t", "y": [1, 2]}):
        text = f"{XML}<parameter=city>\n{as_models_write(value, ',')}\n</parameter>\n</function>"
        assert read("qwen3_coder", text, [], schemas)[1] == [("weather", {"city": value})]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("value", ["[1,,2]", "[,1]", "[,]", "[1,,]", '{,"a": 1}', "{,}", "[1 2]", '"a" "b"'])
def test_commas_that_part_nothing_make_no_call(form, value):
    text = as_text(value)[form]
    is_text = form == "pythonic" and value == '"a" "b"'  # as in Python
    assert bool(read(form, text, [])[1]) == is_text


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=15)
@given(st.lists(st.sampled_from([tag for tag in TAGS if is_closing(tag)]), min_size=1, max_size=3), st.data())
def test_closers_before_the_opening_are_no_content(form, closers, data):
    space = data.draw(st.sampled_from(["", "\n"]))
    call = as_text('"Oslo"')[form]
    text = f"{space.join([*closers, call])}{data.draw(st.sampled_from(['', '<tool_call/>', '<tools/>']))}"
    for cuts in ([], list(range(len(text)))):
        assert read(form, text, cuts) == ("", [("weather", {"city": "Oslo"})], True)
        assert read(form, f"{closers[0]} is a tag", cuts) == (f"{closers[0]} is a tag", [], False)


GOOD = {"now()": ("now", {}), 'weather(city="a, nope()")': ("weather", {"city": "a, nope()"})}
BAD = ["nope()", "run(code=x)", "nope(a=[1, 2], b='x)')"]
OPEN = "nope(x"  # which lacks its closer


@settings(max_examples=30)
@given(st.lists(st.sampled_from([*GOOD, *BAD]), min_size=1, max_size=4), st.data())
def test_a_list_keeps_its_calls_beside_those_that_are_none(items, data):
    items = [*items, *data.draw(st.sampled_from([[], [OPEN]]))]
    text = f"[{', '.join(items)}]"
    calls = [GOOD[item] for item in items if item in GOOD]
    said = [item for item in items if item in (*BAD, OPEN)] if calls else [text]
    for cuts in ([], data.draw(st.lists(st.integers(0, 90), max_size=6)), list(range(len(text)))):
        content, found, has_calls = read("pythonic", text, cuts)
        assert (content.split("\n") if said else [], found, has_calls) == (said, calls, bool(calls))


@pytest.mark.parametrize(
    "text",
    [
        *("[now() or now()]", "[nope(1), 2]", "[now(), 2, x()]", "[link](http://x/(y))"),
        *("[now(), 2]", "[now() and so on]", "[now(a=1) b=2]", "[nope(x), now(a=1)) b=2)]"),
    ],
)
def test_a_list_of_other_things_than_calls_is_content(text):
    assert read("pythonic", text, []) == (text, [], False)
