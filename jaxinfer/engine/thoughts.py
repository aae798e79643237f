"""Thoughts that are as long as they may be."""

from jaxinfer.engine.sequence import Output, Sequence


def take_token(sequence: Sequence, token: int) -> int:
    """Commit what its row drew, or the end of thoughts that the prompt has begun and that may have no token."""
    limit = sequence.request.thoughts
    if limit is not None and len(sequence.tokens) == sequence.close_at:
        token = limit.close_id
        sequence.stop_decoding()  # the next row computes it: the device has drawn another
    sequence.append(token)
    return token


def close_thoughts(sequence: Sequence, output: Output, token: int) -> bool:
    """End thoughts that are as long as they may be, by a token that nobody drew: the next row computes it."""
    limit, length = sequence.request.thoughts, len(sequence.tokens)
    sequence.follow_thoughts(token, length)
    if limit is None or length != sequence.close_at or length == sequence.max_length or token in sequence.end_ids:
        return False
    sequence.append(limit.close_id)
    sequence.follow_thoughts(limit.close_id, length + 1)
    output.token_ids.append(limit.close_id)
    sequence.stop_decoding()
    return True
