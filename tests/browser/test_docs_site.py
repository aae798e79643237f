"""The documentation's site in a browser, from files: nothing is asked of anybody, wide and narrow, light and dark."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PAGES = ("index.html", "docs/faq.html", "docs/reference/settings.html", "docs/notebooks/2-what-happens-in-a-step.html")
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site") / "out"
    subprocess.run([sys.executable, "-m", "docs.site", out], cwd=ROOT, check=True, capture_output=True, timeout=300)
    return out


@pytest.fixture
def open_page(browser, site) -> Iterator[Any]:
    """Open a page by its file. When the test ends, no script may have failed and nothing but files been asked for."""
    asked: list[str] = []
    said: list[str] = []
    contexts = []

    def new(path: str, **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((site / path).as_uri())
        return page

    yield new
    for context in contexts:
        context.close()
    assert said == [] and not [url for url in asked if not url.startswith(("file:", "data:"))]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_phone_and_its_menu_opens(open_page, path):
    page = open_page(path, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    link = page.locator("nav a", has_text="Quick start")
    assert not link.is_visible()
    page.locator("label[for=menu-shown]").click()
    link.click()
    assert page.locator("h1").inner_text() == "Quick start"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_the_text_of_a_page_stands_out_in_light_and_dark(open_page, path, scheme):
    page = open_page(path, viewport=DESK, color_scheme=scheme)
    for selector in ("main p", "nav a", "main h1"):
        ink = luminance(page.locator(selector).first.evaluate("node => getComputedStyle(node).color"))
        paper = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5  # WCAG 2.2, 1.4.3
        assert (paper > 0.5) == (scheme == "light")


def luminance(colour: str) -> float:
    """WCAG's relative luminance of a computed rgb() colour."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_search_finds_a_setting_and_leads_to_it(open_page):
    from playwright.sync_api import expect  # there once there is a browser

    page = open_page("docs/deploy/index.html", viewport=DESK)
    page.keyboard.press("/")
    page.keyboard.type("max num batched tokens")
    found = page.locator("#found a", has_text="Settings").first
    leads = re.compile(r"docs/reference/settings\.html#scheduling$")
    expect(found).to_have_attribute("href", leads)  # before, each key typed was a search of its own
    found.click()
    page.wait_for_url("**/docs/reference/settings.html#scheduling")
    page.locator("#search").fill("no such words anywhere at all")
    page.locator("#found li.none").wait_for()
    assert page.locator("#found").inner_text() == "Nothing has all of these words."
