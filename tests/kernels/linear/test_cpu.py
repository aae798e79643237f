"""The linear layer's kernel for CPUs against its reference, by each set of instructions that this machine has."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer_kernels import cpu
from jaxinfer_kernels.cpu import Isa
from jaxinfer_kernels.linear import xla
from jaxinfer_kernels.linear.cpu import gate_up, linear, linear_residual
from jaxinfer_kernels.linear.reference import linear_reference
from tests.kernels.linear.products import draw

ISAS = [isa for isa in Isa if isa <= cpu.best()]
SHAPES = [  # T, N, K: rows of one pass and more, whole tiles and what is left of them
    *((t, 128, 96) for t in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 64)),
    (3, 70, 100),
    (17, 97, 33),
    (40, 192, 1024),
    (1, 1, 1),
]


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_as_exact_as_float32_sums(shape: tuple[int, int, int], isa: Isa) -> None:
    x, w = draw(*shape)
    expected = np.asarray(linear_reference(x.astype(jnp.float32), w.astype(jnp.float32)))
    wide = np.asarray(linear(x, w, out_dtype=jnp.float32, isa=isa))
    np.testing.assert_allclose(wide, expected, rtol=1e-5, atol=2e-6 * shape[2] ** 0.5)
    rounded = linear(x, w, isa=isa)
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(rounded, np.float32), expected, rtol=2**-8, atol=1e-5 * shape[2] ** 0.5)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_a_row_has_the_same_bits_in_any_batch(isa: Isa) -> None:
    x, w = draw(8, 192, 160)
    whole = np.asarray(linear(x, w, out_dtype=jnp.float32, isa=isa))
    for count in range(1, 8):
        for first in (0, 8 - count):
            part = np.asarray(linear(x[first : first + count], w, out_dtype=jnp.float32, isa=isa))
            np.testing.assert_array_equal(part, whole[first : first + count])


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_nan_and_infinities_stay_in_their_rows(isa: Isa) -> None:
    x, w = draw(3, 128, 64)
    x = x.at[1, 5].set(jnp.nan)
    found = np.asarray(linear(x, w, isa=isa), np.float32)
    assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()
    w = w.at[7, 3].set(jnp.inf)
    found = np.asarray(linear(x, w, isa=isa), np.float32)
    assert np.isinf(found[[0, 2], 7]).all() and np.isfinite(np.delete(found[[0, 2]], 7, axis=1)).all()


def test_neighbours_are_those_of_xla() -> None:
    (x, w), residual = draw(4, 128, 64), jnp.ones((4, 128), jnp.bfloat16)
    for mine, other in (
        (gate_up(x, w), xla.gate_up(x, w)),
        (linear_residual(x, w, residual), xla.linear_residual(x, w, residual)),
    ):
        np.testing.assert_allclose(np.asarray(mine, np.float32), np.asarray(other, np.float32), rtol=2**-6, atol=2**-6)


def test_other_shapes_and_dtypes_are_refused_before_the_call() -> None:
    x, w = draw(2, 16, 32)
    for wrong in (
        (x, w.astype(jnp.float32)),
        (x[:, :16], w),
        (x[0], w),
        (x.astype(jnp.float32), w.astype(jnp.float32)),
    ):
        with pytest.raises(ValueError, match="bfloat16, got"):
            linear(*wrong)
