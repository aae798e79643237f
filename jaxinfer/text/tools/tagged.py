"""Calls between tags, with free text around them: <tool_call> ... </tool_call>. Hermes' JSON or Qwen3-Coder's XML."""

from collections.abc import Callable
from typing import Protocol

from jaxinfer.text.tools.events import Event

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Body(Protocol):
    """What stands between the tags. is_open: until it has ended or turned out to be no call.    failed: the latter."""

    is_open: bool
    failed: bool

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""

    def finish(self) -> list[Event]:
        """At the end of the text, which came while it was open."""


class TaggedCalls:
    """A Parser. new_body: called with each opening tag.    bare: what opens a body without a tag, or "" for nothing."""

    def __init__(self, new_body: Callable[[str], Body], bare: str = "") -> None:
        self._new_body = new_body
        self._openings = tuple(filter(None, (OPEN, bare)))
        self._body: Body | None = None
        self._held = ""  # what may be the beginning of a tag
        self._closing = False

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        text, self._held = self._held + text, ""
        while text:
            if self._body is not None:
                body = self._body
                found, text = body.feed(text)
                events += found
                if not body.is_open:
                    self._body, self._closing = None, not body.failed
            elif self._closing:
                text = self._close(text)
            else:
                text = self._free(text, events)
        return events

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        if self._body is not None:
            return self._body.finish()
        return [] if self._closing else [held]

    def _close(self, text: str) -> str:
        """After a call: its closing tag, which a model may leave out."""
        left = text.lstrip()
        if len(left) < len(CLOSE) and CLOSE.startswith(left):
            self._held = left
            return ""
        self._closing = False
        return left.removeprefix(CLOSE)

    def _free(self, text: str, events: list[Event]) -> str:
        found = [(at, opening) for opening in self._openings if (at := text.find(opening)) >= 0]
        if found:
            at, opening = min(found)
            events.append(text[:at])
            tag = opening if opening == OPEN else ""
            self._body = self._new_body(tag)
            return text[at + len(tag) :]
        longest = max(map(len, self._openings)) - 1
        keep = next(
            (n for n in range(min(longest, len(text)), 0, -1) if any(o.startswith(text[-n:]) for o in self._openings)),
            0,
        )
        events.append(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return ""
