"""Where a model's thinking begins and ends: two tokens, and what the prompt's end says of them."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from jaxinfer.text.control import TAG
from jaxinfer.text.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
MAX_LEAD = 4  # tokens of an answer among which its thoughts may begin: a line end may come first
# How an answer begins: within thoughts, after them, or with either.
Start = Literal["thinking", "answering", "either"]


@dataclasses.dataclass(frozen=True, slots=True)
class Thinking:
    """The tokens around thoughts. turn_ids: those that may begin a turn: control tokens that are no tags."""

    open_id: int
    close_id: int
    turn_ids: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: str) -> "Thinking | None":
        """None for a model without such tokens, or whose template has no thoughts."""
        control = tokenizer.control_tokens
        if CLOSE not in template or OPEN not in control or CLOSE not in control:
            return None
        turns = frozenset(token_id for text, token_id in control.items() if not TAG.fullmatch(text))
        return cls(control[OPEN], control[CLOSE], turns)

    def start(self, prompt_ids: Sequence[int]) -> Start:
        """What the last turn of a rendered prompt has begun, whatever asked for it."""
        for token_id in reversed(prompt_ids):
            if token_id == self.open_id:
                return "thinking"
            if token_id == self.close_id:
                return "answering"
            if token_id in self.turn_ids:
                break
        return "either"


class Thoughts:
    """Whether an answer thinks, as its tokens tell: thoughts begin among its first few, if at all, and end once.

    are_on: the next token is one of them, or ends them.    may_begin: the next token may.
    """

    __slots__ = ("_close_id", "_left", "_open_id", "are_on")

    def __init__(self, start: Start, open_id: int | None, close_id: int | None, lead: int = MAX_LEAD) -> None:
        """lead: how many tokens of the answer may begin them."""
        self.are_on = start == "thinking"
        self._open_id, self._close_id = open_id, close_id
        self._left = lead if start == "either" else 0

    @property
    def may_begin(self) -> bool:
        return self._left > 0

    def follow(self, token_id: int) -> bool:
        """The answer's next token. Returns whether it belongs to the thoughts, as their tags do."""
        if self.are_on:
            self.are_on = token_id != self._close_id
            return True
        if self._left:
            self.are_on = token_id == self._open_id
            self._left = 0 if self.are_on else self._left - 1
        return self.are_on
