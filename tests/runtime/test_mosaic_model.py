"""A bf16 model with every op in our kernels is as near to float32 as XLA's bf16, token after given token.

Without a GPU the comparison itself is tested: it passes XLA's two ways through a tiny model and finds planted errors.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax.typing import DTypeLike

from jaxinfer.layers.attention import RawHeads
from jaxinfer.layers.batch import Batch
from jaxinfer.models.dense import DenseConfig, Params
from jaxinfer.models.published import Fp8, Published, Sharing
from jaxinfer.models.registry import dense
from jaxinfer.runtime import step
from jaxinfer.runtime.backends import kernels_for
from jaxinfer_kernels.linear import sm90_w8a8
from jaxinfer_kernels.linear import xla as xla_linear
from jaxinfer_kernels.linear.quantized import Quantized
from tests.support.hopper import all_mosaic, gpu
from tests.support.parity import dense_logits
from tests.support.teacher_forced import (
    Forced,
    Work,
    all_faults,
    clear_params,
    clear_share,
    faults,
    forced_logits,
    in_float32,
    in_fp8,
    model_of,
)

# On the CPU: the comparison's own test


SMALL = Work(prompts=(5, 40, 200), forced=32, page_size=16, budget=128, decode=4, rows=4)
TINY = model_of(4, 1, 32, qk_norm=True, hidden=64, num_layers=2)


@pytest.fixture(scope="module")
def cpu() -> jax.Device:
    return jax.devices("cpu")[0]


@pytest.fixture(scope="module")
def tiny_params(cpu: jax.Device) -> Params:
    return clear_params(TINY, cpu)


@pytest.fixture(scope="module")
def dense_answer(tiny_params: Params) -> list[np.ndarray]:
    """In float32, of each sequence as a whole, without pages and steps; all padded to one length."""
    params, found = in_float32(tiny_params), []
    for tokens in SMALL.sequences(TINY.vocab_size):
        padded = np.pad(tokens, (0, max(SMALL.lengths) - len(tokens)))
        logits = np.asarray(dense_logits(TINY, params, padded))
        found.append(logits[len(tokens) - SMALL.forced : len(tokens)])
    return found


@pytest.fixture(scope="module")
def by_decode(tiny_params: Params, cpu: jax.Device) -> list[np.ndarray]:
    return forced_logits(step.Model(TINY, dense), tiny_params, SMALL, "decode", cpu)


@pytest.mark.slow
def test_float32_steps_are_the_dense_pass(tiny_params, dense_answer, cpu):
    for way in ("whole", "pieces"):
        got = forced_logits(step.Model(TINY, dense), in_float32(tiny_params), SMALL, way, cpu)
        for mine, wanted in zip(got, dense_answer, strict=True):
            np.testing.assert_allclose(mine, wanted, atol=1e-3)


@pytest.mark.slow
def test_the_weights_make_clear_winners(dense_answer):
    assert clear_share(np.concatenate(dense_answer)) >= 0.8


@pytest.mark.slow
def test_another_way_in_the_same_precision_passes(tiny_params, dense_answer, by_decode, cpu):
    pieces = forced_logits(step.Model(TINY, dense), tiny_params, SMALL, "pieces", cpu)
    assert all_faults(pieces, by_decode, dense_answer) == {}


class LargerQueries(RawHeads):
    def split(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        q, k, v = super().split()
        return q * q.dtype.type(1.25), k, v


def scaled_forward(config: DenseConfig, params: Params, batch: Batch, cache: Any) -> Any:
    def wrong(raw: RawHeads, cache: Any) -> Any:
        return batch.attention(LargerQueries(**vars(raw)), cache)

    return dense.forward(config, params, dataclasses.replace(batch, attention=wrong), cache)


def take_a_page_of_a_neighbour(run: Forced) -> None:
    table = run.state.page_table
    run.state = run.state.replace(page_table=table.at[3, 2].set(table[2, 1]))


def leave_a_page_unwritten(run: Forced) -> None:
    state, page = run.state, run.state.page_table[3, 2]
    run.state = state.replace(store=jax.tree.map(lambda array: array.at[:, page].set(0), state.store))


def feed_a_neighbour_s_tokens(run: Forced) -> None:
    run._sequences = [run._sequences[i][: len(own)] for i, own in zip((0, 2, 2), run._sequences, strict=True)]


@pytest.mark.slow
def test_a_wrong_scale_is_found(tiny_params, dense_answer, by_decode, cpu):
    wrong = step.Model(TINY, dataclasses.replace(dense, forward=scaled_forward))
    got = forced_logits(wrong, tiny_params, SMALL, "decode", cpu)
    assert all_faults(got, by_decode, dense_answer).keys() == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "where"),
    [(take_a_page_of_a_neighbour, {2}), (leave_a_page_unwritten, {2}), (feed_a_neighbour_s_tokens, {1})],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mix_up_is_found_where_it_is(tiny_params, dense_answer, by_decode, cpu, spoil, where):
    got = forced_logits(step.Model(TINY, dense), tiny_params, SMALL, "decode", cpu, spoil)
    assert all_faults(got, by_decode, dense_answer).keys() == where


@pytest.mark.slow
def test_a_page_that_no_one_wrote_is_not_finite(tiny_params, cpu):
    def lose_a_page(run: Forced) -> None:
        run.state = run.state.replace(page_table=run.state.page_table.at[3, 2].set(0))

    with pytest.raises(AssertionError, match="sequence 2 is not finite"):
        forced_logits(step.Model(TINY, dense), tiny_params, SMALL, "decode", cpu, lose_a_page)


@pytest.mark.parametrize("noise", [1.5, 3])
def test_more_than_twice_the_noise_is_too_much(noise):
    draw = np.random.default_rng(0)
    wanted, first, second = (draw.normal(size=(64, 500)) for _ in range(3))
    wanted[np.arange(64), draw.integers(0, 500, 64)] += 8
    found = faults(wanted + noise * 0.02 * first, wanted + 0.02 * second, wanted)
    assert len(found) == (2 if noise > 2 else 0)


def test_only_a_close_race_may_end_otherwise():
    wanted = np.zeros((2, 10))
    wanted[:, 3], wanted[:, 4] = 1.0, (0.95, 0.85)
    got = wanted.copy()
    got[:, 4] = 1.01
    assert faults(got, got, wanted) == ["another token wins at 1 by a gap above 0.1"]


# On the GPU: our kernels


FEW = Work(prompts=(100, 1000, 4000) * 2, forced=512, page_size=64, budget=1024, decode=7, rows=8)
MANY = dataclasses.replace(FEW, prompts=FEW.prompts + (100,) * 7 + (1000,) * 4 + (4000,), decode=20, rows=20)
SMALL_STEPS = dataclasses.replace(MANY, budget=256)  # of many rows: each token reads by itself
MODELS = {
    "groups of 4": model_of(8, 2, 128, qk_norm=True, hidden=512, num_layers=4),
    "groups of 6": model_of(12, 2, 128, qk_norm=False, hidden=512, num_layers=4),
}
FP8: dict[str, Sharing] = {"groups of 4, fp8 by block": "block", "groups of 6, fp8 by row": "channel"}
MODELS |= {
    name: dataclasses.replace(MODELS[name.split(",")[0]], published=Published(((("Linear",), Fp8(sharing)),)))
    for name, sharing in FP8.items()
}


@functools.cache
def weights(name: str) -> Params:
    params = clear_params(MODELS[name], gpu())
    return in_fp8(params, (128, 128) if FP8[name] == "block" else None) if name in FP8 else params


@functools.cache
def by_xla(name: str, precision: str) -> list[np.ndarray]:
    """What XLA makes of MANY, whose first sequences are those of FEW."""
    params = weights(name) if precision == "bfloat16" else in_float32(weights(name))
    way = "decode" if precision == "bfloat16" else "whole"
    return forced_logits(step.Model(MODELS[name], dense), params, MANY, way, gpu())


@functools.cache
def in_fp8_by_xla(name: str) -> list[np.ndarray]:
    """Of MANY, by our kernels, but XLA multiplies what rows and weights in fp8 stand for."""

    def product(
        x: jax.Array, scale: jax.Array, w: Quantized, *, dtype: DTypeLike, gated: bool = False, tuning: object
    ) -> jax.Array:
        codes = jax.lax.optimization_barrier(x)  # else XLA spares rows that it widens again the rounding
        wide = (codes.astype(np.float32) * scale[:, None]).astype(dtype)
        return (xla_linear.gate_up if gated else xla_linear.linear)(wide, w)

    model = step.Model(MODELS[name], dense, all_mosaic(MODELS[name], MANY.page_size, gpu()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sm90_w8a8, "product", product)
        jax.clear_caches()  # what is compiled is not compiled anew
        found = forced_logits(model, weights(name), MANY, "pieces", gpu())
    jax.clear_caches()
    return found


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("work", "way"),
    [(FEW, "decode"), (FEW, "pieces"), (MANY, "decode"), (MANY, "pieces"), (SMALL_STEPS, "pieces")],
    ids=["few rows, decode", "few rows, pieces", "many rows, decode", "many rows, pieces", "small steps, pieces"],
)
@pytest.mark.parametrize("name", MODELS)
def test_mosaic_is_as_near_to_float32_as_xla_is(name, work, way):
    wanted, xla = by_xla(name, "float32"), in_fp8_by_xla(name) if name in FP8 else by_xla(name, "bfloat16")
    assert clear_share(np.concatenate(wanted)) >= 0.8
    model = step.Model(MODELS[name], dense, all_mosaic(MODELS[name], work.page_size, gpu()))
    (bucket,) = work.limits(model.config.vocab_size).extend_buckets
    by_token = kernels_for(model.config, model.backends, bucket).reads_by_token
    assert by_token == (work is SMALL_STEPS and name not in FP8)  # of fp8, more than 64 rows are no sequence
    got = forced_logits(model, weights(name), work, way, gpu())
    assert all_faults(got, xla[: len(got)], wanted[: len(got)], in_fp8=name in FP8) == {}
