"""Histogram: how many values fell into which range, as Prometheus has it."""

import dataclasses
from bisect import bisect_left


@dataclasses.dataclass(slots=True)
class Histogram:
    """counts[i]: values of at most bounds[i] and above the bound before it; the last: above all.    total: their sum.

    One thread adds; another that reads meanwhile may see a value in one of the two and not yet in the other.
    """

    bounds: tuple[float, ...]
    counts: list[int] = dataclasses.field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def plus(self, other: "Histogram") -> "Histogram":
        """Both together; they must have the same bounds."""
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.bounds, counts, self.total + other.total)
