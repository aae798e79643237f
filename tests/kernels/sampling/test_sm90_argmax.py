"""The kernels that take the largest of logits or of what masks leave, and store it: interpreted, lowered, on a GPU."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.sampling.sm90_argmax import (
    BITS,
    ROWS,
    TILES,
    WIDTH,
    WORDS,
    argmax,
    argmax_allowed,
    masks_supported,
    supported,
)

INTERPRET = plgpu.InterpretGPUParams(detect_races=True)
CHUNK = TILES * WIDTH
TILE = WORDS * BITS  # of one row
COLUMNS = {"mask": 1, "keep": 2}
HEADS = [151936, 152064, 128256, 49152]  # Qwen's, its larger ones', Llama's, and of whole chunks
KEPT = 7.0  # what was there before
MOST = 256  # rows; lowered are the fewest and the most, since rows are a kernel's grid


def logits(rows: int, width: int) -> jax.Array:
    """Random ones; four rows with what could go wrong: equals, the ends, all the same, all but one minus infinity."""
    x = np.random.default_rng(width).normal(0, 3, (max(rows, 4), width)).astype(np.float32)
    x[0, [5, width - 1]] = x[1, width - 1] = 50
    x[2] = -1
    x[3], x[3, width // 2] = -np.inf, -100
    return jnp.asarray(x[:rows])


def check(rows: int, width: int, **settings: object) -> None:
    """Of the first rows of more."""
    x = logits(rows + ROWS, width)
    for skip in (0, 1):
        ids = jax.block_until_ready(argmax(x, jnp.int32(skip), rows=rows, **settings))
        np.testing.assert_array_equal(ids, np.zeros(rows) if skip else np.asarray(x)[:rows].argmax(axis=-1))


@pytest.mark.parametrize("width", [CHUNK, CHUNK + WIDTH, 2 * CHUNK])  # the second: chunks that overlap
def test_finds_the_lowest_of_the_largest_unless_nobody_asks(width):
    check(2 * ROWS, width, interpret=INTERPRET)


def test_a_row_with_a_nan_disturbs_no_other():
    x = logits(ROWS, CHUNK).at[5, 3].set(jnp.nan)
    ids = argmax(x, jnp.int32(0), rows=ROWS, interpret=INTERPRET)
    others = np.arange(ROWS) != 5
    np.testing.assert_array_equal(np.asarray(ids)[others], np.asarray(x)[others].argmax(axis=-1))
    assert 0 <= ids[5] < CHUNK


def test_says_what_it_can_run():
    assert supported(8, 151936)
    assert not supported(9, 151936)  # no whole tiles of rows
    assert not supported(8, CHUNK + 1)
    assert not supported(8, CHUNK - WIDTH)


@pytest.mark.parametrize("rows", [8, MOST])
def test_lowers_for_hopper(rows):
    function = functools.partial(argmax, rows=rows)
    shapes = jax.ShapeDtypeStruct((MOST, 151936), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    text = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1


def columns(masks: list[int], keep: int) -> jax.Array:
    """As a step's upload has them: a slot, the mask, and in the first row whether what is left is looked at."""
    found = np.zeros((len(masks), 3), np.int32)
    found[:, 1], found[0, 2] = masks, keep
    return jnp.asarray(found)


def allowed(table: np.ndarray, masks: list[int], width: int) -> np.ndarray:
    """bool[rows, width]: the definition, bit by bit."""
    bits = np.unpackbits(table.view(np.uint8), axis=1, bitorder="little")[:, :width].astype(bool)
    return np.stack([np.ones(width, bool) if mask < 0 else bits[mask] for mask in masks])


def random_table(width: int) -> np.ndarray:
    """Random masks, and three with what could go wrong: nothing, the last token alone, the sign bits of all words."""
    table = np.random.default_rng(width).integers(-(2**31), 2**31, (7, width // BITS)).astype(np.int32)
    table[4] = table[5] = 0
    table[5, -1] = table[6] = -(2**31)
    return table


def check_masked(masks: list[int], width: int, keep: int, **settings: object) -> None:
    """Of the first rows of more logits than have a mask."""
    x, table, rows = logits(len(masks) + 4, width), random_table(width), len(masks)
    left = jnp.full(x.shape, KEPT)
    arguments = x, left, jnp.asarray(table), columns(masks, keep)
    ids, stored = jax.block_until_ready(argmax_allowed(*arguments, **COLUMNS, **settings))
    wanted = np.where(allowed(table, masks, width), np.asarray(x)[:rows], -np.inf)
    np.testing.assert_array_equal(ids, wanted.argmax(axis=-1))
    np.testing.assert_array_equal(stored[:rows], wanted if keep else left[:rows])
    np.testing.assert_array_equal(stored[rows:], left[rows:])


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("width", [TILE, TILE + BITS, TILES * TILE, TILES * TILE + BITS, 2 * TILES * TILE])
def test_finds_the_largest_of_what_masks_leave_and_stores_that_where_it_is_kept(width, keep):
    check_masked([-1, 2, 0, -1, 4, 5, 6, 2, 3], width, keep, interpret=plgpu.InterpretGPUParams())


def test_masks_of_one_row_race_with_nothing():
    check_masked([3], 2 * TILE, 1, interpret=INTERPRET)


def test_equals_among_what_is_left_give_the_lowest_id():
    width = TILES * TILE + BITS
    table = jnp.full((1, width // BITS), ~1)  # not the first of each word
    settings = dict(**COLUMNS, interpret=plgpu.InterpretGPUParams())
    ids, _ = argmax_allowed(jnp.zeros((2, width)), jnp.zeros((2, width)), table, columns([0, -1], 0), **settings)
    assert ids.tolist() == [1, 0]


def test_a_nan_that_a_mask_forbids_is_not_there():
    x, table = logits(1, TILE).at[0, 3].set(jnp.nan), jnp.full((1, WORDS), ~(1 << 3))
    settings = dict(**COLUMNS, interpret=plgpu.InterpretGPUParams())
    ids, left = argmax_allowed(x, jnp.zeros((1, TILE)), table, columns([0], 1), **settings)
    assert ids.tolist() == [5]
    assert left[0, 3] == -jnp.inf


def test_says_which_masks_it_can_run():
    assert all(masks_supported(width) for width in HEADS)
    assert not masks_supported(TILE + 1)
    assert not masks_supported(TILE - BITS)
    table = jnp.zeros((1, WORDS), jnp.int32)
    for shape, rows in (((2, TILE + 1), 2), ((2, TILE), 3), ((2, 2 * TILE), 2)):
        with pytest.raises(ValueError, match=f"at most L rows, got .* and {rows} rows; leave them to XLA"):
            argmax_allowed(jnp.zeros(shape), jnp.zeros(shape), table, columns([0] * rows, 0), **COLUMNS)


@pytest.mark.parametrize("width", HEADS)
@pytest.mark.parametrize("rows", [1, MOST])
def test_masks_lower_for_hopper_and_update_in_place(rows, width):
    """Logits go into the kernel whole: no slice of them is copied."""
    shapes = [jax.ShapeDtypeStruct((MOST, width), jnp.float32) for _ in range(2)]
    integers = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((2000, width // BITS), (rows, 3))]
    function = jax.jit(functools.partial(argmax_allowed, **COLUMNS), donate_argnums=1)
    text = function.trace(*shapes, *integers).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1
    assert text.count("tf.aliasing_output") + text.count("jax.buffer_donor") == 1
    assert not re.findall("stablehlo.(?:slice|dynamic_slice|gather|dynamic_update_slice|scatter)", text)


@pytest.mark.gpu
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("rows", [1, 8, 128])
def test_masks_are_their_definition_on_a_gpu(rows, keep):
    check_masked([(5 * row) % 8 - 1 for row in range(rows)], 151936, keep)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [8, 128])
def test_is_its_definition_on_a_gpu(rows):
    check(rows, 151936)
