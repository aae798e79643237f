"""Calls that lack a comma, or have one too many: read where that means one thing only, and the same in a stream."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.tools.formats import AROUND, FORMATS, LAYOUTS, XML_TAGS, Format
from tests.text.tools.test_mutated_calls import read

SCHEMAS: dict[str, Any] = {
    "weather": {"properties": {"city": {}, "days": {"type": "integer"}, "all": {"type": "array"}}}
}
WORDS = st.sampled_from(["Oslo", "a, b", '"k": 1, ', "{}", "two\nlines", "]"])
OBJECTS = st.dictionaries(st.sampled_from(["x", "y", "z"]), st.one_of(WORDS, st.integers(0, 99)), max_size=3)
ITEMS = st.one_of(WORDS, OBJECTS, st.lists(WORDS, max_size=2))
ARGUMENTS = st.fixed_dictionaries(
    {"all": st.lists(ITEMS, min_size=2, max_size=3)}, optional={"city": WORDS, "days": st.integers(0, 99)}
)
COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<comma>,)')


def written(form: Format, arguments: dict[str, Any]) -> str:
    text, layout = json.dumps(arguments), LAYOUTS[form]
    if form in XML_TAGS:
        tags = XML_TAGS[form]
        values = "".join(
            f"{tags.head(name)}{json.dumps(value)}{tags.gap}{tags.end_parameter}{tags.gap}"
            for name, value in arguments.items()
        )  # of JSON; a text would stand there as it is
        around = ("<tool_call>\n", "\n</tool_call>") if tags.gap else ("", "")
        name = f"{tags.function}{tags.quote}weather{tags.quote}>{tags.gap}"
        return f"{around[0]}{name}{values}</function>{around[1]}"
    if form == "pythonic":
        return f"[weather({', '.join(f'{name}={json.dumps(value)}' for name, value in arguments.items())})]"
    before, after = AROUND[form]
    starts: dict[Format, str] = {"xlam": "[", "functionary": "<function=", "functionary_v3_2": ">>>"}
    end = "]" if form in ("xlam", "firefunction_v2") else ""
    start = layout.opening + starts.get(form, "")
    return f"{start}{before.replace('NAME', 'weather')}{text}{after}{end}{layout.closing}"


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=30)
@given(arguments=ARGUMENTS, data=st.data())
def test_a_call_that_lacks_a_comma_is_read_as_if_it_had_it(form, arguments, data):
    arguments = {name: value for name, value in arguments.items() if name != "city" or form not in XML_TAGS}
    text = written(form, arguments)
    expected = ("", [("weather", arguments)], True)
    assert read(form, text, [], SCHEMAS) == expected
    commas = [found.start() for found in COMMA.finditer(text) if found["comma"]]
    is_between_texts = re.compile(r',\s*["\']')
    if form == "pythonic":  # two texts side by side are one there
        commas = [at for at in commas if not is_between_texts.match(text, at) or text[at - 1] != '"']
    if not commas:
        return
    at = data.draw(st.sampled_from(commas))
    lacking = text[:at] + text[at + 1 :]
    assert read(form, lacking, [], SCHEMAS) == expected
    assert read(form, lacking, list(range(len(lacking))), SCHEMAS) == expected


BEFORE_NAME = re.compile(r',(?=\s*(?:"\w+"\s*:|\w+\())|,(?=\s*\w+=)|(?<=\d)(?=[})])')  # or behind the last


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in XML_TAGS])
@settings(max_examples=20)
@given(inner=st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9), min_size=1), data=st.data())
def test_a_call_with_a_doubled_comma_is_read_as_if_it_had_one(form, inner, data):
    arguments = {"city": inner, "days": 2}
    text = written(form, arguments)
    at = data.draw(st.sampled_from([found.start() for found in BEFORE_NAME.finditer(text)]))
    for commas in (",,", ", ,\n", ",,,"):
        doubled = text[:at] + commas + text[at:].removeprefix(",")
        expected = ("", [("weather", arguments)], True)
        assert read(form, doubled, [], SCHEMAS) == read(form, doubled, list(range(len(doubled))), SCHEMAS) == expected


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "pythonic" and form not in XML_TAGS])
@pytest.mark.parametrize("value", ['["the ""quoted"" word"]', '["a""b"]', "[\"a\"'b']", '{"x": "a""b"}'])
def test_texts_side_by_side_are_not_two_items(form, value):
    text = written(form, {"all": 1}).replace("1", value)
    for cuts in ([], list(range(len(text)))):
        assert read(form, text, cuts, SCHEMAS) == (text, [], False)


@pytest.mark.parametrize(
    ("form", "around"),
    [("hermes", "Hi.\n%s\n</tool_call>"), ("llama3_json", "Hi.\n%s"), ("hermes", "%s"), ("xlam", "Hi.\n[%s]")],
)
def test_a_call_without_an_opening_may_lack_its_comma(form, around):
    text = around % '{"name": "weather" "arguments": {"days": 2}}'
    for cuts in ([], list(range(len(text)))):
        content, calls, _ = read(form, text, cuts, SCHEMAS)
        assert (content, calls) == ("Hi." if "Hi" in around else "", [("weather", {"days": 2})])


@pytest.mark.parametrize(
    "value", ["[1 2]", "[true null]", '[1"x"]', '["a" b]', '{"a" 1}', '{"a": 1 b: 2}', '["a" 1-2]']
)
def test_what_may_be_another_value_stays_content(value):
    text = f'<tool_call>\n{{"name": "weather", "arguments": {{"all": {value}}}}}\n</tool_call>'
    for cuts in ([], list(range(len(text)))):
        assert read("hermes", text, cuts, SCHEMAS) == (text, [], False)


@pytest.mark.parametrize("value", ['[["a"]"b"]', '[{"x":1}"b"]', '[["a"] "b"]', '["a",[]"b"]', '[[]"b"]'])
def test_a_text_behind_a_closer_may_lack_its_comma(value):
    text = f'<tool_call>\n{{"name": "weather", "arguments": {{"all": {value}}}}}\n</tool_call>'
    wanted = json.loads(re.sub(r'([\]}]) ?"', r'\1,"', value))
    for cuts in ([], list(range(len(text)))):
        assert read("hermes", text, cuts, SCHEMAS)[:2] == ("", [("weather", {"all": wanted})])


@pytest.mark.parametrize("end", ["", "</function>"])
def test_text_between_a_name_and_its_arguments_is_content(end):
    text = f'<function=weather>note {{"days": 1}}{end}'
    for cuts in ([], list(range(len(text)))):
        assert read("functionary", text, cuts, SCHEMAS)[:2] == ("note", [("weather", {"days": 1})])
