"""Where a step's time goes: device time by kernel from a trace, host time by phase from the clock.

Tracing slows the host, so the phases come from a second run without it; both runs do the same work.
"""

import contextlib
import dataclasses
import statistics
import tempfile
from collections.abc import Iterator

from jaxinfer.bench import machine
from jaxinfer.bench.latency import Say, generate
from jaxinfer.bench.machine import MachineLimits
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Report, Table, Value
from jaxinfer.bench.steps import PHASES, Breakdown, StepLog, Timed
from jaxinfer.bench.trace import TraceEvent, busy_ns, device_events, sums, trace_into
from jaxinfer.bench.work import ModelWork, check_context, work_of
from jaxinfer.config import Resolved
from jaxinfer.llm.events import Event as Progress
from jaxinfer.llm.events import OnEvent, ignore
from jaxinfer.llm.llm import LLM
from jaxinfer.runtime.trace import trace

SKIPPED = 8  # decode steps before the trace begins
MAX_ROWS = 40
ON_CPU = "No GPU: the events are XLA's operations on the CPU, which overlap on several threads."
ON_GPU = (
    "XLA launches kernel by kernel while it is traced, unless XLA_FLAGS has "
    "--xla_enable_command_buffers_during_profiling=true, with which every step is compiled anew."
)


@dataclasses.dataclass(frozen=True)
class ProfileRequest:
    """What to trace: `steps` decode steps of a batch, or, with prefill, `steps` calls that compute its prompts."""

    batch: int
    prompt: int
    steps: int
    prefill: bool

    @property
    def num_tokens(self) -> int:
        return 1 if self.prefill else SKIPPED + self.steps + 2


def run(resolved: Resolved, wanted: ProfileRequest, folder: str | None, on_event: OnEvent, say: Say) -> Report:
    """Start the model, trace it into `folder` (None: one that is deleted again) and describe the trace."""
    config = resolved.config
    work = work_of(config)
    check_context(wanted.prompt + wanted.num_tokens, work.context)
    limits = machine.measure_limits(config.device, on_event)
    with Timed.start(config, on_event) as timed, contextlib.ExitStack() as stack:
        place = folder or stack.enter_context(tempfile.TemporaryDirectory())
        tables = measure(timed, wanted, place, work, limits, say, on_event)
    notes = ["Kernels are the trace's, the wall time and the host's phases those of a run without the trace."]
    notes.append(ON_CPU if limits.platform == "cpu" else ON_GPU)
    facts = [*machine.facts(limits, resolved), ("trace", folder or "deleted; --trace FOLDER keeps it")]
    return Report("jaxinfer profile", facts, tables, notes, details=timed.facts)


def measure(
    timed: Timed,
    wanted: ProfileRequest,
    folder: str,
    work: ModelWork,
    limits: MachineLimits,
    say: Say,
    on_event: OnEvent = ignore,
) -> list[Table]:
    """Run what is wanted without and with a trace into `folder`."""
    llm, log = timed.llm(prefix_caching=False)
    check_context(wanted.prompt + wanted.num_tokens, llm.info.max_model_len)
    prompts = Prompts(llm.info.vocab_size, timed.config.seed)
    generate(llm, prompts.many(wanted.batch, wanted.prompt), wanted.num_tokens)
    say("measuring without the trace")
    on_event(Progress("measure", "steps without the trace"))
    phases: list[Table] = []
    if wanted.prefill:
        calls = [generate(llm, prompts.many(wanted.batch, wanted.prompt), 1)[0] for _ in range(wanted.steps)]
        wall_s = statistics.fmean(calls)
    else:
        phases, wall_s = _phases(llm, log, prompts, wanted)
    say("tracing")
    on_event(Progress("measure", "steps with the trace, and reading it"))
    _trace(llm, log, prompts, wanted, folder)
    events = device_events(folder)
    return [_summary(wanted, events, wall_s, work, limits), *phases, _kernels(events, wanted.steps)]


def _trace(llm: LLM, log: StepLog, prompts: Prompts, wanted: ProfileRequest, folder: str) -> None:
    if wanted.prefill:
        batches = [prompts.many(wanted.batch, wanted.prompt) for _ in range(wanted.steps)]
        with trace_into(folder):
            for batch in batches:
                generate(llm, batch, 1)
        return
    with _window(log, wanted.steps, folder):
        generate(llm, prompts.many(wanted.batch, wanted.prompt), wanted.num_tokens)


@contextlib.contextmanager
def _window(log: StepLog, steps: int, folder: str) -> Iterator[None]:
    """Trace the decode steps from SKIPPED on, `steps` of them."""
    begin = log.num_decode + SKIPPED

    def before(num_decode: int) -> None:
        if num_decode == begin and not state:
            trace(folder)
            state.append("tracing")
        elif num_decode == begin + steps and state == ["tracing"]:
            trace(None)
            state.append("done")

    state: list[str] = []
    log.before = before
    try:
        yield
    finally:
        log.before = None
        if state == ["tracing"]:
            trace(None)


def _phases(llm: LLM, log: StepLog, prompts: Prompts, wanted: ProfileRequest) -> tuple[list[Table], float]:
    """The host's phases of the same steps, and the mean seconds of one."""
    index = len(log.steps)
    generate(llm, prompts.many(wanted.batch, wanted.prompt), wanted.num_tokens)
    decode = [step for step in log.steps[index:] if step.is_decode]
    found = Breakdown(decode[SKIPPED - 1 :])
    means = found.mean_s()
    rows = [(name, means[name] * 1e6, 100 * means[name] / sum(means.values())) for name in PHASES]
    return [Table("host", ("phase", "us a step", "of the step %"), rows)], statistics.fmean(found.wall_s)


def _summary(
    wanted: ProfileRequest, events: list[TraceEvent], wall_s: float, work: ModelWork, limits: MachineLimits
) -> Table:
    busy_s = busy_ns(events) / 1e9 / wanted.steps
    if wanted.prefill:
        share = work.prefill_flops(wanted.batch, wanted.prompt) / wall_s / limits.flops
    else:
        context = wanted.prompt + SKIPPED + wanted.steps / 2
        share = work.decode_bytes(wanted.batch, context) / wall_s / limits.bytes_per_s
    what = "call" if wanted.prefill else "step"
    columns = (what, "wall us", "device busy us", "not hidden us", "kernels", "of the limit %")
    name = f"{wanted.batch}x{wanted.prompt}, {'prefill' if wanted.prefill else 'decode'}"
    times = (wall_s * 1e6, busy_s * 1e6, max(0.0, wall_s - busy_s) * 1e6)
    return Table("summary", columns, [(name, *times, len(events) / wanted.steps, share * 100)])


def _kernels(events: list[TraceEvent], steps: int) -> Table:
    """By name, the longest first; what is beyond MAX_ROWS in one row."""
    listed = sums(events)
    whole = sum(one.total_ns for one in listed) or 1.0
    rows: list[tuple[Value, ...]] = [
        (one.name, one.count / steps, one.total_ns / 1e3 / steps, 100 * one.total_ns / whole)
        for one in listed[:MAX_ROWS]
    ]
    if rest := listed[MAX_ROWS:]:
        total = sum(one.total_ns for one in rest)
        count = sum(one.count for one in rest)
        rows.append((f"{len(rest)} others", count / steps, total / 1e3 / steps, 100 * total / whole))
    return Table("device", ("kernel", "count", "us", "of device time %"), rows)
