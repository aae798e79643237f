"""axe-core finds no fault in the page: empty, with answers of every kind, in its dialogs, on a desk and on a phone."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chat import Chat
from tests.browser.test_answers import answer_with, stream
from tests.browser.test_chat import MARKDOWN

pytestmark = pytest.mark.slow

AXE = Path(__file__).parents[2] / ".clients" / "page" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.map(({ id, nodes }) => [id, ...nodes.map(({ html }) => html.slice(0, 120))]);
}"""


def faults(chat: Chat) -> list[list[str]]:
    """What axe-core says is wrong with what is shown, each by its rule."""
    assert AXE.exists(), f"there is no {AXE}; run make clients"
    chat.page.evaluate(AXE.read_text("utf-8"))
    found: list[list[str]] = chat.page.evaluate(RUN)
    return found


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(open_chat: Callable[..., Chat], says: Any, scheme: str, width: int) -> None:
    options = {"has_touch": True, "is_mobile": True} if width < 800 else {}
    view = {"width": width, "height": 844}
    chat = open_chat(color_scheme=scheme, viewport=view, reduced_motion="reduce", **options)

    def ask(text: str) -> None:
        chat["#input"].fill(text)
        chat["#send"].click()
        chat.waits_for(".user:last-child, .user:nth-last-child(2)", text[:40])
        chat.ended()

    assert faults(chat) == []
    gate = asyncio.Event()
    wide = "+".join(f"x_{{{n}}}" for n in range(60))
    formulas = f"\n\\[x^2\\] and $y$\n\n\\[{wide}\\]\n\n$${wide}$$ and \\({wide}\\)\n\n"
    headings = "### First\n\n##### Below\n\n"
    says.answers["Show"] = [f"<think>\n{headings}So\n</think>\n\n", headings, MARKDOWN, formulas, gate]
    chat["#input"].fill("Show")
    chat["#send"].click()
    chat.waits_for(".assistant math")
    assert faults(chat) == []
    gate.set()
    chat.ended()
    chat.button("Regenerate").click()
    chat.waits_for(".version", "2 / 2")
    chat.ended()
    chat["#file"].set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"a"})
    chat.waits_for("#attached li")
    ask("word " * 500)
    call = {"index": 0, "id": "a", "function": {"name": "weather", "arguments": "{}"}}
    answer_with(chat, stream({"tool_calls": [call]}, end="tool_calls"))
    ask("Weather?")
    says.answers["Bad"] = ["some", RuntimeError("no")]
    ask("Bad")
    chat["button[title='Measures of this answer']"].last.click()
    assert faults(chat) == []
    chat["button[title=Edit]"].last.click()
    assert faults(chat) == []
    chat.page.keyboard.press("Escape")
    if width < 800:
        chat["#show-sidebar"].click()
        chat.page.wait_for_timeout(300)  # it slides in
        assert faults(chat) == []
    chat["#search"].fill("below")
    chat.waits_for("#conversations .place mark")
    assert faults(chat) == []
    chat["#open-settings"].click()
    chat["#settings .more summary"].click()
    assert faults(chat) == []
    chat["#s-temperature"].fill("9")
    chat.waits_for("#s-temperature-fault", "must be")
    assert faults(chat) == []
    chat["#change-key"].click()
    assert faults(chat) == []


def test_axe_finds_a_fault_where_there_is_one(chat: Chat) -> None:
    chat.page.evaluate("document.getElementById('attach').removeAttribute('aria-label')")
    chat.page.evaluate("document.getElementById('attach').removeAttribute('title')")
    assert [fault[0] for fault in faults(chat)] == ["button-name"]


def test_axe_finds_no_fault_while_the_model_loads(open_chat: Callable[..., Chat], llm: Any) -> None:
    llm.status = "starting"
    chat = open_chat()
    chat.waits_for("#banner", "Loading the model")
    assert faults(chat) == []
    llm.status = "ready"
    chat.waits_for("#model", "tiny")
