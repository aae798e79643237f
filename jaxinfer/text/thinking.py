"""Where a model's thinking begins and ends: two tokens, and what the prompt's end says of them."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from jaxinfer.text.control import TAG
from jaxinfer.text.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
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
