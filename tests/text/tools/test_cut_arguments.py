"""A closer too many within a call's arguments: where the text behind it names further arguments, there is no call. What
was sent of one is taken back, and the answer is content as it stands.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.tools.formats import FORMATS, LAYOUTS
from jaxinfer.text.tools.marks import is_closing
from tests.text.tools.test_mutated_calls import read
from tests.text.tools.test_unclear_calls import around_call

SCHEMAS: dict[str, Any] = {"weather": {"properties": dict.fromkeys(["a", "b", "c", "d"], {})}, "now": {}}
NOW, CUT = '{"name": "now", "arguments": {}}', '{"name": "weather", "arguments": {"a": {}}, "b": 1}}'
VALUES = st.recursive(
    st.sampled_from(["x", "a} b", "], c=", 7, None]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=3,
)
ARGUMENTS = st.dictionaries(st.sampled_from("abcd"), VALUES, min_size=2)


def cut(arguments, count, closers):
    """The arguments as JSON, with closers behind the value of one of them that is not the last."""
    texts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in arguments.items()]
    return f"{{{', '.join(texts[:count])}{closers}, {', '.join(texts[count:])}}}"


def in_python(arguments, count, closers, comma):
    texts = [f"{name}={value!r}" for name, value in arguments.items()]
    return f"[weather({', '.join(texts[:count])}{closers}{comma}{', '.join(texts[count:])})]"


def enclosed(form, arguments):
    return around_call(form, arguments, "weather") + ("]" if form in ("xlam", "firefunction_v2") else "")


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=25)
@given(arguments=ARGUMENTS, data=st.data())
def test_a_call_whose_arguments_are_cut_is_content(form, arguments, data):
    count = data.draw(st.integers(1, len(arguments) - 1))
    if form == "pythonic":
        closers = data.draw(st.sampled_from(["]", ")", "}", "]]", "))"]))
        text = in_python(arguments, count, closers, data.draw(st.sampled_from([", ", " ", "", "; ", "\n"])))
    else:
        closers = data.draw(st.sampled_from(["}", "]", "}}", "}]"]))
        text = enclosed(form, cut(arguments, count, closers))
    assert read(form, text, [], SCHEMAS) == (text, [], False)
    assert read(form, text, list(range(len(text))), SCHEMAS) == (text, [], False)


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "pythonic"])
@settings(max_examples=25)
@given(arguments=ARGUMENTS, data=st.data())
def test_a_call_with_a_tag_within_its_arguments_is_whole_or_content(form, arguments, data):
    count = data.draw(st.integers(1, len(arguments) - 1))
    tags = [*(tag for tag in LAYOUTS[form].tags if is_closing(tag)), "</tool_call>", "</function>"]
    tag = "".join(data.draw(st.lists(st.sampled_from(["\n", *tags]), min_size=1, max_size=2)))
    closers = data.draw(st.sampled_from(["", "}", "}}"]))
    text = enclosed(form, cut(arguments, count, closers + tag))
    content, calls, has_calls = read(form, text, [], SCHEMAS)
    assert (content, calls) == (text, []) or calls == [("weather", arguments)]
    for cuts in (data.draw(st.lists(st.integers(0, 10_000), max_size=8)), list(range(len(text)))):
        assert read(form, text, cuts, SCHEMAS) == (content, calls, has_calls)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("closers", ["}", "}}", "})", "}]"])
def test_a_closer_too_many_behind_all_arguments_is_a_mark(form, closers):
    if form == "pythonic":
        text = f"[weather(a=1, b={{'x': 1}}){closers.replace('}', ')')}]"
    else:
        text = enclosed(form, '{"a": 1, "b": {"x": 1}}' + closers[1:])
    expected = ("", [("weather", {"a": 1, "b": {"x": 1}})], True)
    for cuts in ([], list(range(len(text)))):
        assert read(form, text, cuts, SCHEMAS) == expected


@pytest.mark.parametrize("beside", ['"id": 3', '"type": "function"', '"thought": {"x": [1]}'])
@pytest.mark.parametrize(
    "call", ['{"name": "weather", "arguments": {"a": 1}, %s}', '{%s, "name": "weather", "arguments": {"a": 1}}']
)
def test_keys_that_are_no_arguments_stand_beside_them(call, beside):
    text = f"<tool_call>{call % beside}</tool_call>"
    for cuts in ([], list(range(len(text)))):
        assert read("hermes", text, cuts, SCHEMAS) == ("", [("weather", {"a": 1})], True)


@pytest.mark.parametrize(
    ("form", "text", "names"),
    [
        ("hermes", f"<tool_call>{NOW}</tool_call><tool_call>{CUT}</tool_call>", ["now"]),
        ("functionary", '<function=weather>{"a": 1}}, "b": 2}</function><function=now>{}</function>', ["now"]),
        ("functionary", '<function=now>{}, "name": "now"</function>', ["now"]),
        ("pythonic", "[weather(a=1]", ["weather"]),
        ("pythonic", "[weather(a=1], ", ["weather"]),
        ("pythonic", "[weather(a=1]\n[now()]", ["weather", "now"]),
    ],
)
def test_other_calls_stay_beside_one_that_is_cut(form, text, names):
    for cuts in ([], list(range(len(text)))):
        _, calls, _ = read(form, text, cuts, SCHEMAS)
        assert [name for name, _ in calls] == names


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("pythonic", "[weather(a='x', b=[now()])]"),
        ("pythonic", "[weather(a='x', b=[now()]"),
        ("pythonic", "[nope(a=[now()])]"),
        ("hermes", f'<tool_call>{{"name": "nope", "arguments": {{"x": {NOW}}}}}</tool_call>'),
    ],
)
def test_what_stands_within_the_arguments_of_a_call_that_failed_is_no_call(form, text):
    for cuts in ([], list(range(len(text)))):
        assert read(form, text, cuts, SCHEMAS) == (text, [], False)
