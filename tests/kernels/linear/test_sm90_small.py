"""The Mosaic linear layers: their logic interpreted on the CPU, their lowering for sm_90, their numbers on a GPU."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.linear import packed4, sm90_small
from jaxinfer_kernels.linear.cases import MODELS
from jaxinfer_kernels.linear.quantized import Format, Quantized
from jaxinfer_kernels.linear.sm90_small_config import SmallTuning, WeightForm, supported
from jaxinfer_kernels.sm90 import H200
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
    in_packed4,
    reference,
    replaced,
    rounded,
    shapes,
)
from tests.support.jaxprs import equations

INTERPRET = plgpu.InterpretGPUParams(detect_races=True)
OPS = ["norm_linear", "norm_linear_bias", "linear_residual", "norm_gate_up"]


def run(op: str, named: dict[str, jax.Array], **settings: object) -> jax.Array:
    """The op on these arguments, to the end: interpret mode's callbacks can wait for ever on work behind them."""
    if op == "linear_residual":
        return jax.block_until_ready(sm90_small.linear_residual(**named, **settings))
    function = sm90_small.norm_gate_up if op == "norm_gate_up" else sm90_small.norm_linear
    return jax.block_until_ready(function(**named, layer=jnp.int32(LAYER), eps=EPS, **settings))


# At most two splits: peers that wait for each other each hold one of XLA's threads, of which there is one a core.
TINY = [
    # rows, out, depth, tuning
    (3, 128, 256, SmallTuning(splits=2, block=64, stages=1)),
    pytest.param(8, 128, 256, SmallTuning(splits=1), marks=pytest.mark.slow),
    pytest.param(16, 192, 256, SmallTuning(splits=1, clusters=2, block=64, stages=3), marks=pytest.mark.slow),
    pytest.param(8, 192, 256, SmallTuning(splits=2, clusters=1, stages=2), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("rows", "out", "depth", "tuning"), TINY)
def test_computes_its_definition(op, rows, out, depth, tuning):
    named = arguments(op, rows, out, depth)
    got = run(op, named, tuning=tuning, interpret=INTERPRET)
    if op == "linear_residual":
        check(op, named, got)
    else:  # which rounds once where the definition rounds twice
        assert error(got, reference(op, named)) <= error(rounded(op, named), reference(op, named))


FP8 = [
    # op, rows, block, tuning
    pytest.param("norm_gate_up", 3, (128, 128), SmallTuning(splits=2, stages=1), marks=pytest.mark.slow),
    pytest.param("norm_gate_up", 16, (1, 256), SmallTuning(splits=1, clusters=2), marks=pytest.mark.slow),
    pytest.param("norm_linear_bias", 3, (1, 256), SmallTuning(splits=2), marks=pytest.mark.slow),
    pytest.param("norm_linear_bias", 16, (64, 128), SmallTuning(splits=1, stages=3), marks=pytest.mark.slow),
    pytest.param("linear_residual", 8, (128, 128), SmallTuning(splits=1, clusters=2), marks=pytest.mark.slow),
    pytest.param("linear_residual", 3, (1, 256), SmallTuning(splits=2, stages=1), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("op", "rows", "block", "tuning"), FP8)
def test_weights_in_fp8_are_what_they_stand_for(op, rows, block, tuning):
    named = arguments(op, rows, 256, 256)
    w = in_fp8(named["w"], block)
    got = run(op, named | dict(w=w), tuning=tuning, interpret=INTERPRET)
    assert error(got, reference(op, named | dict(w=w.widened(jnp.float32)))) < 8e-3


PACKED4 = [
    # op, rows, group, zeros, tuning
    pytest.param("norm_gate_up", 3, 128, True, SmallTuning(splits=2, stages=1)),
    pytest.param("norm_gate_up", 16, 256, False, SmallTuning(splits=1, clusters=2), marks=pytest.mark.slow),
    pytest.param("norm_linear_bias", 16, 128, False, SmallTuning(splits=1, stages=3), marks=pytest.mark.slow),
    pytest.param("linear_residual", 8, 128, True, SmallTuning(splits=1, clusters=2), marks=pytest.mark.slow),
    pytest.param("linear_residual", 3, 256, False, SmallTuning(splits=2, stages=1), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("op", "rows", "group", "zeros", "tuning"), PACKED4)
def test_weights_of_4_bits_are_what_they_stand_for(op, rows, group, zeros, tuning):
    named = arguments(op, rows, 256, 256)
    w = in_packed4(named["w"], group, zeros=zeros)
    got = run(op, named | dict(w=w), tuning=tuning, interpret=INTERPRET)
    assert error(got, reference(op, named | dict(w=w.widened(jnp.float32)))) < 8e-3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_4_bits_lower_for_hopper(zeros, dtype):
    for op, out, depth in MODELS["Qwen3-8B"].ops():
        named = {name: jax.ShapeDtypeStruct(one.shape, dtype) for name, one in shapes(op, 8, out, depth).items()}
        of_tiles = out // packed4.ROWS, depth // 128, packed4.ROWS
        named["w"] = Quantized(
            jax.ShapeDtypeStruct((of_tiles[0], depth // 16, packed4.COLUMNS), jnp.int32),
            jax.ShapeDtypeStruct(of_tiles, jnp.float32),
            Format.PACKED4,
            zeros=jax.ShapeDtypeStruct(of_tiles, jnp.uint8) if zeros else None,
        )
        text = jax.jit(functools.partial(run_shapes, op)).trace(named).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("mosaic_gpu_v2") == 1


@pytest.mark.parametrize(
    ("op", "dtype", "is_fp8"),
    [("linear_residual", jnp.bfloat16, True), ("norm_linear", jnp.bfloat16, True), ("norm_linear", jnp.float16, False)],
)
def test_rows_that_are_multiplied_in_float16_may_be_of_any_size(op, dtype, is_fp8):
    """Of float16 itself: such as overflow once the norm's weights have multiplied them."""
    named = {name: value.astype(dtype) for name, value in arguments(op, 8, 128, 128).items()}
    exponents = np.array([-50, -40, -14, 0, 8, 20, 40, 50]) if dtype == jnp.bfloat16 else np.arange(4, 12)
    named["x"] = jnp.asarray((np.asarray(named["x"], np.float32) * np.exp2(exponents)[:, None]).astype(dtype))
    named |= {name: 16 * named[name] for name in ("norm",) if name in named}
    named |= {name: 0 * named[name] for name in ("residual",) if name in named}
    exact = named
    if is_fp8:
        w = in_fp8(named["w"], (128, 128))
        named, exact = named | dict(w=w), named | dict(w=w.widened(jnp.float32))
    got, wanted = np.asarray(run(op, named, interpret=INTERPRET), np.float32), reference(op, exact)
    for row in range(8):
        assert error(got[row], wanted[row]) < 8e-3, f"row {row}, 2 ** {exponents[row]} times as large"


@pytest.mark.parametrize("block", [(128, 128), (1, 256)])
def test_a_scale_of_another_block_would_show(block):
    w = in_fp8(arguments("linear_residual", 3, 256, 256)["w"], block)
    for shift in (1, -1, 2):
        other = dataclasses.replace(w, scales=jnp.roll(w.scales.ravel(), shift).reshape(w.scales.shape))
        assert error(other.widened(jnp.float32), np.asarray(w.widened(jnp.float32))) > 0.1


def test_every_code_of_fp8_comes_through():
    """Rows of x that pick a column each, and no scale: what comes out are the weights."""
    codes = np.setdiff1d(np.arange(256), [0x7F, 0xFF]).astype(np.uint8)  # without NaN
    values = np.resize(codes, (128, 128))[:, ::-1].copy()
    w = Quantized(jnp.asarray(values).view(jnp.float8_e4m3fn), jnp.ones((128, 1)), Format.FP8, block=(1, 128))
    picked, nothing = jnp.eye(8, 128, dtype=jnp.bfloat16), jnp.zeros((8, 128), jnp.bfloat16)
    got = run("linear_residual", dict(x=picked, w=w, residual=nothing), interpret=INTERPRET)
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(w.widened(jnp.float32)).T[:8])


@pytest.mark.slow
@pytest.mark.parametrize("block", [(128, 128), (1, 4096)])
def test_weights_in_fp8_lower_for_hopper(block):
    (rows, columns), out, depth = block, 24_576, 4096  # gate and up of Qwen3-8B

    def function(values: jax.Array, scales: jax.Array, named: dict[str, jax.Array]) -> jax.Array:
        return run_shapes("norm_gate_up", named | dict(w=Quantized(values, scales, Format.FP8, block=block)))

    named = shapes("norm_gate_up", 8, out, depth)
    del named["w"]
    values = jax.ShapeDtypeStruct((out, depth), jnp.float8_e4m3fn)
    scales = jax.ShapeDtypeStruct((out // rows, depth // columns), jnp.float32)
    text = jax.jit(function).trace(values, scales, named).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1


def test_refuses_formats_and_blocks_of_weights_that_it_does_not_read():
    x, residual = jnp.zeros((8, 128), jnp.bfloat16), jnp.zeros((8, 128), jnp.bfloat16)
    values = jnp.zeros((128, 128), jnp.float8_e4m3fn)
    few_rows = Quantized(values, jnp.ones((4, 1)), Format.FP8, block=(32, 128))
    of_int8 = Quantized(values.astype(jnp.int8), jnp.ones(128), Format.INT8, jnp.bfloat16)
    for w, words in ((few_rows, "got .* and fp8.128,128."), (of_int8, "got .* and int8.128,128.")):
        with pytest.raises(ValueError, match=words):
            sm90_small.linear_residual(x, w, residual)


def test_padding_reaches_only_padding():
    named = arguments("norm_gate_up", 8, 128, 256)
    named["x"] = replaced(named["x"], slice(5, None), jnp.nan)
    out = run("norm_gate_up", named, tuning=SmallTuning(splits=1), interpret=INTERPRET)
    assert error(out[:5], reference("norm_gate_up", named)[:5]) < 8e-3


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("model", QUICK_FIRST)
def test_lowers_for_hopper(model, rows):
    for op, out, depth in MODELS[model].ops():
        named = shapes(op, rows, out, depth)
        text = jax.jit(functools.partial(run_shapes, op)).trace(named).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("mosaic_gpu_v2") == 1


def run_shapes(op: str, named: dict[str, jax.Array]) -> jax.Array:
    return run(op, named)


def test_all_warps_of_a_cta_come_to_its_cluster_s_meetings():
    """A few lanes alone arrive there: a warp that lags behind them would wait for a meeting that has passed."""
    named = shapes("linear_residual", 8, 1536, 1536)
    traced = jax.make_jaxpr(functools.partial(sm90_small.linear_residual, tuning=SmallTuning(splits=4)))(**named)
    names = [equation.primitive.name for equation in equations(traced)]
    before = [names[i - 1] for i, name in enumerate(names) if name == "barrier_arrive"]
    assert before == ["commit_smem"] * 2


def test_refuses_what_it_cannot_run():
    x, w = jnp.zeros((8, 4096), jnp.bfloat16), jnp.zeros((64, 4096), jnp.bfloat16)
    with pytest.raises(ValueError, match="use linear.api.linear"):
        sm90_small.linear_residual(x, jnp.zeros((100, 4096), jnp.bfloat16), jnp.zeros((8, 100), jnp.bfloat16))
    for tuning in (SmallTuning(splits=3), SmallTuning(block=96), SmallTuning(splits=1, stages=20)):
        with pytest.raises(ValueError, match="block must be a multiple of 64"):
            sm90_small.linear_residual(x, w, jnp.zeros((8, 64), jnp.bfloat16), tuning=tuning)
    assert not supported(65, 64, 128, jnp.bfloat16, H200)
    assert not supported(8, 64, 128, jnp.float32, H200)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "rows"), [*((model, rows) for model in MODELS for rows in (3, 16)), ("Qwen2.5-1.5B", 64)]
)
def test_is_as_near_to_float32_as_xla_is(model, rows):
    for op, out, depth in MODELS[model].ops():
        if rows <= 16 or supported(rows, out, depth, jnp.bfloat16, H200):  # so many rows the engine counts on
            named = arguments(op, rows, out, depth)
            check_beside_xla(op, named, run(op, named))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [3, 16, 64])
@pytest.mark.parametrize("by_row", [True, False])
def test_fp8_is_as_near_to_float32_as_xla_is(by_row, rows):
    for op, out, depth in MODELS["Qwen3-8B"].ops():
        block = (1, depth) if by_row else (128, 128)
        can_run = supported(rows, out, depth, jnp.bfloat16, H200, WeightForm(Format.FP8, block))
        assert can_run is (rows <= 16 or depth < 12_288), "64 rows of so many columns have no room"
        if can_run:
            named = arguments(op, rows, out, depth)
            w = in_fp8(named["w"], block)
            widened = named | dict(w=w.widened(jnp.bfloat16))
            wanted = reference(op, named | dict(w=w.widened(jnp.float32)))
            assert error(run(op, named | dict(w=w)), wanted) <= 2 * error(by_xla(op, widened), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [3, 16, 32])
@pytest.mark.parametrize(("group", "zeros"), [(128, False), (128, True), (None, False)])
def test_4_bits_are_as_near_to_float32_as_xla_is(group, zeros, rows):
    for op, out, depth in MODELS["Qwen3-8B"].ops():
        named = arguments(op, rows, out, depth)
        w = in_packed4(named["w"], group or depth, zeros=zeros)
        widened = named | dict(w=w.widened(jnp.bfloat16))
        wanted = reference(op, named | dict(w=w.widened(jnp.float32)))
        assert error(run(op, named | dict(w=w)), wanted) <= 2 * error(by_xla(op, widened), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_every_value_of_4_bits_comes_through_in_every_place(dtype):
    """Rows of x that pick a column each, and scales that are powers of 2: what comes out are the weights."""
    rng = np.random.default_rng(3)
    for first in range(0, 256, 64):
        picked = jnp.eye(64, 256, first, dtype)
        for turn in range(16):
            values = ((np.arange(64)[:, None] * 5 + np.arange(256) * 3 + turn) % 16).astype(np.uint8)
            scales, zeros = np.exp2(rng.integers(-3, 4, (1, 2, 64))), rng.integers(0, 16, (1, 2, 64), np.uint8)
            w = Quantized(
                jnp.asarray(packed4.pack(values)),
                jnp.asarray(scales.astype(np.float32)),
                Format.PACKED4,
                zeros=jnp.asarray(zeros),
            )
            got = run("linear_residual", dict(x=picked, w=w, residual=jnp.zeros((64, 64), dtype)))
            wanted = np.asarray(w.widened(jnp.float32)).T[first : first + 64]
            np.testing.assert_array_equal(np.asarray(got, np.float32), wanted)
