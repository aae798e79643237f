"""The chat page as a person uses it."""

from collections.abc import Callable
from typing import Any

from tests.server.http import wait_until

WATCH = """
window.broken = [];
addEventListener("securitypolicyviolation", (event) => broken.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


def soon(condition: Callable[[], bool]) -> None:
    """Fail unless the condition holds in time, on a machine that has more to do."""
    wait_until(condition, timeout_s=20)


class Chat:
    """One browser's page. Invariant: `asked` holds the URL of everything that it has asked for."""

    def __init__(self, context: Any, url: str, server: str) -> None:
        self.context = context
        self.server = server
        self.asked: list[str] = []
        self.failures: list[str] = []
        self.broken: list[str] = []
        self.expects_failures = False
        context.add_init_script(WATCH)
        self.page = self.new_page(url)

    def new_page(self, url: str) -> Any:
        page = self.context.new_page()
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.failures.append(error.stack))
        page.on("dialog", lambda dialog: self.failures.append(dialog.message) or dialog.dismiss())
        page.goto(url)
        page.locator("#model:not(:empty), #banner:not([hidden])").first.wait_for()
        return page

    def check(self) -> None:
        for page in self.context.pages:
            self.broken += page.evaluate("window.broken ?? []")
        assert self.broken == []
        assert self.failures == []
        others = [url for url in self.asked if not url.startswith((self.server, "data:", "blob:", "file:"))]
        assert others == []

    def __getitem__(self, selector: str) -> Any:
        return self.page.locator(selector)

    def button(self, name: str) -> Any:
        """The last one of this name that is shown."""
        return self.page.get_by_role("button", name=name, exact=True).last

    def send(self, text: str) -> None:
        self["#input"].fill(text)
        self["#input"].press("Enter")

    def ask(self, text: str) -> str:
        """Send it and wait for the answer's end."""
        self.send(text)
        return self.ended()

    def ended(self) -> str:
        """The last answer's text, once no answer is under way."""
        self["#log[aria-busy=false] .assistant:last-child"].wait_for()
        return self.last

    @property
    def last(self) -> str:
        return str(self[".assistant"].last.locator(".body > .text").inner_text())

    @property
    def said(self) -> list[str]:
        """The texts of the messages that are shown."""
        return [text.strip() for text in self[".user .body, .assistant .body > .text"].all_inner_texts()]

    @property
    def titles(self) -> list[str]:
        return list(self["#conversations .open"].all_inner_texts())

    def waits_for(self, selector: str, text: str | None = None) -> Any:
        """What a selector finds, once it is shown, with this text in it."""
        found = self.page.locator(selector, has_text=text) if text else self.page.locator(selector)
        found.first.wait_for()
        return found.first
