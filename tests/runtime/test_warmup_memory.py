"""What is loaded and compiled side by side: what serves first has the processors to itself, and all threads together
need no more of the device's memory than there is, since XLA times products with copies of their weights.
"""

import threading
import time
import types
from collections.abc import Sequence

import jax
import pytest

from jaxinfer.errors import EngineError
from jaxinfer.runtime import programs, warmup
from jaxinfer.runtime.lowering import Facts, Lowerers
from jaxinfer.runtime.programs import Helper
from jaxinfer.runtime.runner import DeviceRunner
from jaxinfer.testing.faults import EXHAUSTED
from tests.support.tiny_runner import make_runner


def build(runner: DeviceRunner, *waves: Sequence[programs.Program]) -> list[programs.Key]:
    """Build programs in this process alone and without a cache."""
    none = Lowerers(0, Facts.of(runner._model, runner.limits, runner._params, runner._device))
    return [one.program.key for one in warmup.build_all(waves, runner._device, None, "", none)]


def built(times: int, monkeypatch: pytest.MonkeyPatch) -> list[programs.Key]:
    """What is built of two programs, the memory not sufficing so many times for the first."""
    runner, compile_, left = make_runner(), programs.Program.compile, [times]

    def exhausted(self: programs.Program, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        if self.key is Helper.SET_PAGES and left[0]:
            left[0] -= 1
            raise jax.errors.JaxRuntimeError(EXHAUSTED)
        return compile_(self, lowered)

    monkeypatch.setattr(programs.Program, "compile", exhausted)
    return build(runner, [runner._programs[Helper.SET_PAGES], runner._programs[Helper.ZERO_PAGES]])


def test_a_program_for_which_the_memory_did_not_suffice_is_compiled_once_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert set(built(1, monkeypatch)) == {Helper.SET_PAGES, Helper.ZERO_PAGES}
    said = "set_pages: too little memory to time its products beside others; compiling it again"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_program_for_which_it_does_not_suffice_alone_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        built(2, monkeypatch)


@pytest.mark.parametrize(("free", "at_once"), [(6.2, 5), (1.5, 1), (0.1, 1), (30.0, 8), (None, 8)])
def test_as_many_chains_are_compiled_at_once_as_copies_of_the_largest_weights_fit(
    free: float | None, at_once: int
) -> None:
    class Device:
        platform = "gpu"

        def memory_stats(self) -> dict[str, int] | None:
            return None if free is None else {"bytes_limit": int(free * 2**30) + 9, "bytes_in_use": 9}

    params = [types.SimpleNamespace(nbytes=2 * count) for count in (151936 * 4096, 4096)]  # 8B's LM head, a norm
    assert warmup.num_chained(Device(), params) == at_once


def test_what_serves_first_is_loaded_before_anything_else_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, loaded = make_runner(), []
    first = runner._programs[Helper.SET_PAGES], runner._programs[Helper.ZERO_PAGES]
    others = runner._programs[Helper.SAVE_PAGES], runner._programs[Helper.LOAD_PAGES]

    def load(program: programs.Program, *rest: object) -> None:
        time.sleep(0.05 if program in first else 0)
        loaded.append(program)

    monkeypatch.setattr(warmup.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(warmup, "_load", load)
    assert len(build(runner, first, others)) == 4
    assert set(loaded[:2]) == set(first)


def test_a_start_that_is_given_up_leaves_no_thread_behind() -> None:
    def given_up(*progress: object) -> None:
        raise EngineError("the start was interrupted")

    before = set(threading.enumerate())
    with pytest.raises(EngineError, match="interrupted") as kept:  # as a future does, and with it all frames
        make_runner().warm_up(given_up)
    assert set(threading.enumerate()) <= before
    assert kept.traceback
