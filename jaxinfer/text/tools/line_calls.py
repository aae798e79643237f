"""LineCalls: calls behind text, of a form that begins its answers with them: a JSON value or a list of Python's calls
on lines of its own, which begins as a call of a tool that was offered.
"""

import re
from collections.abc import Iterable

from jaxinfer.text.tools.events import Event
from jaxinfer.text.tools.json_scanner import SPACE
from jaxinfer.text.tools.layout import Body
from jaxinfer.text.tools.lone_call import ANY_SPACE, JSON_SPACE, Head, met
from jaxinfer.text.tools.marks import FENCE

MAX_BEHIND = 64  # signs behind it, on its line
_BEHIND = re.compile(r"[ \t)\]},;]*")
_LIST = re.compile(rf"(?:\[{SPACE})?")


class LineCalls:
    """A layout.Body. heads: what it may begin with.    value: the reader of what follows, from the beginning on.

    following: what may come behind it on its line, besides signs and a fence.    is_in_list: the value has no bracket
    of a list, which may stand before it.
    """

    def __init__(
        self, heads: Iterable[Head], value: Body, following: tuple[str, ...], *, is_in_list: bool = False
    ) -> None:
        self.is_open, self.failed = True, False
        self.has_name = self.has_end = False
        self._heads, self._value = tuple(heads), value
        self._ends = ("\n", "\r", FENCE, *following)
        self._is_in_list = is_in_list
        self._list = ""  # its bracket
        self._has_head = False
        self._held = ""  # of the head, then behind the value
        self._events: list[Event] = []

    @property
    def raw(self) -> str:
        return self._list + self._value.raw

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""
        text, self._held = self._held + text, ""
        if not self._has_head:
            space = JSON_SPACE if self._is_in_list else ANY_SPACE
            places = [met(text, 0, head, space) for head in self._heads]
            if all(place is None or place < 0 for place in places):
                if None not in places:
                    return self._fail(), text
                self._held = text
                return [], ""
            self._has_head = True
            text = self._pass_list(text)
        if self._value.is_open:
            found, text = self._value.feed(text)
            self._events += found
        if self._value.failed:
            return self._fail(), text
        return ([], "") if self._value.is_open else self._take_line(text)

    def finish(self) -> tuple[list[Event], str]:
        """At the end of the text, which came while it was open."""
        if not self._has_head:
            return self._fail(), self._held
        if self._value.is_open:
            found, self._held = self._value.finish()
            self._events += found
            if self._value.failed:
                return self._fail(), self._held
        self.is_open = False
        return self._events, self._held

    def _pass_list(self, text: str) -> str:
        self._list = _LIST.match(text)[0] if self._is_in_list else ""  # type: ignore[index]  # it matches the empty string
        return text[len(self._list) :]

    def _take_line(self, text: str) -> tuple[list[Event], str]:
        """No prose may follow on the line."""
        past = _BEHIND.match(text).end()  # type: ignore[union-attr]  # it matches the empty string
        rest = text[past:]
        has_ended = "\n" in self.raw[len(self.raw.rstrip()) :]  # within an object whose last bracket lacks
        if has_ended or (past <= MAX_BEHIND and rest.startswith(self._ends)):
            self.is_open = False
            return self._events, text
        if past > MAX_BEHIND or not any(end.startswith(rest) for end in self._ends):
            return self._fail(), text
        self._held = text
        return [], ""

    def _fail(self) -> list[Event]:
        self.is_open, self.failed = False, True
        return []
