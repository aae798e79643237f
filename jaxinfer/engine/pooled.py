"""Embeddings: what a sequence's rows pool, and what becomes of the sums."""

import numpy as np

from jaxinfer.engine.sequence import Output, Sequence
from jaxinfer.runtime.plan import Row


def num_pooled(sequence: Sequence, row: Row) -> int:
    """How many of a row's last positions belong to the embedding."""
    if sequence.request.pooling == "mean":
        return row.count
    return int(row.start + row.count == len(sequence.tokens))


def read_pooled(sequence: Sequence, row: Row, found: np.ndarray) -> Output | None:
    """Add a row's sum, f32[D]; the sequence's only Output once its prompt is whole."""
    total = sequence.pooled = found if sequence.pooled is None else sequence.pooled + found
    if row.start + row.count < len(sequence.tokens):
        return None
    if sequence.request.pooling == "mean":
        total = total / np.float32(len(sequence.tokens))
    output = Output(sequence.request.id, 0, [], "stop", cached_tokens=sequence.cached_tokens)
    output.embedding, output.times = total.astype("<f4").tobytes(), sequence.new_times()
    return output
