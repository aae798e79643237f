"""Two tabs of one browser that have the same conversation: one answers it at a time, and nothing is lost."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.browser.chat import Chat, soon

pytestmark = pytest.mark.slow

ELSEWHERE = "Another tab is answering this conversation."
CUT = "The connection ended before the answer did."
STORED = """() => new Promise((resolve) => {
    indexedDB.open("jaxinfer").onsuccess = ({ target }) => {
        const all = target.result.transaction("conversations").objectStore("conversations").getAll();
        const textsOf = ({ title, nodes }) => [title, ...nodes.slice(1).map(({ text }) => text)];
        all.onsuccess = () => resolve(all.result.map(textsOf));
    };
})"""


class Gate:
    """An answer's end, which the test opens."""

    def __init__(self) -> None:
        self.is_open = False

    def __call__(self) -> Iterable[str | float]:
        yield "Begun"
        while not self.is_open:
            yield 0.1
            yield "."
        yield " and ended"


class Tab(Chat):
    """A further tab of a chat's browser, which that chat checks at its end."""

    def __init__(self, first: Chat, url: str | None = None) -> None:
        self.context, self.server = first.context, first.server
        self.asked, self.failures = first.asked, first.failures
        self.page = self.new_page(url or first.server)


@pytest.fixture
def gate(says: Any) -> Gate:
    made = Gate()
    says.answers["Long"] = made()
    return made


def stored(chat: Chat) -> list[list[str]]:
    return list(chat.page.evaluate(STORED))


def beside(chat: Chat) -> Tab:
    """Another tab, with the conversation open that the first is having answered."""
    chat.ask("Hello")
    chat.send("Long")
    chat.waits_for(".text", "Begun")
    soon(lambda: stored(chat)[0][-1].startswith("Begun"))
    other = Tab(chat)
    other["#conversations .open"].first.click()
    other.waits_for("#banner", ELSEWHERE)
    return other


def test_a_tab_says_that_another_answers_and_follows_it(chat: Chat, gate: Gate, says: Any) -> None:
    other = beside(chat)
    assert other["#banner"].inner_text() == f"{ELSEWHERE} You can go on here when the answer has ended."
    assert "Begun" in other.last and other[".end.error"].count() == 0 and CUT not in other["#log"].inner_text()
    other.send("From B")
    assert other["#input"].input_value() == "From B" and not other["#send"].is_enabled()
    assert not other.button("Regenerate").is_enabled()
    shown = other.last
    soon(lambda: len(other.last) > len(shown))
    gate.is_open = True
    assert chat.ended().endswith(". and ended")
    soon(lambda: other.last == chat.last)
    soon(lambda: not other["#banner"].is_visible())
    assert other["#input"].input_value() == "From B" and says.asked == ["Hello", "Long"]
    other["#input"].press("Enter")
    assert other.ended() == "Answer 1 to: From B"
    soon(lambda: chat.said == other.said)
    assert chat.said == ["Hello", "Answer 1 to: Hello", "Long", chat.said[3], "From B", "Answer 1 to: From B"]
    assert stored(chat) == [["Hello", *chat.said]]


def rename(tab: Chat) -> None:
    tab.button("Rename Hello").click()


def delete(tab: Chat) -> None:
    tab["#conversations .open"].first.press("Delete")


def set_temperature(tab: Chat) -> None:
    tab.page.keyboard.press("Control+,")
    tab["#s-temperature"].fill("1")


def reset_settings(tab: Chat) -> None:
    tab.page.keyboard.press("Control+,")
    tab.button("Reset to model defaults").click()


@pytest.mark.parametrize("change", [rename, delete, set_temperature, reset_settings])
def test_a_tab_holds_back_what_it_would_write(chat: Chat, gate: Gate, change: Callable[[Chat], None]) -> None:
    other = beside(chat)
    change(other)
    other.waits_for(".notice.shown", ELSEWHERE)
    assert other["#s-temperature"].input_value() == "" and other["#conversations input"].count() == 0
    gate.is_open = True
    assert chat.ended().endswith(". and ended")
    soon(lambda: other.last == chat.last)
    assert stored(chat) == [["Hello", "Hello", "Answer 1 to: Hello", "Long", chat.last]]
    assert chat.titles == other.titles == ["Hello"]


def test_an_edited_answer_waits_until_another_tab_has_ended(chat: Chat, gate: Gate) -> None:
    chat.ask("Hello")
    other = Tab(chat)
    other["#conversations .open"].first.click()
    other.button("Edit the answer").click()
    other[".editing textarea"].fill("Mine")
    chat.send("Long")
    other.waits_for("#banner", ELSEWHERE)
    other.button("Save").click()
    other.waits_for(".notice.shown", ELSEWHERE)
    assert other[".editing textarea"].input_value() == "Mine"
    gate.is_open = True
    ended = chat.ended()
    soon(lambda: not other["#banner"].is_visible())
    other.button("Save").click()
    other.waits_for(".version", "2 / 2")
    soon(lambda: stored(chat)[0][1:] == ["Hello", "Answer 1 to: Hello", "Long", ended, "Mine"])


def test_a_tab_that_ends_gives_its_turn_back(chat: Chat, gate: Gate) -> None:
    other = beside(chat)
    assert CUT not in other["#log"].inner_text()
    chat.page.close()
    other.waits_for(".end.error", CUT)
    assert not other["#banner"].is_visible()
    assert other.ask("More") == "Answer 1 to: More"
    reopened = Tab(other)
    reopened["#conversations .open"].first.click()
    assert reopened.last == "Answer 1 to: More"
    assert reopened[".end.error"].inner_text().startswith(CUT)


def test_of_two_tabs_that_ask_at_once_one_does(chat: Chat, says: Any) -> None:
    chat.ask("Hello")
    others = [Tab(chat) for _ in range(2)]
    for other in others:
        other["#conversations .open"].first.click()
    tabs = [chat, *others]
    for round_ in range(4):
        for number, tab in enumerate(tabs):
            tab["#input"].fill(f"{round_} of {number}")
        count = len(says.asked)
        for tab in tabs:
            tab.page.evaluate("setTimeout(() => document.getElementById('composer').requestSubmit(), 100)")
        soon(lambda count=count: len(says.asked) > count)
        chat.page.wait_for_timeout(300)  # the others' times have come
        for tab in tabs:
            tab.ended()
        soon(lambda: len({tuple(tab.said) for tab in tabs}) == 1)
    soon(lambda: stored(chat) == [["Hello", *chat.said]])
    sent = [text for text in says.asked if text != "Hello"]
    assert [text for text in chat.said if " of " in text and "Answer" not in text] == sent
    left = sum(tab["#input"].input_value() != "" for tab in tabs)
    assert len(sent) >= 4 and left <= 2


def test_conversations_that_other_tabs_do_not_have_open_go_on(chat: Chat, gate: Gate) -> None:
    other = beside(chat)
    other.button("New chat").click()
    assert not other["#banner"].is_visible()
    assert other.ask("Something else") == "Answer 1 to: Something else"
    assert other["#conversations .running"].count() == 1
    gate.is_open = True
    chat.ended()
    soon(lambda: other["#conversations .running"].count() == 0)


def test_turns_leave_no_databases(chat: Chat) -> None:
    chat.ask("Hello")
    names = "async () => (await indexedDB.databases()).map(({ name }) => name)"
    soon(lambda: chat.page.evaluate(names) == ["jaxinfer"])
