"""What the host hands the device for one step, and what comes back. No jax here: the scheduler builds these.

A plan is a list of rows; a row brings one sequence `count` tokens further. A row without tokens is a decode row: its
token and position live on the device, under its slot.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """How one sequence's tokens are drawn; every value concrete and in range.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off.
    seed: any 64-bit pattern, as 0 <= seed < 2**64. sample_index: which of the request's n choices this is.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    sample_index: int = 0


@dataclasses.dataclass(slots=True)
class Row:
    """One sequence's share of a step: positions start .. start + count - 1.

    slot: its row of the device state, 1 <= slot <= max_num_seqs (slot 0 belongs to padding).
    tokens: the `count` token ids, or None for a decode row (count is 1; the device knows the token and its position).
    sample: whether a token is drawn after the last position; False for a chunk that does not end its sequence.
    new_pages: (index in the sequence's page table, page id) of each page first used by this step or, on the first row
      after admission, of every page the sequence owns, cached ones included.
    sampling: set on the first row after admission, which (re)writes the slot's sampling state; None afterwards.
    """

    slot: int
    start: int
    count: int
    tokens: Sequence[int] | None = None
    sample: bool = True
    new_pages: Sequence[tuple[int, int]] = ()
    sampling: Sampling | None = None


@dataclasses.dataclass(slots=True)
class Plan:
    """One step: at least one row, at most one row per slot."""

    rows: list[Row]

    @property
    def num_tokens(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def is_decode(self) -> bool:
        return all(row.tokens is None for row in self.rows)


@dataclasses.dataclass(slots=True)
class StepResult:
    """What a step drew, by row of its plan: tokens i32[rows], finite bool[rows].

    `tokens[i]` means nothing where row i did not sample. `finite[i]` is False when the row's last hidden state held a
    NaN or an infinity: its token must not be used.
    """

    tokens: np.ndarray
    finite: np.ndarray


class Pending(Protocol):
    """A step under way on the device."""

    def wait(self) -> StepResult:
        """Block until the step's results are on the host."""


class Runner(Protocol):
    """The device side as the engine sees it. Steps run in the order they were given."""

    def run(self, plan: Plan) -> Pending:
        """Dispatch one step without waiting for it."""

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        """Overwrite these pages' keys and values with zeros, after every step already dispatched."""

    def reset(self) -> None:
        """Drop the device state and allocate it anew; every page and slot loses its content."""
