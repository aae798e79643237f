"""An engine whose steps are timed from outside: an Engine and a Runner that note when each of their calls begins.

A step is: drain and plan, then pack and dispatch (Runner.run), then wait for the step before it (Pending.wait), then
commit it. Between two steps the caller turns outputs into text. Everything but the wait is the host's own time.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxinfer.config import EngineConfig, Limits, counted
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Output
from jaxinfer.llm.build import start_core
from jaxinfer.llm.events import Event, OnEvent
from jaxinfer.llm.llm import LLM
from jaxinfer.runtime.mask_table import Masks, MaskTable
from jaxinfer.runtime.plan import Exports, Pending, Plan, Runner, StepResult

if TYPE_CHECKING:
    from jaxinfer.llm.core import Core

COMPILING = "compiling took"  # a fact of a start, in seconds
PHASES = ("drain and plan", "pack and dispatch", "wait for the device", "commit", "text, between steps")


@dataclasses.dataclass(slots=True)
class StepTime:
    """When one call of Engine.step passed each place, in seconds of the same clock; a place not passed is the next.

    rows, tokens: of the plan it dispatched, 0 when there was nothing to plan.    is_decode: one token of every row.
    """

    began: float
    dispatched: float = 0.0
    waiting: float = 0.0
    committing: float = 0.0
    ended: float = 0.0
    planned: float = 0.0
    rows: int = 0
    tokens: int = 0
    is_decode: bool = False

    def close(self, now: float) -> None:
        """Fill in what was not passed, from the end."""
        self.ended = now
        self.waiting = self.waiting or self.dispatched or now
        self.committing = self.committing or self.waiting
        self.planned = self.planned or self.waiting
        self.dispatched = self.dispatched or self.planned

    def phases(self, next_began: float) -> tuple[float, ...]:
        """Seconds of each of PHASES."""
        committed = self.ended - self.committing + self.waiting - self.dispatched
        return (
            self.planned - self.began,
            self.dispatched - self.planned,
            self.committing - self.waiting,
            committed,
            next_began - self.ended,
        )


class StepLog:
    """The steps of an engine, oldest first. before: called ahead of each with the number of decode steps so far."""

    def __init__(self) -> None:
        self.steps: list[StepTime] = []
        self.num_decode = 0
        self.before: Callable[[int], None] | None = None

    @property
    def now(self) -> StepTime:
        return self.steps[-1]

    def begin(self) -> None:
        if self.before is not None:
            self.before(self.num_decode)
        self.steps.append(StepTime(time.perf_counter()))

    def end(self) -> None:
        self.now.close(time.perf_counter())
        self.num_decode += self.now.is_decode

    def since(self, index: int, rows: int | None = None, *, waits_for_prompts: bool = False) -> "Breakdown":
        """Of the steps from this one on, or of those alone that have so many rows."""
        return Breakdown(self.steps[index:], rows, waits_for_prompts=waits_for_prompts)


class Breakdown:
    """Decode steps by phase. One that no other call of step followed is left out: how long it took is not known. So is
    one behind a step of prompts, as its wait is for that step: the engine runs one step ahead.
    """

    def __init__(self, steps: Sequence[StepTime], rows: int | None = None, *, waits_for_prompts: bool = False) -> None:
        """waits_for_prompts: steps behind one of prompts count too."""
        pairs = [
            (step, after)
            for at, (step, after) in enumerate(zip(steps, steps[1:], strict=False))
            if step.is_decode and (at == 0 or steps[at - 1].is_decode or waits_for_prompts)
        ]
        pairs = [(step, after) for step, after in pairs if rows in (None, step.rows)]
        self.phases = [step.phases(after.began) for step, after in pairs]
        self.wall_s = [after.began - step.began for step, after in pairs]
        self.rows = [step.rows for step, _ in pairs]

    @property
    def step_s(self) -> float:
        """Mean of a step, its waits included."""
        return statistics.fmean(self.wall_s)

    def mean_s(self) -> dict[str, float]:
        """Of each phase."""
        columns = zip(*self.phases, strict=True)
        return {name: statistics.fmean(column) for name, column in zip(PHASES, columns, strict=False)}

    @property
    def host_s(self) -> float | None:
        """Mean of what the host does itself in a step, hidden behind the device or not."""
        means = self.mean_s()
        return sum(seconds for name, seconds in means.items() if name != PHASES[2]) if means else None


class TimedPending:
    """A Pending that notes when it is waited for."""

    def __init__(self, pending: Pending, log: StepLog) -> None:
        self._pending, self._log = pending, log

    def draw(self, masks: Masks) -> None:
        self._pending.draw(masks)

    def wait(self) -> StepResult:
        step = self._log.now
        step.waiting = time.perf_counter()
        result = self._pending.wait()
        step.committing = time.perf_counter()
        return result


class TimedRunner:
    """A Runner in front of another."""

    def __init__(self, runner: Runner, log: StepLog) -> None:
        self._runner, self._log = runner, log

    @property
    def mask_table(self) -> MaskTable:
        return self._runner.mask_table

    @property
    def exports(self) -> Exports | None:
        return self._runner.exports

    def run(self, plan: Plan) -> Pending:
        step = self._log.now
        step.rows, step.tokens, step.is_decode = len(plan.rows), plan.num_tokens, plan.is_decode
        step.planned = time.perf_counter()
        pending = self._runner.run(plan)
        step.dispatched = time.perf_counter()
        return TimedPending(pending, self._log)

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        self._runner.zero_pages(page_ids)

    def save_pages(self, page_ids: Sequence[int]) -> Sequence[object]:
        return self._runner.save_pages(page_ids)

    def load_pages(self, page_ids: Sequence[int], contents: Sequence[object]) -> None:
        self._runner.load_pages(page_ids, contents)

    def reset(self) -> None:
        self._runner.reset()


class TimedEngine(Engine):
    """An Engine that notes when its steps begin and end."""

    def __init__(self, core: "Core", limits: Limits, log: StepLog) -> None:
        """Another host side of a started core's device state, with its own limits."""
        super().__init__(TimedRunner(core.runner, log), limits, core.grammars)
        self._log = log

    def step(self) -> list[Output]:
        self._log.begin()
        try:
            return super().step()
        finally:
            self._log.end()


class Timed:
    """A started model, compiled to the end. Use as a context manager. facts: of its start, for a report's head."""

    def __init__(self, config: EngineConfig, core: "Core") -> None:
        self.config, self.core = config, core
        self.facts: list[tuple[str, str]] = []
        core.warming.result()

    @classmethod
    def start(cls, config: EngineConfig, on_event: OnEvent) -> "Timed":
        events: list[Event] = []

        def listen(event: Event) -> None:
            events.append(event)
            on_event(event)

        core = start_core(config, listen)
        timed = cls(config, core)
        compiled = [event for event in events if event.kind == "compile" and event.detail]
        cached = sum(event.cached for event in compiled)
        for event in events:
            timed.facts += event.rows
            if event.kind in ("serving", "ready"):
                timed.facts.append((f"{event.kind} after", f"{event.seconds:.1f} s, without imports"))
        timed.facts.append(("compiled", f"{counted(len(compiled), 'step')}, {cached} of them from the cache"))
        timed.facts.append((COMPILING, f"{core.stats().device.compile_s:.1f} s, of several at once each counted"))
        return timed

    def llm(self, *, prefix_caching: bool) -> tuple[LLM, StepLog]:
        """An LLM over a new host side of the same device state; what an earlier one cached is forgotten."""
        log = StepLog()
        limits = dataclasses.replace(self.core.limits, enable_prefix_caching=prefix_caching)
        engine = TimedEngine(self.core, limits, log)
        return LLM.over(self.config, dataclasses.replace(self.core, engine=engine, limits=limits)), log

    def __enter__(self) -> "Timed":
        return self

    def __exit__(self, *exception: object) -> None:
        self.core.close()
