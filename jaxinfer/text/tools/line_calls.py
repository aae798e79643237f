"""LineCalls: calls behind text without their form's opening: a JSON value or a list of Python's calls that begins as a
call of a tool that was offered. Of a form that begins its answers with calls it stands on lines of its own; of another
one a closing tag of the form comes behind it.
"""

import re

from jaxinfer.text.tools.events import Event
from jaxinfer.text.tools.form import Body
from jaxinfer.text.tools.json_call import JsonCall
from jaxinfer.text.tools.json_scanner import SPACE
from jaxinfer.text.tools.marks import FENCE, MIN_TORN_TAG, may_become

MAX_BEHIND = 64  # signs behind it
_ON_LINE = re.compile(r"[ \t)\]},;]*")
_BEFORE_TAG = re.compile(r"""[\s)\]},;"'`]*""")
_LIST = re.compile(rf"\[{SPACE}")


class LineCalls:
    """A layout.Body. value: the reader of the whole, or of what is in a list of JSON.    following: what may come
    behind it on its line, besides signs and a fence.    closings: of which one must come behind it, where there are.
    """

    def __init__(self, value: Body, *, following: tuple[str, ...] = (), closings: tuple[str, ...] = ()) -> None:
        self.is_open, self.failed = True, False
        self.has_name = self.has_end = False
        self._value = value
        self.is_json = self._is_in_list = isinstance(value, JsonCall)
        self._ends = closings or ("\n", "\r", FENCE, *following)
        self._behind, self._closings = _BEFORE_TAG if closings else _ON_LINE, closings
        self._list = ""  # its bracket
        self._held = ""  # behind the value
        self._events: list[Event] = []

    @property
    def raw(self) -> str:
        return self._list + self._value.raw

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""
        text, self._held = self._held + text, ""
        if self._is_in_list and (bracket := _LIST.match(text)):
            self._list = bracket[0]
            text = text[bracket.end() :]
        self._is_in_list = False
        if self._value.is_open:
            found, text = self._value.feed(text)
            self._events += found
        if self._value.failed:
            return self._fail(), text
        return ([], "") if self._value.is_open else self._take_behind(text)

    def finish(self) -> tuple[list[Event], str]:
        """At the end of the text, which came while it was open."""
        if self._value.is_open:
            found, left = self._value.finish()
            self._events += found
            found, left = (self._fail(), left) if self._value.failed else self._take_behind(left)
            if not self.is_open:
                return found, left
        rest = self._held[self._past(self._held) :]
        is_torn = len(rest) >= MIN_TORN_TAG and may_become(rest, self._closings)
        if self._closings and not is_torn:
            return self._fail(), self._held
        self.is_open = False
        return self._events, self._held

    def _past(self, text: str) -> int:
        return self._behind.match(text).end()  # type: ignore[union-attr]  # it matches the empty string

    def _take_behind(self, text: str) -> tuple[list[Event], str]:
        """No prose may follow."""
        past = self._past(text)
        rest = text[past:]
        raw = self.raw
        has_ended = not self._closings and "\n" in raw[len(raw.rstrip()) :]  # within an object that lacks a bracket
        if has_ended or (past <= MAX_BEHIND and rest.startswith(self._ends)):
            self.is_open = False
            return self._events, text
        if past > MAX_BEHIND or not may_become(rest, self._ends):
            return self._fail(), text
        self._held = text
        return [], ""

    def _fail(self) -> list[Event]:
        self.is_open, self.failed = False, True
        return []
