"""Faults: a runner around a runner that fails where a test tells it to.

Tests hand Faults to whoever builds the engine; no setting, variable or route leads here. A Fault is plain data, so that
it can be sent to an engine process.
"""

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Literal

from jaxinfer.runtime.mask_table import Masks, MaskTable
from jaxinfer.runtime.plan import Exports, Pending, Plan, Runner, StepResult

# as JAX 0.11.2 says it on an H200 (tests/engine/lost_device.py)
EXHAUSTED = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.00GiB with allocator GPU_0_bfc on device 0."
POISONED = (
    "INTERNAL: CUDA error: Failed to check stream capturing status: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory "
    "access was encountered [executable_name='jit_step']"
)

Kind = Literal["run", "exhausted", "wait", "nan", "hang", "poison", "kill", "save_pages", "load_pages"]


MOVES = ("save_pages", "load_pages")


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and in which steps. Steps are counted from 0, by calls of the runner's `run`.

    kind: "run": the dispatch raises and the device does nothing.    "exhausted": the device takes the step, then has no
      memory for it.    "wait": the results cannot be read.    "nan": row `row` is not finite.    "hang": reading the
      results takes `seconds`.    "poison": the device is lost to this process from now on.    "kill": kill -9.
      "save_pages", "load_pages": moving pages raises, before the step.
    step: the first step it may strike.    times: how many it strikes; None is every one.
    token: only steps in which the host sends this id (a prompt's, or a recomputed sequence's).
    """

    kind: Kind
    step: int = 0
    times: int | None = 1
    token: int | None = None
    row: int = 0
    seconds: float = 3600.0

    def strikes(self, step: int, plan: Plan) -> bool:
        if self.kind in MOVES or step < self.step or self.row >= len(plan.rows):
            return False
        return self.token is None or any(self.token in (row.tokens or ()) for row in plan.rows)


class JaxRuntimeError(RuntimeError):
    """What JAX raises, by its name: the engine knows JAX's errors by theirs, and tests of the host need no JAX."""


class FaultStruck(RuntimeError):
    """What "run" and "wait" raise: a host exception like any other."""


class Faults:
    """The faults to come. Any thread may add one. struck: those that have come, each time it did."""

    def __init__(self, *faults: Fault) -> None:
        self.struck: list[Fault] = []
        self._armed = list(faults)

    def add(self, fault: Fault) -> None:
        self._armed.append(fault)

    def strike(self, step: int, plan: Plan) -> Fault | None:
        """The fault of this step, if one has come to it."""
        return self._first(lambda fault: fault.strikes(step, plan))

    def strike_move(self, step: int, kind: Kind) -> Fault | None:
        """The fault of moving pages before this step, likewise."""
        return self._first(lambda fault: fault.kind == kind and step >= fault.step)

    def _first(self, strikes: Callable[[Fault], bool]) -> Fault | None:
        for fault in self._armed:
            if strikes(fault):
                self.struck.append(fault)
                if fault.times is not None and self.struck.count(fault) >= fault.times:
                    self._armed.remove(fault)
                return fault
        return None


class FaultyRunner:
    """A Runner that does what the one inside it does, but for the faults. num_steps: calls of `run` so far."""

    def __init__(self, inner: Runner, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults
        self.num_steps = 0
        self.lost = False

    @property
    def mask_table(self) -> MaskTable:
        return self.inner.mask_table

    @property
    def exports(self) -> Exports | None:
        return self.inner.exports

    def run(self, plan: Plan) -> Pending:
        self._use()
        fault = self.faults.strike(self.num_steps, plan)
        self.num_steps += 1
        match fault and fault.kind:
            case "run":
                raise FaultStruck("a fault was asked for in this dispatch")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exhausted":
                self.inner.run(plan)
                raise JaxRuntimeError(EXHAUSTED)
        return FaultyPending(self, self.inner.run(plan), fault)

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        self._use()
        self.inner.zero_pages(page_ids)

    def save_pages(self, page_ids: Sequence[int]) -> Sequence[object]:
        self._move("save_pages")
        return self.inner.save_pages(page_ids)

    def load_pages(self, page_ids: Sequence[int], contents: Sequence[object]) -> None:
        self._move("load_pages")
        self.inner.load_pages(page_ids, contents)

    def reset(self) -> None:
        self._use()
        self.inner.reset()

    def _move(self, kind: Kind) -> None:
        self._use()
        if self.faults.strike_move(self.num_steps, kind):
            raise FaultStruck("a fault was asked for in moving pages")

    def _use(self) -> None:
        if self.lost:
            raise JaxRuntimeError(POISONED)

    def read(self, pending: Pending, fault: Fault | None) -> StepResult:
        """A step's results, after its fault."""
        match fault and fault.kind:
            case "wait":
                raise FaultStruck("a fault was asked for in reading these results")
            case "hang":
                assert fault is not None
                time.sleep(fault.seconds)
            case "poison":
                self.lost = True
        self._use()
        result = pending.wait()
        if fault is not None and fault.kind == "nan":
            result.finite = result.finite.copy()
            result.finite[fault.row] = False
        return result


class FaultyPending:
    """A step of a FaultyRunner under way."""

    def __init__(self, runner: FaultyRunner, inner: Pending, fault: Fault | None) -> None:
        self._runner = runner
        self._inner = inner
        self._fault = fault

    def draw(self, masks: Masks) -> None:
        self._inner.draw(masks)

    def wait(self) -> StepResult:
        """Block until the step's results are on the host, or its fault strikes."""
        return self._runner.read(self._inner, self._fault)
