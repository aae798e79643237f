"""Nothing that was typed or attached is lost, and nothing that was sent comes back: by every order of what a person
does while a message is being sent, and by every way that a page ends.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.chat import Chat, soon
from tests.browser.test_conversations import attach

pytestmark = pytest.mark.slow

# The browser reads the conversations as slowly as the test wants, where the tab's sessionStorage says so.
SLOW = """
const getAll = IDBObjectStore.prototype.getAll;
IDBObjectStore.prototype.getAll = function () {
    const real = getAll.call(this);
    if (!sessionStorage.getItem("slow")) return real;
    const held = { get result() { return real.result; } };
    window.goOn = () => held.onsuccess();
    real.onsuccess = () => { window.isRead = true; };
    return held;
};
"""

# A tab that is killed is not told: what it has not written down by then is gone.
KILLED = """
const untold = (event) => window.isKilled && event.stopImmediatePropagation();
for (const name of ["pagehide", "visibilitychange"]) addEventListener(name, untold, true);
"""

HIDE = """() => {
    Object.defineProperty(document, "hidden", { get: () => true, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
    delete document.hidden;
}"""

# Enter, and further deeds before the browser has done anything about it.
DEEDS = """([box, deeds, isRefused]) => {
    const press = (key, more) => document.activeElement.dispatchEvent(
        new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
    const known = {
        type: () => document.execCommand("insertText", false, "later"),
        attach: () => {
            const data = new DataTransfer(), file = document.querySelector("#file");
            data.items.add(new File(["b"], "b.txt", { type: "text/plain" }));
            file.files = data.files;
            file.dispatchEvent(new Event("change"));
        },
        leave: () => press("k", { ctrlKey: true }),
    };
    document.querySelector(box).focus();
    if (isRefused) IDBFactory.prototype.open = () => { throw new Error("no room"); };
    press("Enter");
    for (const deed of deeds) known[deed]();
}"""

ORDERS = [order for count in range(4) for order in itertools.permutations(("type", "attach", "leave"), count)]


@pytest.fixture
def chat(open_chat: Callable[..., Chat]) -> Chat:
    chat = open_chat()
    for script in (SLOW, KILLED):
        chat.context.add_init_script(script)
    chat.page.reload()
    chat.waits_for("#model:not(:empty)")
    return chat


def draft(chat: Chat) -> tuple[str, list[str]]:
    names = chat["#attached li > span"].all_inner_texts()
    return chat["#input"].input_value(), list(names)


def until(chat: Chat, condition: str) -> None:
    soon(lambda: bool(chat.page.evaluate(condition)))


def return_to(chat: Chat, title: str) -> None:
    chat["#conversations"].get_by_role("button", name=title, exact=True).click()


def kill(chat: Chat) -> None:
    """Another page in the place of a tab that is killed."""
    chat.page.evaluate("window.isKilled = true")
    chat.page.reload()
    chat.waits_for("#conversations .open")


def slow_reload(chat: Chat) -> None:
    chat.page.evaluate("sessionStorage.setItem('slow', 'yes')")
    chat.page.reload()
    until(chat, "window.isRead")
    chat.page.evaluate("sessionStorage.removeItem('slow')")


@pytest.mark.parametrize("is_refused", [False, True], ids=["sent", "refused"])
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_what_is_done_while_a_message_is_sent_stays(
    chat: Chat, llm: Any, order: tuple[str, ...], is_refused: bool
) -> None:
    chat.ask("First")
    chat["#input"].fill("Second")
    attach(chat, "a.txt", b"a")
    chat.waits_for("#attached li", "a.txt")
    drafts = {"First": ("Second", ["a.txt"]) if is_refused else ("", []), "New chat": ("", [])}
    at = "First"
    for deed in order:
        text, files = drafts[at]
        if deed == "leave":
            at = "New chat"
        elif deed == "type":
            drafts[at] = f"{text}\nlater".strip(), files
        else:
            drafts[at] = text, [*files, "b.txt"]
    chat.page.evaluate(DEEDS, ["#input", order, is_refused])
    if is_refused:
        chat.waits_for(".notice.shown", "Nothing was sent. The browser says: no room")
    else:
        soon(lambda: len(llm.rendered) == 2)
        chat.page.wait_for_selector("#conversations .running", state="detached")
    for _ in range(2):
        if drafts[at][1]:
            chat.waits_for("#attached li", drafts[at][1][-1])
        assert draft(chat) == drafts[at]
        return_to(chat, "First")
        chat.ended()
        assert draft(chat) == drafts["First"]
        assert [said.split("\n")[-1] for said in chat.said[2:3]] == ([] if is_refused else ["Second"])
        chat.button("New chat").click()
        assert draft(chat) == drafts["New chat"]
        at = "New chat"
        chat.page.reload()
        chat.waits_for("#conversations .open")


def test_a_file_that_is_still_being_read_goes_with_the_next_message(chat: Chat, llm: Any) -> None:
    chat.ask("First")
    chat["#input"].fill("Second")
    chat.page.evaluate(
        """() => {
        const read = Blob.prototype.arrayBuffer;
        Blob.prototype.arrayBuffer = async function () {
            await new Promise((resolve) => (window.goOn = resolve));
            return read.call(this);
        };
        }"""
    )
    attach(chat, "a.txt", b"a")
    until(chat, "!!window.goOn")
    chat["#input"].press("Enter")
    assert chat.ended() == "Answer 1 to: Second"
    chat.page.keyboard.press("Control+k")
    chat.page.evaluate("window.goOn()")
    return_to(chat, "First")
    chat.waits_for("#attached li", "a.txt")
    assert llm.rendered[-1]["messages"][-1]["content"] == "Second" and chat[".user .chips"].count() == 0


@pytest.mark.parametrize("is_refused", [False, True], ids=["sent", "refused"])
def test_what_is_typed_while_an_edit_is_sent_is_the_next_message(chat: Chat, is_refused: bool) -> None:
    chat.ask("First")
    chat.button("Edit").first.click()
    chat[".editing textarea"].fill("Rather this")
    chat.page.evaluate(DEEDS, [".editing textarea", ["type"], is_refused])
    if is_refused:
        chat.waits_for(".notice.shown", "Nothing was sent.")
        area = chat[".editing textarea"]
        assert area.input_value() == "Rather this" and area.is_editable()
        assert area.evaluate("(area) => document.activeElement === area")
    else:
        assert chat.waits_for(".version", "2 / 2") and chat.ended() == "Answer 1 to: Rather this"
    assert draft(chat) == ("later", [])


@pytest.mark.parametrize("times", [1, 2])
def test_a_draft_outlives_a_page_that_ends_before_it_has_begun(chat: Chat, times: int) -> None:
    chat.ask("First")
    chat.button("Edit the answer").click()
    chat[".editing textarea"].fill("half an ed")
    chat["#input"].fill("half a thou")
    attach(chat, "a.txt", b"a")
    chat.waits_for("#attached li", "a.txt")
    for _ in range(times):
        slow_reload(chat)
        chat.page.evaluate(HIDE)
    chat.page.reload()
    chat.waits_for("#attached li", "a.txt")
    assert draft(chat) == ("half a thou", ["a.txt"]) and chat[".editing textarea"].input_value() == "half an ed"


def test_what_is_typed_before_a_page_has_begun_goes_behind_the_draft(chat: Chat) -> None:
    chat.ask("First")
    chat["#input"].fill("half a thou")
    attach(chat, "a.txt", b"a")
    chat.waits_for("#attached li", "a.txt")
    slow_reload(chat)
    chat["#input"].fill("later")
    attach(chat, "b.txt", b"b")
    chat.waits_for("#attached li", "b.txt")
    chat.page.evaluate("window.goOn()")
    chat.waits_for("#attached li", "a.txt")
    assert draft(chat) == ("half a thou\nlater", ["a.txt", "b.txt"])


def test_a_conversation_that_is_begun_before_the_page_has_stays_shown(chat: Chat) -> None:
    chat.ask("First")
    chat["#input"].fill("half a thou")
    slow_reload(chat)
    chat.waits_for("#model:not(:empty)")
    assert chat.ask("Quick") == "Answer 1 to: Quick"
    chat.page.evaluate("window.goOn()")
    chat.waits_for("#conversations .open", "First")
    assert chat.said == ["Quick", "Answer 1 to: Quick"] and draft(chat) == ("", [])
    return_to(chat, "First")
    assert draft(chat) == ("half a thou", [])


def test_what_was_sent_does_not_come_back_in_place_of_a_tab_that_was_killed(chat: Chat) -> None:
    chat["#input"].fill("First")
    attach(chat, "a.txt", b"a")
    chat.waits_for("#attached li", "a.txt")
    chat.page.evaluate(HIDE)
    chat["#input"].press("Enter")
    chat.ended()
    chat.button("Edit").first.click()
    chat[".editing textarea"].fill("Rather this")
    chat.page.evaluate(HIDE)
    chat[".editing .main"].click()
    chat.waits_for(".version", "2 / 2")
    chat.ended()
    kill(chat)
    assert draft(chat) == ("", [])
    assert chat.page.evaluate("sessionStorage.getItem('drafts')") is None
    chat.button("Previous version").click()
    assert chat[".editing"].count() == 0 and chat.said[0].endswith("First")


FILL = """(room) => {
    let filler = "";
    for (let step = 1 << 22; step; step >>= 1)
        try {
            sessionStorage.setItem("filler", filler + "x".repeat(step));
            filler += "x".repeat(step);
        } catch (error) {
            console.info(error.name);
        }
    sessionStorage.setItem("filler", filler.slice(room));
}"""


@pytest.mark.parametrize(
    ("room", "said", "kept"),
    [
        (500_000, None, ("new" * 1_000, ["b.txt"])),
        (50_000, "did not save the files of what you have typed", ("new" * 1_000, [])),
        (500, "did not save what you have typed", ("", [])),
    ],
)
def test_an_old_draft_does_not_come_back_for_one_without_room(chat: Chat, room: int, said: Any, kept: Any) -> None:
    chat.ask("First")
    chat["#input"].fill("old")
    attach(chat, "a.txt", b"a")
    chat.waits_for("#attached li", "a.txt")
    chat.page.evaluate(HIDE)
    chat.page.evaluate(FILL, room)
    chat.button("Remove a.txt").click()
    chat["#input"].fill("new" * 1_000)
    attach(chat, "b.txt", b"b" * 150_000)
    chat.waits_for("#attached li", "b.txt")
    chat.page.evaluate(HIDE)
    if said:
        chat.waits_for(".notice.shown", f"The browser {said}: ")
    kill(chat)
    assert draft(chat) == kept


def test_a_choice_without_room_is_not_the_older_one(chat: Chat) -> None:
    chat.page.keyboard.press("Control+,")
    chat["#change-key"].click()
    chat["#key"].fill("old")
    chat["#keep-key"].check()
    chat["#key"].press("Enter")
    chat.page.wait_for_selector("#key-dialog", state="hidden")
    chat.page.evaluate(FILL.replace("sessionStorage", "localStorage"), 50)
    chat["#change-key"].click()
    chat["#key"].fill("new" * 1_000)
    chat["#key"].press("Enter")
    chat.waits_for(".notice.shown", "The browser did not save this choice: ")
    assert chat.page.evaluate("localStorage.getItem('api-key')") is None
