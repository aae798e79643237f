"""LineCalls: calls behind text, of a form that begins its answers with them: a JSON value or a list of Python's calls
on lines of its own, which begins as a call of a tool that was offered.
"""

from collections.abc import Container, Iterable

from jaxinfer.text.tools.events import Arguments, Begin, End, Event
from jaxinfer.text.tools.json_call import call_of
from jaxinfer.text.tools.json_scanner import JsonScanner
from jaxinfer.text.tools.layout import Body
from jaxinfer.text.tools.lone_call import Head, met
from jaxinfer.text.tools.marks import FENCE
from jaxinfer.text.tools.strict_json import dumped, loaded

_MAX_BLANKS = 16  # behind it, on its line


class LineCalls:
    """A layout.Body. heads: what it may begin with.    value: the reader of what follows, from the beginning on."""

    def __init__(self, heads: Iterable[Head], value: Body) -> None:
        self.is_open, self.failed = True, False
        self.has_name = self.has_end = False
        self._heads, self._value = tuple(heads), value
        self._raw: list[str] = []
        self._has_head = False
        self._held = ""  # of the head, then behind the value
        self._events: list[Event] = []

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""
        text, self._held = self._held + text, ""
        if not self._has_head:
            places = [met(text, 0, head) for head in self._heads]
            if all(place is None or place < 0 for place in places):
                if None not in places:
                    return self._fail(), text
                self._held = text
                return [], ""
            self._has_head = True
        if self._value.is_open:
            found, left = self._value.feed(text)
            self._raw.append(text[: len(text) - len(left)])
            self._events += found
            text = left
        if self._value.failed:
            return self._fail(), text
        return ([], "") if self._value.is_open else self._take_line(text)

    def finish(self) -> tuple[list[Event], str]:
        """At the end of the text, which came while it was open."""
        if self._has_head and not self._value.is_open:
            self.is_open = False
            return self._events, self._held
        return self._fail(), self._held

    def _take_line(self, text: str) -> tuple[list[Event], str]:
        """Nothing may follow on the line, except a fence."""
        rest = text.lstrip(" \t")
        if len(text) - len(rest) <= _MAX_BLANKS and FENCE.startswith(rest) and rest != FENCE:
            self._held = text
            return [], ""
        if len(text) - len(rest) > _MAX_BLANKS or not rest.startswith(("\n", "\r", FENCE)):
            return self._fail(), text
        self.is_open = False
        return self._events, text

    def _fail(self) -> list[Event]:
        self.is_open, self.failed = False, True
        return []


class JsonCalls:
    """A layout.Body of a JSON object that is a call, or of a list of such objects, all of them at once."""

    def __init__(self, names: Container[str]) -> None:
        self.is_open, self.failed = True, False
        self.has_name = self.has_end = False
        self.raw = ""
        self._names = names
        self._read: list[str] = []
        self._scanner = JsonScanner("value")

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""
        at = self._scanner.feed(text, 0, 0)
        self._read.append(self._scanner.written())
        if not (self._scanner.bad or self._scanner.has_ended):
            return [], ""
        calls = None if self._scanner.bad else self._calls()
        self.is_open, self.failed = False, not calls
        return [event for name, given in calls or () for event in (Begin(name), Arguments(given), End())], text[at:]

    def finish(self) -> tuple[list[Event], str]:
        """At the end of the text, which came while it was open."""
        self.is_open, self.failed = False, True
        return [], ""

    def _calls(self) -> list[tuple[str, str]] | None:
        """None unless all are calls."""
        try:
            value = loaded("".join(self._read))
        except (ValueError, RecursionError):
            return None
        found = [call_of(dumped(each), self._names) for each in (value if isinstance(value, list) else [value])]
        return None if None in found else [call for call in found if call is not None]
