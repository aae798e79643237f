"""PythonList: calls written as a list of Python's calls, [name(argument=value), ...]."""

import re
from collections.abc import Container

from jaxinfer.text.tools.events import Arguments, Begin, End, Event
from jaxinfer.text.tools.marks import MAX_LEAD, may_become
from jaxinfer.text.tools.python_calls import KEY, pythonic_calls
from jaxinfer.text.tools.strict_json import MAX_DEPTH

MAX_LIST_CHARS = 1 << 18
_HEAD = re.compile(r"\[\s*([A-Za-z0-9_.-]+)\s*\(")
_OPEN_HEAD = re.compile(r"\[\s*([A-Za-z0-9_.-]+\s*)?")
_CALL = re.compile(r"[A-Za-z0-9_.-]+\s*\(")
_ARGUMENT = re.compile(rf"[\s)\]}}]{{0,16}}[,;]?\s{{0,16}}{KEY}\s{{0,16}}=")  # behind what may end a call
_OPEN_ARGUMENT = re.compile(rf"[\s)\]}}]{{0,16}}[,;]?\s{{0,16}}(?:{KEY}\s{{0,16}})?")
_BETWEEN = " \t\r\n,;)}"  # calls
_SIGN = re.compile(r"""[\\"'()\[\]{}<]""")
_OPENERS = {")": "(", "]": "[", "}": "{"}


class PythonList:
    """A layout.Body of all calls of a list, which is read when it is whole; values are literals. At the text's end a
    list that is not closed is read up to its last whole call. Beside a call, one that is none is content.

    A closer closes what was left open within its brackets too; one that closes nothing is passed over. So are tags
    outside of texts. Where an argument follows the end of a call, or a bracket that would end the list within one, a
    closer was one too many: that is no list of calls. is_further: it stands behind a list that has ended, and lacks its
    own opening bracket.
    """

    is_json = False

    def __init__(self, names: Container[str], tags: tuple[str, ...] = (), *, is_further: bool = False) -> None:
        self.is_open, self.failed = True, False
        self.has_name = self.has_end = False
        self._names, self._tags = names, tags
        self._has_head = False
        self._raw: list[str] = []
        self._held = ""  # of the head, or what may begin a tag
        self._implied = "[" if is_further else ""
        self._parts: list[str] = []  # of the list, without tags
        self._size = 0
        self._ends: list[int] = []  # of calls
        self._open: list[str] = []
        self._quote = ""
        self._escaped = self._is_last = False  # the last: no more text comes

    @property
    def raw(self) -> str:
        return "".join(self._raw).removeprefix(self._implied)

    @property
    def _list(self) -> str:
        return "".join(self._parts)

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""
        if not self._raw and not self._held:
            text = self._implied + text
        text, self._held = self._held + text, ""
        if not self._has_head:
            bare = self._without_tags(text[: MAX_LEAD + 1])
            self._has_head = _HEAD.match(bare) is not None
            if not self._has_head:
                if len(text) <= MAX_LEAD and _OPEN_HEAD.fullmatch(bare):
                    self._held = text
                    return [], ""
                return self._fail(), text.removeprefix(self._implied)
        return self._take(text)

    def _without_tags(self, head: str) -> str:
        """The beginning of a list, also without what may become a tag at its end."""
        for tag in self._tags:
            head = head.replace(tag, "")
        at = head.rfind("<")
        return head[:at] if at >= 0 and may_become(head[at:], self._tags) else head

    def finish(self) -> tuple[list[Event], str]:
        """At the end of the text, which came while it was open."""
        if self._held.startswith("]"):
            self._is_last, held, self._held = True, self._held, ""
            found, left = self._take(held)
            if not self.is_open:
                return found, left
        whole = self._list
        end = self._ends[-1] if self._ends else 0
        whole, left = whole[:end], whole[end:] + self._held
        events = self._calls(f"{whole}]") if whole else None
        if events is None:
            self._raw.append(self._held)
            return self._fail(), ""
        self.is_open = False
        return events, left

    def _take(self, text: str) -> tuple[list[Event], str]:
        past, start, self._escaped = int(self._escaped), 0, False
        for found in _SIGN.finditer(text):
            at = found.start()
            if at < past:
                continue
            if at - start >= self._room:
                break
            past = at + 1
            if text[at] == "<" and not self._quote:
                tag = next((tag for tag in self._tags if text.startswith(tag, at)), "")
                if not tag and not may_become(text[at:], self._tags):
                    continue
                self._add(text[start:at], tag)
                past = start = at + len(tag)
                if not tag:
                    self._held = text[at:]
                    return [], ""
            elif text[at] == "]" and self._ends_within_call and (goes_on := self._goes_on(text, past)) is not False:
                self._add(text[start:at])
                if goes_on is None:
                    self._held = text[at:]
                    return [], ""
                return self._fail(), text[at:]
            elif text[at] == "\\":
                past = at + 1 + bool(self._quote)
            elif self._follow(text[at], self._size + past - start) or len(self._open) > MAX_DEPTH:
                return self._end(text, start, past)
        if len(text) - start >= self._room:
            return self._end(text, start, start + self._room)
        self._escaped = past > len(text)
        self._add(text[start:])
        return [], ""

    @property
    def _ends_within_call(self) -> bool:
        """Whether the next ] would end the list, and a call in it that lacks its closer."""
        return not self._quote and self._open[:2] == ["[", "("] and "[" not in self._open[1:]

    def _goes_on(self, text: str, at: int) -> bool | None:
        """Whether a further argument stands there; None: it still may."""
        if _ARGUMENT.match(text, at):
            return True
        return None if not self._is_last and _OPEN_ARGUMENT.fullmatch(text, at) else False

    @property
    def _room(self) -> int:
        """Characters, with which the list is too long."""
        return MAX_LIST_CHARS + 1 - self._size

    def _end(self, text: str, start: int, past: int) -> tuple[list[Event], str]:
        """It ends behind this part of the text, or is none."""
        self._add(text[start:past])
        ends = not self._open
        events = self._calls(self._list) if ends else None
        self.has_name = self.has_end = ends and self._holds_calls()
        self.is_open = False
        return self._fail() if events is None else events, text[past:]

    def _add(self, text: str, tag: str = "") -> None:
        """What has been read, and a tag behind it."""
        self._parts.append(text)
        self._raw += (text, tag)
        self._size += len(text)

    def _fail(self) -> list[Event]:
        self.is_open, self.failed = False, True
        return []

    def _follow(self, char: str, past: int) -> bool:
        """Whether the list ends with this character. past: where the character ends in the list."""
        if self._quote:
            self._quote = "" if char == self._quote else self._quote
        elif char in "\"'":
            self._quote = char
        elif char in "([{":
            self._open.append(char)
        elif char in _OPENERS:
            return self._close(_OPENERS[char], past)
        return False

    def _close(self, opener: str, past: int) -> bool:
        """Whether the list ends with it."""
        if opener in self._open:
            at = len(self._open) - 1 - self._open[::-1].index(opener)
            del self._open[at:]
            if at == 1:
                self._ends.append(past)
        return not self._open

    def _calls(self, raw: str) -> list[Event] | None:
        calls = pythonic_calls(raw.strip(), self._names)
        return self._one_by_one(raw) if calls is None else _events_of(calls)

    def _holds_calls(self) -> bool:
        """Of whatever tools, and nothing else."""
        starts = [1, *self._ends]
        raw = self._list
        items = [raw[start:end].lstrip(_BETWEEN) for start, end in zip(starts, self._ends, strict=False)]
        return bool(items) and all(map(_CALL.match, items)) and not raw[self._ends[-1] :].strip(_BETWEEN + "]")

    def _one_by_one(self, raw: str) -> list[Event] | None:
        """None if none of them is a call, or anything but calls is among them, as what follows a closer too many."""
        events: list[Event] = []
        start = 1
        is_open = bool(raw[self._ends[-1] if self._ends else 1 : -1].strip(_BETWEEN))  # the last lacks its closer
        for end in (*self._ends, *[len(raw) - 1] * is_open):
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
