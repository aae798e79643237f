"""What the measurements of beside.py say: rates, ratios, shares of greedy's rate, times, refusals. Pure."""

import dataclasses
import itertools
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

from jaxinfer.bench.http_client import Outcome
from jaxinfer.bench.outcomes import first_tokens, mean_cached, output_rate, paces
from jaxinfer.bench.report import Table, Value, percentile

BASE = "greedy"  # the variant that shares are of

type Case = tuple[str, str]  # a shape and a variant


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One load of one server.

    number: of the round.    rate: output tokens per second, None when no request was answered.
    short: answers of another length than asked for.    said: why `errors` of the requests were not answered.
    """

    number: int
    server: str
    shape: str
    variant: str
    rate: float | None = None
    first_ms: float | None = None
    first_p99_ms: float | None = None
    per_token_ms: float | None = None
    cached_tokens: float | None = None
    errors: int = 0
    short: int = 0
    said: str = ""

    @property
    def case(self) -> Case:
        return self.shape, self.variant


def summary(about: Measurement, outcomes: Sequence[Outcome], output_tokens: int) -> Measurement:
    """The measurement with what its requests saw."""
    good = [one for one in outcomes if not one.error and one.times_s]
    failed = [one.error or "an answer without a piece" for one in outcomes if one.error or not one.times_s]
    said = f"{len(failed)} of {len(outcomes)} requests: {failed[0]}" if failed else ""
    if not good:
        return dataclasses.replace(about, errors=len(failed), said=said)
    firsts, pace = first_tokens(good), paces(good)
    return dataclasses.replace(
        about,
        rate=output_rate(good),
        first_ms=statistics.fmean(firsts) * 1e3,
        first_p99_ms=(percentile(firsts, 99) or 0.0) * 1e3,
        per_token_ms=statistics.fmean(pace) * 1e3 if pace else None,
        cached_tokens=mean_cached(good),
        errors=len(failed),
        short=sum(one.tokens != output_tokens for one in good),
        said=said,
    )


def rates(names: Sequence[str], measurements: Sequence[Measurement], checked: Mapping[Case, float] | None) -> Table:
    """A row for each case: each server's rate and share of greedy's, then the first one's rate by each other's."""
    columns = ["load, variant"]
    for name in names:
        columns += [f"{name} tok/s", f"{name} range", f"{name} of greedy"]
    for other in names[1:]:
        columns += [f"{names[0]} / {other}", f"{names[0]} / {other} range"]
    columns += ["client / fastest"] if checked is not None else []
    rows = []
    for case in dict.fromkeys(one.case for one in measurements):
        row: list[Value] = [", ".join(case)]
        for name in names:
            own = by_round(measurements, name, case)
            row += [median(own.values()), spread(own.values(), "{:,.0f}")]
            row += [median(ratios(own, by_round(measurements, name, (case[0], BASE))))]
        for other in names[1:]:
            pairs = ratios(by_round(measurements, names[0], case), by_round(measurements, other, case))
            row += [median(pairs), spread(pairs, "{:.3f}")]
        row += [checked.get(case)] if checked is not None else []
        rows.append((*row, refusals(measurements, case)))
    return Table("rates", (*columns, "refused"), rows)


def times(measurements: Sequence[Measurement]) -> Table:
    """A row for each case and server: medians over the rounds, counts of all rounds."""
    rows = []
    cases, servers = (
        dict.fromkeys(column) for column in zip(*((one.case, one.server) for one in measurements), strict=True)
    )
    for case, server in itertools.product(cases, servers):
        some = [one for one in measurements if (one.case, one.server) == (case, server)]
        if not some:  # of a run that ended early
            continue
        columns = ((one.first_ms, one.first_p99_ms, one.per_token_ms, one.cached_tokens) for one in some)
        medians = [median(value for value in column if value is not None) for column in zip(*columns, strict=True)]
        counts = sum(one.errors for one in some), sum(one.short for one in some)
        rows.append((", ".join((*case, server)), *medians, *counts))
    return Table("times", TIMES, rows)


TIMES = (
    "load, variant, server",
    "first token ms",
    "first token p99 ms",
    "ms a token",
    "cached_tokens of a prompt",
    "errors",
    "of another length",
)


def every(measurements: Sequence[Measurement]) -> Table:
    """All of them as they came."""
    columns = ("measurement", *(field.name for field in dataclasses.fields(Measurement)))
    return Table(
        "measurements", columns, [(place, *dataclasses.astuple(one)) for place, one in enumerate(measurements, 1)]
    )


def by_round(measurements: Sequence[Measurement], server: str, case: Case) -> dict[int, float]:
    """The mean rate of a case in each round that has any: greedy's are taken twice in a turn."""
    found: dict[int, list[float]] = {}
    for one in measurements:
        if one.rate and (one.server, one.case) == (server, case):
            found.setdefault(one.number, []).append(one.rate)
    return {number: statistics.fmean(some) for number, some in found.items()}


def ratios(some: Mapping[int, float], others: Mapping[int, float]) -> list[float]:
    """Of two rates of each round that has both."""
    return [rate / others[number] for number, rate in some.items() if number in others]


def median(values: Iterable[float]) -> float | None:
    return percentile(list(values), 50)


def spread(values: Collection[float], form: str) -> str | None:
    return f"{form.format(min(values))} to {form.format(max(values))}" if values else None


def refusals(measurements: Sequence[Measurement], case: Case) -> str:
    """What each server said to requests of a case that it did not answer, once."""
    said = dict.fromkeys(f"{one.server}: {one.said}" for one in measurements if one.said and one.case == case)
    return " ".join("; ".join(said).replace("|", r"\|").split())
