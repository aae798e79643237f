"""Twin tests of the linear layer."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer_kernels.linear import xla
from jaxinfer_kernels.linear.reference import linear_reference
from jaxinfer_kernels.linear.xla import linear

SHAPES = [(1, 64, 32), (2, 64, 32), (5, 48, 33), (1, 1, 1), (64, 96, 7), (3, 64, 600)]  # T, K, N


def operands(t: int, k: int, n: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(shape, np.float32).astype(jnp.dtype(dtype))) for shape in [(t, k), (n, k)])
    return x, w


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_matches_its_reference(shape: tuple[int, int, int], dtype: str) -> None:
    x, w = operands(*shape, dtype)
    out, expected = linear(x, w), jax.jit(linear_reference)(x, w)
    assert out.dtype == x.dtype
    # one rounding to the result's type, plus sums in another order
    tolerance = {"float32": 1e-5, "bfloat16": 2**-7, "float16": 2**-9}[dtype]
    np.testing.assert_allclose(
        np.asarray(out, np.float32), np.asarray(expected, np.float32), rtol=tolerance, atol=tolerance * 8
    )


def test_logits_come_in_float32_without_being_rounded_first() -> None:
    x, w = operands(3, 64, 32, "bfloat16")
    logits = linear(x, w, out_dtype=jnp.float32)
    assert logits.dtype == jnp.float32
    assert np.any(np.asarray(logits) != np.asarray(linear(x, w).astype(jnp.float32)))


@pytest.mark.parametrize("rows", [1, 2, 3, 16])
def test_a_row_in_float32_has_the_same_bits_whatever_the_batch(rows: int) -> None:
    x, w = operands(33, 256, 96, "float32")
    whole = np.asarray(linear(x, w))
    np.testing.assert_array_equal(np.asarray(linear(x[:rows], w)), whole[:rows])


def test_float32_is_full_float32() -> None:
    # 2**-20 would be lost if the factors were rounded to TF32 or bfloat16
    x, w = jnp.array([[1 + 2**-20, 1.0]] * 2, jnp.float32), jnp.array([[1.0, -1.0]], jnp.float32)
    np.testing.assert_array_equal(np.asarray(linear(x, w)), np.float32(2**-20))
    assert "HIGHEST" in str(jax.make_jaxpr(linear)(x, w))


@pytest.mark.parametrize("rows", [1, 2, 16])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_cpu_makes_no_float32_copy_of_the_weights(rows: int, dtype: str) -> None:
    x, w = operands(rows, 512, 2048, dtype)
    analysis = linear.lower(x, w).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < w.size * 4 / 3


def test_mismatched_operands_are_refused_by_shape_and_dtype() -> None:
    x, w = operands(2, 64, 32, "float32")
    linear = inspect.unwrap(xla.linear)  # without the checks of annotations, which tests have
    with pytest.raises(ValueError, match=r"one dtype, got float32\[2,64\] and bfloat16\[32,64\]"):
        linear(x, w.astype(jnp.bfloat16))
    with pytest.raises(ValueError, match=r"x \[T, K\] and w \[N, K\]"):
        linear(x, w.T)
