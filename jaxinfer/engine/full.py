"""What a sequence's rows carry beside their tokens, and what logprobs and embeddings add to its Outputs."""

import numpy as np

from jaxinfer.engine.logprobs import TokenLogprobs
from jaxinfer.engine.sequence import Output, Sequence
from jaxinfer.runtime.plan import History, Logprobs, Row


def dress_row(row: Row, sequence: Sequence) -> None:
    """Fill in what a row needs beside its tokens: history, bans, targets, what it pools.

    For those not `is_plain`, and the first of each slot.
    """
    controls, tokens = sequence.request.controls, sequence.known
    row.logprobs = sequence.request.logprobs is not None
    if row.sampling is not None and (row.sampling.controls is not None or sequence.structured is not None):
        prompt, output = tokens[: sequence.num_prompt], tokens[sequence.num_prompt :]
        row.history = History(prompt, output, sequence.end_ids)
    row.masked = row.sample and sequence.structured is not None
    if controls is not None and row.sample and controls.bans_by_context:
        row.bans = controls.bans_after(tokens, row.start + row.count)
    if sequence.needs_scores:
        row.targets = tokens[row.start + 1 : min(row.start + row.count + 1, sequence.num_prompt)]
    if sequence.is_pooled:
        is_last = row.start + row.count == len(sequence.tokens)
        row.num_pooled = row.count if sequence.request.pooling == "mean" else int(is_last)


class HostLogprobs:
    """The logprobs of many tokens as Python reads them: each array is converted once, not once for each token."""

    def __init__(self, found: Logprobs) -> None:
        self._values: list[float] = found.values.tolist()
        self._ranks: list[int] = found.ranks.tolist()
        self._ids = found.top_ids.astype(np.int32, copy=False).tobytes()
        self._top_values = found.top_values.astype(np.float32, copy=False).tobytes()
        self._width = 4 * found.top_ids.shape[1]

    def of(self, index: int, token_id: int, num_top: int) -> TokenLogprobs:
        """Those of token `index`, with the `num_top` most likely ones."""
        start = index * self._width
        end = start + 4 * num_top
        ids, values = self._ids[start:end], self._top_values[start:end]
        return TokenLogprobs(token_id, self._values[index], self._ranks[index], ids, values)


def read_scores(sequence: Sequence, row: Row, found: Logprobs) -> None:
    """Append the logprobs of the row's targets, but for those that an earlier computation has brought."""
    known = len(sequence.scores) - row.start
    wanted, read = sequence.request.prompt_logprobs or 0, HostLogprobs(found)
    sequence.scores += [read.of(i, row.targets[i], wanted) for i in range(known, len(row.targets))]


def note_token(output: Output, sequence: Sequence, found: HostLogprobs | None, index: int) -> None:
    """Add to an Output the logprobs of its token, row `index`'s, and once those of the prompt; and see whether
    min_tokens is reached with it."""
    if (wanted := sequence.request.logprobs) is not None:
        assert found is not None, "a row that wants logprobs got none"
        output.logprobs = [found.of(index, output.token_ids[0], wanted)]
    if sequence.num_to_score:
        output.prompt_logprobs, sequence.num_to_score, sequence.scores = sequence.scores, 0, []
    if sequence.may_end_at is not None and len(sequence.tokens) >= sequence.may_end_at:
        sequence.settle_controls()


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
