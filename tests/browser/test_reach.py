"""The chat page for those who use keys alone, need contrast, or hold a phone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.chat import Chat, soon
from tests.browser.test_chat import MARKDOWN

pytestmark = pytest.mark.slow

THOUGHTS = "<think>\nLet me **see** what `this` is.\n</think>\n\n"
FOCUS = "document.activeElement.title || document.activeElement.id"
# WCAG 2.2, 1.4.3: relative luminance; the text's colour, thinned by every opacity, over what lies behind it. Disabled
# controls are exempt, large text needs 3:1.
CONTRASTS = """() => {
  const parts = (colour) => {
    const found = colour.match(/[\\d.]+/g).map(Number);
    return [...found.slice(0, 3), found[3] ?? 1];
  };
  const over = (top, below, alpha) => [0, 1, 2].map((i) => top[i] * alpha + below[i] * (1 - alpha));
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parts(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below, layer[3]), [255, 255, 255]);
  };
  const judge = (element, style, text) => {
    let opacity = element === style.of ? 1 : Number(style.own.opacity);
    for (let at = element; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const back = behind(element);
    const colour = parts(style.own.color);
    const shades = [luminance(over(colour, back, colour[3] * opacity)), luminance(back)].sort();
    const ratio = (shades[1] + 0.05) / (shades[0] + 0.05);
    const size = parseFloat(style.own.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.own.fontWeight) >= 700);
    return { text: text.trim().slice(0, 40), ratio, least: isLarge ? 3 : 4.5 };
  };
  const found = [];
  const dialog = document.querySelector("dialog[open]");
  const walker = document.createTreeWalker(dialog ?? document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const isShown = element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    if (!walker.currentNode.data.trim() || !isShown || element.closest(":disabled, script, style, option")) continue;
    found.push(judge(element, { own: getComputedStyle(element), of: element }, walker.currentNode.data));
  }
  for (const field of (dialog ?? document).querySelectorAll("input, textarea")) {
    if (!field.checkVisibility()) continue;
    if (field.placeholder && !field.value) {
      found.push(judge(field, { own: getComputedStyle(field, "::placeholder") }, field.placeholder));
    } else found.push(judge(field, { own: getComputedStyle(field), of: field }, field.value));
  }
  return found;
}"""


def too_faint(chat: Chat, texts: int) -> list[str]:
    """Texts whose contrast is too low, of which at least so many must be seen at all."""
    chat.page.evaluate(
        "Promise.all(document.getAnimations().filter(a => a instanceof CSSTransition).map(a => a.finished))"
    )
    found = chat.page.evaluate(CONTRASTS)
    assert len(found) >= texts, [each["text"] for each in found]
    return [f"{each['text']}: {each['ratio']:.2f}" for each in found if each["ratio"] < each["least"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(open_chat: Callable[..., Chat], says: Any, scheme: str) -> None:
    chat = open_chat(color_scheme=scheme, reduced_motion="no-preference")
    assert too_faint(chat, 8) == []
    gate = asyncio.Event()
    says.answers["Show"] = ["<think>\nLet me", gate, THOUGHTS.removeprefix("<think>\nLet me"), MARKDOWN]
    chat.send("Show")
    chat.waits_for(".thinking summary", "Thinking")
    assert too_faint(chat, 8) == []
    gate.set()
    chat.ended()
    chat.button("Regenerate").click()
    chat.ended()
    chat[".thinking summary"].last.click()
    chat["button[title='Measures of this answer']"].last.click()
    chat[".user"].first.hover()
    assert too_faint(chat, 40) == []
    chat["button[title=Edit]"].first.click()
    assert too_faint(chat, 40) == []
    chat.page.keyboard.press("Escape")
    says.answers["Bad"] = ["some", RuntimeError("no")]
    chat.send("Bad")
    chat.waits_for(".end.error")
    assert chat[".short"].last.inner_text() == "1 token"
    assert too_faint(chat, 40) == []
    chat.page.keyboard.press("Control+,")
    chat["#settings .more summary"].click()
    assert too_faint(chat, 40) == []
    chat["#change-key"].click()
    chat.waits_for("#key-dialog")
    assert too_faint(chat, 5) == []


def test_what_is_too_faint_is_seen(chat: Chat) -> None:
    """The measure measures."""
    chat["#input"].fill("faint")
    chat.page.evaluate("document.getElementById('input').style.color = 'rgb(160, 160, 160)'")
    (found,) = too_faint(chat, 8)
    assert found.startswith("faint: 2.6")
    chat.page.evaluate("document.getElementById('input').style.color = 'rgb(118, 118, 118)'")
    assert too_faint(chat, 8) == []
    chat.page.evaluate("document.getElementById('composer').style.opacity = 0.7")
    assert too_faint(chat, 8)[0].startswith("faint: ")


def go_to(chat: Chat, title: str, key: str = "Shift+Tab") -> None:
    """Move the focus by keys alone to the button of this title, and see it there."""
    for _ in range(30):
        chat.page.keyboard.press(key)
        if chat.page.evaluate(FOCUS) == title:
            break
    assert chat.page.evaluate(FOCUS) == title
    assert chat.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    is_shown = "document.activeElement.checkVisibility({ opacityProperty: true, visibilityProperty: true })"
    soon(lambda: bool(chat.page.evaluate(is_shown)))  # it fades in


def test_edit_regenerate_and_versions_are_reached_and_used_by_keys(chat: Chat) -> None:
    press = chat.page.keyboard.press
    chat.page.keyboard.type("First")
    press("Enter")
    chat.ended()
    go_to(chat, "Regenerate")
    press("Enter")
    chat.waits_for(".version", "2 / 2")
    assert chat.ended() == "Answer 2 to: First"
    assert chat.page.evaluate(FOCUS) == "input"
    go_to(chat, "Previous version")
    press("Space")
    chat.waits_for(".version", "1 / 2")
    assert chat.last == "Answer 1 to: First" and chat.page.evaluate(FOCUS) == "Next version"
    press("Enter")
    chat.waits_for(".version", "2 / 2")
    assert chat.last == "Answer 2 to: First" and chat.page.evaluate(FOCUS) == "Previous version"
    go_to(chat, "Edit")
    press("Enter")
    assert chat.page.evaluate("document.activeElement.value") == "First"
    chat.page.keyboard.type(" again")
    press("Tab")
    assert chat.page.evaluate("document.activeElement.innerText") == "Cancel"
    press("Tab")
    assert chat.page.evaluate("document.activeElement.innerText") == "Send"
    press("Enter")
    assert chat.ended() == "Answer 1 to: First again"
    chat.waits_for(".user .version", "2 / 2")
    go_to(chat, "Previous version")
    press("Enter")
    assert chat.said == ["First", "Answer 2 to: First"]
    assert chat.page.evaluate(FOCUS) == "Next version"
    go_to(chat, "Edit", "Tab")
    press("Space")
    chat.page.keyboard.type("?")
    press("Escape")
    assert chat.said == ["First", "Answer 2 to: First"], "what was not sent changes nothing"
    assert chat.page.evaluate(FOCUS) == "input"


def outside(chat: Chat) -> list[str]:
    """What is shown beyond the sides of the screen and cannot be scrolled to."""
    found: list[str] = chat.page.evaluate(
        """[...document.querySelectorAll("main *, dialog[open] *")].filter((element) => {
          const box = element.getBoundingClientRect();
          const isScrolled = element.closest(".code pre, .table, .math, .offscreen");
          const isShown = element.checkVisibility({ visibilityProperty: true }) && box.width > 0;
          return isShown && !isScrolled && (box.left < 0 || box.right > innerWidth);
        }).map((element) => element.outerHTML.slice(0, 80))"""
    )
    return found


def small_targets(chat: Chat) -> list[str]:
    """Targets below 44 by 44 on touch; the text of a message may hold what it likes."""
    found: list[str] = chat.page.evaluate(
        """[...document.querySelectorAll(
          ".skip, button, summary, select, textarea, input:not([type=checkbox]), label:has([type=checkbox])"
        )].filter((element) => {
          const { width, height } = element.getBoundingClientRect();
          return element.checkVisibility({ visibilityProperty: true }) && width && (width < 44 || height < 44);
        }).map((element) => element.outerHTML.slice(0, 80))"""
    )
    return found


def whole(chat: Chat) -> bool:
    """All of it fits, and fingers find it."""
    assert outside(chat) == [] and small_targets(chat) == []
    return bool(chat.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_walks_through_thoughts_and_versions(open_chat: Callable[..., Chat], says: Any, width: int) -> None:
    chat = open_chat(viewport={"width": width, "height": 640}, has_touch=True, is_mobile=True)
    says.answers["Show"] = [THOUGHTS, MARKDOWN]
    assert whole(chat)
    chat["#input"].fill("Show")
    chat["#send"].tap()
    chat.ended()
    chat[".thinking summary"].tap()
    chat.waits_for(".thinking .text", "Let me see what this is.")
    assert whole(chat)
    chat.button("Regenerate").tap()
    chat.waits_for(".version", "2 / 2")
    chat.ended()
    chat["button[title='Measures of this answer']"].last.tap()
    assert whole(chat)
    chat["button[title='Previous version']"].tap()
    chat.waits_for(".version", "1 / 2")
    assert whole(chat)
    chat["button[title=Edit]"].tap()
    box = chat.waits_for(".editing .body").bounding_box()
    assert box["x"] < 20 and box["x"] + box["width"] > width - 20, "all of the width to write in"
    assert whole(chat)
    chat[".editing textarea"].fill("Changed " * 200)  # which is folded
    chat[".editing"].get_by_text("Send").tap()
    chat.ended()
    assert chat[".user .version"].inner_text() == "2 / 2"
    assert whole(chat)
    chat["#show-sidebar"].tap()
    chat.button("Settings").tap()
    chat["#settings .more summary"].tap()
    assert whole(chat)
    chat["#change-key"].tap()
    assert whole(chat)
