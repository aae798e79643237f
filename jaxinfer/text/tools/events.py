"""What a parser finds in a model's text, in order. A plain `str` among them is content."""

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Begin:
    """A call of a tool that was offered."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of the call's arguments, which so far are the beginning of a JSON object."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """The arguments are whole: a JSON object."""


@dataclasses.dataclass(frozen=True, slots=True)
class Dropped:
    """What had begun is no call after all. raw: its text so far, which is content instead."""

    raw: str


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """A mark without a call, between two texts."""


Event = str | Begin | Arguments | End | Dropped | Gap


class Parser(Protocol):
    """Fed with a text in pieces; however it is cut, the same is found. Never raises, and loses nothing but what a
    format writes around its calls.
    """

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """What was held back, at the end of the text."""
