"""What stands within an object is no call, whatever made that object none: it is content up to where its brackets
close, and a call behind it is one. An object without the form's keys is content as it stands.
"""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.tools.formats import FORMATS, LAYOUTS, XML_TAGS, Format
from tests.text.tools.test_mutated_calls import read
from tests.text.tools.test_unclear_calls import around_call

SCHEMAS = {"get": {"properties": {"q": {}}}, "write": {"properties": {"path": {}, "content": {}}}}
OBJECT_FORMS = [form for form in FORMATS if LAYOUTS[form].start == "{"]
JSON_FORMS = [form for form in FORMATS if form not in XML_TAGS and form != "pythonic"]
IN_TAGS = [form for form in OBJECT_FORMS if LAYOUTS[form].closing]
LISTS = ("xlam", "llama_nemotron_json", "firefunction_v2")  # without which a call of theirs lacks its bracket
IN_ARGUMENTS = {
    "a bare word": '{"path": foo, "content": INNER}',
    "a bad escape": r'{"path": "a\q", "content": INNER}',
    "no comma, no name": '{"path": "a", INNER "u": 1}',
    "no name": '{"path": "a", INNER}',
    "a quote too many": '{"path": "a"b", "content": "", "c": INNER}',
    "no colon": '{"path" "a", "content": INNER}',
    "a number too large": '{"path": 1e999, "content": INNER}',
    "an equals sign": '{"path"="a", "content": INNER}',
}
IN_CALL = {
    "a name without quotes": '{"name": write, "arguments": {"content": INNER}}',
    "a name that is none": '{"name": null, "arguments": {"content": INNER}}',
    "no name": '{"arguments": {"content": INNER}}',
    "two names": '{"name": "write", "name": "x", "arguments": {"content": INNER}}',
    "an object as its name": '{"name": {"x": 1}, "arguments": {"content": INNER}}',
    "another key": '{"nam": "write", "arguments": {"content": INNER}}',
    "no colon": '{"name" "write", "arguments": {"content": INNER}}',
    "a list of arguments": '{"name": "write", "arguments": [INNER]}',
    "single quotes": "{'name': write, 'arguments': {'content': INNER}}",
    "keys without quotes": "{name: write, arguments: {content: INNER}}",
    "no key": '{write, "arguments": {"content": INNER}}',
    "text in it": '{"name": "write" because "arguments": {"content": INNER}}',
    "text before the list": '{"name": "write", "arguments": so [INNER]}',
    "two colons": '{"name":: "write", "arguments": {"content": INNER}}',
    "the API's key and a name": '{"function": "write", "arguments": {"content": INNER}}',
    "the API's key and a word": '{"function": write, "arguments": {"content": INNER}}',
    "another tool": '{"name": "nope", "arguments": {"content": INNER}}',
    "a plan": '{"plan": INNER}',
    "a document": '{"openapi": "3.0", "servers": [INNER]}',
    "a thought": '{"thought": "I look.", "call": INNER}',
}


def whole(form: Format, call: str) -> str:
    """An answer in which it stands where calls do."""
    layout = LAYOUTS[form]
    end = "]" if form in LISTS else ""
    start = "[" if form in ("xlam", "llama_nemotron_json") else ""
    return f"{layout.opening}{start}{call}{end}{layout.closing}"


def object_of(form: Format, name: str = "get", arguments: str = '{"q": "x"}') -> str:
    key = "parameters" if form == "llama3_json" else "arguments"
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def inner_calls(form: Format) -> list[str]:
    """As a value: the object, several, and the answer that would be a call, as a text and as it stands."""
    one, marked = object_of(form), around_call(form, '{"q": "x"}', "get")
    inner = [one, f"[{one}, {one}]", json.dumps(f"a\n{marked}\n"), json.dumps(marked * 2), f'{{"x":\n{one}\n}}']
    return inner if form in OBJECT_FORMS else [*inner, json.dumps(object_of(form) + marked)]


FAILED = [(form, fault) for form in JSON_FORMS for fault in IN_ARGUMENTS] + [
    (form, fault) for form in OBJECT_FORMS for fault in IN_CALL
]


def failed(form: Format, fault: str, inner: str) -> str:
    if fault in IN_CALL and form in OBJECT_FORMS:
        key = "parameters" if form == "llama3_json" else "arguments"
        return whole(form, IN_CALL[fault].replace("arguments", key).replace("INNER", inner))
    arguments = IN_ARGUMENTS[fault].replace("INNER", inner)
    if form in OBJECT_FORMS:
        return whole(form, object_of(form, "write", arguments))
    return around_call(form, arguments, "write")


@pytest.mark.parametrize(("form", "fault"), FAILED)
def test_no_call_is_found_within_an_object_that_is_none(form, fault):
    for inner in inner_calls(form):
        text = failed(form, fault, inner)
        for cuts in ([], list(range(len(text)))):
            assert read(form, text, cuts, SCHEMAS) == (text, [], False)


@pytest.mark.parametrize(("form", "fault"), FAILED)
@settings(max_examples=15)
@given(data=st.data())
def test_nor_where_the_answer_is_cut_there(form, fault, data):
    inner = data.draw(st.sampled_from(inner_calls(form)))
    text = failed(form, fault, inner)
    text = text[: data.draw(st.integers(text.index(inner), len(text)))]
    for cuts in ([], data.draw(st.lists(st.integers(0, 999), max_size=6)), list(range(len(text)))):
        assert read(form, text, cuts, SCHEMAS) == (text, [], False)


@pytest.mark.parametrize(("form", "fault"), FAILED)
def test_a_call_behind_such_an_object_is_one(form, fault):
    if "quote" in fault and not LAYOUTS[form].ends:
        return  # nothing says where it ends
    good = around_call(form, '{"q": "good"}', "get")
    for inner in inner_calls(form)[:2]:
        text = f"{failed(form, fault, inner)}\n{good}"
        content, calls, has_calls = read(form, text, [], SCHEMAS)
        assert calls == [("get", {"q": "good"})]
        assert inner in content
        assert read(form, text, list(range(len(text))), SCHEMAS) == (content, calls, has_calls)


@pytest.mark.parametrize("form", IN_TAGS)
@pytest.mark.parametrize("arguments", ['{"q": "x', '{"q": x', '{"q": [x}', '{"q": "x"y'])
def test_an_object_that_never_closes_ends_at_the_form_s_closer(form, arguments):
    layout = LAYOUTS[form]
    torn = f'{layout.opening}{{"name": "write", "arguments": {arguments}{layout.closing}'
    for between in ("", "\n", " and "):
        text = f"{torn}{between}{whole(form, object_of(form))}"
        content, calls, has_calls = read(form, text, [], SCHEMAS)
        assert calls == [("get", {"q": "x"})]
        assert not [tag for tag in layout.tags if tag in content]
        assert read(form, text, list(range(len(text))), SCHEMAS) == (content, calls, has_calls)


UNCLOSED = [
    '{"name": write, "arguments": {}',
    '{"name": "write", "arguments": {"path": bad}',
    '{"name": "write", "arguments": ',
]
ODD = [
    '{"name": "write", "arguments": {"path": "a", "content": "a 5" disk"}}',
    "{'name': 'write', 'arguments': {'path': 'a', 'content': 'it's'}}",
]  # one quote too many


@pytest.mark.parametrize("form", IN_TAGS)
@pytest.mark.parametrize("torn", UNCLOSED)
def test_an_object_that_never_closes_ends_at_an_opening_that_begins_a_line(form, torn):
    opening = LAYOUTS[form].opening
    for space in ("\n", "\n\n", " \n"):
        text = f"{opening}\n{torn}{space}{whole(form, object_of(form))}"
        content, calls, has_calls = read(form, text, [], SCHEMAS)
        assert (content, calls) == (torn.strip(), [("get", {"q": "x"})])
        assert read(form, text, list(range(len(text))), SCHEMAS) == (content, calls, has_calls)
        quoted = f"{opening}\n{torn}, {opening}{object_of(form)}"  # within a line it may be a word of a text
        for cuts in ([], list(range(len(quoted)))):
            assert read(form, quoted, cuts, SCHEMAS) == (quoted, [], False)


@pytest.mark.parametrize("form", IN_TAGS)
@settings(max_examples=40)
@given(
    failed=st.lists(
        st.tuples(st.sampled_from(ODD), st.sampled_from(["", "Oops.", 'The 5" needs an escape.'])),
        min_size=1,
        max_size=3,
    ),
    behind=st.sampled_from(["", "Done.", 'It is 5".']),
    data=st.data(),
)
def test_a_quote_too_many_loses_no_call_behind_it_and_shows_no_mark_up(form, failed, behind, data):
    lines = [
        line for call, words in failed for line in (f"{LAYOUTS[form].opening}\n{call}\n{LAYOUTS[form].closing}", words)
    ]
    text = "\n".join(filter(None, [*lines, whole(form, object_of(form)), behind]))
    content, calls, has_calls = read(form, text, [], SCHEMAS)
    assert calls == [("get", {"q": "x"})]
    said = [line for each in failed for line in each if line] + [behind] * bool(behind)
    assert content.split("\n") == said
    for cuts in (data.draw(st.lists(st.integers(0, 999), max_size=6)), list(range(len(text)))):
        assert read(form, text, cuts, SCHEMAS) == (content, calls, has_calls)


@pytest.mark.parametrize("form", OBJECT_FORMS)
@settings(max_examples=25)
@given(data=st.data())
def test_an_object_ends_at_the_same_sign_however_the_text_is_cut(form, data):
    layout = LAYOUTS[form]
    tags = [*layout.tags, *(f"\\{tag}" for tag in layout.tags), *(tag[:3] for tag in layout.tags)]
    signs = ["\\", "\n", '"', "'", "{", "}", "[", "x", ": ", *tags, f"\n{whole(form, object_of(form))}"]
    begins = data.draw(st.sampled_from(["{[", '{"name": x', '{"name": "get", "arguments": {"q": "a" + x', "{'a': "]))
    text = f"{layout.opening}\n{begins}{''.join(data.draw(st.lists(st.sampled_from(signs), max_size=12)))}"
    text += data.draw(st.sampled_from(["", f"\n{whole(form, object_of(form))}"]))
    found = read(form, text, [], SCHEMAS)
    for cuts in ([], *([at] for at in range(len(text))), list(range(len(text)))):
        assert read(form, text, cuts, SCHEMAS) == found


@pytest.mark.parametrize("key", ["tool", "tools", "call", "calls", "tool_call", "tool_calls", "function", "functions"])
@pytest.mark.parametrize("form", IN_TAGS)
def test_an_object_that_holds_nothing_but_calls_is_one_place_of_calls(form, key):
    for held in (object_of(form), f"[{object_of(form)}, {object_of(form)}]"):
        text = whole(form, f'{{"{key}": {held}}}')
        for cuts in ([], list(range(len(text)))):
            assert read(form, text, cuts, SCHEMAS) == ("", [("get", {"q": "x"})] * held.count("name"), True)


@pytest.mark.parametrize("form", OBJECT_FORMS)
@pytest.mark.parametrize("torn", ['{"', '{"a": "b"c" ', '{"a": [', "{a: {", "{'a', "])
def test_objects_that_never_close_are_read_in_time_linear_in_their_number(form, torn):
    layout = LAYOUTS[form]

    def seconds(count: int) -> float:
        text = f"{layout.opening}{torn}{layout.closing}\n" * count
        begun = time.thread_time()
        assert read(form, text, [], SCHEMAS) == (text, [], False)
        return time.thread_time() - begun

    assert any(seconds(1280) < 64 * seconds(40) for _ in range(3))
