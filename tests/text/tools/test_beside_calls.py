"""What stands beside calls: signs that belong to them are no content, prose is, and how the answer is cut changes
nothing.
"""

import re
import signal
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.tools.formats import FORMATS, LAYOUTS, TAGS, Format
from jaxinfer.text.tools.reader import ToolReader, ToolUse
from tests.text.tools.test_mutated_calls import CALLS as MANY_CALLS
from tests.text.tools.test_mutated_calls import EXAMPLES, SCHEMAS, Slips, read
from tests.text.tools.test_unclear_calls import around_call, as_text

NOW = '{"name": "now", "arguments": {}}'
SIGNS = [
    *"()[]{},;\"'`:.-|*!? \n<>/=",
    "```",
    "```json\n",
    "\n\n",
    " a",
    "x",
    "Done",
    "so ",
    "{}",
    "[]",
    "()",
    '"a": 1',
]
OTHER_SPACE = ["\u00a0", "\u3000", "\x85", "\u2028", "\x0b", "\x0c", "\x1c", "\t", "\r\n"]  # JSON has the last two only
BAD_CITIES = ['""<b>"', "1 <b>", '"a" `b`', "[<", "1`"]  # at a sign that may begin a tag or a fence
CALLS = ["now()]", "weather(city='a')]", "<function=now>\n</function>", "<function=now>{", '"function": ', NOW]
CALLS += [
    "<function=weather>",
    "<parameter=city>\na",
    '{"name": "now"',
    '{"arguments": {}',
    '"arguments": {}',
    '"name": "now"',
]


@pytest.fixture
def limited() -> Iterator[None]:
    """A reader that goes round in a circle is stopped."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def call_of(form: Format, name: str = "now") -> str:
    return "[now()]" if form == "pythonic" and name == "now" else around_call(form, "{}", name)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=40)
@given(data=st.data())
def test_an_answer_is_read_alike_however_it_is_cut(form, data):
    calls = [call_of(form), call_of(form, "nope"), as_text('"Oslo"')[form]]
    calls += [call_of(form).replace("{}", f'{{"city": {city}}}') for city in BAD_CITIES]
    signs = st.sampled_from([*SIGNS, *CALLS]) | st.sampled_from(OTHER_SPACE)
    bits = st.sampled_from(calls) | signs | st.sampled_from([*LAYOUTS[form].tags, *TAGS])
    text = data.draw(st.sampled_from(["", "So:\n"])) + "".join(data.draw(st.lists(bits, min_size=1, max_size=8)))
    if spaces := [at for at, char in enumerate(text) if char.isspace() or char in '{:,"']:
        at = data.draw(st.sampled_from(spaces))
        text = text[:at] + data.draw(st.sampled_from(["", *OTHER_SPACE])) + text[at:]
    torn = data.draw(st.integers(0, len(text)))
    text = text[:torn] + text[torn + data.draw(st.integers(0, 3)) :]
    whole = read(form, text, [])
    for cuts in (list(range(len(text))), data.draw(st.lists(st.integers(0, 999), max_size=4))):
        assert read(form, text, cuts) == whole


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("city", BAD_CITIES)
@pytest.mark.parametrize("before", ["", "So:\n"])
def test_a_call_whose_json_goes_bad_at_a_sign_of_a_tag_is_told_once(form, city, before):
    text = before + around_call(form, f'{{"city": {city}}}', "weather")
    for cuts in ([], *([found.end()] for found in re.finditer("[<`]", text))):
        assert read(form, text, cuts) == (text, [], False)


JSON_FORMS = [form for form in FORMATS if LAYOUTS[form].start == "{"]


@pytest.mark.parametrize("form", JSON_FORMS)
@pytest.mark.parametrize("space", OTHER_SPACE)
def test_white_space_that_json_has_not_makes_no_call_in_a_stream_either(form, space):
    call = call_of(form)
    is_json = not space.strip(" \t\r\n")
    for at in (found.start() for found in re.finditer(r'[{:,]|"(?=[:,])', call[: call.rindex("{")])):
        text = call[: at + 1] + space + call[at + 1 :]
        for cuts in ([], list(range(len(text)))):
            reader, edges = ToolReader(form, ToolUse(SCHEMAS)), [0, *cuts, len(text)]
            deltas = [each for a, b in zip(edges, edges[1:], strict=False) for each in reader.feed(text[a:b])[1]]
            assert bool(deltas or reader.finish()[1]) == is_json


PROSE = ["() => 1", "() done", '"), so', "(]o", "[] is empty", "[](url)", "}, then", "(see x)", "{x} is", "]] and"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("prose", PROSE)
def test_signs_that_begin_prose_behind_a_call_are_prose(form, prose):
    text = f"{call_of(form)}\n{prose}"
    for cuts in ([], list(range(len(text)))):
        assert read(form, text, cuts) == (prose, [("now", {})], True)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("signs", ["]", "}", "]}", ")"])
def test_closers_alone_on_a_line_and_before_a_closing_tag_are_no_content(form, signs):
    closing = LAYOUTS[form].closing
    ends = [f"\n{signs}\nDone", f"\n {signs} \nDone", *([f"\nDone\n{signs}\n{closing}"] if closing else [])]
    for text in (call_of(form) + end for end in ends):
        for cuts in ([], list(range(len(text)))):
            assert read(form, text, cuts) == ("Done", [("now", {})], True)


FURTHER = ["], now()]", "],, now()]", "]; now()]", "], \nnow()]", ")], now()]", "], now()], now()]"]


@pytest.mark.parametrize("behind", FURTHER)
def test_a_list_of_python_s_calls_may_go_on_behind_its_bracket(behind):
    text = '[weather(city="it\'s")' + behind
    calls = [("weather", {"city": "it's"}), *[("now", {})] * behind.count("now")]
    for cuts in ([], list(range(len(text)))):
        assert read("pythonic", text, cuts) == ("", calls, True)
    for prose in (", nope()]", ", and now() is", "\nnow()"):
        assert read("pythonic", f"[now()]{prose}", [])[1] == [("now", {})]


@pytest.mark.parametrize("tag", [tag for tag in TAGS if not tag.endswith("/>")])
def test_a_tag_within_a_list_is_no_content_and_costs_no_call(tag):
    texts: dict[str, Format] = {
        f"[{tag}{NOW}, {tag}{NOW}]": "xlam",
        f"[{tag}now(), {tag}now()]": "pythonic",
        f"[now(){tag}, now(){tag}]": "pythonic",
    }
    for text, form in texts.items():
        for cuts in ([], list(range(len(text)))):
            assert read(form, text, cuts) == ("", [("now", {}), ("now", {})], True)
    kept = f"[weather(city='{tag}')]"
    assert read("pythonic", kept, []) == ("", [("weather", {"city": tag})], True)


@pytest.mark.parametrize("text", ["{{", "{}{}", '{{"city": "a"}', "{x}{", '{"city": 1e999}{}'])
def test_a_second_object_in_a_function_is_read_once(limited, text):
    text = f"<function=weather>{text}"
    for cuts in ([], list(range(len(text)))):
        assert read("qwen3_coder", text, cuts, SCHEMAS)[0] != ""


def test_white_space_between_parameters_is_kept_however_it_is_cut():
    for text, content in {
        "<function=weather\nh\n</parameter>b<tool_call>": "h\nb",
        "<function=now\ni <tool_call>a": "i a",
    }.items():
        for cuts in ([], list(range(len(text)))):
            assert read("qwen3_coder", text, cuts)[0] == content


TEXTUAL = '{"name": "now", "arguments": "{}"}'
ON_LINES: dict[Format, list[str]] = {
    "xlam": [
        f"[{NOW}]",
        f"[\n  {NOW}\n]",
        '[{"arguments": {}, "name": "now"}]',
        f"[{NOW}",
        f"[{NOW}]]",
        f"[{TEXTUAL}]",
    ],
    "llama3_json": ['{"name": "now", "parameters": {}}', NOW, f"{NOW}}}", NOW[:-1], TEXTUAL, f"[{NOW}]", f"{NOW};"],
    "pythonic": ["[now()]", "[\nnow( )\n]", "[now()]]", "[now())]", "[now(]"],
}
NOT_ON_LINES: dict[Format, list[str]] = {
    "xlam": [NOW, f"[{NOW}, 1]", f"[{NOW}] is it", f"so [{NOW}]", '[{"name": "nope", "arguments": {}}]'],
    "llama3_json": ['{"name": "nope", "parameters": {}}', f"{NOW} is it", f"so {NOW}", NOW[:-2], '{"name": "now"}'],
    "pythonic": ["[now()] is it", "so [now()]", "[now(", "[nope()]", "[now]", "[1, now()]"],
}


@pytest.mark.parametrize("form", ON_LINES)
@pytest.mark.parametrize(
    "around", ["I look.\n%s", "I look.\n\n  %s  \nDone", "I look.\n```json\n%s\n```\nDone", "a\n%s\n%s"]
)
def test_a_call_on_lines_of_its_own_behind_text_is_a_call(form, around):
    for call in ON_LINES[form]:
        text = around.replace("%s", call)
        said = around.replace("  %s  ", "").replace("```json\n%s\n```\n", "").replace("%s", "").split()
        for cuts in ([], list(range(len(text)))):
            content, calls, has_calls = read(form, text, cuts)
            assert (content.split(), calls, has_calls) == (said, [("now", {})] * around.count("%s"), True)


@pytest.mark.parametrize("form", ON_LINES)
@settings(max_examples=40)
@given(data=st.data())
def test_what_is_read_alone_is_read_behind_a_line_of_text(form, data):
    text = Slips(data.draw, parted=False).text(form, data.draw(MANY_CALLS))
    calls = read(form, text, [])[1]
    answer = f"I look.\n{text}"
    for cuts in ([], list(range(len(answer)))):
        assert read(form, answer, cuts)[1] == calls


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, text, *_ in EXAMPLES.values() if form in ON_LINES])
def test_slips_of_models_are_read_behind_a_line_of_text_too(form, text):
    for cuts in ([], list(range(len(text)))):
        assert read(form, f"I look.\n{text}", cuts)[1] == read(form, text, [])[1]


@pytest.mark.parametrize("form", NOT_ON_LINES)
def test_what_is_no_whole_call_on_lines_of_its_own_is_content_as_it_stands(form):
    for other in NOT_ON_LINES[form]:
        text = f"I look.\n{other}"
        for cuts in ([], list(range(len(text)))):
            assert read(form, text, cuts) == (text, [], False)


@pytest.mark.parametrize("form", NOT_ON_LINES)
def test_a_stream_shows_a_line_at_once_that_cannot_become_a_call(form):
    reader = ToolReader(form, ToolUse(SCHEMAS))
    for text in ("So:\n", "[1, 2]", "\n", '{"a": 1}', "\n", "[x](y)", "\n", "{x"):
        shown = "".join(reader.feed(char)[0] for char in text)
        assert text.isspace() or shown.strip() == text.strip()
