"""Paged attention for ragged chunks: rows of several query tokens, each behind a prefix already in the pages.

Tiles of one row's queries against blocks of its keys with an online softmax (FlashAttention-2, Dao,
arXiv:2307.08691). Bound by arithmetic: `4 * N * H` operations per visible pair of query and key; that is our bar. The
XLA version walks a list of tiles whose length follows the tokens given, each up to its own causal limit.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer_kernels.attention import xla_decode as decode
from jaxinfer_kernels.attention.paged import ExtendRows, LayerPages, gather_pages, page_size_of


@dataclasses.dataclass(frozen=True)
class XlaExtendTuning:
    tile_tokens: int  # queries of one row computed together
    block_tokens: int  # key tokens fetched together; rounded to whole pages


DEFAULT = XlaExtendTuning(tile_tokens=64, block_tokens=256)


@functools.partial(jax.jit, static_argnames=("window", "of_one_token", "tuning"))
def extend_attention(
    q: Float[Array, "T N H"],
    pages: LayerPages,
    rows: ExtendRows,
    *,
    window: int | None = None,
    of_one_token: Callable[..., jax.Array] = decode.decode_attention,
    tuning: XlaExtendTuning = DEFAULT,
) -> Float[Array, "T N H"]:
    """Attend from each row's queries, the last `count` of its tokens, to the tokens before them and themselves.

      q:            already rotated, N a multiple of K.
      window:       tokens that a query sees, its own included; None: all. Pages before them may hold anything.
      of_one_token: decode attention, for the rows of one token.
    Returns q's dtype; tokens of no row come out as zeros. Sums are kept in float32.
    """
    page_table, slots, query_starts, counts, lengths = rows
    several = jnp.where(counts > 1, counts, 0)
    out = _tiles(q, pages, (page_table, slots, query_starts, several, lengths), window, tuning)
    # A row of one token would waste a tile: all such rows go together through decode.
    single = counts == 1
    ones = q.at[query_starts].get(mode="clip")
    ones = of_one_token(ones, pages, (page_table, slots, jnp.where(single, lengths, 0)), window=window)
    return out.at[jnp.where(single, query_starts, q.shape[0])].set(ones, mode="drop")


def _tiles(q: jax.Array, pages: LayerPages, rows: ExtendRows, window: int | None, tuning: XlaExtendTuning) -> jax.Array:
    (k, v, layer), (page_table, slots, query_starts, counts, lengths) = pages, rows
    (t, n, h), num_kv_heads, page_size = q.shape, k.shape[2], page_size_of(k)
    tile, pages_per_block = min(tuning.tile_tokens, t), max(1, tuning.block_tokens // page_size)
    block, groups = pages_per_block * page_size, n // num_kv_heads
    tile_ends = jnp.cumsum((counts + (tile - 1)) // tile)  # [R], in tiles
    padded = jnp.pad(q, ((0, tile), (0, 0), (0, 0)))  # so that no tile is moved to fit

    def one_tile(i: jax.Array, out: jax.Array) -> jax.Array:
        row = jnp.sum(tile_ends <= i, dtype=jnp.int32)
        first = (i - jnp.where(row > 0, tile_ends[row - 1], 0)) * tile  # of this tile in its row
        here = query_starts[row] + first
        last_position = lengths[row] - counts[row] + jnp.minimum(first + tile, counts[row]) - 1
        positions = lengths[row] - counts[row] + first + jnp.arange(tile, dtype=jnp.int32)  # [tile]
        queries = jax.lax.dynamic_slice_in_dim(padded, here, tile)  # [tile, N, H]
        queries = queries.reshape(tile, num_kv_heads, groups, h).transpose(1, 0, 2, 3).reshape(num_kv_heads, -1, h)

        def one_block(j: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            columns = j * pages_per_block + jnp.arange(pages_per_block, dtype=jnp.int32)
            page_ids = page_table.at[slots[row], columns].get(mode="fill", fill_value=0)  # [pages]
            keys = j * block + jnp.arange(block, dtype=jnp.int32)
            visible = keys <= jnp.minimum(positions, last_position)[:, None]  # [tile, S]
            if window is not None:
                visible &= keys > positions[:, None] - window
            visible = jnp.repeat(visible, groups, axis=0)[None]  # [1, tile * G, S]
            return decode.attend_block(queries, *(gather_pages(x, layer, page_ids) for x in (k, v)), visible, carry)

        low = 0 if window is None else jnp.maximum(positions[0] - window + 1, 0) // block
        carry = jax.lax.fori_loop(low, last_position // block + 1, one_block, decode.start(queries))
        result = decode.finish(carry).reshape(num_kv_heads, tile, groups, h).transpose(1, 0, 2, 3).reshape(tile, n, h)
        result = jnp.where((positions <= last_position)[:, None, None], result, 0.0).astype(q.dtype)
        # A row's last tile spills zeros over the tokens behind it; their own tiles come later and overwrite them.
        return jax.lax.dynamic_update_slice_in_dim(out, result, here, axis=0)

    return jax.lax.fori_loop(0, tile_ends[-1], one_tile, jnp.zeros_like(padded))[:t]
