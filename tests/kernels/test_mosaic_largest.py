"""The kernel that takes the largest of logits and stores them: interpreted, lowered, and on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.mosaic_largest import ROWS, TILES, WIDTH, largest_id, supported

INTERPRET = plgpu.InterpretGPUParams(detect_races=True)
CHUNK = TILES * WIDTH
KEPT = 7.0  # what was there before


def logits(rows: int, width: int) -> jax.Array:
    """Random ones; four rows with what could go wrong: equals, the ends, all the same, all but one minus infinity."""
    x = jax.random.normal(jax.random.key(width), (rows, width)) * 3
    x = x.at[0, jnp.array([5, width - 1])].set(50).at[1, width - 1].set(50).at[2].set(-1)
    return x.at[3].set(-jnp.inf).at[3, width // 2].set(-100)


def check(rows: int, width: int, keep: int, **settings: object) -> None:
    x, kept = logits(rows, width), jnp.full((rows + ROWS, width), KEPT)
    ids, stored = jax.block_until_ready(largest_id(x, kept, jnp.int32(keep), **settings))
    np.testing.assert_array_equal(ids, np.asarray(x).argmax(axis=-1))
    np.testing.assert_array_equal(stored[:rows], x if keep else kept[:rows])
    np.testing.assert_array_equal(stored[rows:], kept[rows:])


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("width", [CHUNK, CHUNK + WIDTH, 2 * CHUNK])  # the second: chunks that overlap
def test_finds_the_lowest_of_the_largest_and_stores_what_is_kept(width, keep):
    check(2 * ROWS, width, keep, interpret=INTERPRET)


def test_a_row_with_a_nan_disturbs_no_other():
    x = logits(ROWS, CHUNK).at[5, 3].set(jnp.nan)
    ids, _ = largest_id(x, jnp.zeros((ROWS, CHUNK)), jnp.int32(1), interpret=INTERPRET)
    others = np.arange(ROWS) != 5
    np.testing.assert_array_equal(np.asarray(ids)[others], np.asarray(x)[others].argmax(axis=-1))
    assert 0 <= ids[5] < CHUNK


def test_says_what_it_can_run():
    assert supported(8, 151936)
    assert not supported(9, 151936)  # no whole tiles of rows
    assert not supported(8, CHUNK + 1)
    assert not supported(8, CHUNK - WIDTH)


@pytest.mark.parametrize("rows", [8, 256])
def test_lowers_for_hopper_and_updates_in_place(rows):
    shapes = [jax.ShapeDtypeStruct((n, 151936), jnp.float32) for n in (rows, 256)]
    traced = jax.jit(largest_id, donate_argnums=1).trace(*shapes, jax.ShapeDtypeStruct((), jnp.int32))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1
    assert text.count("tf.aliasing_output") + text.count("jax.buffer_donor") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("rows", [8, 128])
def test_is_its_definition_on_a_gpu(rows, keep):
    check(rows, 151936, keep)
