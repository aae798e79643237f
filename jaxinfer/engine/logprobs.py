"""Logprobs of one token, as they travel from the engine to the text side. No jax."""

import msgspec


class TokenLogprobs(msgspec.Struct, gc=False, array_like=True):
    """Of one token, under the model alone. rank: 1 is the most likely.    top_*: the most likely tokens, falling.

    raw_ids, raw_logprobs: i32[K] and f32[K] of the most likely tokens. Little-endian; they stay bytes
    until an answer is written.
    """

    token_id: int
    logprob: float
    rank: int
    raw_ids: bytes
    raw_logprobs: bytes
