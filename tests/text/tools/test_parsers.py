"""Tool calls found in text: the formats of model cards in our own words, and laws over every way of cutting it."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.text.tools.events import Arguments, Begin, Dropped, End, Event, Gap
from jaxinfer.text.tools.formats import FORMATS, Format, new_parser
from jaxinfer.text.tools.python_calls import pythonic_calls
from tests.support.attempts import assert_below, processor_s

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
MEASURE = {"type": "object", "properties": {"n": {"type": "number"}, "all": {"type": ["array", "number"]}}}
SCHEMAS = {"weather": WEATHER, "measure": MEASURE, "now": {"type": "object"}, "a.b-c_1": {}, "7-up": {}}
LONG = json.dumps({"city": "x" * 3000})


def simplified(events: list[Event]) -> list[Event]:
    """The same with neighbouring pieces joined."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, str) and isinstance(last, str):
            joined[-1] = last + event
        elif isinstance(event, Arguments) and isinstance(last, Arguments):
            joined[-1] = Arguments(last.text + event.text)
        elif event not in ("", Arguments("")):
            joined.append(event)
    return joined


def read(form: Format, text: str, cuts: list[int] | None = None) -> list[Event]:
    parser, events = new_parser(form, SCHEMAS), []
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts or []), len(text)]
    for start, end in zip(edges, edges[1:], strict=False):
        events += parser.feed(text[start:end])
    return simplified([*events, *parser.finish()])


def call(name: str, arguments: str) -> list[Event]:
    return [Begin(name), Arguments(arguments), End()]


R1 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
PARIS = '{"city": "Paris", "days": 2}'
GOOD: dict[Format, list[tuple[str, list[Event]]]] = {
    "hermes": [
        ("Hello.", ["Hello."]),
        (f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>', call("weather", PARIS)),
        (
            'Let me see.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
            '<tool_call>\n{"name":"weather","arguments":{"city":"<tool_call>"}}\n</tool_call>',
            ["Let me see.\n", *call("now", "{}"), *call("weather", '{"city":"<tool_call>"}')],
        ),
        (f'<tool_call>{{"arguments": {PARIS}, "name": "weather"}}</tool_call>', call("weather", PARIS)),
        ('<tool_call>{"name": "now"}</tool_call>!', [*call("now", "{}"), "!"]),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', call("now", "{}")),
        ('<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', call("now", '{"a": 1}')),
        ('<tool_call>{"name": "now", "arguments": {"a": 1}, "id": "7"}</tool_call>', call("now", '{"a": 1}')),
        ('<tool_call>{"name": "now", "arguments": {"a": 1}}', call("now", '{"a": 1}')),
        (f'<tool_call>{{"name": "weather", "arguments": {LONG}}}</tool_call>', call("weather", LONG)),
    ],
    "qwen3_coder": [
        (
            "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nPa<ris>\n</parameter>\n<parameter=days>\n2\n"
            "</parameter>\n</function>\n</tool_call>",
            ["I look.\n", *call("weather", '{"city": "Pa<ris>", "days": 2}')],
        ),
        (
            '<function=measure><parameter=all>\n["</parameter>", "\\"</parameter>"]\n</parameter><parameter=n>\n"1\n'
            "</parameter></function>",
            call("measure", '{"all": ["</parameter>", "\\"</parameter>"], "n": "\\"1"}'),
        ),
        ("<tool_call>\n<function=now>\n</function>\n</tool_call>", call("now", "{}")),
        ("<function=now>\n</function>", call("now", "{}")),
        (
            "<tool_call><function=weather><parameter=city>\n12\n</parameter></function></tool_call>",
            call("weather", '{"city": "12"}'),
        ),
        (
            "<tool_call><function=weather><parameter=days>many</parameter></function></tool_call>",
            call("weather", '{"days": "many"}'),
        ),
        (
            "<tool_call><function=measure><parameter=n>1e999</parameter><parameter=all>-1e999</parameter></function>",
            call("measure", '{"n": "1e999", "all": "-1e999"}'),
        ),
        (
            '<function=measure><parameter=all>["\\ud800"]</parameter><parameter=n>1e99</parameter></function>',
            call("measure", '{"all": "[\\"\\\\ud800\\"]", "n": 1e+99}'),
        ),
    ],
    "minicpm5": [
        (
            'I look.\n<function name="weather"><param name="city">Paris</param><param name="days">2</param>'
            '</function>\n<function name="now"></function>',
            ["I look.\n", *call("weather", '{"city": "Paris", "days": 2}'), *call("now", "{}")],
        ),
        ('<tool_call>\n<function name="now" id="1"></function>\n</tool_call>', call("now", "{}")),
    ],
    "llama3_json": [
        ('{"name": "weather", "parameters": {"city": "Paris"}}', call("weather", '{"city": "Paris"}')),
        ('<|python_tag|>{"name": "now", "parameters": {}}', call("now", "{}")),
        (
            '{"name": "now", "parameters": {}}; {"name": "weather", "parameters": {"days": 1}}',
            [*call("now", "{}"), *call("weather", '{"days": 1}')],
        ),
        ('  {"type": "function", "name": "now", "parameters": {"a": [1]}}', call("now", '{"a": [1]}')),
        ('He said {"name": "now", "parameters": {}}', ['He said {"name": "now", "parameters": {}}']),
        ('{"answer": 42}', ['{"answer": 42}']),
    ],
    "pythonic": [
        ("[weather(city='Paris', days=-2)]", call("weather", '{"city": "Paris", "days": -2}')),
        (
            "[now(), weather(city=\"a)]\", days=None), now(a=[1, {'b': true}])]",
            [
                *call("now", "{}"),
                *call("weather", '{"city": "a)]", "days": null}'),
                *call("now", '{"a": [1, {"b": true}]}'),
            ],
        ),
        (
            "[a.b-c_1(from='x', class=1, user-id=2), 7-up()]",
            [
                *call("a.b-c_1", '{"from": "x", "class": 1, "user-id": 2}'),
                *call("7-up", "{}"),
            ],
        ),
        (
            """[now(a="\\ud83d\\ude00\\/\\u00e9", b='\\/\\x41\\'\\N{BULLET}', c=r"\\n",
            d=\'\'\'x\ny\'\'\', e="a" "b")]""",
            call("now", '{"a": "😀/é", "b": "\\\\/A\'•", "c": "\\\\n", "d": "x\\ny", "e": "ab"}'),
        ),
        (
            "[now(a=1e99, b=1.50, c=0x1F, d=-.5, e=1_000, f=%s)]" % ("9" * 300),
            call("now", '{"a": 1e99, "b": 1.50, "c": 31, "d": -0.5, "e": 1000, "f": %s}' % ("9" * 300)),
        ),
        (
            "[now( a = (1, 2,), b=(3), c=(4,), d={'k': None, 2: []} ,)  ,]",
            call("now", '{"a": [1, 2], "b": 3, "c": [4], "d": {"k": null, "2": []}}'),
        ),
        ("[now(a=1, a=2)]", call("now", '{"a": 2}')),
        ("[1, 2] is a list", ["[1, 2] is a list"]),
        ("Text [now()]", ["Text [now()]"]),
    ],
}
# what a model may write by mistake, or a stranger make it write; the last of each pair is whether a call had begun
BROKEN: dict[Format, list[str]] = {
    "hermes": [
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": 7}</tool_call>',
        "<tool_call>not json</tool_call> and more",
        "<tool_call>",
        "<tool_ca",
        "</tool_call>",
        '<tool_call>{"name": "wea',
        "<tool_call>" + "[" * 2000,
        "<tool_call>" + '{"a":' * 2000,
        '<tool_call>{"name": "now", "arguments": "__import__(\'os\').system(\'true\')"}</tool_call>',
        '<tool_call>{"arguments": {"a": 1e999}, "name": "now"}</tool_call>',
        '<tool_call>{"arguments": {"a": "\\ud800"}, "name": "now"}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
    ],
    "qwen3_coder": [
        "<tool_call><function=other></function></tool_call>",
        "<tool_call><function=weather",
        "<function=other></function>",
        "<tool_call>text</tool_call>",
        "<tool_call><function=" + "x" * 3000,
    ],
    "minicpm5": [
        '<function name="other"><param name="city">Paris</param></function>',
        '<function name="weather',
        "In XML, <function name=x> is",
        '<function name="' + "x" * 3000,
        '<function name="other"><param name="a"><![CDATA[b</param></function>',
    ],
    "llama3_json": [
        '{"name": "other", "parameters": {}}',
        '{"name": "now", "parameters": 1}',
        "{",
        '{"name"',
        "[" * 2000,
    ],
    "pythonic": [
        "[other()]",
        "[now(1)]",
        "[now(a=__import__('os').system('true'))]",
        "[now(a=b'x')]",
        "[now(a=1e999)]",
        "[now(a=+1e999)]",
        f"[now(a={'9' * 5000})]",
        "[now(a=007)]",
        "[now(a=1j)]",
        "[now(a=x.y)]",
        "[now(a='\\x4')]",
        "[now(a=1) or now()]",
        "[now(a b=1)]",
        "[now(a='\\ud800')]",
        "[now(a={'\\ud800': 1})]",
        "[now(",
        "[now(a=" + "[" * 2000,
        "[now(**{'a': 1})]",
        "[now(a=f'{1}')]",
    ],
}
GOOD |= {
    "xlam": [
        (f'[{{"name": "weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]',
         [*call("weather", PARIS), *call("now", "{}")]),
        (f'```json\n[{{"arguments": {PARIS}, "name": "weather"}}]\n```', call("weather", PARIS)),
        ("[]", ["[]"]),
        ('{"name": "now", "arguments": {}}', ['{"name": "now", "arguments": {}}']),
        ("```python\nprint(1)\n```", ["```python\nprint(1)\n```"]),
    ],
    "llama_nemotron_json": [
        (f'Hm. <TOOLCALL>[{{"name": "weather", "arguments": {PARIS}}}, {{"name": "now"}}]</TOOLCALL>',
         ["Hm. ", *call("weather", PARIS), *call("now", "{}")]),
    ],
    "qwen2_5_coder": [
        (f'<tools>\n{{"name": "weather", "arguments": {PARIS}}}\n</tools>\n<tools>\n{{"name": "now"}}\n</tools>',
         [*call("weather", PARIS), *call("now", "{}")]),
    ],
    "functionary": [
        (f"I look. <function=weather>{PARIS}</function><function=now>{{}}</function>",
         ["I look. ", *call("weather", PARIS), *call("now", "{}")]),
        ("<function=other>{}</function>", ["<function=other>{}</function>"]),
    ],
    "deepseek_v3": [
        (f"So.<｜tool▁calls▁begin｜>{R1}weather\n```json\n{PARIS}\n```<｜tool▁call▁end｜>\n{R1}now\n```json\n{{}}\n"
         "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", ["So.", *call("weather", PARIS), *call("now", "{}")]),
    ],
    "functionary_v3_2": [
        ("all\nHello.", ["Hello."]),
        (">>>all\nHello.", ["Hello."]),
        ("Hello.", ["Hello."]),
        ("", []),
        (f"weather\n{PARIS}", call("weather", PARIS)),
        (f"all\nI look.>>>weather\n{PARIS}>>>now\n{{}}", ["I look.", *call("weather", PARIS), *call("now", "{}")]),
        ("now\n{}>>>all\n() => 1", [*call("now", "{}"), "() => 1"]),
        ("all\nOne.>>>all\nTwo.", ["One.", Gap(), "Two."]),
        ("all\n\n  >>> x\n>>>y = 1\n", ["\n  >>> x\n>>>y = 1\n"]),
        ("nope\n{}>>>all\nSorry.", ["nope\n{}", Gap(), "Sorry."]),
        ('now\n{"a": ">>>all\\n"}', call("now", '{"a": ">>>all\\n"}')),
    ],
    "firefunction_v2": [
        (f' functools[{{"name": "weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]',
         [" ", *call("weather", PARIS), *call("now", "{}")]),
        (f"I look. functools[{{\"name\": \"weather\", \"arguments\": {json.dumps(PARIS)}}}]",
         ["I look. ", *call("weather", PARIS)]),
        ('functools[{"name": "now"}]\nHave fun', [*call("now", "{}"), "\nHave fun"]),
        ("from functools import cache", ["from functools import cache"]),
    ],
}  # fmt: skip
BROKEN |= {
    "xlam": ['[{"name": "other", "arguments": {}}]', "[[", '[{"name', "```json\n[1]\n```"],
    "llama_nemotron_json": ['<TOOLCALL>[{"name": "other", "arguments": {}}]</TOOLCALL>', "<TOOLCALL>[", "<TOOLCALL>x"],
    "qwen2_5_coder": ["<tools>[]</tools>", '<tools>\n{"name": "wea'],
    "functionary": [
        "<function=now>x</function>",
        "<function=now",
        "<function=a b>{}",
        "a <function=",
        "<function=now>[1]",
    ],
    "deepseek_v3": [
        f"<｜tool▁calls▁begin｜>{R1}other\n```json\n{{}}\n```",
        f"{R1}now",
        "<｜tool▁calls▁begin｜>x",
        "<｜tool",
    ],
    "functionary_v3_2": ["nope\n{}", "now\nx", "now {}", "now\n[1]", "now", "x>>>nope\n{}", "x>>>", ">>> now\n{}"],
    "firefunction_v2": ['functools[{"name": "nope", "arguments": {}}]', "functools[", "functools[1]", "functool"],
}
HALVES: dict[Format, str] = {
    "hermes": 'So: <tool_call>{"name": "weather", "arguments": {"city": "Par',
    "qwen3_coder": "So: <tool_call><function=weather><parameter=city>Par",
    "minicpm5": 'So: <function name="weather"><param name="city">Par',
    "llama3_json": '{"name": "weather", "parameters": {"city": "Par',
    "xlam": '[{"name": "weather", "arguments": {"city": "Par',
    "llama_nemotron_json": 'So: <TOOLCALL>[{"name": "weather", "arguments": {"city": "Par',
    "qwen2_5_coder": 'So: <tools>{"name": "weather", "arguments": {"city": "Par',
    "functionary": 'So: <function=weather>{"city": "Par',
    "deepseek_v3": f'So: <｜tool▁calls▁begin｜>{R1}weather\n```json\n{{"city": "Par',
    "functionary_v3_2": 'weather\n{"city": "Par',
    "firefunction_v2": 'So: functools[{"name": "weather", "arguments": {"city": "Par',
}


def cases(table):
    return [pytest.param(form, given, id=f"{form} {i}") for form, many in table.items() for i, given in enumerate(many)]


@pytest.mark.parametrize(("form", "case"), cases(GOOD))
def test_calls_are_found(form, case):
    text, expected = case
    assert read(form, text) == expected


@pytest.mark.parametrize(("form", "text"), cases(BROKEN))
def test_what_is_no_call_is_content(form, text):
    assert read(form, text) == [text]


@pytest.mark.parametrize(("form", "text"), HALVES.items(), ids=HALVES)
def test_half_a_call_is_dropped_and_its_text_kept(form, text):
    events = read(form, text)
    *before, begin, last, dropped = events if isinstance(events[-2], Arguments) else [*events[:-1], None, events[-1]]
    assert isinstance(begin, Begin) and isinstance(dropped, Dropped)
    assert "".join(before) + dropped.raw == text
    assert last is None or last.text in text


def test_a_call_that_goes_wrong_is_dropped_and_the_text_goes_on():
    events = read("hermes", '<tool_call>{"name": "now", "arguments": {"a": oops}}</tool_call> sorry')
    assert events[:2] == [Begin("now"), Arguments('{"a": ')]
    assert events[2:] == [Dropped('<tool_call>{"name": "now", "arguments": {"a": '), "oops}}</tool_call> sorry"]


PIECES = {
    "hermes": [
        "<tool_call>",
        "</tool_call>",
        '{"name": "weather", "arguments": ',
        '{"name":"now"',
        "{",
        "}",
        '"',
        "\\",
        ":",
    ]
    + [PARIS, "\n", " ", "a", ",", "[", "1", "}}\n</tool_call>", '"arguments":', "{}", "<", "\\u12", "é"],
    "qwen3_coder": [
        "<tool_call>",
        "</tool_call>",
        "<function=weather>",
        "<function=x>",
        "</function>",
        "<parameter=city>",
    ]
    + ["<parameter=days>", "</parameter>", "\n", "2", "a", "<", ">", "<function=", '"', "\\", "["],
    "minicpm5": [
        *('<function name="weather">', "<function name=", "</function>", '<param name="city">', "<![CDATA[", "]]>"),
        *('<param name="days">', "</param>", "\n", "2", "a", "<", ">", '"', "\\", "[", "&lt;", "</tool_call>"),
    ],
    "llama3_json": [
        '{"name": "weather", "parameters": ',
        PARIS,
        "{}",
        "{",
        "}",
        ";",
        " ",
        "<|python_tag|>",
        '"',
        "a",
        "1",
    ],
    **{
        form: [
            tag,
            close,
            "[",
            "]",
            '{"name": "now", "arguments": ',
            PARIS,
            "{}",
            "{",
            "}",
            ",",
            "```json",
            "```",
            "\n",
            "a",
        ]
        for form, tag, close in (
            ("xlam", "", ";"),
            ("llama_nemotron_json", "<TOOLCALL>", "</TOOLCALL>"),
            ("qwen2_5_coder", "<tools>", "</tools>"),
            ("firefunction_v2", "functools[", "functools"),
        )
    },
    "functionary_v3_2": [">>>now\n", "now\n", ">>>nope\n", ">>>", "{", "}", PARIS, "{}", "x", ">", " ", "\n", '"'],
    "functionary": ["<function=now>", "<function=", "</function>", "{", "}", PARIS, "{}", "x", "<", ">", "\n", '"'],
    "deepseek_v3": [
        "<｜tool▁calls▁begin｜>",
        f"{R1}now\n",
        R1,
        "```json\n",
        "```",
        PARIS,
        "{",
        "}",
        "<｜tool▁call▁end｜>",
    ]
    + ["<｜tool▁calls▁end｜>", "\n", "a", "<｜tool▁sep｜>"],
    "pythonic": ["[", "]", "now(", "weather(city=", "'x'", ")", ",", " ", "now()", "1", "{", "}", "\\", "a=", "\n"],
}


@pytest.mark.parametrize("form", FORMATS)
@given(data=st.data())
def test_every_way_of_cutting_finds_the_same_and_nothing_is_lost(form, data):
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES[form]), max_size=25)))
    whole = read(form, text)
    cuts = data.draw(st.lists(st.integers(0, max(len(text), 1)), max_size=12))
    assert read(form, text, cuts) == whole
    assert read(form, text, list(range(len(text)))) == whole
    check_events(whole)
    if not any(isinstance(event, End) for event in whole):
        assert "".join(e if isinstance(e, str) else e.raw for e in whole if isinstance(e, str | Dropped)) == text


def check_events(events: list[Event]) -> None:
    """Each call is Begin, Arguments, End, and its arguments an object; or Begin ... Dropped."""
    arguments = None
    for event in events:
        match event:
            case Begin(name):
                assert arguments is None and name in SCHEMAS
                arguments = ""
            case Arguments(text):
                arguments += text
            case End():
                assert isinstance(json.loads(arguments), dict)
                arguments = None
            case Dropped():
                assert arguments is not None
                arguments = None
            case str():
                assert arguments is None
    assert arguments is None


@pytest.mark.parametrize("form", FORMATS)
def test_a_megabyte_of_brackets_in_small_pieces_is_content_in_linear_time(form):
    opening = {"hermes": "<tool_call>", "qwen3_coder": "<tool_call><function=now><parameter=a>"}.get(form, "")
    pieces = [opening, *["[{(" * 100] * 3500]
    parser = new_parser(form, SCHEMAS)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    kept = "".join(e if isinstance(e, str) else e.raw for e in events if isinstance(e, str | Dropped))
    assert kept == "".join(pieces)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("text", ["[{(" * 333_333, "<tool_call>" + "[" * 1_000_000, "[now(a='" + "x" * 1_000_000])
def test_a_megabyte_at_once_takes_less_than_a_tenth_of_a_second(form, text):
    assert_below(0.1, lambda: processor_s(lambda: read(form, text)), "the processor time of reading a megabyte")


@pytest.mark.parametrize(
    "value", [" " * 100_000 + "!", "+" + " " * 100_000 + "!", "1" * 100_000 + "!", '"' + " " * 100_000]
)
def test_a_list_that_is_none_is_told_in_linear_time(value):
    assert pythonic_calls(f"[f(a={value})]", {"f"}) is None
    assert_below(0.1, lambda: processor_s(lambda: pythonic_calls(f"[f(a={value})]", {"f"})), "the time of a reading")


@pytest.mark.parametrize("form", FORMATS)
def test_random_text_is_content(form):
    draw = random.Random(4)
    for _ in range(50):
        text = "".join(draw.choices("<>tool_cal/{}[]\"':,n= \\", k=200))
        assert read(form, text) == [text]


def test_a_word_that_no_name_is_long_enough_for_is_shown_as_it_comes():
    parser, shown = new_parser("functionary_v3_2", SCHEMAS), ""
    for _ in range(300):
        shown += "".join(event for event in parser.feed("x") if isinstance(event, str))
    assert shown == "x" * 300
