"""PythonList: calls written as a list of Python's calls, [name(argument=value), ...]."""

import re
from collections.abc import Container

from jaxinfer.text.tools.events import Arguments, Begin, End, Event
from jaxinfer.text.tools.layout import MAX_LEAD
from jaxinfer.text.tools.python_calls import pythonic_calls
from jaxinfer.text.tools.strict_json import MAX_DEPTH

MAX_LIST_CHARS = 1 << 18
_HEAD = re.compile(r"\[\s*([A-Za-z0-9_.-]+)\s*\(")
_OPEN_HEAD = re.compile(r"\[\s*([A-Za-z0-9_.-]+\s*)?")
_CALL = re.compile(r"[A-Za-z0-9_.-]+\s*\(")
_BETWEEN = " \t\r\n,;)}"  # calls
_OPENERS = {")": "(", "]": "[", "}": "{"}


class PythonList:
    """A layout.Body of all calls of a list, which is read when it is whole; values are literals. At the text's end a
    list that is not closed is read up to its last whole call. Beside a call, one that is none is content.

    A closer closes what was left open within its brackets too; one that closes nothing is passed over.
    """

    def __init__(self, names: Container[str]) -> None:
        self.is_open, self.failed = True, False
        self.has_name = self.has_end = False
        self._names = names
        self._has_head = False
        self._parts: list[str] = []
        self._size = 0
        self._ends: list[int] = []  # of calls
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    @property
    def raw(self) -> str:
        return "".join(self._parts)

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""
        if not self._has_head:
            text = self.raw + text
            self._parts.clear()
            head = _HEAD.match(text)
            self._has_head = head is not None
            if not self._has_head:
                if head is None and len(text) <= MAX_LEAD and _OPEN_HEAD.fullmatch(text):
                    self._parts.append(text)
                    return [], ""
                return self._fail(), text
        return self._take(text)

    def finish(self) -> tuple[list[Event], str]:
        """At the end of the text, which came while it was open."""
        raw = self.raw
        end = self._ends[-1] if self._ends else 0
        whole, left = raw[:end], raw[end:]
        events = self._calls(f"{whole}]") if whole else None
        if events is None:
            return self._fail(), ""
        self.is_open = False
        return events, left

    def _take(self, text: str) -> tuple[list[Event], str]:
        for at, char in enumerate(text):
            ends = self._follow(char)
            if ends or len(self._open) > MAX_DEPTH or self._size > MAX_LIST_CHARS:
                self._parts.append(text[: at + 1])
                events = self._calls(self.raw) if ends else None
                self.has_name = self.has_end = ends and self._holds_calls()
                self.is_open = False
                return self._fail() if events is None else events, text[at + 1 :]
        self._parts.append(text)
        return [], ""

    def _fail(self) -> list[Event]:
        self.is_open, self.failed = False, True
        return []

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
        elif char in _OPENERS:
            return self._close(_OPENERS[char])
        return False

    def _close(self, opener: str) -> bool:
        """Whether the list ends with it."""
        if opener in self._open:
            at = len(self._open) - 1 - self._open[::-1].index(opener)
            del self._open[at:]
            if at == 1:
                self._ends.append(self._size)
        return not self._open

    def _calls(self, raw: str) -> list[Event] | None:
        calls = pythonic_calls(raw.strip(), self._names)
        return self._one_by_one(raw) if calls is None else _events_of(calls)

    def _holds_calls(self) -> bool:
        """Of whatever tools, and nothing else."""
        starts = [1, *self._ends]
        raw = self.raw
        items = [raw[start:end].lstrip(_BETWEEN) for start, end in zip(starts, self._ends, strict=False)]
        return bool(items) and all(map(_CALL.match, items)) and not raw[self._ends[-1] :].strip(_BETWEEN + "]")

    def _one_by_one(self, raw: str) -> list[Event] | None:
        """None if none of them is a call, or anything but calls is among them."""
        events: list[Event] = []
        start = 1
        for end in self._ends:
            text = raw[start:end].lstrip(_BETWEEN)
            calls = pythonic_calls(f"[{text}]", self._names)
            if calls is None and not _CALL.match(text):
                return None
            space = "\n" if events and isinstance(events[-1], str) else ""
            events += [space + text] if calls is None else _events_of(calls)
            start = end
        return events if any(isinstance(event, Begin) for event in events) else None


def _events_of(calls: list[tuple[str, str]]) -> list[Event]:
    return [event for name, arguments in calls for event in (Begin(name), Arguments(arguments), End())]
