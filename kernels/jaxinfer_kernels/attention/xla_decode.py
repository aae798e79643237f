"""Paged attention for decode: one query token per row, its keys and values scattered over pages.

Online softmax over blocks of pages (FlashAttention, Dao et al., arXiv:2205.14135, algorithm 1); paging as in
PagedAttention (Kwon et al., arXiv:2309.06180). Bound by memory: it must read `2 * sum(lengths) * K * H * itemsize`
bytes; that is our bar. The XLA version reads every row up to the longest row's block, or `context` tokens of it.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer_kernels.attention.paged import DecodeRows, LayerPages, gather_pages, page_size_of

LOWEST = float(jnp.finfo(jnp.float32).min)  # a running maximum to start from; -inf would make inf - inf = NaN


@dataclasses.dataclass(frozen=True)
class XlaDecodeTuning:
    block_tokens: int  # key tokens fetched together; rounded to whole pages


DEFAULT = XlaDecodeTuning(block_tokens=128)


@functools.partial(jax.jit, static_argnames=("context", "window", "tuning"))
def decode_attention(
    q: Float[Array, "B N H"],
    pages: LayerPages,
    rows: DecodeRows,
    *,
    context: int | None = None,
    window: int | None = None,
    tuning: XlaDecodeTuning = DEFAULT,
) -> Float[Array, "B N H"]:
    """Attend from each row's one query to all of the row's tokens, or to the last ones.

      q:       already rotated; N is a multiple of K.
      context: no row is longer. So many tokens, rounded up to whole pages, are fetched of every row at once, without
               a loop, of which each trip costs a GPU more than its arithmetic. None: any length, in blocks.
    Returns q's dtype, zeros for rows of length 0. Sums are kept in float32.
    """
    (k, v, layer), (page_table, slots, lengths) = pages, rows
    (b, n, h), num_kv_heads = q.shape, k.shape[2]
    page = page_size_of(k)
    q = q.reshape(b, num_kv_heads, n // num_kv_heads, h)  # [B, K, G, H]
    num_pages = max(1, tuning.block_tokens // page) if context is None else -(-context // page)

    def block(i: jax.Array | int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The i-th `num_pages` of each row: keys, values, and which of them the row sees."""
        columns = i * num_pages + jnp.arange(num_pages, dtype=jnp.int32)
        page_ids = page_table.at[slots[:, None], columns].get(mode="fill", fill_value=0)  # [B, pages]
        keys = columns[0] * page + jnp.arange(num_pages * page, dtype=jnp.int32)
        visible = keys < lengths[:, None]  # [B, S]
        if window is not None:
            visible &= keys >= lengths[:, None] - window
        return *(gather_pages(x, layer, page_ids) for x in (k, v)), visible[:, None, None]

    def step(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return attend_block(q, *block(i), carry)

    if context is None:
        num_blocks = (jnp.max(lengths) + (num_pages * page - 1)) // (num_pages * page)
        first = 0 if window is None else jnp.maximum(jnp.min(_or_longest(lengths)) - window, 0) // (num_pages * page)
        out = finish(jax.lax.fori_loop(first, num_blocks, step, start(q)))
    else:
        out = finish(first_block(q, *block(0)))
    return out.reshape(b, n, h).astype(q.dtype)


def _or_longest(lengths: jax.Array) -> jax.Array:
    """Lengths, with those of rows to leave out as long as the longest."""
    return jnp.where(lengths > 0, lengths, jnp.max(lengths))


def start(q: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """acc, row_max, row_sum of no keys at all, for q [..., G, H]."""
    rows = q.shape[:-1]
    return jnp.zeros(q.shape, jnp.float32), jnp.full(rows, LOWEST, jnp.float32), jnp.zeros(rows, jnp.float32)


def attend_block(
    q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array, carry: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    """Fold one block of keys into the running softmax; a block with nothing visible leaves every bit as it was.

    q: [..., G, H].    k, v: [..., S, H].    visible: bool[..., G or 1, S].
    """
    acc, row_max, row_sum = carry
    scores = _scores(q, k, visible)
    new_max = jnp.maximum(row_max, jnp.max(scores, axis=-1))
    added, added_sum = _weigh(scores, new_max, v, visible)
    shrink = jnp.exp(row_max - new_max)
    return acc * shrink[..., None] + added, new_max, row_sum * shrink + added_sum


def first_block(q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array) -> tuple[jax.Array, ...]:
    """attend_block from `start`, without the arithmetic on zeros, which XLA must keep."""
    scores = _scores(q, k, visible)
    row_max = jnp.max(scores, axis=-1)
    acc, row_sum = _weigh(scores, row_max, v, visible)
    return acc, row_max, row_sum


def _scores(q: jax.Array, k: jax.Array, visible: jax.Array) -> jax.Array:
    scores = _product("...GH,...SH->...GS", q, k) * q.shape[-1] ** -0.5
    return jnp.where(visible, scores, LOWEST)


def _weigh(scores: jax.Array, row_max: jax.Array, v: jax.Array, visible: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The values weighted by exp(scores - row_max), and the weights' sum."""
    weights = jnp.where(visible, jnp.exp(scores - row_max[..., None]), 0.0)
    # What lies past a row's end may be anything, NaN included, and 0 * NaN is NaN: mask the values as well.
    v = jnp.where(jnp.any(visible, axis=-2)[..., None], v, jnp.zeros((), v.dtype))
    return _product("...GS,...SH->...GH", weights.astype(v.dtype), v), jnp.sum(weights, axis=-1)


def finish(carry: tuple[jax.Array, ...]) -> jax.Array:
    acc, _, row_sum = carry
    return acc / jnp.where(row_sum == 0, 1.0, row_sum)[..., None]


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.einsum(subscripts, a, b, precision=precision, preferred_element_type=jnp.float32)
