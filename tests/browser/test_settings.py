"""What the page says of a setting that is wrong, and that its ranges are the server's."""

from pathlib import Path
from typing import Any

import pytest

import jaxinfer.server
from jaxinfer.protocol.validate import MAX_STOP_CHARS, NUMBERS
from tests.browser.chat import Chat

pytestmark = pytest.mark.slow

WEB = Path(jaxinfer.server.__path__[0], "web")
SAFE = 2.0**53 - 1  # the largest integer that a JavaScript number holds exactly, with all below it
FAR = 10.0**30
VALUES = (
    -FAR,
    -3.0,
    -2.5,
    -2.0,
    -1.0,
    -0.5,
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
    2.0**31 - 1,
    2.0**31,
    SAFE,
    FAR,
    1e-7,
    1e-6,
    1e6,
    1e6 + 1,
)


def test_a_wrong_setting_is_said_in_words_and_nothing_is_sent_until_it_is_right(chat: Chat, says: Any) -> None:
    chat.page.keyboard.press("Control+,")
    chat["#s-temperature"].fill("5")
    chat["#settings .more summary"].click()
    chat["#s-seed"].fill("0.5")
    said = "must be a number from 0 to 2, got 5"
    assert chat["#s-temperature-fault"].inner_text() == said
    assert chat["#s-temperature"].get_attribute("aria-describedby") == "s-temperature-fault"
    assert chat["#s-seed-fault"].inner_text() == "must be an integer, got 0.5"
    chat["#s-seed"].fill("1e99")
    law = "must be an integer from -9007199254740991 to 9007199254740991"
    assert chat["#s-seed-fault"].inner_text() == f"{law}, got 1e99"
    chat["#s-seed"].fill("")
    assert chat["#s-seed-fault"].inner_text() == ""
    chat.page.keyboard.press("Escape")
    assert chat["#chosen"].inner_text() == f"Temperature {said}"
    chat.send("Hi")
    chat.waits_for(".notice.shown", f"Temperature {said}.")
    assert says.asked == [] and chat["#input"].input_value() == "Hi" and chat.said == []
    chat.button("Settings").click()
    assert chat.page.evaluate("document.activeElement.id") == "s-temperature"
    chat["#s-temperature"].fill("1.5")
    chat.page.keyboard.press("Escape")
    chat["#input"].press("Enter")
    assert chat.ended() == "Answer 1 to: Hi"


def test_a_notice_of_a_wrong_setting_ends_with_it(chat: Chat, says: Any) -> None:
    chat.page.keyboard.press("Control+,")
    chat["#s-temperature"].fill("9")
    chat.page.keyboard.press("Escape")
    cures = (lambda: chat["#s-temperature"].fill("0.5"), lambda: chat.button("Reset to model defaults").click())
    for cure in cures:
        chat.send("Hi")
        chat.waits_for(".notice.shown", "Temperature must be a number from 0 to 2, got 9.")
        chat["#chosen"].click()
        cure()
        assert not chat[".notice.shown"].is_visible()
        chat["#s-temperature"].fill("9")
        chat.page.keyboard.press("Escape")
    assert says.asked == []


def test_an_edited_question_stays_in_its_editor_while_a_setting_is_wrong(chat: Chat, says: Any) -> None:
    chat.ask("First")
    chat.page.keyboard.press("Control+,")
    chat["#settings .more summary"].click()
    chat["#s-frequency_penalty"].fill("-3")
    chat.page.keyboard.press("Escape")
    chat["button[title=Edit]"].click()
    chat[".editing textarea"].fill("Changed")
    chat[".editing textarea"].press("Enter")
    chat.waits_for(".notice.shown", "Frequency penalty must be a number from -2 to 2, got -3.")
    assert chat[".editing textarea"].input_value() == "Changed" and says.asked == ["First"]
    chat[".editing textarea"].press("Escape")
    chat.button("Regenerate").click()
    assert says.asked == ["First"]
    chat.page.reload()
    chat.waits_for("#chosen.fault")
    chat["#chosen"].click()
    assert chat["#s-frequency_penalty"].is_visible(), "a rare field that is wrong is not folded away"


def test_the_page_takes_what_the_server_takes_and_no_more(browser: Any) -> None:
    page = browser.new_page()
    page.set_content("<!doctype html><title>settings</title>")
    for part in ("view", "settings"):
        page.add_script_tag(content=(WEB / f"{part}.js").read_text("utf-8"))
    names = page.evaluate("SAMPLING.filter(({ kind }) => !kind).map(({ name }) => name)")
    wrong = "([name, value]) => faultOf(SAMPLING.find((field) => field.name === name), String(value))"
    assert len(names) == 9 and set(names) <= set(NUMBERS)
    for name in names:
        for value in VALUES:
            number = int(value) if value.is_integer() else value
            assert (page.evaluate(wrong, [name, number]) == "") == NUMBERS[name].allows(number), (name, number)
    texts = [kind * count for kind in ("a", "\U0001f600") for count in (1, MAX_STOP_CHARS, MAX_STOP_CHARS + 1)]
    for text in texts:
        fault = page.evaluate("(text) => faultOf(SAMPLING.find(({ name }) => name === 'stop'), text)", text)
        assert (fault == "") == (len(text) <= MAX_STOP_CHARS), fault
    for odd in ("0x10", "1e", " 1", "Infinity", "NaN", "--1", "+1", "9" * 2_000):
        fault = page.evaluate(wrong, ["max_tokens", odd])
        assert fault.startswith("must be an integer from 1 to 9007199254740991, got ") and len(fault) < 120
    page.close()
