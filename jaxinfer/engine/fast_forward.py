"""Fast-forward: tokens that a grammar forces come to an answer without a step of their own.

Where a mask leaves one token, llguidance says which others must follow it. The row in flight draws the first; all of
them are in the next step, in one row that computes them as a prompt's are computed and draws what comes after. Each is
the token that would have been drawn, at the position at which it would have been: the answer is the same.
"""

from typing import TYPE_CHECKING

import numpy as np

from jaxinfer.engine.sequence import MAX_TEXT_LAG, Output, Sequence
from jaxinfer.runtime.mask_table import ANY

if TYPE_CHECKING:
    from jaxinfer.engine.scheduler import Step

MIN_FORCED = 2  # the first is drawn anyway


def look_ahead(step: "Step", rows: np.ndarray, only_one: np.ndarray) -> None:
    """Of the step that has just been told to draw by masks: which of its rows' sequences have tokens forced.

    rows, only_one: as in runtime.mask_table, of its Masks and its MaskTable.
    """
    may = (only_one[rows] & (rows != ANY)).nonzero()[0]
    if not len(may):
        return
    masked = [sequence for sequence, row in zip(step.sequences, step.plan.rows, strict=True) if row.masked]
    found = []
    for sequence in [masked[i] for i in may.tolist()]:
        forced = [] if sequence.has_ended else _forced(sequence)
        if len(forced) >= MIN_FORCED:
            found.append((sequence, forced))
    if sum(len(forced) - 1 for _, forced in found) < least_saved(len(step.plan.rows)):
        return
    for sequence, forced in found:
        sequence.forced = forced
        sequence.stop_decoding()


def least_saved(num_rows: int) -> float:
    """Draws that forced tokens must save a step of so many rows, which takes longer with them (decision 0015)."""
    return num_rows / 2 + min(num_rows, 4)


def _forced(sequence: Sequence) -> list[int]:
    """The tokens that the grammar forces, but for what has to be drawn as ever: one that ends the answer, the last
    before the limit of length, one that its text state must see first."""
    structured, length = sequence.structured, len(sequence.tokens)
    if structured is None or not structured.may_forward:
        return []
    most = sequence.max_length - 1 - length
    if sequence.request.text_lag:  # the token after them comes without being asked for
        most = min(most, MAX_TEXT_LAG - 1 - (length - sequence.num_prompt - sequence.acknowledged))
    tokens = structured.grammar.forced()[: max(0, most)]
    return tokens[: next((i for i, token in enumerate(tokens) if token in sequence.end_ids), len(tokens))]


def append_forced(sequence: Sequence, output: Output) -> int:
    """After the first of them has been committed, the others. Returns how many."""
    others, sequence.forced = sequence.forced[1:], []
    for token in others:
        sequence.append(token, is_forced=True)
    output.token_ids += others
    return len(others)
