"""Where calls stand in an answer, and the parser of those whose bodies are read one by one.

Around a call a model may write too much or too little: its closing tag twice or not at all, a brace too many, two calls
between one pair of tags, a list or a fence around them. None of this is content, and none of it loses a call.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Protocol

from jaxinfer.text.tools.events import Event

FENCE = "```"
MAX_LEAD = 256  # characters before a call that belong to it


class Body(Protocol):
    """One call. is_open: until it has ended or turned out to be no call.    failed: the latter."""

    is_open: bool
    failed: bool

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""

    def finish(self) -> list[Event]:
        """At the end of the text, which came while it was open."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """What stands around calls.

    start: what each call begins with.    opening: the tag before calls; empty: calls are the whole answer.
    closing: the tag behind them.    is_bare: a call may come without the opening tag.
    lead: what may come between the opening and a call; of it `needs` must.
    leftovers: what may follow a call and mean nothing, beside white space.    behind: the same of the closing tag.
    """

    start: str
    opening: str = ""
    closing: str = ""
    is_bare: bool = False
    lead: tuple[str, ...] = ()
    needs: str = ""
    leftovers: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()


class Calls:
    """A Parser of answers with this layout. new_body: called with the text before a call, which is content again if it
    is none.
    """

    def __init__(self, layout: Layout, new_body: Callable[[str], Body]) -> None:
        self._layout, self._new_body = layout, new_body
        self._openings = tuple(filter(None, (layout.opening, layout.start if layout.is_bare else "")))
        self._lead = (*layout.lead, *filter(None, [layout.opening]))
        self._outside = "free" if self._openings else "text"  # where nothing is a call
        self._stage = "free" if self._openings else "lead"  # then body, after, and lead again or outside
        self._body = new_body("")
        self._before = ""  # what has opened the next call
        self._has_calls = False
        self._in_fence = self._is_closed = False  # the last call's
        self._held = ""

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        text, self._held = self._held + text, ""
        while text:
            match self._stage:
                case "text":
                    return [*events, text]
                case "free":
                    text = self._find(text, events)
                case "lead":
                    text = self._open(text, events)
                case "body":
                    text = self._read(text, events)
                case "after":
                    text = self._close(text)
        return events

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        match self._stage:
            case "body":
                return self._body.finish()
            case "after":
                return []
        return [self._before + held]

    def _find(self, text: str, events: list[Event]) -> str:
        """Text up to an opening, or to what may begin one."""
        found = [(at, opening) for opening in self._openings if (at := text.find(opening)) >= 0]
        if found:
            at, opening = min(found)
            events.append(text[:at])
            self._before = opening if opening == self._layout.opening else ""
            self._stage = "lead"
            return text[at + len(self._before) :]
        keep = _begun(text, self._openings)
        events.append(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return ""

    def _open(self, text: str, events: list[Event]) -> str:
        """What leads to a call, up to its start."""
        head = text[: 2 * MAX_LEAD]
        left = head.lstrip()
        while not self._is_open(left) and (lead := self._lead_of(left)):
            left = left.removeprefix(lead).lstrip()
        taken = head[: len(head) - len(left)]
        left = text[len(taken) :]
        if len(taken) <= MAX_LEAD and self._is_open(left):
            self._held = text
            return ""
        before, self._before = self._before + taken, ""
        has_needed = self._has_calls or self._layout.needs in before
        if len(taken) <= MAX_LEAD and has_needed and left.startswith(self._layout.start):
            self._in_fence = FENCE in before or (self._in_fence and not self._is_closed)
            self._is_closed = False
            self._body, self._stage = self._new_body(before), "body"
        else:
            events.append(before)
            self._stage = self._outside
        return left

    def _lead_of(self, left: str) -> str:
        """What this text begins with that leads to a call; a brace is doubled where a prompt spells it so."""
        if left.startswith("{") and self._layout.start == "{" and left[1:MAX_LEAD].lstrip().startswith("{"):
            return "{"
        return next(filter(left.startswith, self._lead), "")

    def _is_open(self, left: str) -> bool:
        """Whether it is not known yet what this text begins with."""
        if left.startswith("{") and self._layout.start == "{":
            return len(left) < MAX_LEAD and not left[1:].strip()
        return _may_become(left, (*self._lead, self._layout.start))

    def _read(self, text: str, events: list[Event]) -> str:
        found, text = self._body.feed(text)
        events += found
        if not self._body.is_open:
            self._has_calls |= not self._body.failed
            self._stage = self._outside if self._body.failed else "after"
        return text

    def _close(self, text: str) -> str:
        """After a call: what may be left over, then another one or text."""
        layout = self._layout
        marks = (*layout.leftovers, FENCE) if self._in_fence else layout.leftovers
        past = 0 if self._is_closed else _past(text, marks)
        if layout.closing and (self._is_closed or text.startswith(layout.closing, past)):
            self._is_closed, marks = True, (layout.closing, *layout.behind)
            past = _past(text, marks, past)
        left = text[past:]
        follows = () if self._is_closed else (*layout.lead, layout.start)
        if _may_become(left, (*marks, *filter(None, [layout.closing]), *follows)):
            self._held = left
            return ""
        self._stage = "lead" if left.startswith(follows) else self._outside
        return left


def _past(text: str, marks: tuple[str, ...], start: int = 0) -> int:
    """Where these and white space end."""
    pattern = re.compile(rf"(?:\s|{'|'.join(map(re.escape, marks))})*")
    return pattern.match(text, start).end()  # type: ignore[union-attr]  # it matches the empty string


def _may_become(text: str, marks: tuple[str, ...]) -> bool:
    return any(len(text) < len(mark) and mark.startswith(text) for mark in marks)


def _begun(text: str, openings: tuple[str, ...]) -> int:
    """The length of the longest end of the text that begins one of these."""
    longest = min(max(map(len, openings)) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if _may_become(text[-n:], openings)), 0)
