"""The Mosaic linears of many rows: logic interpreted on the CPU, lowering for sm_90, numbers on a GPU."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.linear import sm90_medium
from jaxinfer_kernels.linear.cases import MODELS
from jaxinfer_kernels.linear.quantized import Format, Quantized
from jaxinfer_kernels.linear.sm90_medium import DeferredNorm
from jaxinfer_kernels.linear.sm90_medium_config import MediumTuning, can_defer_norm, supported
from tests.kernels.linear.products import (
    EPS,
    LAYER,
    QUICK_FIRST,
    arguments,
    by_xla,
    check,
    check_beside_xla,
    error,
    in_fp8,
    reference,
    replaced,
    shapes,
)

OPS = ["gate_up", "linear_residual", "linear", "linear_bias"]  # linear: linear_bias without a bias


def function(op: str, **settings: object) -> Callable[..., jax.Array]:
    if op in ("linear", "linear_bias"):
        return functools.partial(sm90_medium.linear_bias, layer=jnp.int32(LAYER), **settings)
    return functools.partial(getattr(sm90_medium, op), **settings)


def run(op: str, named: dict[str, jax.Array], **settings: object) -> jax.Array:
    return jax.block_until_ready(function(op, **settings)(**named))


def lowered(op: str, rows: int, out: int, depth: int, **settings: object) -> str:
    """For a GPU."""
    named = shapes(op, rows, out, depth)
    traced = jax.jit(lambda named: function(op, **settings)(**named)).trace(named)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


# One warpgroup that multiplies and one that copies: interpreted, each holds one of XLA's threads, one a core.
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("rows", "depth", "tuning"),
    [
        pytest.param(64, 256, MediumTuning(columns=128, splits=1), marks=pytest.mark.slow),
        (
            19,
            320,
            MediumTuning(columns=96, splits=1, stages=2),
        ),  # the last tile repeats columns; stages are filled again
        (8, 128, MediumTuning(columns=256, splits=1, stages=2)),
    ],
)
def test_computes_its_definition(op, rows, depth, tuning):
    named = arguments(op, rows, 512, depth)
    # Where the last tile repeats columns two CTAs write the same values to the same places: a race, and harmless.
    interpret = plgpu.InterpretGPUParams(detect_races=512 % tuning.columns == 0)
    check(op, named, run(op, named, tuning=tuning, interpret=interpret))


@pytest.mark.slow
@pytest.mark.parametrize("test", ["HALVED", "WIDENED"])
def test_more_warpgroups_compute_the_definition_too(test):
    """In a process of its own: its warpgroups each hold one of XLA's threads, and here there is one a core.

    HALVED: two CTAs share rows and weights.    WIDENED: weights in fp8, which a warpgroup of its own widens.
    """
    code = "from tests.kernels.linear.test_sm90_medium import *\n" + globals()[test]
    env = {**os.environ, "NPROC": "8"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


HALVED = """
for op in OPS:
    for rows, depth, columns in ((16, 320, 96), (24, 256, 128)):  # 24: the halves have eight rows in common
        named = arguments(op, rows, 512, depth)
        tuning = MediumTuning(columns=columns, splits=1, stages=2, halves=2)
        check(op, named, run(op, named, tuning=tuning, interpret=plgpu.InterpretGPUParams()))
"""
WIDENED = """
for op in OPS:
    # Tiles that reach into two blocks of scales and three, with the last one repeating columns; a scale a row.
    for rows, depth, columns, block in ((19, 384, 96, (128, 128)), (8, 512, 88, (64, 128)), (8, 384, 64, (1, 384))):
        named = arguments(op, rows, 512, depth)
        w = in_fp8(named["w"], block)
        tuning = MediumTuning(columns=columns, splits=1, stages=2)
        interpret = plgpu.InterpretGPUParams(detect_races=512 % columns == 0)
        got = run(op, named | dict(w=w), tuning=tuning, interpret=interpret)
        check(op, named | dict(w=w.widened(jnp.bfloat16)), got)
"""


@pytest.mark.parametrize("op", ["gate_up", "linear_bias"])
def test_padding_reaches_only_padding(op):
    named = arguments(op, 16, 512, 128)
    named["x"] = replaced(named["x"], slice(9, None), np.nan)
    out = run(op, named, tuning=MediumTuning(columns=256, splits=1), interpret=plgpu.InterpretGPUParams())
    assert error(out[:9], reference(op, named)[:9]) < 8e-3


def behind_a_norm[T](
    make: Callable[..., dict[str, T]], op: str, rows: int, out: int, width: int, depth: int
) -> tuple[dict[str, T], ...]:
    """Arguments of linear_residual with the norm that it begins, and those of the op behind it but for x."""
    residual, named = make("linear_residual", rows, width, depth), make(op, rows, out, width)
    named["norm"] = make("norm_linear", 1, 8, width)["norm"]
    del named["x"]
    return residual, named


def arrays_behind_a_norm(op: str, rows: int, *sizes: int) -> tuple[dict[str, jax.Array], ...]:
    """With rows of different sizes."""
    residual, named = behind_a_norm(arguments, op, rows, *sizes)
    factors = np.exp2(np.arange(rows) % 7 - 3)[:, None].astype(jnp.bfloat16)
    residual["residual"] = jnp.asarray(np.asarray(residual["residual"]) * factors)
    return residual, named


def run_behind_a_norm(
    op: str, residual: dict[str, jax.Array], named: dict[str, jax.Array], **settings: object
) -> tuple[DeferredNorm, jax.Array]:
    norm = dict(norm=named["norm"], layer=jnp.int32(LAYER))
    begun = sm90_medium.linear_residual(**residual, **norm, **settings)
    rest = {name: value for name, value in named.items() if name != "norm"}
    return begun, function(op, eps=EPS, **settings)(begun, **rest)


# Eight sums of squares for each row, or five.
@pytest.mark.parametrize(("op", "rows", "width"), [("gate_up", 19, 512), ("linear_bias", 8, 320)])
def test_a_product_ends_the_norm_that_the_one_before_it_began(op, rows, width):
    residual, named = arrays_behind_a_norm(op, rows, 256, width, 128)
    tuning = MediumTuning(columns=64, splits=1)
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    begun, out = run_behind_a_norm(op, residual, named, tuning=tuning, interpret=interpret)
    check("linear_residual", residual, begun.rows)
    check_beside_xla(op, named | {"x": begun.rows}, out)


def test_a_norm_that_is_begun_is_kept_from_dividing_by_zero():
    residual, named = arrays_behind_a_norm("linear", 8, 256, 512, 128)
    residual = {name: value if name == "w" else replaced(value, 3, 0) for name, value in residual.items()}
    tuning = MediumTuning(columns=64, splits=1)
    _, out = run_behind_a_norm("linear", residual, named, tuning=tuning, interpret=plgpu.InterpretGPUParams())
    assert not out[3].any()
    assert np.isfinite(np.asarray(out, np.float32)).all()


def test_no_norm_is_begun_where_columns_would_count_twice_or_f16_overflow():
    assert can_defer_norm(128, 1536, jnp.bfloat16)
    assert not can_defer_norm(128, 1552, jnp.bfloat16)
    assert not can_defer_norm(128, 1536, jnp.float16)


def layers(model: str) -> list[tuple[str, int, int]]:
    """Op, out, depth: a norm lies between two products, so no op takes it."""
    return [(op.removeprefix("norm_"), *sizes) for op, *sizes in MODELS[model].ops()]


@pytest.mark.parametrize("rows", [24, 128, 256])
@pytest.mark.parametrize("model", QUICK_FIRST)
def test_lowers_for_hopper(model, rows):
    for op, out, depth in layers(model):
        assert lowered(op, rows, out, depth).count("mosaic_gpu_v2") == 1


@pytest.mark.parametrize("rows", [24, 128, 256])
@pytest.mark.parametrize("model", QUICK_FIRST)
def test_a_norm_between_products_lowers_for_hopper_without_a_kernel_of_its_own(model, rows):
    width, heads = MODELS[model].width, MODELS[model].attended
    for op, out, _ in (layers(model)[0], layers(model)[2]):
        named = behind_a_norm(shapes, op, rows, out, width, heads)
        lowered = jax.jit(functools.partial(run_behind_a_norm, op)).trace(*named).lower(lowering_platforms=("cuda",))
        assert can_defer_norm(rows, width, jnp.bfloat16)
        assert lowered.as_text().count("mosaic_gpu_v2") == 2


@pytest.mark.parametrize(("rows", "block"), [(64, (128, 128)), pytest.param(128, (1, 4096), marks=pytest.mark.slow)])
def test_weights_in_fp8_lower_for_hopper(rows, block):
    out, depth = 24_576, 4096  # gate and up of Qwen3-8B
    values = jax.ShapeDtypeStruct((out, depth), jnp.float8_e4m3fn)
    scales = jax.ShapeDtypeStruct((out // block[0], depth // block[1]), jnp.float32)
    x = shapes("gate_up", rows, out, depth)["x"]

    def function(x: jax.Array, values: jax.Array, scales: jax.Array) -> jax.Array:
        return sm90_medium.gate_up(x, Quantized(values, scales, Format.FP8, block=block))

    text = jax.jit(function).trace(x, values, scales).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1


@pytest.mark.parametrize("op", OPS)
def test_a_kernel_begins_early_unless_told_otherwise(op):
    shape = 24, 1024, 1024
    assert "griddepcontrol" in lowered(op, *shape)
    assert "griddepcontrol" not in lowered(op, *shape, tuning=MediumTuning(pdl=False))


def test_refuses_what_it_cannot_run():
    x, w = jnp.zeros((8, 4096), jnp.bfloat16), jnp.zeros((1024, 4096), jnp.bfloat16)
    with pytest.raises(ValueError, match="use linear.api.linear"):
        sm90_medium.gate_up(jnp.zeros((8, 100), jnp.bfloat16), jnp.zeros((1024, 100), jnp.bfloat16))
    wrong = (
        MediumTuning(columns=24, splits=2),
        MediumTuning(columns=24, halves=2),
        MediumTuning(columns=1024),
    )
    for tuning in (*wrong, MediumTuning(columns=64, stages=20), MediumTuning(columns=256, stages=8)):
        with pytest.raises(ValueError, match="columns must be a multiple"):
            sm90_medium.gate_up(x, w, tuning=tuning)
    w = Quantized(jnp.zeros((1024, 4096), jnp.float8_e4m3fn), jnp.ones((32, 32)), Format.FP8, block=(32, 128))
    with pytest.raises(ValueError, match="got .* and fp8.1024,4096.; use linear.api.linear"):
        sm90_medium.gate_up(x, w)
    assert not supported(129, 1024, 128, jnp.bfloat16, (128, 128))
    assert not supported(257, 1024, 128, jnp.bfloat16)
    assert not supported(8, 1024, 128, jnp.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "rows"),
    [*(("Qwen2.5-1.5B", rows) for rows in (19, 64, 128, 192, 200, 256)), *((model, 128) for model in MODELS)],
)
def test_is_as_near_to_float32_as_xla_is(model, rows):
    for op, out, depth in layers(model):
        named = arguments(op, rows, out, depth)
        check_beside_xla(op, named, run(op, named))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "rows"),
    [*(("Qwen2.5-1.5B", rows) for rows in (19, 64, 128, 192, 200, 256)), *((model, 128) for model in MODELS)],
)
def test_a_norm_between_products_is_as_near_to_float32_as_xla_is(model, rows):
    width, heads = MODELS[model].width, MODELS[model].attended
    for op, out, _ in (layers(model)[0], layers(model)[2]):
        residual, named = arrays_behind_a_norm(op, rows, out, width, heads)
        begun, got = run_behind_a_norm(op, residual, named)
        check_beside_xla("linear_residual", residual, begun.rows)
        check_beside_xla(op, named | {"x": begun.rows}, got)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [19, 64, 128])
@pytest.mark.parametrize("by_row", [True, False])
def test_fp8_is_as_near_to_float32_as_xla_is(by_row, rows):
    for op, out, depth in layers("Qwen3-8B"):
        named = arguments(op, rows, out, depth)
        w = in_fp8(named["w"], (1, depth) if by_row else (128, 128))
        widened = named | dict(w=w.widened(jnp.bfloat16))
        wanted = reference(op, named | dict(w=w.widened(jnp.float32)))
        assert error(run(op, named | dict(w=w)), wanted) <= 2 * error(by_xla(op, widened), wanted)
