"""What the outcomes of requests say: rates, times to the first token, gaps, all in seconds. No jax."""

import itertools
from collections import defaultdict
from collections.abc import Sequence

from jaxinfer.bench.http_client import Outcome


def ttft_s(outcome: Outcome) -> float:
    return outcome.times_s[0] - outcome.sent_s


def per_token_s(outcome: Outcome) -> float | None:
    spread = outcome.times_s[-1] - outcome.times_s[0]
    return spread / (outcome.tokens - 1) if outcome.tokens > 1 else None


def gaps_s(outcome: Outcome) -> list[float]:
    return [late - early for early, late in zip(outcome.times_s, outcome.times_s[1:], strict=False)]


def whole_s(outcome: Outcome) -> float:
    return outcome.times_s[-1] - outcome.sent_s


def first_tokens(outcomes: Sequence[Outcome]) -> list[float]:
    return [ttft_s(one) for one in outcomes]


def gaps(outcomes: Sequence[Outcome]) -> list[float]:
    """Of all streams."""
    return [gap for one in outcomes for gap in gaps_s(one)]


def paces(outcomes: Sequence[Outcome]) -> list[float]:
    """Seconds per token of those requests that had more than one."""
    return [pace for one in outcomes if (pace := per_token_s(one)) is not None]


def wholes(outcomes: Sequence[Outcome]) -> list[float]:
    return [whole_s(one) for one in outcomes]


def mean_cached(outcomes: Sequence[Outcome]) -> float | None:
    """Tokens of a prompt that were found in the prefix cache; None where no server says so."""
    counts = [one.cached_tokens for one in outcomes if one.cached_tokens is not None]
    return sum(counts) / len(counts) if counts else None


def output_rate(outcomes: Sequence[Outcome]) -> float:
    """Tokens per second from the first request to the last piece."""
    return sum(outcome.tokens for outcome in outcomes) / duration_s(outcomes)


def duration_s(outcomes: Sequence[Outcome]) -> float:
    return max(one.times_s[-1] for one in outcomes) - min(one.sent_s for one in outcomes)


def most_at_once(outcomes: Sequence[Outcome]) -> int:
    """Requests under way, from sent to their last piece, where they were most."""
    changes = sorted([(one.sent_s, 1) for one in outcomes] + [(one.times_s[-1], -1) for one in outcomes])
    return max(itertools.accumulate(change for _, change in changes))


def most_in_a_second(outcomes: Sequence[Outcome]) -> float:
    """Tokens that came in one of the seconds since the first request, where they were most."""
    began = min(one.sent_s for one in outcomes)
    seconds: dict[int, float] = defaultdict(float)
    for one in outcomes:
        for at_s in one.times_s:
            seconds[int(at_s - began)] += one.tokens / len(one.times_s)
    return max(seconds.values())


def longest_gap_s(one: Outcome, others: Sequence[Outcome]) -> float:
    """The longest gap of other streams that lay, in part at least, between a prompt and its first token."""
    until_s = one.times_s[0] if one.times_s else one.sent_s
    longest = 0.0
    for outcome in others:
        for early, late in zip(outcome.times_s, outcome.times_s[1:], strict=False):
            if early < until_s and late > one.sent_s:
                longest = max(longest, late - early)
    return longest
