"""The faults strike where and as often as they are told to, and leave everything else to the runner inside."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from jaxinfer.runtime.plan import Plan, Row, StepResult
from jaxinfer.testing.faults import Fault, Faults, FaultStruck, FaultyRunner, JaxRuntimeError

PLAN = Plan([Row(1, 0, 3, tokens=[7, 8, 9]), Row(2, 5, 1)])


class GoodRunner:
    """Answers every step with zeros. calls: what it was asked to do."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def run(self, plan: Plan) -> "GoodRunner":
        self.calls.append("run")
        return self

    def wait(self) -> StepResult:
        return StepResult(np.zeros(2, np.int32), np.ones(2, bool))

    def zero_pages(self, page_ids: object) -> None:
        self.calls.append("zero_pages")

    def save_pages(self, page_ids: Sequence[int]) -> list[object]:
        self.calls.append("save_pages")
        return list(page_ids)

    def load_pages(self, page_ids: object, contents: object) -> None:
        self.calls.append("load_pages")

    def reset(self) -> None:
        self.calls.append("reset")


def outcomes(*faults: Fault, steps: int = 6) -> str:
    """A letter per step: good, raising in r(un) or w(ait), a row that is n(ot finite)."""
    runner = FaultyRunner(GoodRunner(), Faults(*faults))
    letters = ""
    for _ in range(steps):
        try:
            pending = runner.run(PLAN)
        except (FaultStruck, JaxRuntimeError):
            letters += "r"
            continue
        try:
            letters += "g" if pending.wait().finite.all() else "n"
        except (FaultStruck, JaxRuntimeError):
            letters += "w"
    return letters


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault("run", step=2), "ggrggg"),
        (Fault("exhausted", step=2), "ggrggg"),
        (Fault("wait", step=1, times=3), "gwwwgg"),
        (Fault("nan", step=4, row=1), "ggggng"),
        (Fault("nan", step=4, row=2), "gggggg"),
        (Fault("run", times=None), "rrrrrr"),
        (Fault("run", times=None, token=8), "rrrrrr"),
        (Fault("run", times=None, token=5), "gggggg"),
        (Fault("poison", step=3), "gggwrr"),
    ],
)
def test_a_fault_strikes_its_steps_and_no_others(fault, expected):
    assert outcomes(fault) == expected


def test_faults_can_follow_each_other():
    assert outcomes(Fault("wait", step=1), Fault("run", step=3), Fault("run", step=3)) == "gwgrrg"


def test_without_faults_the_runner_inside_does_everything():
    inner = GoodRunner()
    runner = FaultyRunner(inner, Faults())
    runner.run(PLAN).wait()
    runner.zero_pages([1])
    runner.load_pages([2], runner.save_pages([1]))
    runner.reset()
    assert inner.calls == ["run", "zero_pages", "save_pages", "load_pages", "reset"]


def test_out_of_memory_comes_after_the_device_took_the_step_and_a_failed_dispatch_before():
    for kind, expected in (("exhausted", ["run"]), ("run", [])):
        inner = GoodRunner()
        with pytest.raises((FaultStruck, JaxRuntimeError)):
            FaultyRunner(inner, Faults(Fault(kind))).run(PLAN)
        assert inner.calls == expected


def test_nothing_works_on_a_poisoned_device_not_even_a_reset():
    runner = FaultyRunner(GoodRunner(), Faults(Fault("poison")))
    pending = runner.run(PLAN)
    behind = runner.run(PLAN)
    moves = (lambda: runner.zero_pages([1]), lambda: runner.save_pages([1]), lambda: runner.load_pages([1], [1]))
    for call in (pending.wait, behind.wait, runner.reset, *moves):
        with pytest.raises(JaxRuntimeError, match="ILLEGAL_ADDRESS"):
            call()


def test_a_hang_takes_its_time_and_then_gives_the_results():
    runner = FaultyRunner(GoodRunner(), Faults(Fault("hang", seconds=0.2)))
    began = time.monotonic()
    assert runner.run(PLAN).wait().finite.all()
    assert time.monotonic() - began >= 0.2


def test_a_kill_is_one_that_nothing_can_catch():
    code = (
        "from jaxinfer.runtime.plan import Plan\n"
        "from jaxinfer.testing.faults import Fault, Faults, FaultyRunner\n"
        "try:\n    FaultyRunner(None, Faults(Fault('kill'))).run(Plan([None]))\n"
        "finally:\n    print('survived')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_a_fault_can_be_sent_to_another_process():
    fault = Fault("nan", step=7, times=None, token=3, row=2, seconds=0.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fault), type=Fault) == fault
