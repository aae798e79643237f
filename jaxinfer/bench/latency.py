"""How long one batch takes, alone on the machine: first token, prompt tokens per second, tokens per second after it.

Every request has fresh random ids, is greedy and ignores EOS. The first token is the time of a generate call with
max_tokens 1. A decode step is the mean of those of one call of 129 tokens, from the beginning of each to that of the
next, so the time of a prompt does not change it. The best of several tries counts.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

from jaxinfer.bench import machine
from jaxinfer.bench.machine import MachineLimits
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Report, Table, Value
from jaxinfer.bench.steps import PHASES, Breakdown, StepLog, Timed
from jaxinfer.bench.work import ModelWork, check_context, work_of
from jaxinfer.config import CONTIGUOUS_PAGES_ARE_NOT_SHARED, Resolved
from jaxinfer.errors import ConfigError
from jaxinfer.llm.events import Event, OnEvent, ignore
from jaxinfer.llm.llm import LLM
from jaxinfer.llm.outputs import RequestOutput
from jaxinfer.protocol.sampling import SamplingParams

DECODED = 128
TRIES_ALONE, TRIES_TOGETHER, TRIES_DECODE = 6, 3, 3
LEAST_TRIES, TRIES_S = 2, 2.0  # no more tries once they have taken as long: a long one is no accident of the machine
NEW_AFTER_CACHED = 32
GREEDY = SamplingParams(temperature=0.0)

type Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """A batch of prompts of one length."""

    batch: int
    prompt: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.prompt}"


@dataclasses.dataclass(frozen=True)
class Measured:
    """Of one shape: seconds to the first token, the decode steps of the fastest call, cached prompt tokens."""

    shape: BatchShape
    first_s: float
    steps: Breakdown
    cached_tokens: int


def run(
    resolved: Resolved, shapes: Sequence[BatchShape], first_steps: int, cached_prefix: int, on_event: OnEvent, say: Say
) -> Report:
    """Start the model and measure every shape. cached_prefix: tokens of one more row, 0 for none."""
    config = resolved.config
    if cached_prefix and config.kv_layout == "contiguous":
        raise ConfigError(CONTIGUOUS_PAGES_ARE_NOT_SHARED)
    work = work_of(config)
    check_context(longest(shapes, cached_prefix), work.context)
    limits = machine.measure_limits(config.device, on_event)
    with Timed.start(config, on_event) as timed:
        tables = measure(timed, shapes, first_steps, cached_prefix, work, limits, say, on_event)
        compiles = timed.core.stats().compiles_after_ready
    facts = [*machine.facts(limits, resolved), ("compiles after ready", str(compiles))]
    return Report("jaxinfer bench latency", facts, tables, NOTES, details=timed.facts)


def measure(
    timed: Timed,
    shapes: Sequence[BatchShape],
    first_steps: int,
    cached_prefix: int,
    work: ModelWork,
    limits: MachineLimits,
    say: Say,
    on_event: OnEvent = ignore,
) -> list[Table]:
    """Every table of a started model, the first steps before anything else."""
    llm, log = timed.llm(prefix_caching=False)
    check_context(longest(shapes, cached_prefix), llm.info.max_model_len)
    prompts = Prompts(llm.info.vocab_size, timed.config.seed)
    later = []
    if first_steps:
        on_event(Event("measure", f"the first {first_steps} steps after ready"))
        later.append(_first_steps(llm, log, prompts, first_steps, say))
    found = []
    for number, shape in enumerate(shapes):
        on_event(Event("measure", f"batch x prompt {shape}", number, len(shapes)))
        found.append(_measure(llm, log, prompts, shape))
        say(f"{shape}: first token {found[-1].first_s * 1e3:.2f} ms, step {found[-1].steps.step_s * 1e3:.3f} ms")
    if cached_prefix:
        on_event(Event("measure", f"a cached prefix of {cached_prefix} tokens"))
        later.append(_cached(timed.llm(prefix_caching=True)[0], prompts, cached_prefix))
    return [_speed(found, work, limits), _host(found), *later]


NOTES = (
    "Fresh random token ids for every request, greedy, EOS ignored, no text made; --cached-prefix alone uses the "
    "prefix cache. "
    f"First token: max_tokens 1, the best of {TRIES_ALONE} alone and of {TRIES_TOGETHER} together. Step and host: the "
    f"means of the decode steps of one call of {DECODED + 1} tokens, the fastest of {TRIES_DECODE}. Once the tries of "
    f"one have taken {TRIES_S:g} s there are no more of it, {LEAST_TRIES} at least.",
    "Shares: of the bandwidth measured in this run, for the bytes of weights, keys and values that a step must read; "
    "of the matmul rate measured in this run, for the operations of a prompt.",
    "Host time is all that the engine's thread does in a step but waiting. While the wait for the device is above 0, "
    "the device is the slower one and host time hides behind it; `jaxinfer profile` shows what does not.",
    "A first step is slow above the limit, twice the median and 2 ms: it met something that was not ready, or other "
    "work on this machine.",
)


def generate(
    llm: LLM, prompts: list[list[int]], num_tokens: int, drawn: SamplingParams = GREEDY
) -> tuple[float, list[RequestOutput]]:
    """Seconds of one generate call, and what it returned. drawn: how, whatever it says of lengths."""
    params = msgspec.structs.replace(drawn, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    seconds = time.perf_counter() - began
    lengths = {len(output.outputs[0].token_ids) for output in outputs}
    if lengths != {num_tokens}:
        raise ConfigError(f"every answer must have {num_tokens} tokens, got {sorted(lengths)}; shorten the prompts")
    return seconds, outputs


def longest(shapes: Sequence[BatchShape], cached_prefix: int) -> int:
    """Tokens of the longest prompt with its answer."""
    return max([shape.prompt + DECODED + 1 for shape in shapes] + [cached_prefix + NEW_AFTER_CACHED + 1])


def repeated[T](timed: Callable[[], tuple[float, T]], tries: int) -> list[tuple[float, T]]:
    """Several calls, each with its seconds: `tries`, or fewer when these take long."""
    found = [timed()]
    while len(found) < tries and (len(found) < LEAST_TRIES or sum(seconds for seconds, _ in found) < TRIES_S):
        found.append(timed())
    return found


def _measure(llm: LLM, log: StepLog, prompts: Prompts, shape: BatchShape) -> Measured:
    def timed(num_tokens: int) -> tuple[float, list[RequestOutput]]:
        return generate(llm, prompts.many(shape.batch, shape.prompt), num_tokens)

    timed(2)  # both kinds of step, once unseen
    tries = TRIES_ALONE if shape.batch == 1 else TRIES_TOGETHER
    firsts = repeated(lambda: timed(1), tries)
    first_s = min(seconds for seconds, _ in firsts)

    def decoded() -> tuple[float, Breakdown]:
        index = len(log.steps)
        seconds, _ = timed(DECODED + 1)
        return seconds, log.since(index)

    steps = min((steps for _, steps in repeated(decoded, TRIES_DECODE)), key=lambda steps: steps.step_s)
    cached = max(output.metrics.cached_tokens for _, outputs in firsts for output in outputs)
    return Measured(shape, first_s, steps, cached)


def _speed(found: Sequence[Measured], work: ModelWork, limits: MachineLimits) -> Table:
    columns = (
        "batch x prompt",
        "first token ms",
        "prefill tok/s",
        "of matmul rate %",
        "decode tok/s",
        "step ms",
        "of bandwidth %",
        "host us a step",
        "cached_tokens",
    )
    rows: list[tuple[Value, ...]] = []
    for one in found:
        batch, prompt = one.shape.batch, one.shape.prompt
        flops_share = work.prefill_flops(batch, prompt) / one.first_s / limits.flops
        rows_of_step, step_s = statistics.fmean(one.steps.rows), one.steps.step_s  # fewer rows if not all fit together
        bytes_share = work.decode_bytes(rows_of_step, prompt + DECODED / 2) / step_s / limits.bytes_per_s
        prefill = (one.first_s * 1e3, batch * prompt / one.first_s, flops_share * 100)
        decode = (rows_of_step / step_s, step_s * 1e3, bytes_share * 100)
        host = None if one.steps.host_s is None else one.steps.host_s * 1e6
        rows.append((str(one.shape), *prefill, *decode, host, one.cached_tokens))
    return Table("speed", columns, rows)


def _host(found: Sequence[Measured]) -> Table:
    rows: list[tuple[Value, ...]] = [
        (str(one.shape), *(seconds * 1e6 for seconds in one.steps.mean_s().values())) for one in found
    ]
    return Table("host, us of a decode step", ("batch x prompt", *(f"{name} us" for name in PHASES)), rows)


def _first_steps(llm: LLM, log: StepLog, prompts: Prompts, num_steps: int, say: Say) -> Table:
    """The first steps after ready, before anything was warmed up: none may be much slower than the others."""
    room = llm.info.max_model_len - NEW_AFTER_CACHED
    steps = min(num_steps, room)
    generate(llm, prompts.many(1, NEW_AFTER_CACHED), steps)
    wall = log.since(0, waits_for_prompts=True).wall_s
    say(f"first {len(wall)} decode steps: slowest {max(wall) * 1e3:.2f} ms")
    median = statistics.median(wall)
    columns = ("steps after ready", "steps", "median ms", "slowest ms", "slowest was step", "limit ms")
    slowest = max(wall)
    row = ("decode, 1 row", len(wall), median * 1e3, slowest * 1e3, wall.index(slowest) + 1, 2e3 * median + 2)
    return Table("first steps", columns, [row])


def _cached(llm: LLM, prompts: Prompts, prefix: int) -> Table:
    """First tokens of prompts whose beginning was computed before."""
    beginning = prompts.one(prefix)
    generate(llm, [beginning + prompts.one(NEW_AFTER_CACHED)], 2)
    tries = [generate(llm, [beginning + prompts.one(NEW_AFTER_CACHED)], 1) for _ in range(TRIES_ALONE)]
    cached = min(outputs[0].metrics.cached_tokens for _, outputs in tries)
    columns = ("cached + new", "first token ms", "cached_tokens")
    return Table("cached prefix", columns, [(f"{prefix}+{NEW_AFTER_CACHED}", min(s for s, _ in tries) * 1e3, cached)])
