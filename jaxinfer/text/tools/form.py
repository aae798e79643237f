"""What a form of calls is: the Layout around them, the Body of each, and how they are read behind text."""

import dataclasses
import re
from collections.abc import Callable
from functools import cached_property
from typing import Protocol

from jaxinfer.text.tools.events import Event
from jaxinfer.text.tools.marks import is_closing


class Body(Protocol):
    """One call. is_open: until it has ended or turned out to be no call.    failed: the latter.

    has_name: it has named a tool, whether offered or not.    has_end: it has been read to its end: what it holds
    is no call.    is_json: its arguments are JSON.
    """

    is_json: bool

    is_open: bool
    failed: bool
    has_name: bool
    has_end: bool

    @property
    def raw(self) -> str:
        """The text that has been read, without what is held back; whole for a call that failed."""

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""

    def finish(self) -> tuple[list[Event], str]:
        """The same at the end of the text, which came while it was open."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """What stands around calls.

    start: what each call begins with.    opening: the tag before calls; empty: the answer begins with them.
    closing: the tag behind them.    others: tags that count as these do.    is_bare: `start` opens a call anywhere.
    needs: what must stand before the first call.    is_fenced: each call holds the opening of a fence.
    inner: what begins another kind of call directly behind a call or the opening.    named: a pattern of what else is
    mark-up within a call; its group is the name there.    head: a pattern of what `start` must stand before to be more
    than text.    open_head: of what may become that at the text's end.    text: the mark before text, which is never
    content.    is_begun: the prompt ends in `start`, so that the answer begins behind one.
    token: what `start` begins with, one token where the tokenizer has it.
    """

    start: str
    opening: str = ""
    closing: str = ""
    others: tuple[str, ...] = ()
    is_bare: bool = False
    needs: str = ""
    is_fenced: bool = False
    inner: str = ""
    named: str = ""
    head: str = ""
    open_head: str = ""
    text: str = ""
    is_begun: bool = False
    token: str = ""

    def said(self, call: str) -> str:
        """A call's text without its mark-up; where that may be of a text in the call, without what has its own line."""
        parts, past = [], 0
        for found in self._mark_up.finditer(call):
            parts += [call[past : found.start()], found[1] or ""]
            past = found.end()
        parts.append(call[past:])
        return "\n".join(part.strip("\r\n") for part in parts if part.strip()) if past else call

    @cached_property
    def _mark_up(self) -> re.Pattern[str]:
        if not self.named:
            tags = "|".join(map(re.escape, self.tags)) or "(?!)"
            return re.compile(rf"^()[ \t]*(?:{tags})[ \t]*$", re.MULTILINE)
        return re.compile("|".join((self.named, *map(re.escape, self.tags))))

    @cached_property
    def tags(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.text, self.opening, self.closing, *self.others)))

    @cached_property
    def openings(self) -> tuple[str, ...]:
        """What opens a call anywhere."""
        bare = (self.start,) if self.is_bare else ()
        return (*(tag for tag in self.tags if not (is_closing(tag) or tag == self.text)), *bare)

    @property
    def ends(self) -> tuple[str, ...]:
        """Tags with which an object ends whose brackets do not."""
        return tuple(filter(is_closing, self.tags)) or ((self.start,) if self.is_bare else ())

    @property
    def first(self) -> str:
        """What a call begins with in a grammar."""
        return self.opening or self.token or self.start

    def has_head(self, text: str, at: int) -> bool | None:
        """Whether a `start` that ends at `at` begins a call, not prose; None: it still may."""
        if not self.head or self._head.match(text, at):
            return True
        return None if self._open_head.fullmatch(text, at) else False

    @cached_property
    def _head(self) -> re.Pattern[str]:
        return re.compile(self.head)

    @cached_property
    def _open_head(self) -> re.Pattern[str]:
        return re.compile(self.open_head)

    @property
    def lead(self) -> str:
        """What an answer that is text begins with."""
        return self.text.removeprefix(self.start if self.is_begun else "")

    @property
    def begins_with_calls(self) -> bool:
        return not (self.opening or self.is_bare)


@dataclasses.dataclass(frozen=True)
class OnLine:
    """begins: whether they begin there in a text; None: they still may.    new_body: a reader of them.

    signs: with which they begin.
    """

    signs: tuple[str, ...]
    begins: Callable[[str, int], bool | None]
    new_body: Callable[[], Body]
