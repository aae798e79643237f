"""What a sequence's rows carry beside their tokens, and what its logprobs add to its Outputs."""

from jaxinfer.engine.pooled import num_pooled
from jaxinfer.engine.sequence import Output, Sequence, TokenLogprobs
from jaxinfer.runtime.plan import History, Logprobs, Row, StepResult


def dress_row(row: Row, sequence: Sequence) -> None:
    """Fill in what a row needs beside its tokens: history, bans, targets, what it pools. For those not `is_plain`."""
    controls, tokens = sequence.request.controls, sequence.known
    row.logprobs = sequence.request.logprobs is not None
    if row.sampling is not None and (controls is not None or sequence.structured is not None):
        prompt, output = tokens[: sequence.num_prompt], tokens[sequence.num_prompt :]
        row.history = History(prompt, output, sequence.end_ids)
    row.masked = row.sample and sequence.structured is not None
    if controls is not None and row.sample and controls.bans_by_context:
        row.bans = controls.bans_after(tokens, row.start + row.count)
    if sequence.needs_scores:
        row.targets = tokens[row.start + 1 : min(row.start + row.count + 1, sequence.num_prompt)]
    if sequence.is_pooled:
        row.num_pooled = num_pooled(sequence, row)


def read_scores(sequence: Sequence, row: Row, found: Logprobs) -> None:
    """Append the logprobs of the row's targets, but for those that an earlier computation has brought."""
    known = len(sequence.scores) - row.start
    wanted = sequence.request.prompt_logprobs or 0
    sequence.scores += [_one(found, i, row.targets[i], wanted) for i in range(known, len(row.targets))]


def read_logprobs(output: Output, sequence: Sequence, result: StepResult, index: int) -> None:
    """Add to an Output the logprobs of its token, row `index`'s, and once those of the prompt."""
    if sequence.request.logprobs is not None:
        assert result.logprobs is not None, "a row that wants logprobs got none"
        output.logprobs = [_one(result.logprobs, index, output.token_ids[0], sequence.request.logprobs)]
    if sequence.num_to_score:
        output.prompt_logprobs, sequence.num_to_score, sequence.scores = sequence.scores, 0, []


def _one(found: Logprobs, index: int, token_id: int, num_top: int) -> TokenLogprobs:
    ids, values = found.top_ids[index, :num_top].tolist(), found.top_values[index, :num_top].tolist()
    return TokenLogprobs(token_id, float(found.values[index]), int(found.ranks[index]), ids, values)
