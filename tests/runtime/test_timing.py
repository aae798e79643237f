"""`attention_backend: auto` times what can run once, keeps the times, and leaves its guess for clear ones only."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.config import EngineConfig
from jaxinfer.errors import ConfigError
from jaxinfer.models.dense import DenseConfig
from jaxinfer.models.registry import dense
from jaxinfer.runtime import programs, step, timing
from jaxinfer.runtime.backends import XLA_ONLY, Backend, Backends, choose_backends
from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.plan import BackendTime
from jaxinfer.runtime.timing import decided, fastest_backends
from jaxinfer_kernels import cpu
from jaxinfer_kernels.cpu import Isa
from tests.support.teacher_forced import model_of

DEVICE = jax.devices("cpu")[0]
MODEL = dataclasses.replace(model_of(4, 2, 64, qk_norm=True, hidden=128, num_layers=2), dtype="bfloat16")
ON_CPU = Backends(*[Backend.CPU] * 4, isa=Isa.AVX2)


def times(guess: Backends, *, decode: Sequence[float]) -> list[BackendTime]:
    """Of the guess and then of XLA, in milliseconds, all runs of one alike."""
    both = zip((guess.decode_attention, Backend.XLA), decode, strict=bool(decode))
    return [BackendTime("decode_attention", backend, "a step", ms / 1e3, ms / 1e3) for backend, ms in both]


# The choice


@pytest.mark.parametrize(
    ("decode", "is_left"), [((1.0, 1.2), False), ((1.0, 0.91), False), ((1.0, 0.89), True), ((), False)], ids=str
)
def test_attention_is_left_to_xla_where_that_is_faster_by_more_than_noise(decode, is_left):
    found = decided(ON_CPU, timings := times(ON_CPU, decode=decode))
    assert found.timings == tuple(timings)
    left = dataclasses.replace(ON_CPU, decode_attention=Backend.XLA, extend_attention=Backend.XLA)
    assert found == (left if is_left else ON_CPU)


@given(
    ours=st.floats(1e-6, 1e-2),
    ratio=st.floats(0.9, 100),
    slowed=st.lists(st.floats(1, 50), min_size=10, max_size=10),
)
def test_noise_never_pretends_that_xla_is_faster(ours: float, ratio: float, slowed: list[float]):
    """As long as one run of the guess was left in peace."""
    runs = [ours, *(ours * factor for factor in slowed[:4])], [ratio * ours * factor for factor in slowed[5:]]
    timings = [
        BackendTime("decode_attention", backend, "decode 8", float(np.median(one)), min(one))
        for backend, one in zip((Backend.CPU, Backend.XLA), runs, strict=True)
    ]
    assert decided(ON_CPU, timings) == ON_CPU


def test_times_are_told_and_no_executable_depends_on_them():
    found = decided(ON_CPU, times(ON_CPU, decode=(0.041, 0.0864)))
    assert dict(found.rows())["decode attention"] == "cpu (a step: cpu 41 us, xla 86 us)"
    assert found.by_op() == ON_CPU.by_op()
    common = [programs.fingerprint(step.Model(MODEL, dense, backends), DEVICE) for backends in (found, ON_CPU)]
    assert common[0] == common[1]


# When it is made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was timed: XLA wins."""
    seen: list[tuple[Any, ...]] = []

    def timed(guess: Backends, *facts: Any) -> tuple[BackendTime, ...]:
        seen.append(facts)
        return tuple(times(guess, decode=(1.0, 0.5)))

    monkeypatch.setattr(timing, "timed", timed)
    monkeypatch.setattr(timing, "LEAST_PARAMS", MODEL.num_params)
    monkeypatch.setattr(cpu, "best", lambda: Isa.AVX2)
    return seen


def start(cache: ExecutableCache | None, model: DenseConfig = MODEL, **settings: Any) -> Backends:
    return fastest_backends(EngineConfig(**settings), model, dense, DEVICE, cache)


def test_later_starts_time_nothing_and_choose_the_same(calls: list[Any], tmp_path: Path):
    first, second = (start(ExecutableCache(tmp_path)) for _ in range(2))
    assert len(calls) == 1
    assert first == second == dataclasses.replace(ON_CPU, decode_attention=Backend.XLA, extend_attention=Backend.XLA)
    assert first.timings == second.timings != ()


def test_other_shapes_are_timed_for_themselves(calls: list[Any], tmp_path: Path):
    cache = ExecutableCache(tmp_path)
    for _ in range(2):
        start(cache)
        start(cache, page_size=32)
        start(cache, dataclasses.replace(MODEL, num_heads=8))
    assert len(calls) == 3


def test_without_a_cache_every_start_times(calls: list[Any]):
    assert start(None) == start(None)
    assert len(calls) == 2


def test_nothing_is_timed_where_the_setting_or_the_model_leaves_no_choice(calls: list[Any], monkeypatch):
    assert start(None, attention_backend="xla") == XLA_ONLY
    assert start(None, dtype="float32") == XLA_ONLY
    with pytest.raises(ConfigError, match="attention_backend mosaic needs a GPU"):
        start(None, attention_backend="mosaic")
    monkeypatch.setattr(timing, "LEAST_PARAMS", MODEL.num_params + 1)
    assert start(None) == ON_CPU
    assert not calls


# The times


def test_a_start_without_time_keeps_its_guess_and_says_so(monkeypatch, caplog, tmp_path: Path):
    monkeypatch.setattr(timing, "MOST_S", 0.0)
    monkeypatch.setattr(timing, "LEAST_PARAMS", 0)
    monkeypatch.setattr(timing._Trial, "make", lambda *given: None)
    monkeypatch.setattr(cpu, "best", lambda: Isa.AVX2)
    cache = ExecutableCache(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert start(cache) == start(cache) == ON_CPU
    assert [record.message for record in caplog.records] == [
        "attention could not be timed in 0 s, so the first guess stays; an empty compile_cache_dir tries again"
    ]


@pytest.mark.slow
def test_our_kernel_for_cpus_and_xlas_attention_are_timed_at_the_same_work(monkeypatch):
    """What both leave of the same arrays differs by rounding alone. Without our kernels both are XLA's."""
    monkeypatch.setattr(timing, "MOST_S", 60.0)  # on a machine that others load
    guess = choose_backends("auto", MODEL, "bfloat16", 16, DEVICE)
    trials, run = [], timing._Trial.run
    monkeypatch.setattr(timing._Trial, "run", lambda trial: (trials.append(trial), run(trial)))
    found = timing.timed(guess, MODEL, "bfloat16", 16, DEVICE)
    assert [(one.op, one.backend, one.step) for one in found] == [
        ("decode_attention", backend, "decode 8") for backend in (guess.decode_attention, Backend.XLA)
    ]
    assert all(0 < one.least_s <= one.median_s < 1 for one in found)
    (ours, store), (xla, _) = (trial.carried for trial in trials[-2:])
    q_width = MODEL.layers[0].mixer.q_width
    assert np.asarray(ours[:, :q_width]).any(), "values were stored and read"
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (ours, xla)), rtol=2**-6)
