"""The largest of each row of logits for Hopper (Mosaic GPU), which stores them too where they are looked at again.

A CTA has eight rows of 1,024 tokens, each row spread over half a warp. Bound by memory: XLA copies all logits and then
reads them once more, this reads them once.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.mosaic_decode_plan import COMPILER_PARAMS, F32, I32, Ref, named, store
from jaxinfer_kernels.mosaic_linear_plan import row_layout

ROWS, WIDTH = 8, 64  # of a tile, which a warpgroup holds in its registers
TILES = 16  # of a CTA


def supported(rows: int, width: int) -> bool:
    """Whether the kernel can run logits f32[rows, width]; what it cannot, XLA can."""
    return rows % ROWS == 0 and width % WIDTH == 0 and width >= TILES * WIDTH


@functools.partial(jax.jit, static_argnames=("interpret",))
def largest_id(
    logits: jax.Array, kept: jax.Array, keep: jax.Array, *, interpret: plgpu.InterpretGPUParams | None = None
) -> tuple[jax.Array, jax.Array]:
    """Where each row is largest, the lowest id among equals; any id if the row holds a NaN.

      logits: f32[R, V], of a shape that is `supported`.    kept: f32[L, V], L >= R, updated in place where the caller
      donates it: its first R rows become the logits if `keep`, i32[], is above 0, and stay as they are otherwise.
    Returns i32[R] and kept.
    """
    rows, width = logits.shape
    chunks = -(-width // (TILES * WIDTH))
    kernel = plgpu.kernel(
        named("largest_id", functools.partial(_kernel)),
        out_type=[jax.ShapeDtypeStruct((chunks, rows), dtype) for dtype in (F32, I32)],
        grid=(rows // ROWS, chunks),
        grid_names=("rows", "chunk"),
        num_threads=1,
        thread_name="warpgroup",
        interpret=interpret,
        compiler_params=COMPILER_PARAMS,
    )
    stored = jax.new_ref(kept)
    values, ids = kernel(keep.reshape(1), stored, logits)
    found = jnp.min(jnp.where(values == values.max(axis=0), ids, width - 1), axis=0)
    return found, jax.freeze(stored)


def _kernel(keep_ref: Ref, kept_ref: Ref, logits_ref: Ref, values_ref: Ref, ids_ref: Ref) -> None:
    """keep i32[1], kept f32[L, V], logits f32[R, V], values f32[chunks, R] and ids i32[chunks, R]: each chunk's."""
    chunk, layout, shape, width = lax.axis_index("chunk"), row_layout(WIDTH), (ROWS, WIDTH), logits_ref.shape[1]
    rows = pl.ds(lax.axis_index("rows") * ROWS, ROWS)
    begin = jnp.minimum(chunk * (TILES * WIDTH), width - TILES * WIDTH)  # the last one overlaps the one before it
    pieces = [pl.ds(begin + i * WIDTH, WIDTH) for i in range(TILES)]
    tiles = [plgpu.load(logits_ref.at[rows, piece], layout=layout, optimized=False) for piece in pieces]
    ids = plgpu.broadcasted_iota(I32, shape, 1, layout=layout) + begin
    best, at = tiles[0], ids
    for i, tile in enumerate(tiles[1:], 1):
        larger = tile > best
        best, at = jnp.where(larger, tile, best), jnp.where(larger, ids + i * WIDTH, at)
    highest = best.max(axis=1)
    is_highest = best == plgpu.layout_cast(lax.broadcast_in_dim(highest, shape, [0]), layout)
    store(values_ref.at[chunk, rows], highest)
    store(ids_ref.at[chunk, rows], jnp.where(is_highest, at, I32(width - 1)).min(axis=1))

    @pl.when(keep_ref[0] > 0)
    def _():
        for piece, tile in zip(pieces, tiles, strict=True):
            kept_ref[rows, piece] = tile
