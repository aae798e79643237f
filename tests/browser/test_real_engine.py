"""The page against the real scheduler and engine process, its model made up: what stop frees, what a turn reuses."""

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from jaxinfer.server.app import create_app
from tests.browser.chat import soon
from tests.server.http import live

pytestmark = pytest.mark.slow

STEP_S = 0.02


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[AsyncLLM, str]]:
    llm = AsyncLLM(EngineConfig(model="demo"), new_transport=partial(EngineProcess, child=(MODULE, str(STEP_S))))
    with live(create_app(llm), llm.start, llm.close) as port:
        yield llm, f"http://127.0.0.1:{port}"


@pytest.fixture
def address(engine: tuple[AsyncLLM, str]) -> str:
    return engine[1]


def without_end(route: Any) -> None:
    """Made-up answers are short; this one goes on until it is stopped."""
    route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True}))


def test_stop_frees_the_pages_and_the_next_turn_reuses_them(chat, engine):
    llm, _ = engine
    chat.page.route("**/v1/chat/completions", without_end)
    assert "made up" in chat["#empty-note"].inner_text()
    chat.send("Count for as long as you can, " + "please " * 40)
    chat.waits_for("#meter [data-name=rate]")
    soon(lambda: llm.stats().pages_owned > 0)
    used, context = re.findall(r"[\d,]+", chat.waits_for("#meter [data-name=context]").inner_text())
    assert 0 < int(used) < int(context.replace(",", "")) == llm.info.max_model_len
    chat.page.keyboard.press("Escape")
    soon(lambda: llm.stats().pages_owned == 0 and not llm.stats().running)
    chat.ended()
    assert llm.stats().finished.get("abort") == 1
    chat.send("And now?")
    chat[".assistant"].nth(1).locator(".body > .text", has_text=re.compile(r"\S")).wait_for()
    chat.page.keyboard.press("Escape")
    chat.ended()
    chat["button[title='Measures of this answer']"].last.click()
    facts = chat[".facts"].last.inner_text().replace(",", "")
    (prompt,), (cached,) = (re.findall(rf"{name}\s+(\d+) tokens", facts) for name in ("Prompt", "Cached"))
    assert 0 < int(cached) < int(prompt)
