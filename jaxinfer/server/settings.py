"""What the server may do per request; every limit is checked before it can cost anything."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """max_body_bytes: of one request's body.    ping_interval_s: silence in a stream before a comment line is sent.
    serve_early: take requests when the smallest set of steps is compiled, not only when all of it is.
    starting_retry_s, draining_retry_s, overloaded_retry_s: the Retry-After of a 503 or 429 that brings none itself.
    """

    max_body_bytes: int = 16 * 2**20
    ping_interval_s: float = 15.0
    serve_early: bool = False
    starting_retry_s: float = 5.0
    draining_retry_s: float = 5.0
    overloaded_retry_s: float = 1.0
