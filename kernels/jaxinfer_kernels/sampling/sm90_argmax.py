"""The largest of each row of logits for Hopper (Mosaic GPU), all of them or what masks leave, which it stores if asked.

Of all logits, a CTA has eight rows of 1,024 tokens, each row spread over half a warp; of what masks leave, one row of
8,192, four tokens of each word of its mask to a lane. Bound by memory: the logits are read once.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.sm90 import F32, I32, Layout, Ref, compiler_params, named, row_layout, store

ROWS, WIDTH = 8, 64  # of a tile, which a warpgroup holds in its registers
WORDS, BITS = 16, 32  # of a tile of one row, and of a mask: a bit for each token
TILES = 16  # of a CTA, at most


@functools.cache
def word_layout() -> Layout:
    """A warp has four words, so that each lane loads one of a tile, beside the four logits that it is about."""
    tiling = plgpu.Tiling(((WORDS, BITS), (4, BITS), (4,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-5,), lane_dims=(-3, -2), vector_dim=-1)


def supported(rows: int, width: int) -> bool:
    """Whether the kernel can run logits f32[rows, width]; what it cannot, XLA can."""
    return rows % ROWS == 0 and width % WIDTH == 0 and width >= TILES * WIDTH


def masks_supported(width: int) -> bool:
    """Whether the kernel can leave out what masks forbid of logits f32[any, width]; what it cannot, XLA can."""
    return width % BITS == 0 and width >= WORDS * BITS


@functools.partial(jax.jit, static_argnames=("rows", "interpret"))
def argmax(
    logits: jax.Array, skip: jax.Array, *, rows: int, interpret: "plgpu.InterpretGPUParams | None" = None
) -> jax.Array:
    """Where each of the first rows is largest, the lowest id among equals; any id if the row holds a NaN.

      logits: f32[L, V], L >= rows; rows and V as `supported` says.    skip: i32[], not 0 to look for nothing.
    Returns i32[rows], zeros where nothing was looked for.
    """
    width = logits.shape[1]
    chunks = -(-width // (TILES * WIDTH))
    kernel = plgpu.kernel(
        named("argmax", functools.partial(_kernel)),
        out_type=[jax.ShapeDtypeStruct((chunks, rows), dtype) for dtype in (F32, I32)],
        grid=(rows // ROWS, chunks),
        grid_names=("rows", "chunk"),
        num_threads=1,
        thread_name="warpgroup",
        interpret=interpret,
        compiler_params=compiler_params(),
    )
    values, ids = kernel(skip.reshape(1), logits)
    return jnp.min(jnp.where(values == values.max(axis=0), ids, width - 1), axis=0)


@functools.partial(jax.jit, static_argnames=("mask", "keep", "interpret"))
def argmax_allowed(
    logits: jax.Array,
    left: jax.Array,
    table: jax.Array,
    columns: jax.Array,
    *,
    mask: int,
    keep: int,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> tuple[jax.Array, jax.Array]:
    """Where each row is largest among what its mask allows, as argmax; the lowest id if that is nothing.

      logits: f32[L, V], V as `masks_supported` says.    left: f32[L, V], updated in place where the caller donates it:
      its first R rows become the logits, minus infinity where a mask forbids, if the first row's column `keep` is above
      0, and stay as they are otherwise.    table: i32[any, V / 32], a bit for each token, the lowest first.
      columns: i32[R, any], R <= L; column `mask` has each row's mask, a row of the table, or -1 for all.
    Returns i32[R] and left.
    """
    (rows, _), (_, width) = columns.shape, logits.shape
    if not masks_supported(width) or rows > len(logits) or table.shape[1] * BITS != width:
        raise ValueError(
            f"masks need logits [L, V], V a multiple of {BITS} and at least {WORDS * BITS}, a table [any, V / {BITS}] "
            f"and at most L rows, got {logits.aval}, {table.aval} and {rows} rows; leave them to XLA"
        )
    chunks = -(-width // (_tiles(width // BITS) * WORDS * BITS))
    kernel = plgpu.kernel(
        named("argmax_allowed", functools.partial(_masked_kernel, mask=mask, keep=keep)),
        out_type=[jax.ShapeDtypeStruct((rows, chunks * WORDS), dtype) for dtype in (F32, I32)],
        grid=(rows, chunks),
        grid_names=("row", "chunk"),
        num_threads=1,
        thread_name="warpgroup",
        interpret=interpret,
        compiler_params=compiler_params(),
    )
    stored = jax.new_ref(left.reshape(len(left), -1, BITS))
    found = kernel(columns, stored, logits.reshape(len(logits), -1, BITS), table)
    # One reduction of pairs: the two of argmax are a launch more, and here little else is launched.
    _, ids = lax.reduce(tuple(found), (F32(-jnp.inf), I32(width - 1)), _larger, (1,))
    return ids, jax.freeze(stored).reshape(left.shape)


def _tiles(words: int) -> int:
    """Of a CTA, for rows of so many words."""
    return min(TILES, words // WORDS)


def _larger(a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Of two values with their ids, the larger, or the one of the lower id."""
    first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])


def _kernel(skip_ref: Ref, logits_ref: Ref, values_ref: Ref, ids_ref: Ref) -> None:
    """skip i32[1], logits f32[L, V], values f32[chunks, R] and ids i32[chunks, R]: each chunk's."""
    chunk, layout, shape, width = lax.axis_index("chunk"), row_layout(WIDTH), (ROWS, WIDTH), logits_ref.shape[1]
    rows = pl.ds(lax.axis_index("rows") * ROWS, ROWS)
    begin = jnp.minimum(chunk * (TILES * WIDTH), width - TILES * WIDTH)  # the last one overlaps the one before it

    @pl.when(skip_ref[0] == 0)
    def _():
        pieces = [pl.ds(begin + i * WIDTH, WIDTH) for i in range(TILES)]
        tiles = [plgpu.load(logits_ref.at[rows, piece], layout=layout, optimized=False) for piece in pieces]
        ids = plgpu.broadcasted_iota(I32, shape, 1, layout=layout) + begin
        highest, lowest_ids = _largest(tiles, ids, WIDTH, width - 1, layout)
        store(values_ref.at[chunk, rows], highest)
        store(ids_ref.at[chunk, rows], lowest_ids)

    @pl.when(skip_ref[0] != 0)
    def _():
        store(values_ref.at[chunk, rows], plgpu.layout_cast(jnp.zeros(ROWS, F32), layout.reduce(1)))
        store(ids_ref.at[chunk, rows], plgpu.layout_cast(jnp.zeros(ROWS, I32), layout.reduce(1)))


def _masked_kernel(
    columns_ref: Ref,
    left_ref: Ref,
    logits_ref: Ref,
    table_ref: Ref,
    values_ref: Ref,
    ids_ref: Ref,
    *,
    mask: int,
    keep: int,
) -> None:
    """columns i32[R, any], left and logits f32[L, W, 32], table i32[any, W], values f32[R, parts] and ids
    i32[R, parts]: of each quarter of a warp in each chunk."""
    row, chunk, words = lax.axis_index("row"), lax.axis_index("chunk"), table_ref.shape[1]
    layout, shape, num_tiles = word_layout(), (WORDS, BITS), _tiles(words)
    which, is_kept = columns_ref[row, mask], columns_ref[0, keep] > 0  # read first, while nothing waits
    every, entry = jnp.where(which < 0, I32(-1), I32(0)), jnp.maximum(which, 0)
    begin = jnp.minimum(chunk * (num_tiles * WORDS), words - num_tiles * WORDS)  # the last one overlaps, as above
    pieces = [pl.ds(begin + i * WORDS, WORDS) for i in range(num_tiles)]
    masks = [plgpu.load(table_ref.at[entry, piece], layout=layout.reduce(1), optimized=False) for piece in pieces]
    allowed = functools.reduce(jnp.bitwise_or, masks) | every
    parts, some = pl.ds(chunk * WORDS, WORDS), jnp.where(allowed != 0, I32(1), I32(0)).max() > 0

    @pl.when(some | is_kept)
    def _():
        tiles = [plgpu.load(logits_ref.at[row, piece], layout=layout, optimized=False) for piece in pieces]
        bits = plgpu.broadcasted_iota(I32, shape, 1, layout=layout)
        bit = jnp.left_shift(I32(1), bits)
        for i, found in enumerate(masks):
            spread = plgpu.layout_cast(lax.broadcast_in_dim(found | every, shape, [0]), layout)
            tiles[i] = jnp.where(spread & bit != 0, tiles[i], -jnp.inf)
        ids = (plgpu.broadcasted_iota(I32, shape, 0, layout=layout) + begin) * BITS + bits
        highest, lowest_ids = _largest(tiles, ids, WORDS * BITS, words * BITS - 1, layout)
        store(values_ref.at[row, parts], highest)
        store(ids_ref.at[row, parts], lowest_ids)

        @pl.when(is_kept)
        def _():
            for piece, tile in zip(pieces, tiles, strict=True):
                left_ref[row, piece] = tile

    @pl.when(jnp.logical_not(some | is_kept))  # most masks leave tokens of few parts
    def _():
        first_ids = (plgpu.broadcasted_iota(I32, (WORDS,), 0, layout=layout.reduce(1)) + begin) * BITS
        nothing = plgpu.layout_cast(jnp.full(WORDS, -jnp.inf, F32), layout.reduce(1))
        store(values_ref.at[row, parts], nothing)
        store(ids_ref.at[row, parts], first_ids)


def _largest(
    tiles: list[jax.Array], ids: jax.Array, step: int, last: int, layout: Layout
) -> tuple[jax.Array, jax.Array]:
    """The largest of each row of tiles, and the lowest of its ids: `ids` in the first tile, `step` more in each one."""
    best, at = tiles[0], ids
    for i, tile in enumerate(tiles[1:], 1):
        larger = tile > best
        best, at = jnp.where(larger, tile, best), jnp.where(larger, ids + i * step, at)
    highest = best.max(axis=1)
    is_highest = best == plgpu.layout_cast(lax.broadcast_in_dim(highest, best.shape, [0]), layout)
    return highest, jnp.where(is_highest, at, I32(last)).min(axis=1)
