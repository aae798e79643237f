"""What is typed and not sent outlives a reload, another conversation and another version."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.chat import Chat
from tests.browser.test_conversations import attach

pytestmark = pytest.mark.slow


def reload(chat: Chat) -> None:
    chat.page.reload()
    chat.waits_for("#conversations .open")


def leave_and_return(chat: Chat) -> None:
    chat.page.keyboard.press("Control+k")
    chat.waits_for("#empty")
    chat.button("First").click()


def leave_reload_and_return(chat: Chat) -> None:
    chat.page.keyboard.press("Control+k")
    reload(chat)
    chat.button("First").click()


def change_elsewhere(chat: Chat) -> None:
    """Another tab goes on with the conversation."""
    other = chat.new_page(chat.server)
    other.locator("#conversations .open").first.click()
    other.locator("#input").fill("Second")
    other.locator("#input").press("Enter")
    chat.waits_for(".text", "Answer 1 to: Second")


WAYS = [reload, leave_and_return, leave_reload_and_return, change_elsewhere]


@pytest.mark.parametrize("way", WAYS)
def test_a_draft_and_its_files_outlive(chat: Chat, llm: Any, way: Callable[[Chat], None]) -> None:
    chat.ask("First")
    chat["#input"].fill("half a thou")
    attach(chat, "a.txt", b"a")
    chat.waits_for("#attached li", "a.txt")
    way(chat)
    assert chat["#input"].input_value() == "half a thou"
    chat["#input"].press("Enter")
    chat.waits_for(".user", "half a thou")
    chat.ended()
    assert llm.rendered[-1]["messages"][-1]["content"] == "half a thou\n\na.txt:\n```\na\n```"
    reload(chat)
    assert chat["#input"].input_value() == "" and chat["#attached li"].count() == 0


def test_a_draft_of_a_new_chat_outlives_a_reload(chat: Chat) -> None:
    chat.ask("First")
    chat.page.keyboard.press("Control+k")
    chat["#input"].fill("new")
    reload(chat)
    assert chat["#input"].input_value() == "new" and chat["#empty"].is_visible()
    chat.button("First").click()
    assert chat["#input"].input_value() == "" and chat.said[0] == "First"
    reload(chat)
    assert chat.said[0] == "First"
    chat.button("New chat").click()
    assert chat["#input"].input_value() == "new"
    assert chat.ask("new") == "Answer 1 to: new"


def test_a_draft_of_a_new_chat_outlives_the_deletion_of_another(chat: Chat) -> None:
    chat.ask("First")
    chat.button("New chat").click()
    chat["#input"].fill("new")
    chat.button("First").click()
    chat["#conversations .open"].press("Delete")
    assert chat["#input"].input_value() == "new" and chat["#empty"].is_visible()
    chat.page.reload()
    chat.waits_for("#empty")
    assert chat["#input"].input_value() == "new"


@pytest.mark.parametrize("place", ["shown", "left", "left for a new chat"])
def test_what_is_typed_where_another_tab_deletes_is_a_new_chat_s(chat: Chat, place: str) -> None:
    chat.ask("First")
    chat.button("New chat").click()
    chat.ask("Second")
    chat.button("First").click()
    chat["#input"].fill("half a thou")
    chat.button("Edit").first.click()
    chat[".editing textarea"].fill("half an ed")
    if place == "left":
        chat.button("Second").click()
        chat["#input"].fill("mine")
    elif place == "left for a new chat":
        chat.button("New chat").click()
    other = chat.new_page(chat.server)
    other.locator("#conversations .open", has_text="First").press("Delete")
    notice = chat.waits_for("main .notice.shown")
    assert notice.inner_text() == "Another tab deleted “First”. What you typed there is in a new chat."
    assert chat.titles == ["Second"]
    if place == "left":
        assert chat["#input"].input_value() == "mine" and chat.said[0] == "Second"
        chat.button("New chat").click()
    assert chat["#empty"].is_visible() and chat[".editing"].count() == 0
    assert chat["#input"].input_value() == "half an ed\nhalf a thou"
    reload(chat)
    assert chat["#empty"].is_visible() and chat["#input"].input_value() == "half an ed\nhalf a thou"
    other.get_by_role("button", name="Undo").click()
    chat.waits_for("#conversations .open", "First").click()
    assert chat["#input"].input_value() == "" and chat[".editing"].count() == 0


def set_temperature(chat: Chat, value: str) -> None:
    chat.page.keyboard.press("Control+,")
    chat["#s-temperature"].fill(value)
    chat.page.keyboard.press("Escape")


def test_settings_of_a_new_chat_outlive_a_reload_and_another_conversation(chat: Chat, llm: Any) -> None:
    chat.ask("First")
    set_temperature(chat, "0.25")
    chat.button("New chat").click()
    assert chat["#chosen"].inner_text() == "temperature 0.25"
    reload(chat)
    assert chat["#chosen"].inner_text() == "temperature 0.25" and chat["#empty"].is_visible()
    set_temperature(chat, "0.5")
    for way in (reload, leave_and_return):
        way(chat)
        if way is leave_and_return:
            assert chat["#chosen"].inner_text() == "temperature 0.25"
            chat.button("New chat").click()
        assert chat["#chosen"].inner_text() == "temperature 0.5" and chat["#empty"].is_visible()
    chat.ask("New")
    chat.button("First").click()
    set_temperature(chat, "1")
    chat.button("New chat").click()  # nothing was chosen in this one: it is as the one before
    assert chat["#chosen"].inner_text() == "temperature 1"
    leave_and_return(chat)
    set_temperature(chat, "2")
    chat.button("New chat").click()
    assert chat["#chosen"].inner_text() == "temperature 2"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("button", ["Edit", "Edit the answer"])
def test_a_half_typed_edit_outlives(chat: Chat, way: Callable[[Chat], None], button: str) -> None:
    chat.ask("First")
    chat.button(button).first.click()
    chat[".editing textarea"].fill("half an ed")
    way(chat)
    assert chat[".editing textarea"].input_value() == "half an ed"
    chat[".editing textarea"].press("Enter")
    chat.waits_for(".version", "2 / 2")
    chat.ended()
    assert ("half an ed" in chat.said) and chat[".editing"].count() == 0
    chat.button("Previous version").click()
    assert chat[".editing"].count() == 0 and "half an ed" not in chat.said
    reload(chat)
    assert chat[".editing"].count() == 0


def test_an_edit_that_is_given_up_is_gone(chat: Chat) -> None:
    chat.ask("First")
    chat.button("Edit").first.click()
    chat[".editing textarea"].fill("half an ed")
    chat[".editing textarea"].press("Escape")
    reload(chat)
    assert chat[".editing"].count() == 0 and chat.said[0] == "First"


def test_an_edit_of_a_version_stays_with_it(chat: Chat) -> None:
    chat.ask("First")
    chat.button("Regenerate").click()
    chat.waits_for(".version", "2 / 2")
    chat.ended()
    chat.button("Edit").first.click()
    chat[".editing textarea"].fill("half an ed")
    chat.button("Previous version").click()
    assert chat[".editing textarea"].input_value() == "half an ed"
    chat.button("Edit the answer").click()
    chat[".assistant.editing textarea"].fill("mine")
    reload(chat)
    assert [area.input_value() for area in chat[".editing textarea"].all()] == ["half an ed", "mine"]


def test_a_file_that_an_edit_leaves_out_stays_out(chat: Chat) -> None:
    attach(chat, "a.txt", b"a")
    attach(chat, "b.txt", b"b")
    chat.waits_for("#attached li", "b.txt")
    chat.ask("First")
    chat.button("Edit").first.click()
    chat.button("Remove a.txt").click()
    reload(chat)
    assert chat[".editing .chips li"].all_inner_texts() == ["b.txt\n1 character"]


def test_a_folded_question_stays_unfolded_while_another_tab_answers(chat: Chat) -> None:
    chat.ask("First\n" + "word\n" * 100)
    chat.button("Show all 505 characters").click()
    change_elsewhere(chat)
    assert chat.button("Show less").is_visible()
