"""Where keys and values live: two stacked arrays of pages, `[layers, pages, kv heads, page size, head dim]`.

The layout is known here and in the attention files beside this one, nowhere else. One head's page is contiguous, so a
kernel fetches it in one copy; the layer is an operand, so that all layers of a step share one lowered function.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

type LayerPages = tuple[Float[Array, "L P K page H"], Float[Array, "L P K page H"], Int[Array, ""]]
"""Keys and values of all layers, and the index of one: k, v, layer."""

type DecodeRows = tuple[Int[Array, "S M"], Int[Array, "B"], Int[Array, "B"]]
"""Rows of one query: page_table, slots, lengths.

page_table: of each slot its pages in order; entries past a row's last page may name any page of the pool.
slots: each row's row of the page table.    lengths: tokens of each row in the pages, its query included; 0: left out.
"""

type ExtendRows = tuple[Int[Array, "S M"], Int[Array, "R"], Int[Array, "R"], Int[Array, "R"], Int[Array, "R"]]
"""Rows of several queries: page_table, slots, query_starts, counts, lengths.

Row r's queries are q[query_starts[r] : query_starts[r] + counts[r]], the last of its tokens. query_starts rise with r,
rows do not overlap.    counts: 0 for a padding row.    The rest is as in DecodeRows.
"""


def kv_shape(
    num_layers: int, num_pages: int, page_size: int, num_kv_heads: int, head_dim: int
) -> tuple[int, int, int, int, int]:
    """The shape of the keys, and of the values."""
    return (num_layers, num_pages, num_kv_heads, page_size, head_dim)


def page_size_of(pages: Float[Array | jax.ShapeDtypeStruct, "L P K page H"]) -> int:
    return pages.shape[3]


@jax.jit
def write_kv(
    k: Float[Array, "L P K page H"],
    v: Float[Array, "L P K page H"],
    layer: Int[Array, ""],
    new_k: Float[Array, "T K H"],
    new_v: Float[Array, "T K H"],
    page_ids: Int[Array, "T"],
    offsets: Int[Array, "T"],
) -> tuple[Float[Array, "L P K page H"], Float[Array, "L P K page H"]]:
    """Store each token's keys and values of one layer.

      new_k, new_v: of k's dtype.
      page_ids:     padding tokens name page P, which is not there.    offsets: the place in the page.
    Returns k, v; in place where the caller donates them.
    """
    if len(page_ids) == 1:
        return _write_one(k, layer, new_k, page_ids, offsets), _write_one(v, layer, new_v, page_ids, offsets)
    # Padding is dropped, and no two places are the same. Where they may be, a GPU takes turns at every element of them:
    # with the padding all in one page that was 58 % of the time of four prompts of 8,000 tokens.
    how = {"mode": "drop", "unique_indices": True}
    return (
        k.at[layer, page_ids, :, offsets].set(new_k, **how),
        v.at[layer, page_ids, :, offsets].set(new_v, **how),
    )


def _write_one(
    pages: jax.Array, layer: jax.Array, new: jax.Array, page_ids: jax.Array, offsets: jax.Array
) -> jax.Array:
    """One token: a scatter that may drop it would read what was there first, in a kernel of its own.

    Padding goes to page 0, which is nobody's.
    """
    page = jnp.where(page_ids[0] < pages.shape[1], page_ids[0], 0)
    return jax.lax.dynamic_update_slice(pages, new[None, :, :, None], (layer, page, 0, offsets[0], 0))


def gather_pages(
    pages: Float[Array, "L P K page H"], layer: Int[Array, ""], page_ids: Int[Array, "*rows n"]
) -> Float[Array, "*rows K n*page H"]:
    """Bring pages of one layer side by side."""
    heads = jnp.arange(pages.shape[2], dtype=jnp.int32)[:, None]  # [K, 1]
    # Indexing the heads too makes the gather write [K, n], which the products want, instead of [n, K] and a transpose.
    block = pages.at[layer, page_ids[..., None, :], heads].get(mode="promise_in_bounds")  # [..., K, n, page, H]
    return block.reshape(*block.shape[:-3], -1, block.shape[-1])
