"""What can be done with an answer and a question: go on with one, write it anew, fold it, see the tools it calls."""

import asyncio
import dataclasses
import json
import re
from typing import Any

import pytest

from tests.browser.chat import Chat

pytestmark = pytest.mark.slow


def stream(*deltas: dict[str, Any], end: str = "stop") -> str:
    """The body of a streamed answer."""
    frames = [{"model": "tiny", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    frames.append({"model": "tiny", "choices": [{"index": 0, "delta": {}, "finish_reason": end}]})
    return "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames) + "data: [DONE]\n\n"


def answer_with(chat: Chat, body: str) -> None:
    """What the next question is answered with."""
    fulfil = {"content_type": "text/event-stream", "body": body}
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(**fulfil), times=1)


def test_an_answer_that_was_stopped_goes_on_where_it_was(chat: Chat, says: Any, llm: Any) -> None:
    gate = asyncio.Event()
    says.answers["Count"] = ["One two", gate]
    chat.send("Count")
    chat.waits_for(".assistant .text", "One two")
    chat["#stop"].click()
    chat.ended()
    answer_with(chat, stream({"content": " three"}))
    chat.button("Continue").click()
    assert chat.ended() == "One two three"
    assert chat[".version"].count() == 0 and chat["button[title=Continue]"].count() == 0


def test_the_server_is_asked_to_go_on_with_what_is_there(chat: Chat, llm: Any) -> None:
    answer_with(chat, stream({"content": "Once upon"}, end="length"))
    chat.ask("Tell")
    assert chat.waits_for(".end").inner_text() == "Ended at the token limit."
    chat.button("Continue").click()
    chat.ended()
    rendered = llm.rendered[-1]
    assert rendered["messages"][-1] == {"role": "assistant", "content": "Once upon"}
    assert (rendered["go_on"], rendered["add"]) == (True, False)
    assert chat.last.startswith("Once upon")
    chat.page.reload()
    chat.waits_for(".assistant .text", "Once upon")


def test_an_answer_can_be_written_anew_and_the_next_turn_has_it(chat: Chat, llm: Any) -> None:
    chat.ask("Who?")
    chat.button("Edit the answer").click()
    chat[".editing textarea"].fill("*Me*.")
    chat.button("Save").click()
    chat.waits_for(".version", "2 / 2")
    assert chat.last == "Me." and chat.waits_for(".end").inner_text() == "Edited by you."
    chat.ask("Really?")
    assert llm.calls[-1].prompt == "user:Who?\nassistant:*Me*.\nuser:Really?\nassistant:"
    chat["button[title='Previous version']"].first.click()
    assert chat.said == ["Who?", "Answer 1 to: Who?"]
    chat.button("Edit the answer").click()
    chat.page.keyboard.press("Escape")
    assert chat.said == ["Who?", "Answer 1 to: Who?"]


def test_an_edited_answer_that_goes_on_still_says_so(chat: Chat) -> None:
    chat.ask("Who?")
    chat.button("Edit the answer").click()
    chat[".editing textarea"].fill("Me")
    chat.button("Save").click()
    chat.waits_for(".end", "Edited by you.")
    answer_with(chat, stream({"content": " and you"}, end="length"))
    chat.button("Continue").click()
    assert chat.ended() == "Me and you"
    assert chat[".end"].last.inner_text() == "Edited by you. Ended at the token limit."
    answer_with(chat, stream({"content": "."}))
    chat.button("Continue").click()
    assert chat.ended() == "Me and you." and chat[".end"].last.inner_text() == "Edited by you."
    chat.page.reload()
    chat.waits_for(".end", "Edited by you.")


def test_what_is_too_long_is_told_why_and_offered_what_can_help(chat: Chat, llm: Any) -> None:
    chat.ask("Short")
    llm._info = dataclasses.replace(llm.info, max_model_len=60)
    chat.send("long " * 20)
    said = chat.waits_for(".error").inner_text()
    assert said.startswith("This conversation is too long for the model. All of its messages and files count")
    assert "maximum context length is 60 tokens" in said and chat[".error button"].all_inner_texts() == [
        "Edit the question",
        "New chat",
    ]
    num_tokens = re.findall(r"your prompt has (\d+)", said)[0]
    assert int(num_tokens) > 100
    assert chat["#meter [data-name=context]"].inner_text() == f"{num_tokens} of 4,000,000 tokens"
    chat.button("Edit the question").click()
    chat[".editing textarea"].fill("x")
    chat[".editing textarea"].press("Enter")
    chat.waits_for(".version", "2 / 2")
    assert chat.ended() == "Answer 1 to: x"


def test_too_many_max_tokens_lead_to_the_settings(chat: Chat) -> None:
    chat.page.keyboard.press("Control+,")
    chat["#s-max_tokens"].fill("5000000")
    chat.page.keyboard.press("Escape")
    chat.ask("Hi")
    assert chat[".error button"].all_inner_texts() == ["Settings", "Edit the question", "New chat"]
    chat.page.reload()
    chat.waits_for(".error button", "Edit the question")
    chat[".error"].get_by_text("Settings").click()
    chat["#s-max_tokens"].fill("")
    chat.page.keyboard.press("Escape")
    chat.button("Regenerate").click()
    chat.waits_for(".version", "2 / 2")
    assert chat.ended() == "Answer 1 to: Hi"


def test_a_long_question_is_folded(chat: Chat) -> None:
    long = "word " * 2_000
    chat.ask(long)
    said = chat[".said"]
    assert said.bounding_box()["height"] < 250
    chat.button("Show all 9,999 characters").click()
    assert said.bounding_box()["height"] > 1_000
    chat.button("Show less").click()
    assert said.bounding_box()["height"] < 250
    chat.ask("Short")
    assert chat[".fold"].count() == 1


def test_calls_of_tools_are_shown_with_what_they_are_passed(chat: Chat) -> None:
    def call(index: int, **function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]}

    first = [call(0, name="weather", arguments='{"place":'), call(0, arguments='"<b>Oslo</b>"}')]
    answer_with(chat, stream(*first, call(1, name="time", arguments="{broken"), end="tool_calls"))
    chat.ask("Weather?")
    assert chat[".call summary"].all_inner_texts() == ["Calls weather", "Calls time"]
    assert chat[".call code.hljs, .call pre code"].all_inner_texts() == ['{\n  "place": "<b>Oslo</b>"\n}', "{broken"]
    assert chat.waits_for(".end").inner_text() == "The model calls a tool. This page runs none."
    chat.page.reload()
    chat.waits_for(".call", "Oslo")


def test_a_short_thought_is_not_measured_in_milliseconds(chat: Chat, says: Any) -> None:
    says.answers["Why"] = ["<think>Hm</think>Because."]
    chat.ask("Why")
    assert chat.waits_for(".thinking summary").inner_text() == "Thought for less than a second"


@pytest.mark.parametrize("width", [390, 1440])
def test_what_a_button_opens_below_the_last_answer_can_be_seen(open_chat: Any, says: Any, width: int) -> None:
    """Its measures, and the buttons of its editor, are not left under the message box."""
    chat = open_chat(viewport={"width": width, "height": 700})
    says.answers["Long"] = ["line\n\n" * 40, "end"]
    chat.ask("Long")
    edge = "(at) => at.getBoundingClientRect()"
    hidden = f"(node) => ({edge})(node).bottom - ({edge})(document.querySelector('main > footer')).top"
    chat["button[title='Measures of this answer']"].last.click()
    assert chat.waits_for(".facts:not([hidden])").evaluate(hidden) <= 0
    chat.button("Edit the answer").click()
    assert chat.waits_for(".editing .buttons").evaluate(hidden) <= 0
