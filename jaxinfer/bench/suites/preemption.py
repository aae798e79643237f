"""What it costs to take a running sequence's place and give it back: mini-infer's swap out and in, our three ways.

A sequence runs alone in the only place; a more urgent one of a single token takes it; then the first goes on. Source:
benchmarks/benchmark_preemption.py of github.com/psmarter/mini-infer: 32, 256 and 512 tokens, 50 trials.
"""

import dataclasses
import time
from array import array
from statistics import median, median_low

from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Table, Value
from jaxinfer.bench.steps import Timed
from jaxinfer.bench.suites.job import SuiteJob
from jaxinfer.config import Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.scheduler import Step
from jaxinfer.engine.sequence import Add, Output, Request
from jaxinfer.errors import EngineError

TOKENS, TRIALS = (32, 256, 512), 50
BEFORE, AFTER = 8, 8  # tokens of the answer until its place is taken, and at least so many once it is given back
FEW = 4  # tokens of an urgent prompt that need not take every page
COLUMNS = (
    "tokens, how they come back",
    "goes on after p50 ms",
    "of which a step p50 ms",
    "cost p50 ms",
    "tokens computed again",
    "of matmul %",
    "pages from host memory",
    "MB/s as mini-infer counts",
)
NOTE = (
    "Preemption: a sequence that is so long loses its place to an urgent one of a single token; the time is from that "
    "token to its own next one, and its cost what is more than a step. mini-infer times its copies alone, out and in; "
    "its MB/s are here of all its keys and values over the whole time, however they came back. On the device: nobody "
    "took its pages. From host memory: the urgent one took all of them, and full pages alone are saved."
)


@dataclasses.dataclass(frozen=True)
class Way:
    """How a preempted sequence's keys and values come back."""

    name: str
    caching: bool = True
    on_host: bool = False


WAYS = (Way("computed again", caching=False), Way("found on the device"), Way("from host memory", on_host=True))


@dataclasses.dataclass(frozen=True)
class PreemptionTrial:
    """resumed_s: from the urgent token to the next of its own.    step_s: between two tokens where nobody disturbs."""

    resumed_s: float
    step_s: float
    computed_tokens: int
    loaded_pages: int


def table(job: SuiteJob, timed: Timed) -> Table:
    rows: list[tuple[Value, ...]] = []
    for tokens in dict.fromkeys(max(BEFORE + 1, job.tokens(count)) for count in TOKENS):
        for way in WAYS:
            name = f"{tokens}, {way.name}"
            limits = limits_for(way, timed.core.limits, tokens)
            if limits is None:
                rows.append((name, *([None] * (len(COLUMNS) - 1))))
                continue
            tries = trials(job, timed, limits, way, tokens)
            rows.append((name, *figures(job, way, tokens, tries)))
            job.say(f"{name}: goes on after {rows[-1][1]:,.5g} ms")
    return Table("preemption", COLUMNS, rows)


def limits_for(way: Way, limits: Limits, tokens: int) -> Limits | None:
    """One place, and for the host a pool that the urgent prompt fills; None where there is no such memory, or room."""
    found = dataclasses.replace(
        limits, scheduling="continuous", kv_layout="paged", max_num_seqs=1, enable_prefix_caching=way.caching
    )
    size, longest = limits.page_size, tokens + AFTER
    if longest > limits.max_model_len:
        return None
    if not way.on_host:
        return found
    pages = max(2, -(-longest // size))
    if not limits.num_host_pages or pages * size > limits.max_model_len or pages >= limits.num_pages:
        return None
    chunk = min(limits.max_num_batched_tokens, (pages - 1) * size)  # its first chunk must leave the watermark's page
    return dataclasses.replace(found, num_pages=1 + pages, max_num_batched_tokens=chunk, enable_chunked_prefill=True)


def trials(job: SuiteJob, timed: Timed, limits: Limits, way: Way, tokens: int) -> list[PreemptionTrial]:
    """Each with prompts of its own, after one that is not counted."""
    engine = Engine(timed.core.runner, limits, timed.core.grammars)
    prompts = Prompts(job.vocab_size, (job.config.seed, tokens))
    urgent_tokens = limits.cache_tokens if way.on_host else FEW
    count = 1 + max(job.runs, TRIALS // job.shrink)
    return [trial(engine, prompts, tokens, urgent_tokens, way.on_host) for _ in range(count)][1:]


def trial(engine: Engine, prompts: Prompts, tokens: int, urgent_tokens: int, is_session: bool) -> PreemptionTrial:
    """Raises EngineError when a request is not answered."""
    prompt = array("I", prompts.one(tokens - BEFORE))
    engine.inbox.put(Add(Request("long", prompt, BEFORE + AFTER, priority=1, bulk=True, session=is_session)))
    times, urgent_s, again = list[float](), 0.0, 0
    counters = engine.scheduler.counters
    preempted, loaded = counters.preemptions, counters.pages_loaded
    while len(times) < BEFORE:
        times += [time.perf_counter() for output in engine.step() if drawn(output)]
    engine.inbox.put(Add(Request("urgent", array("I", prompts.one(urgent_tokens)), 1)))

    def note(step: Step) -> None:
        nonlocal again
        again += sum(row.count for row in step.plan.rows if urgent_s and row.tokens is not None)

    engine.on_step = note
    while engine.has_work:
        for output in engine.step():
            if drawn(output) and output.request_id == "urgent":
                urgent_s = time.perf_counter()
            elif drawn(output):
                times.append(time.perf_counter())
    engine.on_step = None
    assert counters.preemptions == preempted + 1, "an urgent sequence takes the only place"
    resumed_s = min(at_s for at_s in times if at_s > urgent_s) - urgent_s
    gaps = [late - early for early, late in zip(times, times[1:], strict=False) if late < urgent_s or early > urgent_s]
    return PreemptionTrial(resumed_s, median(gaps), again, counters.pages_loaded - loaded)


def drawn(output: Output) -> bool:
    """Whether it brings a token."""
    if output.error is not None:
        raise EngineError(f"every request of a suite must be answered, one was not: {output.error}")
    return bool(output.token_ids)


def figures(job: SuiteJob, way: Way, tokens: int, tries: list[PreemptionTrial]) -> tuple[Value, ...]:
    """Of COLUMNS but the name."""
    resumed_s, step_s = median(t.resumed_s for t in tries), median(t.step_s for t in tries)
    again, loaded = (
        median_low(counts) for counts in zip(*((t.computed_tokens, t.loaded_pages) for t in tries), strict=True)
    )
    share = None if way.caching else 100 * job.work.prefill_flops(1, tokens) / resumed_s / job.limits.flops
    rate = job.work.layout.read_bytes(tokens) / resumed_s / 1e6
    return resumed_s * 1e3, step_s * 1e3, (resumed_s - step_s) * 1e3, again, share, loaded, rate
