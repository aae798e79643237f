"""A server that asks for an API key, and where the page keeps it."""

import json

import pytest

from jaxinfer.llm.events import Event
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.browser.chat import Chat

pytestmark = pytest.mark.slow

KEY = "sk-hidden-0123456789"
ASKS = "This server asks for an API key. Enter one to go on."


@pytest.fixture
def settings() -> ServerSettings:
    return ServerSettings(api_keys=(ApiKey("a", KEY),))


def kept(chat: Chat) -> tuple[str, str]:
    """All that localStorage and sessionStorage hold."""
    local, session = chat.page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
    return local, session


def enter(chat: Chat, key: str) -> None:
    chat["#banner"].get_by_text("Enter a key").click()
    chat["#key"].fill(key)
    chat["#key"].press("Enter")


def test_a_key_is_asked_for_and_goes_into_a_header_alone(chat):
    sent: list[dict[str, str]] = []
    chat.page.on("request", lambda request: sent.append(request.headers))
    assert chat.waits_for("#banner").inner_text().startswith(ASKS), "nothing of headers"
    assert chat.ask("Early").strip() == ""
    assert chat.waits_for(".error").inner_text().startswith(ASKS)
    enter(chat, "sk-wrong-0123456789")
    chat.waits_for("#banner", "This server does not take the API key that you entered. Enter another.")
    enter(chat, KEY)
    chat.waits_for("#model", "tiny")
    chat.page.wait_for_selector("#banner", state="hidden")
    chat.button("Try again").click()
    assert chat.ended() == "Answer 1 to: Early"
    chat.page.reload()
    chat.waits_for("#model", "tiny")
    local, session = kept(chat)
    assert KEY in session and KEY not in local
    assert any(KEY in headers.get("authorization", "") for headers in sent)
    assert all(KEY not in json.dumps({**headers, "authorization": ""}) for headers in sent)
    assert all(KEY not in url for url in chat.asked)
    assert KEY not in chat.page.content()
    other = chat.new_page(chat.server)
    assert other.locator("#banner").is_visible(), "another tab is asked again"


def test_a_key_is_asked_for_while_the_model_loads_and_then_the_progress_is_shown(open_chat, llm):
    llm.status, llm.progress = "starting", Event("compile", "extend 16x16", 2, 27)
    chat = open_chat()
    chat.waits_for("#banner", f"Loading the model. {ASKS}")
    enter(chat, "sk-wrong-0123456789")
    chat.waits_for("#banner", "Loading the model. This server does not take the API key that you entered.")
    chat["#banner"].get_by_text("Enter a key").click()
    chat["#key"].fill(KEY)
    chat.page.wait_for_timeout(1_500)
    assert chat["#key"].input_value() == KEY, "what goes on behind the dialog changes nothing in it"
    chat["#key"].press("Enter")
    chat.waits_for("#banner", "Loading the model, compiling 3 of 27")
    assert not chat["#banner button"].is_visible()
    llm.status = "ready"
    chat.waits_for("#model", "tiny")


def test_a_key_is_remembered_when_that_is_asked_for_and_can_be_forgotten(chat):
    chat["#banner"].get_by_text("Enter a key").click()
    chat["#key"].fill(KEY)
    chat["#keep-key"].check()
    chat.button("Use this key").click()
    chat.waits_for("#model", "tiny")
    assert KEY in kept(chat)[0] and KEY not in kept(chat)[1]
    other = chat.new_page(chat.server)
    assert other.locator("#model").inner_text() == "tiny"
    other.close()
    chat.page.keyboard.press("Control+,")
    assert "an API key is remembered in this browser" in chat["#server-facts"].inner_text()
    chat.button("API key…").click()
    chat["#key"].fill("")
    chat["#keep-key"].uncheck()
    chat.button("Use this key").click()
    chat.waits_for("#banner", ASKS)
    assert KEY not in "".join(kept(chat))
