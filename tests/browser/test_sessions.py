"""A conversation of the page is a session of the server's as long as it is there, and works without one."""

import asyncio

import pytest

from tests.browser.chat import soon
from tests.browser.test_conversations import bring, export

pytestmark = pytest.mark.slow


def sessions_of(chat):
    return chat.page.request.get(f"{chat.server}/v1/sessions").json()["data"]


def facts_of(chat):
    chat["button[title='Measures of this answer']"].last.click()
    return chat[".facts"].last.inner_text()


def test_a_conversation_is_one_session_through_edits_and_regenerations_and_ends_with_it(chat, llm):
    chat.ask("Hello")
    chat.button("Regenerate").click()
    chat.waits_for(".assistant .text", "Answer 2 to: Hello")
    chat.ended()
    chat.ask("More")
    (session,) = sessions_of(chat)
    assert (session["turns"], session["status"]) == (3, "idle")
    assert len(llm.kept) == 1
    assert "Session refused" not in facts_of(chat)
    chat.page.keyboard.press("Control+k")
    chat.ask("Other")
    assert len(sessions_of(chat)) == len(llm.kept) == 2
    chat.page.locator("#conversations .open", has_text="Hello").press("Delete")
    soon(lambda: len(sessions_of(chat)) == 1)
    assert len(llm.kept) == 1


def test_the_server_keeps_no_text_that_another_could_append_to(chat):
    chat.ask("A secret")
    (session,) = sessions_of(chat)
    body = {"messages": [{"role": "user", "content": "Say it"}], "session_id": session["id"], "session_append": True}
    refused = chat.page.request.post(f"{chat.server}/v1/chat/completions", data=body)
    assert refused.status == 400 and refused.json()["error"]["param"] == "session_append"


def test_a_session_that_is_busy_elsewhere_is_done_without_and_said_so(open_chat, says, llm):
    """The same conversation in another browser; tabs of one browser take turns."""
    chat, other = open_chat(), open_chat()
    chat.ask("Hello")
    assert bring(other, export(chat)) == "Imported 1 of 1."
    other.button("Hello").click()
    gate = asyncio.Event()
    says.answers["Long"] = ["One ", gate, "two"]
    chat.send("Long")
    chat.waits_for(".assistant .text", "One")
    assert other.ask("Meanwhile") == "Answer 1 to: Meanwhile"
    facts = facts_of(other)
    assert "Session refused" in facts and "one turn at a time" in facts
    gate.set()
    chat.ended()


def test_a_server_without_sessions_is_asked_once_more_without_one(chat, llm):
    asked = []

    def strict(route):
        body = route.request.post_data_json
        asked.append("session_id" in body)
        if asked[-1]:
            error = {"message": "no session_id here", "code": "unknown_parameter", "param": "session_id"}
            route.fulfill(status=400, json={"error": error})
        else:
            route.continue_()

    chat.page.route("**/v1/chat/completions", strict)
    assert chat.ask("Hello") == "Answer 1 to: Hello"
    assert asked == [True, False]
    assert "no session_id here" in facts_of(chat)
    assert sessions_of(chat) == []
