"""Calls as models write them when they slip: closers left out, doubled or in another order, several calls where one
belongs. No mark-up reaches the content, no call that was whole is lost, and a stream says what the whole answer says.
"""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxinfer.text.tools.formats import CALL, END_CALL, FORMATS, LAYOUTS, SEPARATOR, XML_TAGS, Format
from jaxinfer.text.tools.reader import ToolReader, ToolUse, WholeCalls
from jaxinfer.text.tools.xml_tags import XmlTags

TEXT = {"type": "string"}
SCHEMAS = {"weather": {"type": "object", "properties": {"city": TEXT, "days": {"type": "integer"}}}, "now": {}}
WEATHERS = [
    {"city": city, **days}
    for city in ("Oslo", "a}b", "<br> ]", "two\nlines")
    for days in ({}, {"days": 2}, {"days": -1})
]
Calls = list[tuple[str, dict[str, Any]]]
CALLS: st.SearchStrategy[Calls] = st.lists(
    st.one_of(st.tuples(st.just("weather"), st.sampled_from(WEATHERS)), st.just(("now", {}))), min_size=1, max_size=3
)
WORDS = st.sampled_from(["", "I look.", "It is 1 < 2, so:\n\n", "Done\n"])
STRAY = st.sampled_from(["", "</tool_response>", "\n</tool_response>", "</tools>\n", "</function_call>"])
TWICE = st.integers(0, 2)  # a closer left out, as it should be, or doubled
AT_LEAST_ONCE = st.integers(1, 2)


class Slips:
    """Writes calls with slips that `draw` chooses. parted: the name and the arguments alone may be two objects."""

    def __init__(self, draw: st.DrawFn, *, parted: bool = True) -> None:
        self.draw, self.parted = draw, parted

    def text(self, form: Format, calls: Calls) -> str:
        """The answer; where the form has no opening tag, nothing may come before it."""
        match form:
            case "pythonic":
                return self.python_list(calls)
            case "llama3_json":
                return self.objects(calls, "parameters")
            case "xlam":
                return self.fenced(f"[{self.objects(calls, 'arguments')}{self.some(']', TWICE)}")
            case "qwen3_coder" | "minicpm5":
                return self.joined([self.xml(XML_TAGS[form], *call) for call in calls])
            case "functionary":
                return self.joined(
                    [self.named(f"<function={name}>", arguments, "</function>") for name, arguments in calls]
                )
            case "deepseek_v3":
                return self.deepseek(calls)
            case "functionary_v3_2":
                return self.joined([self.named(f">>>{name}\n", arguments, "") for name, arguments in calls])
        return self.tagged(form, calls)

    def some(self, closer: str, times: st.SearchStrategy[int]) -> str:
        return closer * self.draw(times)

    def joined(self, parts: list[str]) -> str:
        return self.draw(st.sampled_from(["", "\n", "\n\n"])).join(parts)

    def objects(self, calls: Calls, key: str) -> str:
        between = self.draw(st.sampled_from(["", "\n", ", ", "; "]))
        written = (self.object(f'"name": "{name}"', f'"{key}": {json.dumps(arguments)}') for name, arguments in calls)
        return between.join(each + self.some("}", TWICE) for each in written)

    def object(self, name: str, arguments: str) -> str:
        """Without its last bracket, which may stand between the two; each may be an object, or the arguments alone."""
        parted = ["alone"] if self.parted else []
        between = self.draw(st.sampled_from([", ", ", ", ",}", "},", "}\n", "}", "}\n{", "}, {", *parted]))
        if between == "alone":
            key, _, alone = arguments.partition(": ")
            return f"{{{name}}}\n{alone}" if len(alone) > 2 else f"{{{name}, {key}: {alone}"
        return "{" + between.join([name, arguments])

    def fenced(self, text: str) -> str:
        fence = self.draw(st.sampled_from(["", "```", "```json"]))
        return f"{fence}\n{text}\n{self.some('```', st.integers(0, 1)) if fence else ''}"

    def tagged(self, form: Format, calls: Calls) -> str:
        layout, tags = LAYOUTS[form], []
        while calls:
            count = self.draw(st.integers(1, len(calls)))
            inner, calls = self.objects(calls[:count], "arguments"), calls[count:]
            closers = [self.some(layout.closing, TWICE), self.some("]", st.integers(0, 1))]
            closing = "\n".join(self.draw(st.permutations(closers)))
            opening = self.some(layout.opening, AT_LEAST_ONCE) + self.draw(st.sampled_from(["", "\n", "[", "{"]))
            opening = opening.removesuffix("{") + ("{" if opening.endswith("{") else "")
            tags.append(f"{opening}{inner}{closing}")
        return self.joined(tags)

    def xml(self, tags: XmlTags, name: str, arguments: dict[str, Any]) -> str:
        end, gap = tags.end_parameter, tags.gap or self.draw(st.sampled_from(["", "\n"]))
        lacks = self.draw(st.sampled_from(["nothing", "parameter", "function", "tag"]))
        opening = self.some("<tool_call>\n", AT_LEAST_ONCE if tags.gap else TWICE)
        parts = [opening, f"{tags.function}{tags.quote}{name}{tags.quote}>{gap}"]
        early = ["", "</function>\n", "</tool_call>", "<tool_call>\n", "</function></tool_call>\n<tool_call>"]
        swapped: list[str] = []  # the last parameter's end, behind one of the call's
        for key, value in arguments.items():
            parts.append(self.draw(st.sampled_from(early if lacks != "parameter" else [""])))
            closer = "" if lacks == "parameter" else self.some(end + gap, AT_LEAST_ONCE)
            if lacks != "parameter" and key == [*arguments][-1] and self.draw(st.booleans()):
                closer, swapped = "", [end + gap]
            written = tags.written(value) if isinstance(value, str) else f"{tags.gap}{value}{tags.gap}"
            parts.append(f"{tags.head(key).removesuffix(tags.gap)}{written}{closer}")
        closers = [
            ""
            if lacks == "function"
            else "</function>\n"
            if lacks == "parameter"
            else self.some("</function>\n", AT_LEAST_ONCE),
            "" if lacks == "tag" else self.some("</tool_call>", AT_LEAST_ONCE),
        ]
        if swapped:
            closers = [("</function>\n" if "</function>" in each else each and "</tool_call>") for each in closers]
        return "".join([*parts, *(closers if lacks == "parameter" else self.draw(st.permutations(closers + swapped)))])

    def named(self, head: str, arguments: dict[str, Any], closer: str) -> str:
        text = json.dumps(arguments)
        if closer and arguments and self.draw(st.booleans()):
            return f"{head}{text[:-1]}\n{closer}"
        return f"{head}{text}{self.some('}', st.integers(0, 1))}{self.some(closer, TWICE)}"

    def deepseek(self, calls: Calls) -> str:
        written = []
        for name, arguments in calls:
            head = f"{CALL}function{SEPARATOR}{name}\n```json\n"
            written.append(self.named(head, arguments, "\n```" + self.some(END_CALL, TWICE)))
        layout = LAYOUTS["deepseek_v3"]
        return f"{layout.opening}{self.joined(written)}{self.some(layout.closing, TWICE)}"

    def python_list(self, calls: Calls) -> str:
        end = self.some("]", TWICE)
        closers = TWICE if end else AT_LEAST_ONCE
        written = [
            f"{n}({', '.join(f'{key}={json.dumps(value)}' for key, value in args.items())}" + self.some(")", closers)
            for n, args in calls
        ]
        return f"[{self.draw(st.sampled_from([']\n[', ', ', ' ', '; ']) if end else st.just(', ')).join(written)}{end}"


def read(form: Format, text: str, cuts: list[int], schemas: dict[str, Any] = SCHEMAS) -> tuple[str, Calls, bool]:
    """The content, the calls and whether the answer ends with calls, as a client that does not stream has them."""
    reader, whole = ToolReader(form, ToolUse(schemas)), WholeCalls()
    content, edges = [], [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in zip(edges, edges[1:], strict=False):
        shown, deltas = reader.feed(text[start:end])
        content.append(whole.add(deltas, shown))
    shown, deltas = reader.finish()
    content.append(whole.add(deltas, shown))
    return "".join(content), [(call.name or "", json.loads(call.arguments)) for call in whole.calls], reader.has_calls


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=40)
@given(data=st.data())
def test_slips_around_calls_lose_none_and_show_no_mark_up(form, data):
    calls, draw = data.draw(CALLS), data.draw
    text = Slips(draw).text(form, calls)
    whole_answer = form == "pythonic" or not (LAYOUTS[form].opening or LAYOUTS[form].is_bare)
    before = "" if whole_answer else draw(WORDS)
    is_left_open = (form == "pythonic" and not text.endswith("]")) or (
        form in XML_TAGS and XML_TAGS[form].end_parameter not in text
    )
    after = "" if is_left_open else draw(WORDS)
    stray = "" if is_left_open else draw(STRAY)
    answer = before + text + ("\n" + after if after else "") + stray
    content, found, has_calls = read(form, answer, [])
    assert (content.split(), found, has_calls) == (f"{before} {after}".split(), calls, True)
    cuts = draw(st.lists(st.integers(0, 10_000), max_size=8))
    assert read(form, answer, cuts) == (content, found, has_calls)
    assert read(form, answer, list(range(len(answer)))) == (content, found, has_calls)


NOW = '{"name": "now", "arguments": {}}'
OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
XML = "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
EXAMPLES: dict[str, tuple[Format, str, str | None, list[str]]] = {
    "a brace too many": ("hermes", f"<tool_call>\n{OSLO}}}\n</tool_call>", "", ["weather"]),
    "two objects in one tag": ("hermes", f"<tool_call>\n{OSLO}\n{NOW}\n</tool_call>", "", ["weather", "now"]),
    "a list in one tag": ("hermes", f"<tool_call>[{OSLO}, {NOW}]</tool_call>!", "!", ["weather", "now"]),
    "doubled braces": ("hermes", f"<tool_call>\n{{{OSLO}}}\n</tool_call>", "", ["weather"]),
    "arguments left open": ("hermes", f"<tool_call>\n{OSLO[:-2]}\n</tool_call>", "", ["weather"]),
    "a fence in a tag": (
        "hermes",
        f"<tool_call>\n```json\n{NOW}\n```\n</tool_call>\n```py\n1\n```",
        "```py\n1\n```",
        ["now"],
    ),
    "a list of objects": ("xlam", f"[{OSLO}, {NOW}]", "", ["weather", "now"]),
    "a list in a fence": ("xlam", f"```\n[\n    {OSLO},\n    {NOW}\n]\n```", "", ["weather", "now"]),
    "an empty list": ("xlam", "[]", "[]", []),
    "a list of other things": ("xlam", '[{"a": 1}]', '[{"a": 1}]', []),
    "objects on lines": ("llama3_json", f"{OSLO}\n{NOW}", "", ["weather", "now"]),
    "objects after one that is none": ("llama3_json", f'{NOW}; {{"a": 1}}', '{"a": 1}', ["now"]),
    "a list left open": ("pythonic", '[weather(city="Oslo"), now(', "now(", ["weather"]),
    "text before an object": ("hermes", f"<tool_call>text {NOW}</tool_call>", "text", ["now"]),
    "text between objects": ("hermes", f"<tool_call>\n{NOW} and {OSLO}\n</tool_call>", "and", ["now", "weather"]),
    "a call behind a closer": ("hermes", f"<tool_call>{NOW}</tool_call>\n{OSLO}</tool_call>", "", ["now", "weather"]),
    "a last opener": ("hermes", f"<tool_call>{NOW}</tool_call>\n<tool_call>", "", ["now"]),
    "a fence around tags": ("hermes", f"```json\n<tool_call>\n{NOW}\n</tool_call>\n```", "", ["now"]),
    "another form's closer": ("hermes", f"<tool_call>{NOW}</function></tool_call>", "", ["now"]),
    "text on both sides": ("hermes", f"hi<tool_call>{NOW}</tool_call>bye", "hi\nbye", ["now"]),
    "a quote left open": (
        "hermes",
        f"<tool_call>{OSLO[:-3]}}}}}</tool_call><tool_call>{NOW}</tool_call>",
        None,
        ["now"],
    ),
    "the tag of hermes": ("qwen2_5_coder", f"<tool_call>{NOW}</tool_call>", "", ["now"]),
    "text behind a parameter": ("qwen3_coder", f"{XML}text\n}}\n</function>\n</tool_call>", "text", ["weather"]),
    "a brace behind a parameter": ("qwen3_coder", f"{XML}}}\n</function>\n</tool_call>", "", ["weather"]),
    "text before a function": ("qwen3_coder", f"<tool_call>\ntext\n{XML}</function>", "text", ["weather"]),
    "a quoted name": ("qwen3_coder", XML.replace("=city", '="city"') + "</function>", "", ["weather"]),
    "a parameter left open": (
        "qwen3_coder",
        f"{XML[:-13]}<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "",
        ["weather", "now"],
    ),
    "text in a function": (
        "functionary",
        '<function=weather>so {"city": "Oslo"} text</function>',
        "so text",
        ["weather"],
    ),
    "a parenthesis too many": ("pythonic", '[weather(city="Oslo")), now())]', "", ["weather", "now"]),
    "no comma": ("pythonic", '[weather(city="Oslo") now()]', "", ["weather", "now"]),
    "a parenthesis left out": ("pythonic", '[weather(city="Oslo", now()]', "", ["weather", "now"]),
    "the last parenthesis left out": ("pythonic", '[now(), weather(city="Oslo"]', "", ["now", "weather"]),
    "a wrapper": ("hermes", f'<tool_call>\n{{"type": "function", "function": {OSLO}}}\n</tool_call>', "", ["weather"]),
    "a wrapper of one key": ("hermes", f'<tool_call>{{"function": {OSLO}}}</tool_call>', "", ["weather"]),
    "a wrapper of many": (
        "hermes",
        f'<tool_call>{{"tool_calls": [{OSLO}, {NOW}]}}</tool_call>',
        "",
        ["weather", "now"],
    ),
    "a wrapper's last key": (
        "hermes",
        f'<tool_call>{{"function": {OSLO}, "type": "function"}}</tool_call>',
        "",
        ["weather"],
    ),
    "an object that is no wrapper": (
        "hermes",
        f'<tool_call>{{"thought": "I look.", "call": {NOW}}}</tool_call>',
        f'<tool_call>{{"thought": "I look.", "call": {NOW}}}</tool_call>',
        [],
    ),
    "half a closer": ("hermes", f"<tool_call>{NOW}</tool_call", "", ["now"]),
    "half another closer": ("hermes", f"<tool_call>{NOW}</tool", "", ["now"]),
    "half an opener": ("hermes", f"<tool_call>{NOW}<tool_call", "", ["now"]),
    "half a closer behind text": ("hermes", f"<tool_call>{NOW}\nDone</tool_c", "Done", ["now"]),
    "no closer": ("hermes", f"<tool_call>{NOW}</tool_call>\n1 <", "1 <", ["now"]),
    "a parenthesis behind a list": ("pythonic", "[now()])", "", ["now"]),
    "a parenthesis behind an object": ("hermes", f"<tool_call>{NOW})</tool_call>", "", ["now"]),
    "a parenthesis behind arguments": ("functionary", "<function=now>{})</function>", "", ["now"]),
    "a parenthesis behind a list of objects": ("xlam", f"[{NOW}])", "", ["now"]),
    "parentheses": ("hermes", f"<tool_call>({NOW})</tool_call>", "", ["now"]),
    "quotes": ("hermes", f'<tool_call>"{NOW}"</tool_call>', "", ["now"]),
    "a face": ("hermes", f"<tool_call>{NOW}</tool_call> :)", ":)", ["now"]),
    "a quotation": ("hermes", f'<tool_call>{NOW}</tool_call> "Done," it says.', '"Done," it says.', ["now"]),
    "the tag of several": ("hermes", f"<tool_call>{NOW}</tool_calls>", "", ["now"]),
    "the tag of a response": ("hermes", f"<tool_call>{NOW}</tool_response>", "", ["now"]),
    "arguments twice": ("functionary", '<function=weather>{"city": "a"}{"city": "b"}</function>', "", ["weather"] * 2),
    "a parameter behind the end": (
        "qwen3_coder",
        "<tool_call><function=weather>\n</function>\n<parameter=days>\n3\n</parameter>\n</tool_call>",
        "",
        ["weather"],
    ),
    **{
        f"{tags.strip()} before a parameter": (
            "qwen3_coder",
            XML.replace(">\n", f">\n{tags}", 1) + "</function>",
            "",
            ["weather"],
        )
        for tags in (
            "</tool_call>",
            "<tool_call>\n",
            "</function>\n</tool_call>\n",
            "</tool_call>\n<tool_call>\n",
            " " * 250 + "</tool_call>\n\n",
        )
    },
    "arguments behind the bracket": ("hermes", '<tool_call>{"name": "now",}"arguments": {}}</tool_call>', "", ["now"]),
    "a name behind the bracket": ("hermes", '<tool_call>{"arguments": {}}, "name": "now"}</tool_call>', "", ["now"]),
    "an object in a tag of XML": ("qwen3_coder", f"I look. <tool_call>\n{NOW}\n</tool_call>", "I look.", ["now"]),
    "an opener of another form": ("functionary", "<tool_call><function=now>{}</function></tool_call>", "", ["now"]),
    "openers of two forms": ("hermes", f"<tools><tool_call>{NOW}</tool_call></tools>", "", ["now"]),
    "an opener within": ("hermes", f"<tool_call><function>{NOW}</function></tool_call>", "", ["now"]),
    "an opener of another form behind text": ("functionary", "Hi. <tools><function=now>{}</function>", "Hi.", ["now"]),
    "an opener of another form behind a call and text": (
        "hermes",
        f"<tool_call>{NOW}</tool_call> Then: <tools><tool_call>{NOW}</tool_call>",
        "Then:",
        ["now", "now"],
    ),
    "an opener of another form behind a call, in text": (
        "hermes",
        f"<tool_call>{NOW}</tool_call> Then <tools> is a tag <func",
        "Then <tools> is a tag <func",
        ["now"],
    ),
    "a tag at the end of a line behind a call": (
        "hermes",
        f"<tool_call>{NOW}</tool_call>\nIn XML you end with </function>\nand so on.",
        "In XML you end with </function>\nand so on.",
        ["now"],
    ),
    **{
        f"DeepSeek's opener {where}": (
            "deepseek_v3",
            before + f"{CALL}function{SEPARATOR}now\n```json\n{{}}\n```{END_CALL}" + behind,
            "",
            ["now"],
        )
        for where, before, behind in (
            ("twice", CALL, ""),
            ("twice, with its word", f"{CALL}function", ""),
            ("at the end", "", f"\n{CALL}"),
            ("at the end, with its word", "", f"\n{CALL}function"),
        )
    },
    "a recipient behind arguments left open": (
        "functionary_v3_2",
        'weather\n{"city": "Oslo">>>now\n{}',
        "",
        ["weather", "now"],
    ),
    "a function behind arguments left open": (
        "functionary",
        '<function=weather>{"city": "Oslo"<function=now>{}</function>',
        "",
        ["weather", "now"],
    ),
    "text behind arguments left open": (
        "functionary_v3_2",
        'weather\n{"city": "Oslo"\n>>>all\nSo.',
        "So.",
        ["weather"],
    ),
    "the prompt's mark again": ("functionary_v3_2", ">>>now\n{}", "", ["now"]),
    "the prompt's mark before text again": ("functionary_v3_2", ">>>all\nHi.>>>now\n{}", "Hi.", ["now"]),
    "a list after functools left open": ("firefunction_v2", f" functools[{OSLO}, {NOW}", "", ["weather", "now"]),
    "functools twice": ("firefunction_v2", f"functools[{OSLO}]\nfunctools[{NOW}]", "", ["weather", "now"]),
    "text behind a list after functools": ("firefunction_v2", f"functools[{NOW}]\nHave fun", "Have fun", ["now"]),
    "a function's opener twice": ("functionary", "<function=<function=now>{}</function>", "", ["now"]),
    "no opener behind text": ("hermes", f"Hi.\n{NOW}\n</tool_call>", "Hi.", ["now"]),
    "no first opener": (
        "hermes",
        f"I look.\n{NOW}\n</tool_call>\n<tool_call>\n{OSLO}\n</tool_call>",
        "I look.",
        ["now", "weather"],
    ),
    "no opener in Qwen2.5-Coder's": ("qwen2_5_coder", f"Hi.\n{NOW}\n</tools>", "Hi.", ["now"]),
    "a semicolon": ("pythonic", "[now(); now()]", "", ["now", "now"]),
    "special tokens": ("pythonic", "<|python_start|>[now()]<|python_end|>", "", ["now"]),
    "a list of Python in a fence": ("pythonic", "```python\n[now()]\n```", "", ["now"]),
    "a list for Llama": ("llama3_json", f"[{NOW}, {OSLO}]", "", ["now", "weather"]),
    "a fence for Llama": ("llama3_json", f"```json\n{NOW}\n```", "", ["now"]),
    "a text that holds tags": (
        "qwen3_coder",
        "<function=weather>\n<parameter=city>\na\n<parameter=b>\n</function>\n</p>\n</parameter>\n</function>",
        "",
        ["weather"],
    ),
}


@pytest.mark.parametrize(("form", "text", "content", "names"), EXAMPLES.values(), ids=EXAMPLES)
def test_calls_with_slips_of_models_are_read(form, text, content, names):
    for cuts in ([], list(range(len(text)))):
        shown, calls, _ = read(form, text, cuts)
        assert [name for name, _ in calls] == names
        assert content is None or shown == content  # None: that of half a call


EARLY = [
    '{"name": "weather",}"arguments": %s}',
    '{"name": "weather"},\n "parameters" : %s',
    '{"arguments": %s},"name": "weather"}',
]


@pytest.mark.parametrize("call", EARLY)
@pytest.mark.parametrize("around", ["<tool_call>%s</tool_call>", "<tool_call>%s", "<tool_call>[%s, \n"])
def test_an_object_that_ends_too_early_keeps_its_arguments(call, around):
    for arguments in (OSLO[OSLO.index("{", 1) : -1], json.dumps(json.dumps({"city": "Oslo"}))):
        text = around % (call % arguments)
        for cuts in ([], list(range(len(text)))):
            assert read("hermes", text, cuts) == ("", [("weather", {"city": "Oslo"})], True)


def test_a_value_may_hold_what_only_looks_like_its_end():
    text = EXAMPLES["a text that holds tags"][1]
    assert read("qwen3_coder", text, [])[1][0][1] == {"city": "a\n<parameter=b>\n</function>\n</p>"}


@pytest.mark.parametrize(
    "said", ["<parameter=x> is a tag", "<parameter=days", "<parameter= is one", "<parameter=" + "x" * 300]
)
def test_a_call_with_all_its_ends_is_not_lost_to_a_parameter_that_it_has_not(said):
    text = f"<tool_call>\n{XML}</function>\n</tool_call>\n{said}\nDone"
    for cuts in ([], list(range(len(text)))):
        assert read("qwen3_coder", text, cuts) == (f"{said}\nDone", [("weather", {"city": "Oslo"})], True)


ALONE = ["%s", " %s\n", "```json\n%s\n```", "```\n%s\n```\n", "<tools>\n%s\n</tools>", "```json\n%s"]
NOT_ALONE = [
    "Here: %s",
    "%s and more",
    "%s\n%s",
    "```json\n%s\n```\nThis calls it.",
    "[%s]",
    "```python\n%s\n```",
    "<tool>%s</tool>",
]
OTHERS = [
    '{"name": "other", "arguments": {}}',
    '{"name": "now"}',
    '{"name": "now", "arguments": {}, "id": 1}',
    '{"name": "now", "arguments": []}',
    '{"arguments": {}, "name": "other"}',
    '{"answer": 42}',
    '{"name": "now", "arguments": {}',
    "{}",
    "",
]
LONE_FORMS = [form for form in FORMATS if form != "llama3_json"]


@pytest.mark.parametrize("form", LONE_FORMS)
@pytest.mark.parametrize("around", ALONE)
@pytest.mark.parametrize("call", [OSLO, '{"arguments": {"city": "Oslo"}, "name": "weather"}', OSLO.replace(" ", "\n ")])
def test_an_answer_that_is_one_object_is_a_call(form, around, call):
    text = around % call
    if form == "qwen2_5_coder" and "<tools>" in text:
        return
    for cuts in ([], list(range(len(text)))):
        assert read(form, text, cuts) == ("", [("weather", {"city": "Oslo"})], True)


@pytest.mark.parametrize("around", ["%s", "```json\n%s\n```", "<tools>%s</tools>"])
@pytest.mark.parametrize("call", OTHERS)
def test_another_object_is_content(around, call):
    text = around % call
    for cuts in ([], list(range(len(text)))):
        assert read("hermes", text, cuts) == (text, [], False)


@pytest.mark.parametrize("around", NOT_ALONE)
def test_an_object_beside_other_text_is_content(around):
    text = around.replace("%s", NOW)
    for cuts in ([], list(range(len(text)))):
        assert read("hermes", text, cuts) == (text, [], False)


@given(text=st.text(alphabet='{}"name:rgut,`js<>ol/ \n[]1', max_size=40), data=st.data())
@example(text='{"name": "no', data=None)
def test_what_may_be_a_lone_call_is_shown_whole_when_it_is_none(text, data):
    cuts = [] if data is None else data.draw(st.lists(st.integers(0, 40), max_size=6))
    assert read("hermes", text, cuts) == (text, [], False)


@pytest.mark.parametrize(
    "text",
    ["Hello", "{1", '{"b', '{"name": "x', '{"name": "now", "b', "```p x", "<tool>x", NOW + ".", f"```\n{NOW}\nx"],
)
def test_a_stream_shows_what_cannot_become_a_lone_call_at_once(text):
    reader = ToolReader("hermes", ToolUse(SCHEMAS))
    held = "".join(reader.feed(char)[0] for char in text[:-1])
    assert held == ("Hell" if text == "Hello" else "")
    assert held + reader.feed(text[-1])[0] == text


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "text", ["```py\nx = {1: [2]}\n```\nDone", 'Send {"name": "x"}, then `[1]`; </div>', "<|x|> ``` [a](b) {c}"]
)
def test_text_without_a_call_is_shown_as_it_stands_and_at_once(form, text):
    reader = ToolReader(form, ToolUse(SCHEMAS))
    text = f"So: {text}."
    assert "".join(reader.feed(char)[0] for char in text) == text
    assert reader.finish() == ("", [])


@pytest.mark.parametrize("text", [NOW, f"```json\n{NOW}\n```", f"<tools>{NOW}</tools>"])
def test_an_answer_that_was_to_be_json_is_no_call(text):
    reader = ToolReader("hermes", ToolUse(SCHEMAS, alone=False))
    assert reader.feed(text)[0] + reader.finish()[0] == text
