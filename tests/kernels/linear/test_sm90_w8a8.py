"""Products of many rows in fp8: logic interpreted on the CPU, lowering for sm_90, numbers on a GPU."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.linear.cases import MODELS
from jaxinfer_kernels.linear.quantized import Format, Quantized
from jaxinfer_kernels.linear.reference import fused_linear_reference
from jaxinfer_kernels.linear.sm90_w8a8 import FP8, W8A8Tuning, product, rounded, supported
from jaxinfer_kernels.sm90 import H200
from tests.kernels.linear.products import QUICK_FIRST, arguments, error, in_fp8, replaced

OPS = {"linear": False, "gate_up": True}
BLOCKS = {"block": (128, 128), "half a block": (64, 128), "row": (1, 0)}


def drawn(op: str, rows: int, out: int, depth: int, sharing: str) -> tuple[jax.Array, Quantized]:
    """Of a model's sizes; rows of x are up to e**9 times as large as others."""
    named = arguments(op, rows, out, depth)
    by_row = jnp.exp(3 * jax.random.normal(jax.random.key(1), (rows, 1))).astype(named["x"].dtype)
    height, width = BLOCKS[sharing]
    w = in_fp8(named["w"], (height, width or depth))
    if op == "gate_up":  # gates that say neither yes nor no to all
        return named["x"], dataclasses.replace(w, scales=w.scales / 16)
    return named["x"] * by_row, w


def exact(op: str, x: jax.Array, w: Quantized) -> np.ndarray:
    """In float32, of what x and w stand for."""
    named = {"x": x.astype(jnp.float32), "w": w.widened(jnp.float32)}
    return np.asarray(fused_linear_reference(op, named, layer=0, eps=0))


def stood_for(x: jax.Array) -> jax.Array:
    """What the codes that x becomes stand for, in float32."""
    codes, scale = rounded(x)
    return codes.astype(jnp.float32) * scale[:, None]


@pytest.mark.parametrize("sharing", BLOCKS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("ctas", [2, pytest.param(H200.multiprocessors, marks=pytest.mark.slow)])
def test_computes_its_definition_with_one_rounding(op, sharing, ctas):
    """Stages are filled again; a CTA goes from tile to tile, and from group to group, of which the last is smaller."""
    x, w = drawn(op, 192, 256, 256, sharing)
    gpu = dataclasses.replace(H200, multiprocessors=ctas)
    # Each warpgroup holds one of XLA's threads: one multiplies, one copies.
    tuning = W8A8Tuning(warpgroups=1, stages=3 if ctas == 2 else 1, group=2, gpu=gpu)
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    got = product(*rounded(x), w, dtype=x.dtype, gated=OPS[op], tuning=tuning, interpret=interpret)
    assert error(got, exact(op, stood_for(x), w)) < 2.5e-3


def test_a_row_is_rounded_by_its_own_largest_value_and_has_all_codes():
    codes = np.arange(256, dtype=np.uint8).view(jnp.float8_e4m3fn)
    codes = np.nan_to_num(codes.astype(np.float32), nan=448)
    for scale in (1e-30, 1e-8, 1.0, 1e4, 1e30):
        made, found = rounded(jnp.asarray(np.stack([codes, codes[::-1] / 4]) * np.float32(scale)))
        np.testing.assert_allclose(found, [scale, scale / 4], rtol=1e-6)
        np.testing.assert_array_equal(made.astype(jnp.float32), np.stack([codes, codes[::-1]]))


def test_rows_of_zeros_stay_zeros_and_what_is_not_finite_is_not_hidden():
    x = replaced(jnp.ones((5, 128), jnp.bfloat16), 1, 0)
    x = x.at[2, 7].set(jnp.nan).at[3, 9].set(jnp.inf).at[4].set(1e-39)
    codes, scale = rounded(x)
    whole = np.asarray(codes.astype(jnp.float32) * scale[:, None])
    np.testing.assert_array_equal(whole[:2], np.asarray(x[:2], np.float32))
    assert np.isnan(whole[2, 7])
    assert np.isnan(whole[3, 9])
    assert np.abs(whole[4]).max() <= 2e-39


def shaped(out: int, depth: int, block: tuple[int, int]) -> Quantized:
    of = jax.ShapeDtypeStruct
    scales = of((-(-out // block[0]), -(-depth // block[1])), jnp.float32)
    return Quantized(of((out, depth), FP8), scales, Format.FP8, block=block)


@pytest.mark.parametrize("sharing", BLOCKS)
@pytest.mark.parametrize("rows", [136, 1024, 8192])
@pytest.mark.parametrize("model", QUICK_FIRST)
def test_lowers_for_hopper(model, rows, sharing):
    of, sizes, height = jax.ShapeDtypeStruct, MODELS[model], BLOCKS[sharing][0]
    for op, out in (("linear", sizes.width), ("gate_up", 2 * sizes.mlp)):
        w = shaped(out, sizes.width, (height, BLOCKS[sharing][1] or sizes.width))
        made = jax.jit(functools.partial(product, dtype=jnp.bfloat16, gated=OPS[op]))
        traced = made.trace(of((rows, sizes.width), FP8), of((rows,), jnp.float32), w)
        assert traced.lower(lowering_platforms=("cuda",)).as_text().count("mosaic_gpu_v2") == 1


def test_refuses_what_it_cannot_run():
    x, scale = rounded(jnp.ones((128, 256), jnp.bfloat16))
    weights = jnp.ones((256, 256), jnp.bfloat16)
    kept = in_fp8(weights, (128, 128))
    bad = [
        (x[:, :128], kept, jnp.bfloat16),
        (x, kept, jnp.float32),
        (x, in_fp8(weights, (32, 128)), jnp.bfloat16),
        (x, in_fp8(weights[:192], (64, 128)), jnp.bfloat16),
        (x[:, :192], in_fp8(weights[:, :192], (1, 192)), jnp.bfloat16),
        (x, Quantized(jnp.ones((256, 256), jnp.int8), jnp.ones(256), Format.INT8, block=(1, 256)), jnp.bfloat16),
    ]
    for rows, w, dtype in bad:
        with pytest.raises(ValueError, match=r"use linear\.xla\.linear"):
            product(rows, scale, w, dtype=dtype)
    assert supported(256, 256, jnp.float16, (1, 256))


@pytest.mark.gpu
@pytest.mark.parametrize("sharing", BLOCKS)
@pytest.mark.parametrize(("model", "rows"), [("Qwen3-8B", 136), ("Qwen2.5-1.5B", 1024), ("Qwen3-0.6B", 2000)])
def test_is_as_near_to_float32_as_xla_s_bf16_is(model, rows, sharing):
    """Of what the codes of x stand for; x itself is as near to them as e4m3 is."""
    sizes = MODELS[model]
    for op, out in (("linear", sizes.qkv), ("gate_up", 2 * sizes.mlp)):
        x, w = drawn(op, rows, out, sizes.width, sharing)
        for warpgroups in (2, 3):
            made = functools.partial(product, gated=OPS[op], tuning=W8A8Tuning(warpgroups=warpgroups))
            got = jax.block_until_ready(made(*rounded(x), w, dtype=x.dtype))
            meant = stood_for(x)
            by_xla = fused_linear_reference(op, {"x": x, "w": w.widened(x.dtype)}, layer=0, eps=0)
            assert error(got, exact(op, meant, w)) <= 2 * error(by_xla, exact(op, x, w))
            assert error(got, exact(op, x, w)) < 0.06
