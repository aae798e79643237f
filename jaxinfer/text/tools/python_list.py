"""PythonicCalls: calls that are the whole answer, written as a list of Python's calls."""

import re
from collections.abc import Container

from jaxinfer.text.tools.events import Arguments, Begin, End, Event
from jaxinfer.text.tools.layout import MAX_LEAD
from jaxinfer.text.tools.python_calls import pythonic_calls

MAX_LIST_CHARS, MAX_DEPTH = 1 << 18, 64
_LIST_HEAD = re.compile(r"\[\s*[A-Za-z0-9_.-]+\s*\(")
_OPEN_LIST_HEAD = re.compile(r"\[\s*([A-Za-z0-9_.-]+\s*)?")
_LEFT_OVER = re.compile(r"[\s\],;]*")


class PythonicCalls:
    """A Parser of [name(argument=value), ...]. A list is read when it is whole; values are literals. At the text's end
    a list that is not closed is read up to its last whole call.
    """

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._stage = "start"  # start, list, after, text
        self._parts: list[str] = []
        self._head = ""
        self._begin()

    def _begin(self) -> None:
        """A list."""
        self._parts, self._head = [], ""
        self._size = self._end_of_call = 0
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text and self._stage != "text":
            found, text = self._take(text) if self._stage == "list" else self._open_list(text)
            events += found
        return [*events, text] if text else events

    def _open_list(self, text: str) -> tuple[list[Event], str]:
        """Before a list. As all below, returns what was found and the rest of the text."""
        self._head += text
        if self._stage == "after":
            self._head = _LEFT_OVER.sub("", self._head, count=1)
        head = self._head.lstrip()
        if _LIST_HEAD.match(head):
            self._stage = "list"
        elif len(self._head) <= MAX_LEAD and (not head or _OPEN_LIST_HEAD.fullmatch(head)):
            return [], ""
        else:
            self._stage = "text"
        return [], self._head

    def finish(self) -> list[Event]:
        if self._stage in ("start", "after"):
            return [self._head]
        if self._stage == "text":
            return []
        raw = "".join(self._parts)
        whole, rest = raw[: self._end_of_call], raw[self._end_of_call :]
        events = self._calls(f"{whole}]") if whole else None
        if events is None:
            return [raw]
        return [*events, rest] if rest.strip(" \t\r\n,") else events

    def _take(self, text: str) -> tuple[list[Event], str]:
        for at, char in enumerate(text):
            if self._follow(char):
                self._parts.append(text[: at + 1])
                return self._end("".join(self._parts), text[at + 1 :])
            if len(self._open) > MAX_DEPTH or self._size > MAX_LIST_CHARS:
                self._stage = "text"
                return [], "".join([*self._parts, text])
        self._parts.append(text)
        return [], ""

    def _follow(self, char: str) -> bool:
        """Whether the list ends with this character."""
        self._size += 1
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in "\"'":
            self._quote = char
        elif char in "([{":
            self._open.append(char)
        elif char in ")]}" and self._open:
            self._open.pop()
            if len(self._open) == 1:
                self._end_of_call = self._size
            return not self._open
        return False

    def _end(self, raw: str, rest: str) -> tuple[list[Event], str]:
        events = self._calls(raw)
        if events is None:
            self._stage = "text"
            return [], raw + rest
        self._stage = "after"
        self._begin()
        return events, rest

    def _calls(self, raw: str) -> list[Event] | None:
        calls = pythonic_calls(raw.strip(), self._names)
        if calls is None:
            return None
        return [event for name, arguments in calls for event in (Begin(name), Arguments(arguments), End())]
