"""PythonObject: a call that is an object as JSON has it or, from its first quote on, a literal as Python has it."""

import re

from jaxinfer.text.tools.call_object import Schemas, call_of
from jaxinfer.text.tools.events import Arguments, Begin, End, Event
from jaxinfer.text.tools.json_call import JsonCall
from jaxinfer.text.tools.marks import MAX_LEAD
from jaxinfer.text.tools.python_calls import python_value
from jaxinfer.text.tools.python_list import MAX_LIST_CHARS
from jaxinfer.text.tools.strict_json import MAX_DEPTH, loaded

_HEAD = re.compile(r"\{\s*'(?:name|arguments)'\s*:")
_OPEN_HEAD = re.compile(r"\{\s*(?:'\w{0,9}(?:'\s*)?)?")
_SIGN = re.compile(r"""[\\"'()\[\]{}]""")


class PythonObject:
    """A layout.Body around `json`, which reads what is no literal. A literal is read when it is whole, and is a call if
    it has a tool's name and its arguments and nothing else.
    """

    is_json = True

    def __init__(self, names: Schemas, json: JsonCall) -> None:
        self._names, self._json = names, json
        self.is_open, self.failed = True, False
        self.has_name = self.has_end = False
        self._is_python: bool | None = None  # not known yet
        self._held = ""  # of the head
        self._parts: list[str] = []  # of the literal
        self._size = self._depth = 0
        self._quote = ""
        self._escaped = False

    @property
    def raw(self) -> str:
        return "".join(self._parts) if self._is_python else self._json.raw

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""
        if self._is_python is None:
            text, self._held = self._held + text, ""
            if len(text) < MAX_LEAD and _OPEN_HEAD.fullmatch(text):
                self._held = text
                return [], ""
            self._is_python = _HEAD.match(text) is not None
        if self._is_python:
            return self._feed_literal(text)
        found = self._json.feed(text)
        self._follow()
        return found

    def finish(self) -> tuple[list[Event], str]:
        """At the end of the text, which came while it was open."""
        if self._is_python:
            self.is_open, self.failed = False, True
            return [], ""
        events, left = self._json.feed(self._held)
        if self._json.is_open:
            more, left = self._json.finish()
            events += more
        self._follow()
        return events, left

    def _follow(self) -> None:
        json = self._json
        self.is_open, self.failed, self.has_name, self.has_end = json.is_open, json.failed, json.has_name, json.has_end

    def _feed_literal(self, text: str) -> tuple[list[Event], str]:
        end = self._end_in(text)
        taken = text[: len(text) if end is None else end]
        self._parts.append(taken)
        self._size += len(taken)
        if end is None and self._size <= MAX_LIST_CHARS and self._depth <= MAX_DEPTH:
            return [], ""
        self.is_open = False
        call = _call_in(self.raw, self._names) if end is not None else None
        self.failed = call is None
        events: list[Event] = [] if call is None else [Begin(call[0]), Arguments(call[1]), End()]
        return events, text[len(taken) :]

    def _end_in(self, text: str) -> int | None:
        """Where the literal ends."""
        past, self._escaped = int(self._escaped), False
        for found in _SIGN.finditer(text):
            at, sign = found.start(), found[0]
            if at < past:
                continue
            if sign == "\\":
                past = at + 1 + bool(self._quote)
            elif self._quote:
                self._quote = "" if sign == self._quote else self._quote
            elif sign in "\"'":
                self._quote = sign
            else:
                self._depth += 1 if sign in "([{" else -1
                if self._depth <= 0:
                    return at + 1
        self._escaped = past > len(text)
        return None


def _call_in(literal: str, names: Schemas) -> tuple[str, str] | None:
    try:
        text = python_value(literal)
        return call_of(text, names) if loaded(text).keys() == {"name", "arguments"} else None
    except (ValueError, RecursionError):
        return None
