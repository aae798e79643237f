"""LoneCall: a call without its form's opening, as Qwen2.5-Coder writes it: one JSON object that is the whole answer.

Closing tags may stand before the object, and brackets, quotes and a fence behind it. Behind a tag there the answer goes
on as behind any call.
"""

import json
import re
from collections.abc import Iterable, Sequence

from jaxinfer.text.tools.call_object import call_of
from jaxinfer.text.tools.events import Arguments, Begin, End, Event
from jaxinfer.text.tools.json_call import key_behind
from jaxinfer.text.tools.json_scanner import SPACE, JsonScanner
from jaxinfer.text.tools.layout import CallParser
from jaxinfer.text.tools.marks import FENCE, is_closing, may_become
from jaxinfer.text.tools.strict_json import loaded

MAX_SPACES = 256  # in a row
_WRAPPERS = (f"{FENCE}json", FENCE, "<tools>", "")
JSON_SPACE, ANY_SPACE = re.compile(SPACE), re.compile(r"\s*")
Head = Sequence[str | tuple[str, ...]]  # marks, one after another; of several options one
_BEHIND = re.compile(r"""[\s)\]},;"'`]*""")


class LoneCall:
    """A Parser around another, which reads every answer that is no such object.

    The object has the keys name, of a tool that was offered, and arguments, an object; a fence or <tools> may be around
    it. Held back is the answer that may still become one. tags: of all forms.
    """

    def __init__(self, parser: CallParser, names: Iterable[str], tags: tuple[str, ...]) -> None:
        self._parser, self._tags = parser, tags
        self._closings = tuple(filter(is_closing, tags))
        self._lead = re.compile(rf"(?:\s*(?:{'|'.join(map(re.escape, self._closings))}))*")
        names = list(names)
        self._names = frozenset(names)
        spelt = tuple(map(json.dumps, names))
        named = (("{", '"name"', ":", spelt, *comma, '"arguments"', ":", "{") for comma in ((",",), (), (",", ",")))
        self._heads = (*named, ("{", '"arguments"', ":", "{"))
        self._stage = "start"  # then object, end; or other: the parser's
        self._text = ""  # up to the object, then behind it
        self._object: list[str] = []
        self._read: list[str] = []  # the same as JSON has it
        self._before = ""
        self._scanner = JsonScanner()

    def feed(self, text: str) -> list[Event]:
        if self._stage == "other":
            return self._parser.feed(text)
        events: list[Event] = []
        if self._stage == "start":
            text = self._feed_start(text)
        if self._stage == "object":
            text = self._feed_object(text)
        if self._stage == "end":
            text = self._feed_end(text, events)
        return [*events, *self._parser.feed(text)] if self._stage == "other" else []

    def finish(self) -> list[Event]:
        if self._stage == "other":
            return self._parser.finish()
        if self._stage != "end":
            return [*self._parser.feed(self._give_up()), *self._parser.finish()]
        events: list[Event] = []
        self._go_on(events)
        left = self._text[_BEHIND.match(self._text).end() :]  # type: ignore[union-attr]  # it matches the empty string
        return [*events, *self._parser.feed(left), *self._parser.finish()]

    def _feed_start(self, text: str) -> str:
        """Up to where the arguments begin."""
        self._text += text
        start = self._lead.match(self._text).end()  # type: ignore[union-attr]  # it matches the empty string
        undecided = len(self._text) <= MAX_SPACES and may_become(self._text[start:].lstrip(), self._closings)
        for opening in _WRAPPERS if start <= MAX_SPACES else ():
            for head in self._heads:
                at = met(self._text, start, (*filter(None, [opening]), *head))
                if at is None:
                    undecided = True
                elif at >= 0:
                    return self._begin()
        return "" if undecided else self._give_up()

    def _begin(self) -> str:
        """Returns the object's text so far."""
        at = self._text.index("{")
        self._before, text = self._text[:at], self._text[at:]
        self._text, self._stage = "", "object"
        return text

    def _feed_object(self, text: str) -> str:
        at = self._scanner.feed(text, 0, 0)
        self._object.append(text[:at])
        self._read.append(self._scanner.written())
        if self._scanner.bad:
            self._text = text[at:]
            return self._give_up()
        if self._scanner.has_ended:
            if not self._is_call():
                self._text = text[at:]
                return self._give_up()
            self._stage = "end"
        return text[at:]

    def _is_call(self) -> bool:
        whole = "".join(self._read)
        return call_of(whole, self._names) is not None and loaded(whole).keys() == {"name", "arguments"}

    def _feed_end(self, text: str, events: list[Event]) -> str:
        self._text += text
        start = _BEHIND.match(self._text).end()  # type: ignore[union-attr]  # it matches the empty string
        left = self._text[start:]
        if start > MAX_SPACES or not (left.startswith(self._tags) or may_become(left, self._tags)):
            return self._give_up()
        behind = key_behind(self._text, self._tags) if left.startswith(self._tags) else None
        if behind is None:
            return ""
        if behind[0]:  # the tag stands within the arguments
            return self._give_up()
        self._go_on(events)
        return left

    def _go_on(self, events: list[Event]) -> None:
        """It is a call. What comes behind it is the parser's."""
        self._stage = "other"
        call = call_of("".join(self._read), self._names)
        assert call is not None, "an object has ended that is a call"
        events += [Begin(call[0]), Arguments(call[1]), End()]
        self._parser.follow(call[0])

    def _give_up(self) -> str:
        """It is none. Returns all that was held back."""
        self._stage = "other"
        held = "".join([self._before, *self._object, self._text])
        self._before, self._text = "", ""
        self._object.clear()
        return held


def begins(text: str, at: int, heads: Iterable[Head], space: re.Pattern[str]) -> bool | None:
    """Whether one of these stands there; None: it still may."""
    places = [met(text, at, head, space) for head in heads]
    if any(place is not None and place >= 0 for place in places):
        return True
    return None if None in places else False


def met(text: str, at: int, marks: Head, space: re.Pattern[str] = JSON_SPACE) -> int | None:
    """Where these have come one after another from `at` on, such white space between them; -1: they cannot come; None:
    they still may.
    """
    for mark in marks:
        start = space.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string
        if start - at > MAX_SPACES:
            return -1
        options = (mark,) if isinstance(mark, str) else mark
        found = next((option for option in options if text.startswith(option, start)), None)
        if found is None:
            may_come = any(option.startswith(text[start : start + len(option)]) for option in options)
            return None if may_come else -1
        at = start + len(found)
    return at
