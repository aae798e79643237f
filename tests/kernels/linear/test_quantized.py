"""Weights in 8 and 4 bits: what they stand for, and how near that is to what they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer_kernels.linear.quantized import Format, Quantized, quantize, quantized_shapes

each_format = pytest.mark.parametrize("kind", Format)


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
