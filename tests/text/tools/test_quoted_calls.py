"""Calls quoted in a parameter of Qwen3-Coder's: where the tags of one are balanced it is of the value, and where the
answer ends there, neither it nor the call around it is one.
"""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.tools.test_mutated_calls import read

TEXT = {"type": "string"}
SCHEMAS = {
    "get": {"properties": {"q": TEXT}},
    "write": {"properties": {"path": TEXT, "content": TEXT}, "required": ["content", "path"]},
}
GET = "<function=get>\n<parameter=q>\nx\n</parameter>\n</function>"
QUOTED = [
    f"<tool_call>\n{GET}\n</tool_call>",
    GET,
    GET.replace("\n", ""),
    f"<tool_call>{GET}</tool_call>".replace("\n", ""),
    f"<tool_call>\n{GET.replace('get', 'other')}\n</tool_call>",
    "<tool_call>\n<function=get>\n</function>\n</tool_call>",
    "<function=get>\n<parameter=q>\nx\n</parameter>\n<parameter=r>\n</parameter>\n</function>",
    f"<tool_call>\n{GET}\n</tool_call>\n<tool_call>\n{GET}\n</tool_call>",
    f"<tool_call>\n{GET}\n</tool_call>\nand\n{GET}",
    "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
]
BEFORE = ["", "# Doc\n", "# Doc\n\n", "So: ", "    "]
BEHIND = ["", "\nend", "\n\nend\n", " is one"]


def call(values: dict[str, str]) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=write>\n{written}</function>\n</tool_call>"


@pytest.mark.parametrize("quoted", QUOTED)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("behind", BEHIND)
def test_a_quoted_call_is_of_the_value(quoted, before, behind):
    content = f"{before}{quoted}{behind}"
    for values in ({"path": "a", "content": content}, {"content": content, "path": "a"}):
        for more, calls in (("", []), (f"\n<tool_call>\n{GET}\n</tool_call>", [("get", {"q": "x"})])):
            text = call(values) + more
            for cuts in ([], list(range(len(text)))):
                assert read("qwen3_coder", text, cuts, SCHEMAS) == ("", [("write", values), *calls], True)


@settings(max_examples=150)
@given(
    quoted=st.sampled_from(QUOTED),
    before=st.sampled_from(BEFORE),
    behind=st.sampled_from(BEHIND[1:]),
    first=st.booleans(),
    data=st.data(),
)
def test_a_call_that_the_answer_cuts_there_is_none_and_neither_is_the_quoted_one(quoted, before, behind, first, data):
    content = f"{before}{quoted}{behind}"
    whole = call({"content": content, "path": "a"} if first else {"path": "a", "content": content})
    start = whole.index(quoted)
    end = start + len(content) - len(before)
    text = whole[: data.draw(st.integers(start + 1, end))]
    if re.search(r"(?:<|</tool_call>\s*|</function>\s*|</?[a-z_]*)\Z", text):
        return  # it may be a call behind a value that lacks its end
    for cuts in ([], data.draw(st.lists(st.integers(0, 999), max_size=6)), list(range(len(text)))):
        _, calls, has_calls = read("qwen3_coder", text, cuts, SCHEMAS)
        assert (calls, has_calls) == ([], False)


@pytest.mark.parametrize("value", ["", "\n", " "])
def test_a_call_that_lacks_a_required_argument_is_not_sent_where_the_next_begins(value):
    for given_, names in (("content", ["get"]), ("path", ["get"])):
        text = f"<tool_call>\n<function=write>\n<parameter={given_}>\n{value}<tool_call>\n{GET}\n</tool_call>"
        for cuts in ([], list(range(len(text)))):
            assert [name for name, _ in read("qwen3_coder", text, cuts, SCHEMAS)[1]] == names


@pytest.mark.parametrize(
    "said",
    [
        "use <function=get> here",
        "tags are <function=get> and <parameter=q> and so on",
        "<tool_call> is a tag",
        "</function> and </tool_call> end it",
        "<tool_call><function=get>",
    ],
)
def test_tags_that_are_no_whole_call_are_of_the_value_too(said):
    for values in ({"path": "a", "content": f"Now {said}."}, {"content": f"Now {said}.", "path": "a"}):
        for more, calls in (("", []), (f"\n<tool_call>\n{GET}\n</tool_call>", [("get", {"q": "x"})])):
            text = call(values) + more
            for cuts in ([], list(range(len(text)))):
                assert read("qwen3_coder", text, cuts, SCHEMAS) == ("", [("write", values), *calls], True)


LEFT_OPEN = "<function=write>\n<parameter=content>\n<function=get><parameter=q>x</parameter></function>\n"
TORN = "<function=a><function=b>\n</parameter>"  # no calls in each other


@pytest.mark.parametrize("end", ["", TORN])
@pytest.mark.parametrize(
    "piece",
    [
        LEFT_OPEN,
        f"{LEFT_OPEN}{TORN}",
        "<function=write>\n<parameter=content>\na\n",
        f"<function=write>\n<parameter=content>\n{GET}\n",
        f"<tool_call>\n<function=write>\n<parameter=content>\n<tool_call>\n{GET}\n</tool_call>\n",
        "<function=write><parameter=content><function=get></function>",
        "<parameter=content>\n<tool_call>\n<function=get>\n",
    ],
)
def test_quoted_calls_are_read_in_time_linear_in_their_number(piece, end):
    def seconds(count: int) -> float:
        text = f"<function=write>\n<parameter=path>\nb\n</parameter>\n{piece * count}{end}"
        begun = time.thread_time()
        read("qwen3_coder", text, [], SCHEMAS)
        return time.thread_time() - begun

    assert any(seconds(1280) < 64 * seconds(40) for _ in range(3))


@pytest.mark.parametrize("get", [GET, GET.replace("\n", "")])
def test_values_that_tear_at_their_end_are_read_in_time_linear_in_their_number(get):
    def seconds(count: int) -> float:
        text = "<tool_call>\n<function=write>\n<parameter=content>\n" + f"{get}\n<parameter=zz>\n" * count + TORN
        begun = time.thread_time()
        read("qwen3_coder", text, [], SCHEMAS)
        return time.thread_time() - begun

    assert any(seconds(1280) < 64 * seconds(40) for _ in range(3))
