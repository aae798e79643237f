"""Weights in 8 and 4 bits: what they stand for, and how near that is to what they were."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxinfer_kernels.linear.quantized import ROUNDED, Format, Quantized, quantize, quantized_shapes
from jaxinfer_kernels.linear.xla import linear

each_format = pytest.mark.parametrize("kind", ROUNDED)


def weights(rows: int = 24, columns: int = 96, scale: float = 1) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32) * np.float32(scale)


@each_format
@pytest.mark.parametrize("scale", [1e-30, 1e-4, 1, 1e30])
def test_each_weight_is_rounded_to_the_nearest_that_its_scale_has(kind: Format, scale: float) -> None:
    exact = weights(scale=scale)
    held = quantize(jnp.asarray(exact), kind, "bfloat16")
    steps = np.abs(np.asarray(held.scales, np.float32))
    steps = steps[:, None] if kind is Format.INT8 else np.repeat(steps, 32, axis=1)
    most = 0.5 if kind is Format.INT8 else 1.03  # what lies opposite the farthest one may be cut to 7 steps
    assert (np.abs(np.asarray(held.widened("float32")) - exact) <= steps * np.float32(most)).all()


def test_a_group_of_4_bits_keeps_its_farthest_weight_and_uses_all_values() -> None:
    exact = np.tile(np.linspace(-8, 7, 16, dtype=np.float32), (2, 4))
    exact[1] *= -1
    held = quantize(jnp.asarray(exact), Format.INT4, "float32")
    np.testing.assert_array_equal(np.asarray(held.widened("float32")), exact)
    first = np.asarray(held.values)[0, :16]
    np.testing.assert_array_equal(first & 15, first >> 4)  # column i, and column 16 + i beside it
    assert sorted(first & 15) == list(range(16))


@each_format
def test_zeros_stay_zeros_and_what_is_not_finite_makes_its_scale_nan(kind: Format) -> None:
    exact = weights()
    exact[3] = 0
    exact[5, 40], exact[6, 40] = np.inf, np.nan
    found = np.asarray(quantize(jnp.asarray(exact), kind, "float32").widened("float32"))
    assert (found[3] == 0).all()
    assert np.isnan(found[[5, 6], 40]).all()
    assert np.isfinite(np.delete(found, [5, 6], axis=0)).all()
    assert np.isfinite(found[[5, 6], :32]).all() == (kind is Format.INT4)


@each_format
def test_shapes_without_arrays_are_those_of_arrays_and_rows_can_be_taken(kind: Format) -> None:
    held = quantize(jnp.asarray(weights()), kind, "bfloat16")
    shapes = quantized_shapes((24, 96), kind, "bfloat16")
    assert jax.tree.map(lambda a: (a.shape, a.dtype), held) == jax.tree.map(lambda a: (a.shape, a.dtype), shapes)
    assert held.shape == shapes.shape == (24, 96)
    rows = held[jnp.asarray([5, 0, 5])]
    assert rows.dtype == jnp.bfloat16
    np.testing.assert_array_equal(rows, held.widened("bfloat16")[jnp.asarray([5, 0, 5])])


@each_format
@pytest.mark.parametrize(("first", "last"), [(0, 1), (5, 16), (16, 24)])
def test_a_matrix_is_quantized_row_by_row(kind: Format, first: int, last: int) -> None:
    exact = weights()
    whole, part = (quantize(jnp.asarray(some), kind, "bfloat16") for some in (exact, exact[first:last]))

    def cut(array: jax.Array) -> np.ndarray:
        return np.asarray(array)[first:last]

    expected = Quantized(cut(whole.values), cut(whole.scales), kind, "bfloat16")
    jax.tree.map(np.testing.assert_array_equal, part, expected)


SCALES = [1e-8, 0.0123, 1.0, 3.0, 1e4]


def fp8(rows: int, columns: int, block: tuple[int, int]) -> tuple[Quantized, np.ndarray]:
    """All codes of e4m3 with scales of every size, and what they stand for by numpy, in float32."""
    codes = (np.arange(rows * columns) * 37 % 256).astype(np.uint8).reshape(rows, columns)
    values = codes.view(ml_dtypes.float8_e4m3fn)
    shape = -(-rows // block[0]), -(-columns // block[1])
    scales = np.resize(np.asarray(SCALES, np.float32), shape)
    each = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[:rows, :columns]
    held = Quantized(jnp.asarray(values), jnp.asarray(scales), Format.FP8, block=block)
    return held, values.astype(np.float32) * each


@pytest.mark.parametrize("block", [(128, 128), (64, 128), (1, 300)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_code_of_fp8_stands_for_what_numpy_says_to_the_bit(block: tuple[int, int], dtype: str) -> None:
    held, exact = fp8(200, 300, block)
    assert held.shape == (200, 300)
    assert np.isnan(exact).any()  # codes 127 and 255
    exact = exact.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(held.widened(dtype), np.float32), exact)
    first = 128 if block[0] > 1 else 77
    np.testing.assert_array_equal(np.asarray(held.rows(first, 200).widened(dtype), np.float32), exact[first:])


def test_a_product_of_fp8_is_that_of_what_the_weights_stand_for() -> None:
    held, exact = fp8(64, 256, (32, 128))
    exact = np.nan_to_num(exact)
    values = jnp.where(jnp.isnan(held.values.astype(jnp.float32)), 0, held.values.astype(jnp.float32))
    held = Quantized(values.astype(held.values.dtype), held.scales, Format.FP8, block=held.block)
    x = np.random.default_rng(1).normal(size=(3, 256)).astype(np.float32)
    found = np.asarray(linear(jnp.asarray(x), held))
    np.testing.assert_array_equal(found, np.asarray(linear(jnp.asarray(x), jnp.asarray(exact))))


@pytest.mark.parametrize("kind", [Format.FP8, pytest.param(Format.INT8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rows", "dtype"),
    [(1, "bfloat16"), (4, "bfloat16"), (1, "float32"), pytest.param(4, "float16", marks=pytest.mark.slow)],
)
def test_one_matrix_is_widened_at_a_time(kind: Format, rows: int, dtype: str) -> None:
    """What XLA needs beside its arguments is bounded by a matrix, however many follow each other."""
    size, layers = 512, 6
    shape = jax.ShapeDtypeStruct
    if kind is Format.FP8:
        scales = shape((size // 128, size // 128), jnp.float32)
        w = Quantized(shape((size, size), jnp.float8_e4m3fn), scales, kind, block=(128, 128))
    else:
        w = Quantized(shape((size, size), jnp.int8), shape((size,), jnp.float32), kind)

    def function(matrices: list[Quantized], x: jax.Array) -> jax.Array:
        for matrix in matrices:
            x = jnp.tanh(linear(x, matrix))
        return x

    lowered = jax.jit(function).lower([w] * layers, shape((rows, size), dtype))
    needed = lowered.compile().memory_analysis().temp_size_in_bytes
    assert needed <= 1.2 * 4 * size * size
