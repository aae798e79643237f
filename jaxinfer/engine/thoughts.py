"""Thoughts that are as long as they may be."""

from jaxinfer.engine.sequence import Output, Sequence


def close_thoughts(sequence: Sequence, output: Output, token: int) -> bool:
    """End thoughts that are as long as they may be, by a token that nobody drew: the next row computes it."""
    limit, length = sequence.request.thoughts, len(sequence.tokens)
    sequence.follow_thoughts(token, length)
    if limit is None or length != sequence.close_at or length == sequence.max_length or token in sequence.end_ids:
        return False
    sequence.append(limit.close_id)
    output.token_ids.append(limit.close_id)
    sequence.close_at, sequence.decoding = None, False
    return True
