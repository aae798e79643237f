"""What an hour must not have changed, law by law, and the report that says so."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from statistics import median

from tests.soak.crowd import Tally
from tests.soak.sample import Sample
from tests.support.processes import Footprint

GROWTH, GROWTH_KIB = 0.01, 20 * 2**10
PACE = 1.05
SPARE = 2  # descriptors or threads more than before
DEADLY, FAILING = {"poison", "kill", "kill -9"}, {"run", "wait", "exhausted"}
EXPECTED = {"whole", "left", "HTTP 429 queue_full", "stranger: HTTP 404", "glutton: HTTP 400"}


@dataclasses.dataclass(frozen=True)
class Slice:
    """A sixtieth of the run: its samples, how its requests ended, and the fault that was sent at its begin."""

    samples: list[Sample]
    tally: Tally
    fault: str


@dataclasses.dataclass(frozen=True)
class Law:
    """One sentence of the verdict. name: for whoever needs one of them."""

    name: str
    text: str
    holds: bool


def memory_law(name: str, samples: Sequence[tuple[float, Footprint]], window_s: float) -> Law:
    """Median of a process' first window against that of its last. Expects (time, footprint) of one process."""
    first_s, last_s = samples[0][0], samples[-1][0]
    before = median(seen.kib for at_s, seen in samples if at_s < first_s + window_s)
    after = median(seen.kib for at_s, seen in samples if at_s > last_s - window_s)
    text = (
        f"{name} grew by {(after - before) / 1024:+.1f} MiB from {before / 1024:.1f} MiB "
        f"in {(last_s - first_s) / 60:.1f} minutes; at most 1 % or 20 MiB"
    )
    return Law("memory", text, after - before < max(GROWTH * before, GROWTH_KIB))


def flat_law(name: str, what: str, first: Sequence[int], last: Sequence[int]) -> Law:
    text = f"{name} had {median(first):g} {what} in the first sixth, {median(last):g} in the last; at most {SPARE} more"
    return Law(what, text, median(last) <= median(first) + SPARE)


def engine_laws(samples: Sequence[Sample], settle_s: float, window_s: float) -> list[Law]:
    """Each engine process is judged from when it is `settle_s` old; those that did not live for long are not."""
    seen = [(sample.at_s, sample.engine) for sample in samples if sample.engine is not None]
    text = f"{len(seen)} of {len(samples)} looks found an engine process; at least a tenth"
    laws = [Law("engines", text, 10 * len(seen) >= len(samples))]
    for pid, life in groupby(seen, lambda pair: pair[1].pid):
        lived = list(life)
        settled = [pair for pair in lived if pair[0] >= lived[0][0] + settle_s]
        if len(settled) < 2 or settled[-1][0] - settled[0][0] < 2 * window_s:
            continue
        laws.append(memory_law(f"engine process {pid}", settled, window_s))
        first = [each for at_s, each in settled if at_s < settled[0][0] + window_s]
        last = [each for at_s, each in settled if at_s > settled[-1][0] - window_s]
        laws.append(flat_law("it", "files", [each.files for each in first], [each.files for each in last]))
        laws.append(flat_law("it", "threads", [each.threads for each in first], [each.threads for each in last]))
    return laws


def pace_law(first: Sequence[Slice], last: Sequence[Slice]) -> Law:
    """The median of what came whole, if anything did; the control says how much of a change is the machine's."""

    def p50(slices: Sequence[Slice]) -> float:
        return median([seconds for each in slices for seconds in each.tally.seconds] or [math.nan])

    def control(slices: Sequence[Slice]) -> float:
        return median(sample.control_s for each in slices for sample in each.samples)

    change, machine = p50(last) / p50(first), control(last) / control(first)
    text = (
        f"the median answer took {p50(first) * 1000:.0f} ms in the first sixth, {p50(last) * 1000:.0f} ms in the last, "
        f"{change:.3f} times as long; at most {PACE}. The control took {machine:.3f} times as long"
    )
    return Law("pace", text, change <= PACE)


def laws_of(slices: Sequence[Slice]) -> list[Law]:
    """The verdict on a run in 60 slices but for what rest has to say."""
    samples = [sample for each in slices for sample in each.samples]
    sixth, length_s = len(slices) // 6, samples[-1].at_s
    settled = [(sample.at_s, sample.server) for sample in samples if sample.at_s >= length_s / 6]
    first, last = slices[:sixth], slices[-sixth:]

    def server(part: Sequence[Slice], of: Callable[[Footprint], int]) -> list[int]:
        return [of(sample.server) for each in part for sample in each.samples]

    labels = {sample.labels_bytes for each in slices[sixth:] for sample in each.samples}
    return [
        ends_law(slices),
        memory_law("the server", settled, length_s / 12),
        flat_law("the server", "files", server(first, lambda seen: seen.files), server(last, lambda seen: seen.files)),
        flat_law(
            "the server", "threads", server(first, lambda seen: seen.threads), server(last, lambda seen: seen.threads)
        ),
        *engine_laws(samples, length_s / 6, length_s / 24),
        Law("metrics", f"/metrics had {sorted(labels)} bytes without its values; one size", len(labels) == 1),
        pace_law(first, last),
    ]


def ends_law(slices: Sequence[Slice]) -> Law:
    """Nobody got an end that no fault explains: a row that is not finite costs its request, and nothing else does."""
    ends = sum((each.tally.ends for each in slices), Counter[str]())
    struck = sum(count for end, count in ends.items() if end.endswith(" non_finite"))
    strange = {end: count for end, count in ends.items() if end not in EXPECTED and not end.endswith(" non_finite")}
    num_faults = sum(each.fault == "nan" for each in slices)
    text = f"{struck} requests were lost to {num_faults} rows that were not finite, and beyond that {strange or 'none'}"
    return Law("ends", text, struck <= num_faults and not strange)


def struck_law(slices: Sequence[Slice], restarts: float, recoveries: float) -> Law:
    """The faults did come. What a killed engine counted last is lost, so recoveries may be fewer."""
    deadly = sum(each.fault in DEADLY for each in slices)
    failing = sum(each.fault in FAILING for each in slices)
    text = f"{deadly} engines were ended and {restarts:g} replaced, {failing} steps failed and {recoveries:g} recovered"
    return Law("struck", text, restarts == deadly and failing - deadly <= recoveries <= failing)


def rest_laws(rest: Mapping[str, tuple[float, float]]) -> list[Law]:
    """rest: what was found two seconds after the last request and what it must be at most, by name."""
    return [
        Law("rest", f"at rest {name} is {found:g}; at most {most:g}", found <= most)
        for name, (found, most) in rest.items()
    ]


def table(slices: Sequence[Slice]) -> list[str]:
    """A line a slice. Footprints are medians; an engine that was between two lives has none."""
    lines = [
        "| | whole | left | refused | p50 ms | control ms | load | server MiB, files, threads | engine | fault |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for number, each in enumerate(slices, 1):
        ends, seconds = each.tally.ends, each.tally.seconds
        control_ms = median(sample.control_s for sample in each.samples) * 1000
        engines = [sample.engine for sample in each.samples if sample.engine is not None]
        lines.append(
            f"| {number} | {ends['whole']} | {ends['left']} | {ends['HTTP 429 queue_full']} "
            f"| {median(seconds or [0]) * 1000:.0f} | {control_ms:.0f} | {each.samples[-1].load:.1f} "
            f"| {_shown([sample.server for sample in each.samples])} | {_shown(engines)} | {each.fault} |"
        )
    return lines


def _shown(seen: Sequence[Footprint]) -> str:
    if not seen:
        return ""
    kib, files, threads = (median(getattr(each, name) for each in seen) for name in ("kib", "files", "threads"))
    return f"{kib / 1024:.1f}, {files:g}, {threads:g}"
