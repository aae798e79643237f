"""Weights of 4 bits in tiles: where each lies, and what it stands for."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxinfer_kernels.linear import packed4
from jaxinfer_kernels.linear.quantized import Format, Quantized

RANDOM = np.random.default_rng(0)
VALUES = RANDOM.integers(0, 16, (128, 256)).astype(np.uint8)


def test_a_tile_lies_as_threads_of_a_warpgroup_give_it_to_wgmma() -> None:
    packed = packed4.pack(VALUES).view(np.uint32)
    assert packed.shape == (2, 16, 128)
    tile = packed[1, 8:].reshape(2, 128, 4)  # rows 64 .. 127, columns 128 .. 255: halves, threads, words of a thread
    half, thread, i, j, odd = np.meshgrid(*map(np.arange, (2, 128, 4, 4, 2)), indexing="ij")
    found = tile[half, thread, i] >> (4 * j + 16 * odd) & 15
    rows = 16 * (thread // 32) + thread % 32 // 4 + 8 * (j % 2)
    columns = 64 * half + 16 * i + 2 * (thread % 4) + odd + 8 * (j // 2)
    np.testing.assert_array_equal(found, VALUES[64 + rows, 128 + columns])


def test_tiles_are_taken_apart_to_what_they_were_made_of() -> None:
    np.testing.assert_array_equal(np.asarray(packed4.unpack(jnp.asarray(packed4.pack(VALUES)))), VALUES)
    turned = np.ascontiguousarray(VALUES.T).T  # as a file of [in, out] gives it
    np.testing.assert_array_equal(packed4.pack(turned), packed4.pack(VALUES))


def test_all_16_values_with_all_zeros_stand_for_what_numpy_says_to_the_bit() -> None:
    values = np.tile(np.arange(16, dtype=np.uint8), (64, 16))  # 256 columns in groups of 32
    scales = np.resize(np.asarray([6e-8, 0.0123, 1, 6e4], np.float16), (64, 8))
    zeros = np.resize(np.arange(17, dtype=np.uint8), (64, 8))  # 16 too, as GPTQ may have
    for zero in (None, zeros):
        each = 8.0 if zero is None else np.repeat(zero.astype(np.float32), 32, axis=1)
        exact = (values - np.float32(each)) * np.repeat(scales.astype(np.float32), 32, axis=1)
        by_tile = [None if part is None else jnp.asarray(part.T[None]) for part in (scales, zero)]
        held = Quantized(jnp.asarray(packed4.pack(values)), by_tile[0], Format.PACKED4, zeros=by_tile[1])
        assert held.shape == (64, 256)
        np.testing.assert_array_equal(np.asarray(held.widened("float32")), exact)


@pytest.mark.parametrize("divides", [False, True])
def test_all_16_codes_of_e2m1_with_all_scales_stand_for_what_numpy_says_to_the_bit(divides: bool) -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), (128, 16))  # 256 columns in groups of 16
    scales = np.resize(np.arange(1, 127, dtype=np.uint8), (128, 16)).view(ml_dtypes.float8_e4m3fn)
    of_rows = np.resize(np.asarray([1e-8, 0.0123, 1, 1e4], np.float32), 128)
    wide = scales.astype(np.float32)
    wide = wide / of_rows[:, None] if divides else wide * of_rows[:, None]
    exact = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * np.repeat(wide, 16, axis=1)
    by_tile = jnp.asarray(scales.reshape(2, 64, 16).swapaxes(1, 2))
    parts = jnp.asarray(packed4.pack(codes)), by_tile
    held = Quantized(*parts, Format.FP4, of_rows=jnp.asarray(of_rows), divides=divides)
    assert held.shape == (128, 256)
    np.testing.assert_array_equal(np.asarray(held.widened("float32")), exact)
    np.testing.assert_array_equal(np.asarray(held.rows(64, 128).widened("float32")), exact[64:])


def test_codes_of_e2m1_with_powers_of_two_stand_for_what_numpy_says_to_the_bit() -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), (64, 16))  # 256 columns in groups of 32
    scales = np.resize(np.arange(2, 252, dtype=np.uint8), (64, 8)).view(ml_dtypes.float8_e8m0fnu)
    exact = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * np.repeat(scales.astype(np.float32), 32, axis=1)
    held = Quantized(jnp.asarray(packed4.pack(codes)), jnp.asarray(scales.T[None]), Format.FP4)
    np.testing.assert_array_equal(np.asarray(held.widened("float32")), exact)
