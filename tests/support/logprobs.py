"""Logprobs of one token as an answer has them."""

import struct
from collections.abc import Sequence

from jaxinfer.protocol.logprobs import TokenLogprob


def token_logprob(
    token_id: int, token: bytes, logprob: float | None, rank: int | None, top: Sequence[tuple[int, bytes, float]] = ()
) -> TokenLogprob:
    """top: the id, the bytes and the logprob of each of the most likely tokens."""
    ids, tokens, logprobs = zip(*top, strict=True) if top else ((), (), ())
    raw = struct.pack(f"<{len(top)}i", *ids), struct.pack(f"<{len(top)}f", *logprobs)
    return TokenLogprob(token_id, token, logprob, rank, *raw, dict(zip(ids, tokens, strict=True)).__getitem__)
