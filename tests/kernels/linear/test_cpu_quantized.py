"""Kernels for CPUs of quantized weights against their reference, by each set of instructions that this machine has."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer_kernels import cpu
from jaxinfer_kernels.cpu import Isa
from jaxinfer_kernels.linear import xla
from jaxinfer_kernels.linear.cpu import gate_up, linear, linear_residual
from jaxinfer_kernels.linear.quantized import ROUNDED, Format, Quantized, quantize
from jaxinfer_kernels.linear.reference import linear_quantized_reference
from tests.kernels.linear.products import draw, error

ISAS = [isa for isa in Isa if isa <= cpu.best()]
SHAPES = [  # T, N, K: rows of one pass and more, whole blocks and what is left of them
    *((t, 128, 256) for t in (1, 2, 3, 4, 5, 7, 8, 9, 17)),
    (3, 70, 96),
    (2, 5, 32),
    (4, 65, 416),
    (20, 192, 1024),
]
each_format = pytest.mark.parametrize("kind", ROUNDED)
each_isa = pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)


def products(cases: list[tuple[jax.Array, Quantized]], isa: Isa = Isa.AMX) -> list[np.ndarray]:
    """Of all of them by one program, as each would take a tenth of a second."""
    run = jax.jit(lambda cases: [linear(x, w, out_dtype=jnp.float32, isa=isa) for x, w in cases])
    return [np.asarray(one) for one in run(cases)]


def product(x: jax.Array, w: jax.Array) -> np.ndarray:
    return np.asarray(x, np.float32) @ np.asarray(w, np.float32).T


@functools.cache
def cases(kind: Format) -> list[tuple[jax.Array, Quantized]]:
    return [(x, quantize(w, kind, jnp.bfloat16)) for x, w in (draw(*shape) for shape in SHAPES)]


@each_isa
@each_format
def test_it_is_its_reference_but_for_the_order_of_sums(kind: Format, isa: Isa) -> None:
    for (t, n, k), (x, w), found in zip(SHAPES, cases(kind), products(cases(kind), isa), strict=True):
        wide = isa is Isa.AMX and t > 8 and n % 64 == 0
        wanted = product(x, w.widened(jnp.bfloat16)) if wide else linear_quantized_reference(x, w)
        assert error(found, wanted) < 1e-6, (t, n, k)


@each_isa
def test_all_values_of_int8_count_as_checkpoints_publish_them(isa: Isa) -> None:
    x, _ = draw(3, 64, 256)
    values = (np.arange(64 * 256) * 37 % 256).astype(np.uint8).view(np.int8).reshape(64, 256)
    w = Quantized(jnp.asarray(values), jnp.full(64, 0.01, jnp.float32), Format.INT8)
    assert values.min() == -128
    (found,) = products([(x, w)], isa)
    assert error(found, linear_quantized_reference(x, w)) < 1e-6


@each_format
def test_it_is_as_near_to_float32_as_widened_weights_are(kind: Format) -> None:
    x, exact = draw(8, 192, 1024)
    w = quantize(exact, kind, jnp.bfloat16)
    wanted = product(x, exact)
    found = linear(x, w)
    assert found.dtype == jnp.bfloat16
    assert error(found, wanted) < 2 * error(xla.linear(x, w), wanted)
    assert error(found, wanted) < {Format.INT8: 0.012, Format.INT4: 0.1}[kind]


@each_isa
@each_format
def test_a_row_has_the_same_bits_in_any_batch(kind: Format, isa: Isa) -> None:
    for columns in (384, 416):
        x, w = draw(8, 70, columns)
        w = quantize(w, kind, jnp.bfloat16)
        parts = [slice(first, first + count) for count in range(1, 9) for first in {0, 8 - count}]
        *found, whole = products([*((x[part], w) for part in parts), (x, w)], isa)
        for part, rows in zip(parts, found, strict=True):
            np.testing.assert_array_equal(rows, whole[part])


@each_isa
@each_format
def test_what_is_not_finite_stays_in_its_row(kind: Format, isa: Isa) -> None:
    x, exact = draw(3, 64, 128)
    values = jnp.nan, jnp.inf, -jnp.inf
    whole = quantize(exact, kind, jnp.bfloat16)
    of_x = [(x.at[1, 5].set(value), whole) for value in values]
    of_w = [(x, quantize(exact.at[7, 3].set(value), kind, jnp.bfloat16)) for value in values]
    found = products(of_x + of_w, isa)
    for rows in found[:3]:
        assert np.isnan(rows[1]).all()
        assert np.isfinite(rows[[0, 2]]).all()
    for rows in found[3:]:
        assert np.isnan(rows[:, 7]).all()
        assert np.isfinite(np.delete(rows, 7, axis=1)).all()


@each_isa
@each_format
def test_values_of_every_size_count_and_zeros_are_zeros(kind: Format, isa: Isa) -> None:
    x, w = draw(4, 64, 160)
    w = quantize(w, kind, jnp.bfloat16)
    x = x * jnp.asarray([[1e-30], [0], [1e-8], [1e30]], jnp.bfloat16)
    wanted, (found,) = linear_quantized_reference(x, w), products([(x, w)], isa)
    assert (found[1] == 0).all()
    for row in (0, 2, 3):
        np.testing.assert_allclose(found[row], wanted[row], rtol=1e-5, atol=1e-6 * np.abs(wanted[row]).max())


@each_format
def test_neighbours_are_those_of_xla(kind: Format) -> None:
    (x, exact), residual = draw(4, 128, 64), jnp.ones((4, 128), jnp.bfloat16)
    w = quantize(exact, kind, jnp.bfloat16)
    for mine, other in (
        (gate_up(x, w), xla.gate_up(x, w)),
        (linear_residual(x, w, residual), xla.linear_residual(x, w, residual)),
    ):
        assert error(mine, np.asarray(other, np.float32)) < 0.02


@each_format
def test_shapes_that_do_not_fit_are_refused_before_weights_are_read(kind: Format) -> None:
    x, exact = draw(2, 16, 64)
    w = quantize(exact, kind, jnp.bfloat16)
    for wrong in (x[:, :32], x[0], x.astype(jnp.float32)):
        with pytest.raises(ValueError, match="bfloat16, got"):
            linear(wrong, w)
    for scales in (w.scales[:3], w.scales[..., :1]):
        with pytest.raises(jax.errors.JaxRuntimeError, match="and their scales"):
            jax.block_until_ready(linear(x, dataclasses.replace(w, scales=scales)))
