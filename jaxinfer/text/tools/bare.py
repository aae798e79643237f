"""Calls that are the whole answer: Llama 3's JSON objects, one or several with ; between, and pythonic lists."""

import re
from collections.abc import Container

from jaxinfer.text.tools.events import Arguments, Begin, End, Event
from jaxinfer.text.tools.json_call import JsonCall
from jaxinfer.text.tools.python_calls import pythonic_calls

PYTHON_TAG = "<|python_tag|>"  # a special token: seen only where these are shown
MAX_LIST_CHARS, MAX_DEPTH, MAX_SPACES = 1 << 18, 64, 256
_LIST_HEAD = re.compile(r"\[\s*[A-Za-z0-9_.-]+\s*\(")
_OPEN_LIST_HEAD = re.compile(r"\[\s*([A-Za-z0-9_.-]+\s*)?")


class JsonCalls:
    """A Parser of Llama 3's form. An answer that does not begin with a call is text to its end."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._stage = "start"  # start, call, between, text
        self._held = ""
        self._call = JsonCall("", names)

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        text, self._held = self._held + text, ""
        while text:
            if self._stage == "text":
                return [*events, text]
            if self._stage == "call":
                found, text = self._call.feed(text)
                events += found
                if not self._call.is_open:
                    self._stage = "text" if self._call.failed else "between"
            else:
                text = self._start(text)
        return events

    def finish(self) -> list[Event]:
        if self._stage == "call":
            return self._call.finish()
        return [self._held] if self._stage == "start" else []

    def _start(self, text: str) -> str:
        """Before the first call, or between two."""
        mark = PYTHON_TAG if self._stage == "start" else ";"
        bare = text.lstrip()
        if len(text) > len(bare) + MAX_SPACES:
            self._stage = "text"
            return text
        if len(bare) < len(mark) and mark.startswith(bare):
            self._held = text
            return ""
        marked = bare.startswith(mark)
        left = bare.removeprefix(mark)
        begins = left.lstrip()
        if not begins and (marked or self._stage == "start"):
            self._held = text
            return ""
        if begins.startswith("{") and (marked or self._stage == "start"):
            self._call = JsonCall(text[: len(text) - len(begins)], self._names)
            self._stage = "call"
            return begins
        self._stage = "text"
        return text


class PythonicCalls:
    """A Parser of [name(argument=value), ...]. The list is read when it is whole; values are literals."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._stage = "start"  # start, list, text
        self._parts: list[str] = []
        self._head = ""
        self._size = 0
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def feed(self, text: str) -> list[Event]:
        if self._stage == "text" or not text:
            return [text]
        if self._stage == "start":
            self._head += text
            head = self._head.lstrip()
            if not _LIST_HEAD.match(head):
                if len(self._head) <= MAX_SPACES and (not head or _OPEN_LIST_HEAD.fullmatch(head)):
                    return []
                return self._give_up(self._head)
            self._stage, text = "list", self._head
        return self._take(text)

    def finish(self) -> list[Event]:
        return [self._head] if self._stage == "start" else ["".join(self._parts)] if self._stage == "list" else []

    def _take(self, text: str) -> list[Event]:
        for at, char in enumerate(text):
            if self._follow(char):
                self._parts.append(text[: at + 1])
                return self._end("".join(self._parts), text[at + 1 :])
            if len(self._open) > MAX_DEPTH or self._size > MAX_LIST_CHARS:
                break
        else:
            self._parts.append(text)
            return []
        return self._give_up("".join([*self._parts, text]))

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
            return not self._open
        return False

    def _end(self, raw: str, rest: str) -> list[Event]:
        calls = pythonic_calls(raw.strip(), self._names)
        if calls is None:
            return self._give_up(raw + rest)
        self._stage = "text"
        events: list[Event] = []
        for name, arguments in calls:
            events += [Begin(name), Arguments(arguments), End()]
        return [*events, rest]

    def _give_up(self, raw: str) -> list[Event]:
        self._stage = "text"
        return [raw]
