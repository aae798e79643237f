"""Calls torn apart, in every form: closers missing, doubled, in another order or of another form; text before, between
and behind calls, within their tags too; objects, quotes and parentheses around calls; a tag that the answer ends in.
No mark reaches the content, no whole call is lost, and the text is kept.
"""

import dataclasses
import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.tools.formats import CALL, END_CALL, FORMATS, LAYOUTS, SEPARATOR, TAGS, Format
from jaxinfer.text.tools.marks import is_closing
from jaxinfer.text.tools.reader import ToolReader, ToolUse, WholeCalls

TEXT = {"type": "string"}
SCHEMAS = {"weather": {"type": "object", "properties": {"city": TEXT, "days": {"type": "integer"}}}, "now": {}}
CALLS = [("now", {}), ("weather", {"city": "Oslo"}), ("weather", {"city": "a}b", "days": 2})]
AROUND = [
    *("CALL", "(CALL)", '"CALL"', "`CALL`", "CALL)", '{"function": CALL}', '{"type": "function", "function": CALL}'),
    *('{"tool_calls": [CALL]}', '{"function": CALL, "type": "function"}'),
]
OTHER_OPENERS = ["<tools>", "<tool>", "<function>", "<tool_call>", "<tool_calls>", "<function_call>"]
SAID = ["I look.", "and", "It is 1 < 2", "Done", 'say "hi" {x}']


@dataclasses.dataclass(frozen=True)
class Words:
    """A form's vocabulary. between: what may part calls.    fences: that may stand around them."""

    call: Any
    opening: str = ""
    closings: tuple[str, ...] = ()
    between: tuple[str, ...] = ("", "\n")
    fences: tuple[str, ...] = ("```json", "```")


def as_object(key: str):
    return lambda name, arguments: json.dumps({"name": name, key: arguments})


def as_xml(name: str, arguments: dict[str, Any]) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{values}</function>"


def as_attributes(name: str, arguments: dict[str, Any]) -> str:
    values = "".join(f'<param name="{key}">{value}</param>' for key, value in arguments.items())
    return f'<function name="{name}">{values}</function>'


def as_python(name: str, arguments: dict[str, Any]) -> str:
    return f"[{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in arguments.items())})]"


def as_deepseek(name: str, arguments: dict[str, Any]) -> str:
    return f"{CALL}function{SEPARATOR}{name}\n```json\n{json.dumps(arguments)}\n```{END_CALL}"


CALLS_BEGIN, CALLS_END = LAYOUTS["deepseek_v3"].opening, LAYOUTS["deepseek_v3"].closing
OBJECTS = ("", "\n", ", ", ";")
WORDS: dict[Format, Words] = {
    "hermes": Words(as_object("arguments"), "<tool_call>", ("</tool_call>",), OBJECTS),
    "qwen2_5_coder": Words(as_object("arguments"), "<tools>", ("</tools>", "</tool_call>"), OBJECTS),
    "llama_nemotron_json": Words(as_object("arguments"), "<TOOLCALL>", ("]", "</TOOLCALL>"), OBJECTS),
    "xlam": Words(as_object("arguments"), "[", ("]",), OBJECTS),
    "llama3_json": Words(as_object("parameters"), "", ("", "]"), OBJECTS),
    "pythonic": Words(as_python, "", ("", "<|python_end|>"), (", ", ";", "\n"), ("```python",)),
    "qwen3_coder": Words(as_xml, "<tool_call>", ("</tool_call>", "</function>", "</parameter>")),
    "minicpm5": Words(as_attributes, "", ("", "</function>", "</param>", "</tool_call>")),
    "functionary": Words(
        lambda name, arguments: f"<function={name}>{json.dumps(arguments)}</function>", "", ("", "</function>")
    ),
    "functionary_v3_2": Words(lambda name, arguments: f">>>{name}\n{json.dumps(arguments)}"),
    "firefunction_v2": Words(as_object("arguments"), "functools[", ("]",), OBJECTS),
    "deepseek_v3": Words(as_deepseek, CALLS_BEGIN, (CALLS_END, END_CALL), fences=()),
}


def torn_tag(tags: tuple[str, ...], draw: st.DrawFn) -> str:
    """Where the answer ends within a tag; too little of one behind text is text."""
    tag = draw(st.sampled_from(["", *(tag for tag in tags if not tag[0].isalnum())]))
    return tag[: draw(st.integers(3, len(tag) - 1))] if tag else ""


def torn(form: Format, draw: st.DrawFn) -> tuple[str, list[tuple[str, dict[str, Any]]], list[str]]:
    """An answer, the calls that it holds and what it says."""
    words, calls, said, parts = WORDS[form], [], [], []
    tags = LAYOUTS[form].tags

    def say(may: bool = True) -> bool:
        if speaks := may and draw(st.booleans()):
            said.append(draw(st.sampled_from(SAID)))
            parts.append(draw(st.sampled_from([" ", "\n"])) + said[-1] + draw(st.sampled_from([" ", "\n"])))
        return speaks

    say(not LAYOUTS[form].begins_with_calls)
    fence = draw(st.sampled_from(["", *words.fences]))
    parts.append(f"{fence}\n" if fence else "")
    for i in range(draw(st.integers(1, 3))):
        at_least = 0 if i else 1  # a call may lack its opening where one was before
        say(bool(i))
        openings = draw(st.integers(at_least, 2))
        parts.append(draw(st.sampled_from(["", *OTHER_OPENERS])) if openings and words.opening in tags else "")
        parts += [words.opening] * openings
        say(words.opening in tags)
        calls.append(draw(st.sampled_from(CALLS)))
        parts.append(draw(st.sampled_from(AROUND)).replace("CALL", words.call(*calls[-1])))
        parts.append("}" * draw(st.integers(0, 1)))
        parts.append(draw(st.sampled_from(["", "</tools>", "</function>", "</tool_call>", "</tool_calls>"])))
        closings = [closing for closing in words.closings for _ in range(draw(st.integers(0, 2)))]
        has_said = False
        for closing in draw(st.permutations(closings)):
            has_said = has_said or say(closing in tags)
            parts.append("" if has_said and closing not in tags else closing)
        has_tags = any(closing in tags for closing in closings) or parts[-1].startswith("</")
        parts.append("" if has_said or has_tags else draw(st.sampled_from(words.between)))
        say()
    parts.append(draw(st.sampled_from(["", words.opening])) if words.opening in tags else "")
    parts.append("\n```" if fence else "")
    say()
    parts.append(torn_tag(tags, draw))
    return "".join(parts), calls, said


def read(form: Format, text: str, cuts: list[int]) -> tuple[str, list[tuple[str, dict[str, Any]]], str, bool]:
    """The content and the calls of the whole answer, the content of its stream, and whether it ends with calls."""
    reader, whole, content, streamed = ToolReader(form, ToolUse(SCHEMAS)), WholeCalls(), [], []
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for piece in [*(text[start:end] for start, end in zip(edges, edges[1:], strict=False)), None]:
        shown, deltas = reader.finish() if piece is None else reader.feed(piece)
        streamed.append(shown)
        content.append(whole.add(deltas, shown))
    calls = [(call.name or "", json.loads(call.arguments)) for call in whole.calls]
    return "".join(content), calls, "".join(streamed), reader.has_calls


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=15)
@given(data=st.data())
def test_no_mark_reaches_the_content_and_no_call_is_lost(form, data):
    text, calls, said = torn(form, data.draw)
    content, found, streamed, has_calls = read(form, text, [])
    assert (found, content.split(), has_calls) == (calls, " ".join(said).split(), True)
    assert streamed == content
    for cuts in (data.draw(st.lists(st.integers(0, 10_000), max_size=8)), list(range(len(text)))):
        assert read(form, text, cuts) == (content, found, streamed, has_calls)


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "llama3_json"])
@settings(max_examples=15)
@given(data=st.data())
def test_a_lone_object_beside_closers_is_a_call(form, data):
    """Its opening is missing. Behind a tag the answer goes on as behind any call."""
    draw, words = data.draw, WORDS[form]
    own = [tag for tag in LAYOUTS[form].tags if is_closing(tag)]
    lead = draw(st.lists(st.sampled_from([*own, "\n", " "]), max_size=3))
    call, *more = draw(st.lists(st.sampled_from(CALLS), min_size=1, max_size=2))
    behind = draw(st.sampled_from(["", "}", "]", "\n```", "}\n"]))
    tags = draw(st.lists(st.sampled_from([*(tag for tag in TAGS if is_closing(tag)), "\n"]), max_size=3))
    text = "".join([*lead, as_object("arguments")(*call), behind, *tags])
    said = ""
    if any(map(is_closing, tags)):
        text += "".join(words.opening + words.call(*each) for each in more)
        said = draw(st.sampled_from(["", *SAID]))
    else:
        more = []
    expected = (said, [call, *more], said, True)
    text += f"\n{said}" if said else ""
    for cuts in ([], draw(st.lists(st.integers(0, 10_000), max_size=8)), list(range(len(text)))):
        assert read(form, text, cuts) == expected


@settings(max_examples=30)
@given(
    parts=st.lists(st.sampled_from([*SAID, ">>> x", "all", "() => 1"]) | st.sampled_from(CALLS), max_size=5),
    data=st.data(),
)
def test_parts_that_are_marked_as_text_or_as_calls_are_told_apart(parts, data):
    """The first has no mark: the prompt ends in it."""
    calls, said = [part for part in parts if isinstance(part, tuple)], [part for part in parts if isinstance(part, str)]
    written = (f"{part[0]}\n{json.dumps(part[1])}" if isinstance(part, tuple) else f"all\n{part}" for part in parts)
    text, content = ">>>".join(written), "\n".join(said)
    for cuts in ([], data.draw(st.lists(st.integers(0, 10_000), max_size=8)), list(range(len(text)))):
        assert read("functionary_v3_2", text, cuts) == (content, calls, content, bool(calls))


@pytest.mark.parametrize("form", [form for form in FORMATS if LAYOUTS[form].closing])
@settings(max_examples=10)
@given(data=st.data())
def test_a_call_without_its_opening_behind_text_is_one_before_a_closing_tag(form, data):
    draw, closing = data.draw, LAYOUTS[form].closing
    said, (name, arguments) = draw(st.sampled_from(SAID)), draw(st.sampled_from(CALLS))
    text = said + draw(st.sampled_from(["\n", " ", "\n\n"])) + as_object("arguments")(name, arguments)
    text += draw(st.sampled_from(["", "\n", "}\n", "]", " "]))
    more = WORDS[form].opening + WORDS[form].call("now", {})
    for answer, calls in (
        (text + closing, [(name, arguments)]),
        (text + closing[:-1], [(name, arguments)]),
        (f"{text}{closing}\n{more}", [(name, arguments), ("now", {})]),
        (f"{text} it is", []),
    ):
        content = said if calls else answer
        for cuts in ([], list(range(len(answer)))):
            assert read(form, answer, cuts) == (content, calls, content, bool(calls))


PIECES = [
    *AROUND,
    "{",
    '"a": ',
    '{"a": ',
    ', "a": 1',
    "</tool_call>",
    "</tool_cal",
    "```json\n",
    '{"name": ',
    "text CALL",
]


def seconds(form: Format, pieces: list[str], count: int) -> float:
    words, reader = WORDS[form], ToolReader(form, ToolUse(SCHEMAS))
    call = words.call("now", {})
    repeated = itertools.islice(itertools.cycle(pieces), count)
    text = words.opening + call + "".join(repeated).replace("CALL", call)
    begun = time.thread_time()
    reader.feed(text)
    reader.finish()
    return time.thread_time() - begun


@pytest.mark.parametrize(
    ("form", "pieces", "count"), [*((form, PIECES, 25) for form in FORMATS), ("hermes", ["text CALL"], 100)]
)
def test_torn_calls_are_read_in_time_linear_in_their_number(form, pieces, count):
    assert any(seconds(form, pieces, 32 * count) < 64 * seconds(form, pieces, count) for _ in range(3))
