"""Nesting: the calls that a parameter's value quotes, tag by tag."""

from typing import Literal

from jaxinfer.text.tools.marks import may_become
from jaxinfer.text.tools.xml_tags import CLOSING, END_FUNCTION, MAX_NAME_CHARS, OPENING, XmlTags

MAX_TORN_CHARS = 1 << 16
Kind = Literal["quoted", "own", "torn"]


class Torn:
    """Values of one answer whose tags are no calls in each other. Each is read twice, perhaps to the answer's end:
    beyond MAX_TORN_CHARS of them no value nests.
    """

    def __init__(self) -> None:
        self._left = MAX_TORN_CHARS

    @property
    def may_nest(self) -> bool:
        return self._left > 0

    def add(self, num_chars: int) -> None:
        """One more."""
        self._left -= num_chars


class Nesting:
    """Fed with the tags of a value in order. is_open: one of a call in it lacks its end.    has_begun: one has come."""

    def __init__(self, tags: XmlTags) -> None:
        self.has_begun = False
        self._tags = tags
        self._open: list[str] = []  # the tags of the call that lack their end

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def take(self, tag: str, after: str, *, is_last: bool) -> Kind | None:
        """What a tag is with this text behind it: of a quoted call, or not; torn: these are no calls in each other.
        None: not known yet.    is_last: no more text comes.
        """
        spelt, top = self._tags, self._open[-1] if self._open else ""
        if tag == OPENING:
            follows = after.lstrip()
            if not follows.startswith(spelt.function):
                is_short = not is_last and len(after) < MAX_NAME_CHARS and may_become(follows, (spelt.function,))
                return None if is_short else "own"
        if tag in (OPENING, spelt.function):
            if top and (top, tag) != (OPENING, spelt.function):
                return "torn"
            return self._push(tag)
        if not top:
            return "own"
        if tag == spelt.parameter:
            return self._push(tag) if top == spelt.function else "quoted"
        if tag == spelt.end_parameter:
            return self._pop() if top == spelt.parameter else "own"
        if top == spelt.parameter:
            return "torn"
        if tag == END_FUNCTION and top == spelt.function:
            return self._end_function(after, is_last=is_last)
        if tag == END_FUNCTION:
            return "quoted"
        if self._open[0] != OPENING:
            return "torn"
        self._open.clear()
        return "quoted"

    def _end_function(self, after: str, *, is_last: bool) -> Kind | None:
        """One that no <tool_call> began has taken the end of the call around it where </tool_call> follows."""
        follows, is_bare = after.lstrip(), self._open[0] == self._tags.function
        if is_bare and not is_last and may_become(follows, (CLOSING,)):
            return None if len(after) < MAX_NAME_CHARS else self._pop()
        return "torn" if is_bare and follows.startswith(CLOSING) else self._pop()

    def _push(self, tag: str) -> Kind:
        self._open.append(tag)
        self.has_begun = True
        return "quoted"

    def _pop(self) -> Kind:
        self._open.pop()
        return "quoted"
