"""A chromium of the system, driven by Playwright, and servers for it to ask."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jaxinfer.server
from jaxinfer.server.app import create_app
from jaxinfer.server.chat_page import VENDORED
from jaxinfer.server.settings import ServerSettings
from tests.browser.chat import Chat
from tests.browser.scripted import Scripted
from tests.server.fakes import FakeLLM
from tests.server.http import live

WEB = Path(jaxinfer.server.__path__[0], "web")
PARTS = (*(f"vendor/{name}.js" for name in VENDORED), "math.js", "code.js", "markdown.js")

PACKAGES = Path(__file__).parents[2] / ".clients" / "playwright"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 20_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Of a module, not of the session: its event loop would be in the way of the tests that run their own."""
    assert (PACKAGES / ".installed").exists(), f"there is no {PACKAGES}; run make clients"
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert program is not None, "there is no chromium; install it (Debian, Ubuntu: apt-get install chromium)"
    sys.path.append(str(PACKAGES))
    try:
        from playwright.sync_api import sync_playwright

        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # chromium's own sandbox refuses root
        with sync_playwright() as driver:
            started = driver.chromium.launch(executable_path=program, args=arguments)
            yield started
            started.close()
    finally:
        sys.path.remove(str(PACKAGES))


@pytest.fixture
def says() -> Scripted:
    """What the server's model answers."""
    return Scripted()


@pytest.fixture
def llm(says: Scripted) -> FakeLLM:
    return FakeLLM(says, max_model_len=4_000_000)


@pytest.fixture
def settings() -> ServerSettings:
    return ServerSettings()


@pytest.fixture
def address(llm: FakeLLM, settings: ServerSettings) -> Iterator[str]:
    with live(create_app(llm, settings)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def open_chat(browser: Any, address: str) -> Iterator[Callable[..., Chat]]:
    """Open the page in a browser that has kept nothing. When the test ends, no page may have broken its policy, failed
    in its script or asked anybody but the server.
    """
    chats: list[Chat] = []

    def new(url: str = address, **options: Any) -> Chat:
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        chats.append(Chat(context, url, address))
        return chats[-1]

    yield new
    for chat in chats:
        chat.check()
        chat.context.close()


@pytest.fixture
def chat(open_chat: Callable[..., Chat]) -> Chat:
    return open_chat()


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    add_parts(page)
    yield page
    page.close()


def add_parts(page: Any) -> None:
    """What shows a text, and functions that use it."""
    page.set_content("<!doctype html><title>texts</title>")
    for part in PARTS:
        page.add_script_tag(content=(WEB / part).read_text("utf-8"))
    page.evaluate(
        """() => {
        window.whole = (text) => pieces(text, []);
        window.pieces = (text, cuts) => {
            const at = document.createElement("div"), view = new MarkdownView(at);
            for (const cut of cuts) view.update(text.slice(0, cut), true);
            view.update(text);
            return at;
        };
        window.depth = (node) => 1 + Math.max(0, ...[...node.children].map(depth));
        }"""
    )
