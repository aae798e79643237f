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

from jaxinfer.config import EngineConfig, ExtendBucket
from jaxinfer.errors import ConfigError
from jaxinfer.models.dense import DenseConfig
from jaxinfer.models.registry import dense
from jaxinfer.runtime import programs, step, timing
from jaxinfer.runtime.backends import XLA_ONLY, Backend, Backends, Launches, choose_backends, kernels_for
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.plan import BackendTime
from jaxinfer.runtime.timing import decided, fastest_backends
from jaxinfer_kernels import cpu
from jaxinfer_kernels.cpu import Isa
from jaxinfer_kernels.sm90 import H200
from tests.support.hopper import gpu
from tests.support.teacher_forced import model_of

DEVICE = jax.devices("cpu")[0]
MODEL = dataclasses.replace(model_of(4, 2, 64, qk_norm=True, hidden=128, num_layers=2), dtype="bfloat16")
ON_CPU = Backends(*[Backend.CPU] * 4, isa=Isa.AVX2)
ON_HOPPER = Backends(*[Backend.MOSAIC] * 6, Launches.SEQUENCE, H200)


def times(guess: Backends, *, decode: Sequence[float], extend: Sequence[float] = ()) -> list[BackendTime]:
    """Of the guess and then of XLA, in milliseconds, all runs of one alike."""
    by_op = {"decode_attention": decode, "extend_attention": extend}
    return [
        BackendTime(op, backend, "a step", ms / 1e3, ms / 1e3)
        for op, both in by_op.items()
        for backend, ms in zip((vars(guess)[op], Backend.XLA), both, strict=bool(both))
    ]


# The choice


@pytest.mark.parametrize(
    ("decode", "extend", "left"),
    [
        ((1.0, 1.2), (1.0, 1.2), ()),
        ((1.0, 0.91), (1.0, 0.91), ()),  # within noise
        ((1.0, 0.89), (1.0, 1.0), ("decode_attention",)),
        ((1.0, 1.0), (1.0, 0.89), ("extend_attention",)),
        ((1.0, 0.5), (1.0, 0.5), ("decode_attention", "extend_attention")),
        ((), (), ()),
    ],
    ids=str,
)
def test_an_op_is_left_to_xla_where_that_is_clearly_faster(decode, extend, left):
    found = decided(ON_HOPPER, timings := times(ON_HOPPER, decode=decode, extend=extend))
    assert found.timings == tuple(timings)
    launches = Launches.SINGLE if "decode_attention" in left else Launches.SEQUENCE
    assert found == dataclasses.replace(ON_HOPPER, **dict.fromkeys(left, Backend.XLA), launches=launches)


def test_on_a_cpu_rows_of_one_token_of_an_extend_step_follow_decode_steps():
    found = decided(ON_CPU, times(ON_CPU, decode=(1.0, 0.5)))
    assert found == dataclasses.replace(ON_CPU, decode_attention=Backend.XLA, extend_attention=Backend.XLA)
    assert decided(ON_CPU, times(ON_CPU, decode=(1.0, 2.0))) == ON_CPU


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


def test_xla_must_be_faster_in_every_step_that_was_timed():
    faster, slower = times(ON_CPU, decode=(1.0, 0.5)), times(ON_CPU, decode=(1.0, 2.0))
    assert decided(ON_CPU, [*faster, *(dataclasses.replace(one, step="another") for one in slower)]) == ON_CPU
    assert decided(ON_CPU, faster[:1]) == decided(ON_CPU, faster[1:]) == ON_CPU, "a comparison takes two"


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


@pytest.mark.slow
@pytest.mark.parametrize("key", [Decode(8, 512), ExtendBucket(512, 1, 1)], ids=str)
def test_what_is_timed_for_hopper_has_the_kernels_of_a_step(key):
    single = dataclasses.replace(ON_HOPPER, launches=Launches.SINGLE)
    (spec,) = MODEL.attentions
    found = []
    for how in (single, XLA_ONLY):
        kernels = kernels_for(MODEL, how, key)
        arguments = timing.arrays(spec, "bfloat16", 64, key, kernels.products.align)
        function = jax.jit(lambda *given, kernels=kernels: timing.attend_in_turn(spec, kernels, 8, *given))
        text = function.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
        found.append(text.count("mosaic_gpu_v2"))
    assert found == [1 if isinstance(key, Decode) else 2, 0]  # one more rotates and stores


@pytest.mark.gpu
def test_on_hopper_attention_is_timed_in_two_seconds(capsys):
    model = model_of(12, 2, 128, qk_norm=False, hidden=1536, num_layers=2)
    guess = choose_backends("auto", model, "bfloat16", 64, gpu())
    found = timing.timed(guess, model, "bfloat16", 64, gpu())
    with capsys.disabled():
        print(*decided(guess, found).rows()[:2], sep="\n")
    steps = ("decode_attention", "decode 8"), ("extend_attention", "extend 512")
    assert {(one.op, one.backend, one.step) for one in found} == {
        (op, backend, name) for op, name in steps for backend in ("mosaic", "xla")
    }, "no time was left"
    assert all(0 < one.least_s < 0.1 for one in found)
