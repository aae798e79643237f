"""Calls that fail, beside calls that do not: of a tool that is not offered, or with arguments that are none. No good
call is lost, no mark-up reaches the content, and what the failed call said is content. Without a good one the answer is
content as it stands.
"""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.tools.formats import CALL, END_CALL, FORMATS, LAYOUTS, SEPARATOR, TAGS, XML_TAGS, Format
from tests.text.tools.test_mutated_calls import read
from tests.text.tools.test_torn_calls import WORDS
from tests.text.tools.test_unclear_calls import around_call

GOOD = [("now", {}), ("weather", {"city": "Oslo"}), ("weather", {"city": "a}b", "days": 2})]
LONG = "x y " * 100  # more than is held back of other text
LISTS = ("pythonic", "llama3_json", "xlam", "llama_nemotron_json", "firefunction_v2")
NAMED = ("functionary", "deepseek_v3", "functionary_v3_2")  # forms that write a name and then its arguments alone
FAILED: list[tuple[str, dict[str, Any]]] = [
    ("nope", {}),
    ("nope", {"a": "x"}),
    ("nope", {"a": LONG, "b": "y"}),
    ("now_", {"code": "if a:\n    b()", "days": 2}),
]
UNREADABLE = ["oops", f"oops {LONG}", "1e999", r'"\ud800"']  # a city
SAID = ["I look.", "and", "It is 1 < 2", 'say "hi" {x}']
MARK_UP = (
    *TAGS,
    "<function=",
    "<parameter=",
    "<function name=",
    "<param name=",
    CALL,
    SEPARATOR,
    END_CALL,
    "```",
    ">>>",
    "functools",
)


def failed_call(form: Format, name: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """With what is said of it."""
    text = WORDS[form].call(name, arguments)
    if form in XML_TAGS:
        return text, " ".join([name, *(f"{key} {value}" for key, value in arguments.items())])
    if form == "pythonic":
        return text, text[1:-1]
    return text, f"{name} {json.dumps(arguments)}" if form in NAMED else text


def unreadable_call(form: Format, city: str) -> str:
    call = WORDS[form].call("weather", {"city": "CITY"})
    if form in XML_TAGS:  # a parameter takes any text
        object_of_it = f'{{"city": {city}}}' if city == "oops" else "{[}"
        return WORDS[form].call("weather", {}).replace("</", f"\n{object_of_it}\n</")
    return call.replace('"CITY"', "lambda: " + city if form == "pythonic" else city)


def answer(form: Format, calls: list[str], between: list[str]) -> str:
    """Calls one behind the other, as the form has them."""
    words = WORDS[form]
    match form:
        case "pythonic":
            return f"[{', '.join(call[1:-1] for call in calls)}]"
        case "llama3_json":
            return "; ".join(calls)
        case "xlam" | "llama_nemotron_json":
            listed = ", ".join(calls)
            return f"<TOOLCALL>[{listed}]</TOOLCALL>" if form == "llama_nemotron_json" else f"[{listed}]"
        case "firefunction_v2":
            return f"functools[{', '.join(calls)}]"
        case "functionary" | "functionary_v3_2":
            tagged = calls
        case _:
            tagged = [f"{words.opening}\n{call}\n{LAYOUTS[form].closing}" for call in calls]
    return "\n".join(part for pair in zip(tagged, between, strict=True) for part in pair if part)


def drawn(form: Format, data: st.DataObject, failed: st.SearchStrategy[Any]) -> tuple[list[Any], str, list[str]]:
    """Calls, good ones as tuples; their text; and what the answer says between them."""
    calls = data.draw(st.lists(st.sampled_from(GOOD) | failed, min_size=1, max_size=3))
    calls.insert(data.draw(st.integers(0, len(calls))), data.draw(st.sampled_from(GOOD)))
    between = [data.draw(st.sampled_from([""] if form in LISTS else ["", *SAID])) for _ in calls]
    texts = [WORDS[form].call(*call) if isinstance(call, tuple) else call[0] for call in calls]
    text = answer(form, texts, between)
    return calls, text, between


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=12)
@given(data=st.data())
def test_calls_of_unknown_tools_are_told_without_mark_up_beside_good_ones(form, data):
    failed = st.sampled_from(FAILED).map(lambda call: list(failed_call(form, *call)))
    calls, text, between = drawn(form, data, failed)
    said = [
        word
        for call, words in zip(calls, between, strict=True)
        for part in (() if isinstance(call, tuple) else (call[1],), (words,))
        for word in " ".join(part).split()
    ]
    content, found, has_calls = read(form, text, [])
    assert (found, has_calls) == ([call for call in calls if isinstance(call, tuple)], True)
    assert content.split() == said
    for cuts in (data.draw(st.lists(st.integers(0, 10_000), max_size=8)), list(range(len(text)))):
        assert read(form, text, cuts) == (content, found, has_calls)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=12)
@given(data=st.data())
def test_calls_with_unreadable_arguments_lose_no_good_one_and_show_no_mark_up(form, data):
    failed = st.sampled_from(UNREADABLE).map(lambda city: [unreadable_call(form, city)])
    calls, text, _ = drawn(form, data, failed)
    content, found, has_calls = read(form, text, [])
    assert found == [call for call in calls if isinstance(call, tuple)]
    assert not [mark for mark in MARK_UP if mark in content]
    assert content.count("weather") == len(calls) - len(found)
    for cuts in (data.draw(st.lists(st.integers(0, 10_000), max_size=8)), list(range(len(text)))):
        assert read(form, text, cuts) == (content, found, has_calls)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("call", FAILED[1:], ids=str)
def test_an_answer_with_failed_calls_alone_is_content_as_it_stands(form, call):
    text = answer(form, [failed_call(form, *call)[0]] * 2, ["and", ""])
    for cuts in ([], list(range(len(text)))):
        assert read(form, text, cuts) == (text, [], False)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("city", ["x", "1e999", '"a" b', '"Oslo"} , "days": 2'])
def test_content_holds_each_character_of_a_failed_call_and_what_follows_once(form, city):
    """Behind the start that the prompt has said, too."""
    layout = LAYOUTS[form]
    call = around_call(form, f'{{"city": {city}}}', "weather").removeprefix(layout.start if layout.is_begun else "")
    for behind in ("", " and", "\nDone", "</x>"):
        text = call + behind
        for cuts in ([], *([at] for at in range(1, len(text))), list(range(len(text)))):
            assert read(form, text, cuts) == (text, [], False)
    good = WORDS[form].call("now", {})
    for behind in (good, f" and\n{good}") if form in NAMED else ():
        content, calls, _ = read(form, call + behind, [])
        assert (content.split()[0], calls) == ("weather", [("now", {})])
        said = f'{{"city": {city}}} {behind.removesuffix(good)}'
        assert content.split() == f"weather {said}".split()


def test_a_parameter_given_twice_is_told_without_mark_up_beside_a_good_call():
    twice = "<function=weather>\n<parameter=city>\na\n</parameter>\n<parameter=city>\nb\n</parameter>\n</function>"
    now = WORDS["qwen3_coder"].call("now", {})
    for text in (twice + now, now + twice):
        content, found, _ = read("qwen3_coder", text, [])
        assert (content.split(), found) == (["weather", "city", "a", "city", "b"], [("now", {})])


@pytest.mark.parametrize("form", [*NAMED, *XML_TAGS])
def test_arguments_behind_an_unknown_tools_call_are_not_of_the_tool_before_it(form):
    words = WORDS[form]
    text = words.opening + words.call("weather", {"city": "a"}) + words.call("nope", {}) + '{"city": "b"}'
    assert read(form, text, [])[1] == [("weather", {"city": "a"})]


@pytest.mark.parametrize("form", FORMATS)
def test_failed_calls_are_read_in_time_linear_in_their_number(form):
    call = failed_call(form, "nope", {"a": "x"})[0]

    def seconds(count: int) -> float:
        text = answer(form, [call] * count, [""] * count)
        begun = time.thread_time()
        assert read(form, text, []) == (text, [], False)
        return time.thread_time() - begun

    assert any(seconds(640) < 64 * seconds(20) for _ in range(3))


def test_what_an_unknown_tools_call_holds_is_no_call():
    inner = json.dumps({"name": "now", "arguments": {}})
    for form in NAMED:
        words = WORDS[form]
        text = f"{words.opening}{words.call('nope', json.loads(inner))}{words.call('weather', {'city': 'a'})}"
        assert [name for name, _ in read(form, text, [])[1]] == ["weather"]
