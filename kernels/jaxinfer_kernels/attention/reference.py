"""The definitions of the attention ops, to be believed rather than to be fast. Tests hold every version to them."""

import functools

import jax
import jax.numpy as jnp

from jaxinfer_kernels.attention.paged import DecodeRows, ExtendRows, LayerPages, gather_pages
from jaxinfer_kernels.norm.reference import rms_norm_reference


@functools.partial(jax.jit, static_argnames="window")
def decode_attention_reference(
    q: jax.Array, pages: LayerPages, rows: DecodeRows, window: int | None = None
) -> jax.Array:
    """Decode attention over whole page tables, in float32. The rest: xla_decode.decode_attention."""
    (k, v, layer), (page_table, slots, lengths) = pages, rows
    keys, values = (gather_pages(x, layer, page_table[slots]).astype(jnp.float32) for x in (k, v))  # [B, K, S, H]
    position = jnp.arange(keys.shape[2])
    visible = position < lengths[:, None, None]  # [B, 1, S]
    if window is not None:
        visible &= position >= lengths[:, None, None] - window
    keys, values = (jnp.where(visible[..., None], x, 0.0) for x in (keys, values))
    grouped = q.astype(jnp.float32).reshape(len(q), k.shape[2], -1, q.shape[-1])  # [B, K, G, H]
    scores = jnp.einsum("BKGH,BKSH->BKGS", grouped, keys, precision="highest") * q.shape[-1] ** -0.5
    weights = jnp.where(visible[:, None], jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True)), 0.0)
    weights /= jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), jnp.finfo(jnp.float32).tiny)
    return jnp.einsum("BKGS,BKSH->BKGH", weights, values, precision="highest").reshape(q.shape).astype(q.dtype)


def extend_attention_reference(
    q: jax.Array, pages: LayerPages, rows: ExtendRows, window: int | None = None
) -> jax.Array:
    """Extend attention, each query as a decode row of its own length. The rest: xla_extend.extend_attention."""
    page_table, slots, query_starts, counts, lengths = rows
    token = jnp.arange(len(q))[:, None]
    mine = (query_starts <= token) & (token < query_starts + counts)  # [T, R], at most one row each
    position = lengths - counts + token - query_starts
    token_slots = jnp.sum(jnp.where(mine, slots, 0), axis=1)
    token_lengths = jnp.sum(jnp.where(mine, position + 1, 0), axis=1)
    return decode_attention_reference(q, pages, (page_table, token_slots, token_lengths), window)


def rotate_write_reference(
    qkv: jax.Array,
    cos_sin: tuple[jax.Array, jax.Array],
    k: jax.Array,
    v: jax.Array,
    layer: int,
    page_ids: jax.Array,
    offsets: jax.Array,
    *,
    norms: tuple[jax.Array, jax.Array] | None = None,
    norm_eps: float | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Norm, rotation and storing of a step's tokens. The rest: sm90_rope.rotate_write."""
    kv_heads, h = k.shape[2], k.shape[4]
    heads = qkv.reshape(len(qkv), -1, h)
    q, new_k, new_v = jnp.split(heads, (heads.shape[1] - 2 * kv_heads, heads.shape[1] - kv_heads), axis=1)
    if norms is not None:
        q, new_k = (rms_norm_reference(x, norm, layer, eps=norm_eps) for x, norm in zip((q, new_k), norms, strict=True))

    def rotated(x: jax.Array) -> jax.Array:
        (cos, sin), (first, second) = (a[:, None] for a in cos_sin), jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)

    stored = (pages.at[layer, page_ids, :, offsets] for pages in (k, v))
    k, v = (at.set(new, mode="drop") for at, new in zip(stored, (rotated(new_k), new_v), strict=True))
    return rotated(q), k, v
