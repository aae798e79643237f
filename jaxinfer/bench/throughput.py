"""How many tokens per second one generate call makes over many requests: all of them are there at the beginning."""

import time
from collections.abc import Callable, Iterator

from jaxinfer.bench import machine
from jaxinfer.bench.latency import Say, generate
from jaxinfer.bench.machine import MachineLimits
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Report, Table, Value
from jaxinfer.bench.steps import StepLog, Timed
from jaxinfer.bench.work import ModelWork, check_context, work_of
from jaxinfer.config import Resolved, counted
from jaxinfer.llm.events import Event, OnEvent, ignore

COLUMNS = (
    "requests x (in, out)",
    "seconds",
    "output tok/s",
    "total tok/s",
    "requests/s",
    "of the serial roof %",
    "steps",
    "tokens a step",
    "host us a step",
    "preemptions",
    "cached_tokens",
)

type Load = tuple[int, int, int]  # requests, prompt tokens, output tokens

LARGEST: tuple[Load, ...] = ((512, 512, 256), (256, 1024, 128))  # of the loads that are sized to a model
SHORTEST = 8  # the first call has prompts and answers of this share of a load's lengths, the next of twice the lengths
GROWTH, ENOUGH_S = 4, 2.5  # a load of which a call takes less grows by so much: the last call takes about 10 s at most
EVERY_S = 0.25  # between two signs of progress


def run(resolved: Resolved, loads: list[Load] | None, tries: int, on_event: OnEvent, say: Say) -> Report:
    """Start the model and run every load `tries` times; the best counts. None: LARGEST, sized to the model."""
    config = resolved.config
    work = work_of(config)
    for _, prompt, output in loads or ():
        check_context(prompt + output, work.context)
    limits = machine.measure_limits(config.device, on_event)
    with Timed.start(config, on_event) as timed:
        rows, reasons = [], []
        for load, reason in ((load, "") for load in loads) if loads else sized(timed, on_event):
            reasons.append(reason)
            if reason:
                say(f"sized    {reason}")
            rows.append(measure(timed, load, tries, work, limits, on_event))
            say(f"{rows[-1][0]}: {rows[-1][2]:,.0f} output tok/s")
        compiles = timed.core.stats().compiles_after_ready
    facts = [*machine.facts(limits, resolved), ("compiles after ready", str(compiles))]
    notes = [f"Sized to this model and machine: {reason}. --loads gives others." for reason in reasons if reason]
    tables = [Table("offline", COLUMNS, rows)]
    return Report("jaxinfer bench throughput", facts, tables, (*NOTES, *notes), details=timed.facts)


def sized(timed: Timed, on_event: OnEvent) -> Iterator[tuple[Load, str]]:
    """Each of LARGEST, cut to what this model and machine do in some seconds, and why it was cut so.

    At least max_num_seqs requests, or the rate is not of a full batch: lengths grow to their own before requests do.
    """
    for most, prompt, output in LARGEST:
        while prompt + output > timed.core.limits.max_model_len:
            prompt, output = max(1, prompt // 2), max(1, output // 2)
        requests = least = min(most, timed.core.limits.max_num_seqs)
        share = SHORTEST
        while True:
            load = requests, max(1, prompt // share), max(1, output // share)
            seconds = try_load(timed, load, on_event)
            if seconds > ENOUGH_S or (requests, share) == (most, 1):
                break
            requests, share = (requests, share // 2) if share > 1 else (min(most, GROWTH * requests), 1)
        enough = f", {ENOUGH_S} s are enough" if seconds > ENOUGH_S else ""
        floor = f"; {least} requests, which max_num_seqs computes together, are the least" if requests == least else ""
        yield load, f"{named(load)}, as a call took {seconds:.1f} s{enough}{floor}"


def try_load(timed: Timed, load: Load, on_event: OnEvent) -> float:
    """How many seconds one call takes."""
    requests, prompt, output = load
    llm, log = timed.llm(prefix_caching=False)
    prompts = Prompts(llm.info.vocab_size, (timed.config.seed, requests, prompt))
    detail = f"tokens, to size the load: {counted(requests, 'request')} of {prompt} + {output}"
    log.before = progress(log, detail, requests * (prompt + output), on_event)
    return generate(llm, prompts.many(requests, prompt), output)[0]


def named(load: Load) -> str:
    requests, prompt, output = load
    return f"{requests}x({prompt},{output})"


def progress(log: StepLog, what: str, total: int, on_event: OnEvent) -> Callable[[int], None]:
    """What tells the tokens that were computed so far, of `total`, at most once in EVERY_S; for StepLog.before."""
    state = [0, 0, 0.0]  # steps counted, their tokens, when they were told

    def before(num_decode: int) -> None:
        now = time.perf_counter()
        if now - state[2] >= EVERY_S:
            counted = int(state[0])
            state[:] = [len(log.steps), state[1] + sum(step.tokens for step in log.steps[counted:]), now]
            on_event(Event("measure", what, int(state[1]), total))

    return before


def measure(
    timed: Timed, load: Load, tries: int, work: ModelWork, limits: MachineLimits, on_event: OnEvent = ignore
) -> tuple[Value, ...]:
    """One row."""
    requests, prompt, output = load
    together = min(requests, timed.core.limits.max_num_seqs)
    llm, log = timed.llm(prefix_caching=False)
    check_context(prompt + output, llm.info.max_model_len)
    prompts = Prompts(llm.info.vocab_size, timed.config.seed)
    tokens = requests * (prompt + output)
    total = together * (prompt + 2) + tries * tokens
    counts = f"{counted(requests, 'request')} of {prompt} + {output}{f', {tries} times' if tries > 1 else ''}"
    log.before = progress(log, f"tokens: a warm-up, then {counts}", total, on_event)
    generate(llm, prompts.many(together, prompt), 2)
    index, before = len(log.steps), llm.stats()
    tried = [generate(llm, prompts.many(requests, prompt), output) for _ in range(tries)]
    seconds, outputs = min(tried, key=lambda one: one[0])
    host_s, steps = log.since(index).host_s, (len(log.steps) - index) / tries
    roof = 100 * work.offline_s(limits, requests, prompt, output, together) / seconds
    rates = (seconds, requests * output / seconds, tokens / seconds, requests / seconds, roof)
    host = None if host_s is None else host_s * 1e6
    preempted = (llm.stats().preemptions - before.preemptions) / tries
    cached = sum(one.metrics.cached_tokens for one in outputs)
    return named(load), *rates, steps, tokens / steps, host, preempted, cached


NOTES = (
    "Fresh random token ids, greedy, EOS ignored, no text made, prefix cache off. The serial roof is the time to read "
    "weights, keys and values in every step at the bandwidth measured in this run, plus the operations at its matmul "
    "rate.",
)
