"""The page as a file: it chats with a server that lets pages from files ask it, and says what is wrong with another."""

from pathlib import Path

import httpx2
import pytest

from jaxinfer.server.settings import ServerSettings
from tests.browser.chat import Chat

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> ServerSettings:
    return ServerSettings(allowed_origins=getattr(request, "param", ("null",)))


def walk(chat: Chat) -> None:
    assert chat.ask("Hello") == "Answer 1 to: Hello"
    chat.button("Regenerate").click()
    chat.waits_for(".assistant .text", "Answer 2 to: Hello")
    chat.ended()
    chat.page.reload()
    chat.waits_for(".version", "2 / 2")
    assert chat.ask("More") == "Answer 1 to: More"
    chat.waits_for("#meter [data-name=context]", "tokens")


def test_saved_by_its_button_it_asks_the_server_that_it_came_from(open_chat, tmp_path):
    served = open_chat()
    served.page.keyboard.press("Control+,")
    served.waits_for("#save-hint", "start the server with --allowed-origins null")
    with served.page.expect_download() as download:
        served.button("Save this page").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert served.server in path.read_text()
    walk(open_chat(path.as_uri()))


def test_saved_by_the_browser_it_is_told_where_the_server_is(open_chat, address, tmp_path):
    path = Path(tmp_path, "page.html")
    path.write_bytes(httpx2.get(address).content)
    chat = open_chat(path.as_uri())
    chat.asked.clear()  # of the port that it supposes
    assert "--allowed-origins" not in chat.waits_for("#banner", "Is the server running?").inner_text()
    chat.page.keyboard.press("Control+,")
    chat["#s-address"].fill(address)
    chat["#s-address"].press("Tab")
    chat.page.keyboard.press("Escape")
    chat.waits_for("#model", "tiny")
    walk(chat)


@pytest.mark.parametrize("settings", [()], indirect=True)
def test_a_server_that_allows_no_file_is_not_asked_and_the_page_says_what_to_do(open_chat, says, tmp_path):
    served = open_chat()
    path = Path(tmp_path, "page.html")
    path.write_text(httpx2.get(served.server).text.replace('data-server=""', f'data-server="{served.server}"', 1))
    chat = open_chat(path.as_uri())
    refusal = f"The server at {served.server} is running, but it does not answer saved pages. "
    refusal += "Start it with --allowed-origins null, then try again."
    assert refusal in chat.waits_for("#banner", "--allowed-origins null").inner_text()
    chat.ask("Hello")
    assert refusal in chat.waits_for(".assistant .error", "--allowed-origins null").inner_text()
    assert says.asked == []
