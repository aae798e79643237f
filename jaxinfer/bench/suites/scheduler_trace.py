"""mini-infer's scheduler trace: 50 requests in a pool of 24 pages under several policies, by steps of a mock device.

No model, no card and no clock take part, so its published rows stand beside ours. Source: benchmarks/
benchmark_scheduler_trace.py and the notes on its scheduler's policies in a fork of github.com/psmarter/mini-infer.
"""

import dataclasses
import random
import statistics
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Table, Value, percentile
from jaxinfer.config import Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.mock import MockRunner
from jaxinfer.engine.sequence import Add, Output, Request
from jaxinfer.errors import EngineError

SEED, REQUESTS, MOST_STEPS_BETWEEN = 7, 50, 2
PAGES, PAGE_SIZE, SEQS = 24, 16, 8
CLASSES = (  # the share of requests up to here, tokens of a prompt, tokens of an answer
    (0.70, (4, 16), (4, 16)),
    (0.95, (32, 96), (16, 32)),
    (1.00, (128, 256), (16, 64)),
)
URGENT, HIGH, NORMAL = 0, 1, 3
LATE_FIRST, LATE_WHOLE = 16, 64  # steps that mini-infer calls too late
VOCAB_SIZE = 1000
COLUMNS = (
    "policy",
    "answered",
    "steps",
    "tokens a step, as mini-infer counts",
    "tokens a step, all",
    *("first token mean steps", "first token p95 steps", "of the urgent p95 steps", f"first token over {LATE_FIRST} %"),
    *("whole request p95 steps", f"whole request over {LATE_WHOLE} %"),
    "first token p95, tokens computed meanwhile",
    "tokens computed",
    "largest step",
    "preemptions",
    "pages in use at most %",
)
PUBLISHED = {  # answered, steps, tokens a step, first token p95, late %, whole p95, late %, preemptions
    "baseline": (41, 72, 6.56, 26, 11, 33, 0, 0),
    "reserve_only": (50, 155, 3.95, 75, 22, 81, 14, 0),
    "pressure_aware": (50, 125, 4.90, 30, 22, 50, 4, 2),
    "adaptive": (50, 125, 4.90, 30, 22, 50, 4, 2),
    "slo_aware": (50, 117, 5.24, 17, 8, 43, 2, 1),
}
NOTE = (
    f"Scheduler trace: mini-infer's own {REQUESTS} requests (seed {SEED}) in {PAGES} pages of {PAGE_SIZE} tokens and "
    f"{SEQS} places, on a mock device; --shrink leaves it alone. Its rows are as it published them: its baseline ran "
    "out of pages with 9 requests unanswered, which its percentiles leave out; ours preempts and answers all. To it a "
    "step that reads a prompt of 256 tokens is a step like one of a single token, so the tokens computed meanwhile and "
    "the largest step stand beside; and it leaves the first token of every answer out of its rate."
)


@dataclasses.dataclass(frozen=True)
class Arrival:
    """A request of the trace. step: that it comes before, at the earliest."""

    step: int
    prompt: int
    output: int
    priority: int


@dataclasses.dataclass(frozen=True)
class Policy:
    """How our scheduler is told to go about it. limits: what differs from LIMITS.

    by_priority: the requests' own are sent.    yields: normal requests are `bulk`, and give up places to others.
    """

    name: str
    limits: dict[str, Any] = dataclasses.field(default_factory=dict)
    by_priority: bool = False
    yields: bool = False


LIMITS = Limits(
    max_model_len=CLASSES[-1][1][1] + CLASSES[-1][2][1],
    max_num_seqs=SEQS,
    max_num_batched_tokens=512,
    page_size=PAGE_SIZE,
    num_pages=PAGES + 1,
    vocab_size=VOCAB_SIZE,
    decode_buckets=(),
    extend_buckets=(),
    run_ahead=0,  # so that a step is one step
)
POLICIES = (
    Policy("as they come"),
    Policy("by priority", by_priority=True),
    Policy("by priority, normal ones yield", by_priority=True, yields=True),
    Policy("at most 32 tokens a step", {"max_num_batched_tokens": 32}),
    Policy("no prefix cache", {"enable_prefix_caching": False}),
    Policy("static batches", {"scheduling": "static"}),
    Policy("contiguous, longest reserved", {"kv_layout": "contiguous", "enable_prefix_caching": False}),
)


@dataclasses.dataclass
class Seen:
    """What one request saw, in steps of the clock and in tokens computed. came, first: both."""

    came: tuple[int, int]
    first: tuple[int, int] = (0, 0)
    ended: int = 0
    tokens: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Followed:
    """A trace's end: its requests in order, and what its steps added up to."""

    seen: Sequence[Seen]
    steps: int
    computed_tokens: int
    largest_step: int
    preemptions: int
    most_pages: int

    def first_steps(self) -> list[int]:
        return [one.first[0] - one.came[0] + 1 for one in self.seen]

    def whole_steps(self) -> list[int]:
        return [one.ended - one.came[0] + 1 for one in self.seen]

    def first_computed(self) -> list[int]:
        return [one.first[1] - one.came[1] for one in self.seen]


def trace() -> list[Arrival]:
    """The same requests each time."""
    draw, step, found = random.Random(SEED), 0, []
    for _ in range(REQUESTS):
        step += draw.randint(0, MOST_STEPS_BETWEEN)
        share = draw.random()
        prompt, output = next((draw.randint(*p), draw.randint(*o)) for most, p, o in CLASSES if share < most)
        urgency = draw.random()
        priority = URGENT if urgency < 0.05 else HIGH if urgency < 0.20 else NORMAL
        found.append(Arrival(step, prompt, output, priority))
    return found


def table() -> Table:
    arrivals = trace()
    rows = [row(policy.name, arrivals, follow(arrivals, policy)) for policy in POLICIES]
    return Table("scheduler trace", COLUMNS, [*rows, *published()])


def published() -> Iterator[tuple[Value, ...]]:
    for name, (answered, steps, rate, first, late, whole, long, preemptions) in PUBLISHED.items():
        told = (answered, steps, rate, None, None, first, None, late, whole, long, None, None, None, preemptions, None)
        yield f"mini-infer's {name}", *told


def follow(arrivals: Sequence[Arrival], policy: Policy) -> Followed:
    """Run the trace to its end. Raises EngineError when a request is not answered."""
    limits = dataclasses.replace(LIMITS, **policy.limits)
    engine = Engine(MockRunner(limits, range(VOCAB_SIZE)), limits)
    prompts = Prompts(VOCAB_SIZE, SEED)
    requests = [request_of(index, one, prompts.one(one.prompt), policy) for index, one in enumerate(arrivals)]
    waiting, seen = deque(zip(arrivals, requests, strict=True)), list[Seen]()
    clock = computed = largest = most_pages = 0
    while waiting or engine.has_work:
        if not engine.has_work:
            clock = max(clock, waiting[0][0].step)
        while waiting and waiting[0][0].step <= clock:
            engine.inbox.put(Add(waiting.popleft()[1]))
            seen.append(Seen((clock, computed)))
        outputs, before, computed = engine.step(), computed, engine.scheduler.counters.computed_tokens
        for output in outputs:
            note(seen[int(output.request_id)], output, clock, computed)
        clock += 1
        largest = max(largest, computed - before)
        most_pages = max(most_pages, engine.scheduler.cache.pool.num_total - engine.scheduler.cache.pool.num_available)
    return Followed(seen, clock, computed, largest, engine.scheduler.counters.preemptions, most_pages)


def request_of(index: int, one: Arrival, prompt: Sequence[int], policy: Policy) -> Request:
    priority = one.priority if policy.by_priority else 0
    bulk = policy.yields and one.priority == NORMAL
    return Request(str(index), array("I", prompt), one.output, priority=priority, bulk=bulk)


def note(one: Seen, output: Output, clock: int, computed: int) -> None:
    if output.error is not None:
        raise EngineError(f"every request of the scheduler trace must be answered, one was not: {output.error}")
    if output.token_ids and not one.tokens:
        one.first = clock, computed
    one.tokens += output.token_ids
    one.ended = clock


def row(name: str, arrivals: Sequence[Arrival], found: Followed) -> tuple[Value, ...]:
    """Of COLUMNS."""
    first, whole = found.first_steps(), found.whole_steps()
    urgent = [steps for steps, one in zip(first, arrivals, strict=True) if one.priority < NORMAL]
    answered = [one for one in found.seen if one.ended]
    tokens = sum(len(one.tokens) for one in found.seen)
    rates = (tokens - len(answered)) / found.steps, tokens / found.steps
    firsts = statistics.fmean(first), percentile(first, 95), percentile(urgent, 95), late(first, LATE_FIRST)
    wholes = percentile(whole, 95), late(whole, LATE_WHOLE)
    work = percentile(found.first_computed(), 95), found.computed_tokens, found.largest_step, found.preemptions
    return (name, len(answered), found.steps, *rates, *firsts, *wholes, *work, 100 * found.most_pages / PAGES)


def late(steps: Sequence[int], most: int) -> float:
    """Per cent of them that took more."""
    return 100 * sum(count > most for count in steps) / len(steps)
