"""The line that Claude Code begins its instructions with, another one in each request, is left out: there alone."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.protocol.chat import read_chat
from jaxinfer.protocol.messages import BILLING, without_billing
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, MESSAGES, RESPONSES, USER, post

COUNT = f"{MESSAGES}/count_tokens"
LINE = f"{BILLING} cc_version=2.1.4; cc_entrypoint=cli; cch=1a2b3;"
LINES = st.sampled_from([LINE, "Be an agent.", "", f" {LINE}", BILLING, "x-anthropic-other: 1"])
TEXTS = st.lists(LINES, min_size=1, max_size=3).map("\n".join)


def told(role: str, *texts: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def rendered(path: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    llm = FakeLLM()
    assert post(llm, path, body).status_code == 200
    return [(message["role"], message["content"]) for message in llm.rendered[0]["messages"]]


BODIES: dict[str, Callable[..., tuple[str, dict[str, Any]]]] = {
    "messages": lambda *texts: (MESSAGES, {"system": told("", *texts)["content"], "messages": USER, "max_tokens": 9}),
    "messages, a text": lambda *texts: (MESSAGES, {"system": "\n".join(texts), "messages": USER, "max_tokens": 9}),
    "count": lambda *texts: (COUNT, {"system": told("", *texts)["content"], "messages": USER}),
    "chat": lambda *texts: (CHAT, {"messages": [told("system", *texts), *USER]}),
    "developer": lambda *texts: (CHAT, {"messages": [told("developer", *texts), *USER]}),
    "shown": lambda *texts: ("/apply-template", {"messages": [told("system", *texts), *USER]}),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(
    ("texts", "left"),
    [
        ([LINE, "Be an agent.", "Help."], "Be an agent.\nHelp."),
        ([f"{LINE}\nBe an agent."], "Be an agent."),
        ([LINE], None),
        ([LINE, LINE], LINE),
        (["Be an agent.", LINE], f"Be an agent.\n{LINE}"),
        ([f" {LINE}"], f" {LINE}"),
        ([f"Never write {LINE}"], f"Never write {LINE}"),
    ],
)
def test_the_line_is_left_out_as_the_first_of_the_first_system_text(kind, texts, left):
    path, body = BODIES[kind](*texts)
    assert rendered(path, body) == [*([("system", left)] if left else []), ("user", "hi")]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028", "\u2029", "\x85"])
def test_the_line_goes_up_to_the_end_of_any_kind(end):
    text = f"{LINE}{end}Be an agent."
    assert without_billing([{"role": "system", "content": text}]) == [{"role": "system", "content": "Be an agent."}]


def test_a_conversation_of_the_line_alone_keeps_its_message():
    assert rendered(CHAT, {"messages": [told("system", LINE)]}) == [("system", "")]


def test_no_other_text_of_that_form_is_touched():
    conversation = [told("user", LINE), told("assistant", LINE), told("system", "Be."), told("system", LINE), *USER]
    assert [text for _, text in rendered(CHAT, {"messages": conversation})] == [LINE, LINE, "Be.", LINE, "hi"]
    sent = {"input": USER, "instructions": f"{LINE}\nBe."}
    assert rendered(RESPONSES, sent)[0] == ("system", f"{LINE}\nBe."), "its clients send none"


@given(st.lists(st.tuples(st.sampled_from(["system", "user"]), TEXTS), min_size=1, max_size=4))
def test_at_most_one_line_goes_and_it_is_the_first_of_the_first_system_text(turns):
    messages = [{"role": role, "content": text} for role, text in turns]
    left = without_billing(messages)
    assert read_chat({"messages": messages}).messages == left
    first = next((i for i, (role, _) in enumerate(turns) if role == "system"), None)
    if first is None or not turns[first][1].startswith(BILLING):
        assert left == messages
        return
    _, _, rest = turns[first][1].partition("\n")
    expected = [("system", rest)] if rest or len(turns) == 1 else []
    assert [(m["role"], m["content"]) for m in left] == [*turns[:first], *expected, *turns[first + 1 :]]


ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
BILLED = st.text(st.characters(codec="utf-8", exclude_characters=ENDS), max_size=20)
RESTS = st.text(st.characters(codec="utf-8"), max_size=20)


@given(BILLED, BILLED, st.sampled_from(["\n", "\r\n", "\r", "\u2028"]), RESTS)
def test_requests_that_differ_in_that_line_alone_render_the_same_prompt(one, other, end, rest):
    def read(line: str) -> list[dict[str, Any]]:
        text = f"{BILLING}{line}{end}{rest}"
        chat = read_chat({"messages": [{"role": "system", "content": text}, *USER]}).messages
        assert without_billing([{"role": "system", "content": text}, *USER]) == chat
        return chat

    assert read(one) == read(other)
