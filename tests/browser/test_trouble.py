"""What the chat page says when the server refuses, starts, fails in the middle or is not there."""

import asyncio

import pytest

from jaxinfer.errors import InvalidRequest, Overloaded
from jaxinfer.llm.events import Event
from tests.browser.chat import soon
from tests.browser.scripted import endless

pytestmark = pytest.mark.slow

TOLD = """
window.told = [];
addEventListener("DOMContentLoaded", () => {
    const said = document.querySelector("#banner span");
    const note = () => told.at(-1) === said.textContent || told.push(said.textContent);
    new MutationObserver(note).observe(said, { childList: true, characterData: true, subtree: true });
});
"""


def test_a_refusal_is_shown_as_the_server_says_it_and_can_be_tried_again(chat, says):
    said = "the queue is full, 256 requests wait; come back"
    says.answers["Hi"] = [Overloaded(said, code="queue_full")]
    chat.ask("Hi")
    assert chat.waits_for(".error").inner_text().startswith(said)
    says.answers["Hi"] = ["Hello."]
    chat.button("Try again").click()
    chat.waits_for(".version", "2 / 2")
    assert chat.ended() == "Hello."
    assert not chat[".error"].is_visible()


def test_a_setting_that_the_server_refuses_is_named(chat):
    chat.page.keyboard.press("Control+,")
    chat["#s-max_tokens"].fill("9" * 15)  # the page knows no most below 2^53, since the server's is its context
    chat.page.keyboard.press("Escape")
    chat.ask("Hi")
    assert "ask for fewer tokens" in chat.waits_for(".error").inner_text()
    chat["#chosen"].click()
    chat.button("Reset to model defaults").click()
    chat.page.keyboard.press("Escape")
    assert chat.ask("And now?") == "Answer 1 to: And now?", "an answer that never came is in nobody's way"


def test_a_failure_in_the_middle_keeps_what_came(chat, says, llm):
    says.answers["Hi"] = ["Begun ", InvalidRequest("the engine gave this request up")]
    assert chat.ask("Hi").strip() == "Begun"
    assert "the engine gave this request up" in chat.waits_for(".error").inner_text()
    chat.ask("Go on")
    assert "assistant:Begun \nuser:Go on" in llm.calls[-1].prompt


def test_an_answer_that_ends_early_says_why(chat, says, llm):
    gate = asyncio.Event()
    says.answers["Hi"] = ["Begun", gate, "more"]
    chat.send("Hi")
    chat.waits_for(".text", "Begun")
    llm.running.clear()  # as /abort_request does it
    gate.set()
    chat.ended()
    assert chat.waits_for(".end").inner_text() == "Ended by the server."


def test_an_answer_that_the_page_s_end_cut_off_is_kept_and_says_so(chat, says, llm):
    says.answers["Hi"] = endless()
    chat.send("Hi")
    chat.waits_for(".text", "word word")
    chat.page.reload()
    chat.waits_for(".text", "word word")
    assert "The connection ended before the answer did." in chat.waits_for(".end").inner_text()
    assert not llm.running


def test_it_waits_for_a_model_that_loads(open_chat, llm):
    llm.status = "starting"
    chat = open_chat()
    chat.page.add_init_script(TOLD)
    chat.page.reload()
    chat.waits_for("#banner", "Loading the model")
    chat["#input"].fill("Early")
    chat["#input"].press("Enter")
    assert chat["#input"].input_value() == "Early" and not chat["#send"].is_enabled()
    llm.progress = Event("load", "", 9, 36)
    chat.waits_for("#banner", "Loading the model, 25 % of its weights")
    llm.progress = Event("compile", "extend 16x16", 6, 27)
    chat.waits_for("#banner", "Loading the model, compiling 7 of 27")
    assert chat["#banner progress"].evaluate("(bar) => bar.value") == 6 / 27
    llm.progress = Event("run", "extend 16x16", 6, 27)
    chat.waits_for("#banner", "Loading the model, running step 7 of 27 once more")
    llm.progress = Event("wait", "engines are ready", 1, 4)
    chat.waits_for("#banner", "Loading the model, 1 of 4 engines are ready")
    chat.page.route("**/load", lambda route: route.abort("connectionrefused"), times=1)
    chat.page.wait_for_timeout(2_500)
    assert set(chat.page.evaluate("window.told")) == {
        "Loading the model",
        "Loading the model, 25 % of its weights",
        "Loading the model, compiling 7 of 27",
        "Loading the model, running step 7 of 27 once more",
        "Loading the model, 1 of 4 engines are ready",
    }
    llm.status = "ready"
    chat.waits_for("#model", "tiny")
    chat.page.wait_for_selector("#banner", state="hidden")
    chat["#input"].press("Enter")
    assert chat.ended() == "Answer 1 to: Early"


@pytest.mark.parametrize("stage", ["read", "warm up", "constructor", "__proto__", "toString", "", None])
def test_a_stage_that_the_page_does_not_know_is_said_as_it_is(open_chat, llm, stage):
    llm.status = "starting"
    chat = open_chat()
    start = {"done": 1, "total": 4} | ({} if stage is None else {"stage": stage})
    chat.page.route("**/load", lambda route: route.fulfill(json={"start": start}))
    soon(lambda: chat["#banner progress"].evaluate("(bar) => bar.value") == 0.25)
    assert chat["#banner > span"].inner_text() == ("Loading the model, " + stage if stage else "Loading the model")


def test_an_answer_asked_of_a_model_that_loads_names_no_route(chat, llm):
    chat.ask("Hi")
    llm.status = "starting"
    chat.button("Regenerate").click()
    assert chat.waits_for(".error").inner_text().startswith("The model is still loading. Try again when it is ready.")
    llm.status = "ready"
    chat.button("Try again").click()
    chat.waits_for(".version", "3 / 3")
    assert chat.ended() == "Answer 2 to: Hi"


def test_a_server_that_is_gone_is_no_riddle(chat):
    chat.page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    chat.ask("Hi")
    assert f"No answer from {chat.server}. Is the server running?" in chat.waits_for(".error").inner_text()


def test_the_context_stays_shown_beside_a_question_that_failed(chat, says):
    chat.ask("Hi")
    known = chat["#meter [data-name=context]"].inner_text()
    says.answers["Bad"] = [Overloaded("the queue is full", code="queue_full")]
    chat.ask("Bad")
    assert chat["#meter [data-name=context]"].inner_text() == known


def test_what_is_no_answer_of_ours_is_shown_as_it_is(chat):
    page = "<html>502 Bad Gateway</html>"
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=502, body=page))
    chat.ask("Hi")
    assert chat.waits_for(".error").inner_text().startswith(f"HTTP 502: {page}")
    cut = 'data: {"model":"m","choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(body=cut))
    assert chat.ask("Again") == "half"
    assert "The connection ended before the answer did." in chat.waits_for(".assistant:last-child .error").inner_text()


def test_the_page_of_a_server_without_its_model_still_opens(open_chat, llm):
    llm.status = "failed"
    chat = open_chat()
    chat.waits_for("#banner", "the engine has failed")
