"""Attention over the pages of a cache, by XLA or by our kernels. All have one contract: batch.AttentionOp.

Pages are (k, v), those of all layers in the layout of jaxinfer_kernels.attention.paged.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxinfer.layers import rope
from jaxinfer.layers.batch import AttentionOp, Batch
from jaxinfer.layers.linear import Value, array
from jaxinfer.layers.products import Stacked, Weight, stacked
from jaxinfer.layers.spec import Attention
from jaxinfer.layers.store import Store
from jaxinfer_kernels.attention import cpu as cpu_attention
from jaxinfer_kernels.attention import sm90_decode, sm90_extend, sm90_rope
from jaxinfer_kernels.attention.api import decode_attention, extend_attention, write_kv
from jaxinfer_kernels.attention.sm90_decode_config import DecodeTuning
from jaxinfer_kernels.attention.sm90_extend import ExtendTuning
from jaxinfer_kernels.norm.api import rms_norm

type Pages = tuple[jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class RawHeads:
    """The product of q, k and v before heads are normed and rotated, and what an attention needs to do that.

    qkv: [T, (N + 2K) * H].    norms: scales of q's and k's heads, or None.
    layer: of the model.    number: of its page table.    in_page: which of the layers of a page it is.
    """

    spec: Attention
    qkv: jax.Array
    batch: Batch
    layer: int
    number: int
    in_page: int
    norms: tuple[Stacked, Stacked] | None = None

    @property
    def index(self) -> np.int32:
        return np.int32(self.in_page)

    @property
    def table(self) -> jax.Array:
        """i32[S, M]."""
        return self.batch.tables[self.number]

    @property
    def pages(self) -> jax.Array:
        """i32[T], where each token's key and value are stored."""
        return self.batch.pages[self.number]

    @property
    def norms_of_heads(self) -> dict[str, Any]:
        """As kernels take them, [L, H] each, which find pages and scales by one index."""
        norms = self.norms and tuple(_at(self.in_page, norm) for norm in self.norms)
        return dict(norms=norms, norm_eps=self.spec.norm_eps)

    @property
    def angles(self) -> Pages:
        """cos and sin, f32[T, H / 2] each."""
        cos, sin = self.batch.angles(self.spec)
        return self.batch.once(("flat", self.spec.rope, self.spec.head_dim), lambda: (cos[:, 0], sin[:, 0]))

    def split(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """q [T, N, H], k and v [T, K, H], normed and rotated by XLA."""
        spec = self.spec
        heads = self.qkv.reshape(len(self.qkv), -1, spec.head_dim)  # [T, N + 2K, H]
        q, k, v = jnp.split(heads, (spec.heads, spec.heads + spec.kv_heads), axis=1)
        if self.norms is not None:
            q, k = (rms_norm(x, norm.row, spec.norm_eps) for x, norm in zip((q, k), self.norms, strict=True))
        angles = self.batch.angles(spec)
        return rope.rotate(q, angles), rope.rotate(k, angles), v


def _at(index: int, norm: Stacked) -> jax.Array:
    """Scales of which a layer's are at an index."""
    return norm.array if norm.layer == index else jnp.broadcast_to(norm.row, (index + 1, norm.array.shape[1]))


def attention(
    qkv: Value,
    spec: Attention,
    batch: Batch,
    cache: Any,
    layer: int,
    *,
    q_norm: Weight | None = None,
    k_norm: Weight | None = None,
) -> tuple[Float[Array, "T {spec.q_width}"], Any]:
    """Attend to all tokens up to each one's own, and keep keys and values.

      qkv: [T, (N + 2K) * H], the product of q, k and v.    layer: whose keys and values are kept.
      q_norm, k_norm: [H], the scales of the norms of heads, where spec.qk_norm.
    Returns (out, cache).
    """
    assert (q_norm is not None) == (k_norm is not None) == spec.qk_norm, "the spec says whether heads have norms"
    norms = None
    if q_norm is not None and k_norm is not None:
        norms = stacked(q_norm), stacked(k_norm)
    out, cache = batch.attention(
        RawHeads(spec, array(qkv, batch.products), batch, layer, *batch.place(layer), norms), cache
    )
    return out.reshape(len(out), -1), cache


def over_heads(attend: Callable[..., tuple[jax.Array, Any]]) -> AttentionOp:
    """An attention made of attend(layer, q [T, N, H], k [T, K, H], v [T, K, H], cache) -> (out [T, N, H], cache)."""
    return lambda raw, cache: attend(raw.layer, *raw.split(), cache)


def _over_pages(attend: Callable[..., tuple[jax.Array, Pages]]) -> Callable[..., tuple[jax.Array, Store]]:
    """An attention over a Store's pages.    attend: (*how, RawHeads, Pages); with `how` bound it is an AttentionOp."""

    @functools.wraps(attend)
    def op(*how_and_raw: Any) -> tuple[jax.Array, Store]:
        *given, cache = how_and_raw
        out, pages = attend(*given, cache.pages)
        return out, cache.replace(pages=pages)

    return op


def _after_writing(
    attend: Callable[..., jax.Array], rows: tuple[Any, ...], raw: RawHeads, pages: Pages, **how: Any
) -> tuple[jax.Array, Pages]:
    """XLA norms, rotates and stores, then `attend` reads.    rows: what it takes behind the page table."""
    q, k, v = raw.split()
    pages = write_kv(*pages, raw.index, k, v, raw.pages, raw.batch.offsets)
    return attend(q, (*pages, raw.index), (raw.table, *rows), window=raw.spec.window, **how), pages


# Steps of one token a sequence


@_over_pages
def decode_xla(context: int | None, raw: RawHeads, pages: Pages) -> tuple[jax.Array, Pages]:
    """context: no sequence is longer, and there is no loop then; None is any length."""
    return _after_writing(decode_attention, (raw.batch.slots, raw.batch.lengths), raw, pages, context=context)


@_over_pages
def decode_cpu(raw: RawHeads, pages: Pages) -> tuple[jax.Array, Pages]:
    return _after_writing(cpu_attention.decode_attention, (raw.batch.slots, raw.batch.lengths), raw, pages)


@_over_pages
def decode_sm90_write(tuning: DecodeTuning, raw: RawHeads, pages: Pages) -> tuple[jax.Array, Pages]:
    """Norms and rotation by XLA, which is faster for many rows outside of a launch sequence."""
    batch = raw.batch
    rows = raw.table, batch.slots, batch.lengths
    out, *pages = sm90_decode.decode_attention_write(*raw.split(), (*pages, raw.index), rows, tuning=tuning)
    return out, tuple(pages)


@_over_pages
def decode_sm90(tuning: DecodeTuning, raw: RawHeads, pages: Pages) -> tuple[jax.Array, Pages]:
    """Norms, rotation, storing and attention in one kernel."""
    batch = raw.batch
    # without the rows that only pad for a product: they would take their share of the CTAs
    counted = batch.once("counted", lambda: (batch.slots[: batch.count], batch.lengths[: batch.count]))
    given, rest = ((*pages, raw.index), (raw.table, *counted)), dict(**raw.norms_of_heads, tuning=tuning)
    out, *pages = sm90_decode.decode_attention_fused(raw.qkv, raw.angles, *given, **rest)
    return out, tuple(pages)


# Steps of several tokens a sequence


@_over_pages
def extend_xla(raw: RawHeads, pages: Pages) -> tuple[jax.Array, Pages]:
    return _after_writing(extend_attention, raw.batch.sequences, raw, pages)


@_over_pages
def extend_cpu(raw: RawHeads, pages: Pages) -> tuple[jax.Array, Pages]:
    """Sequences of several tokens are XLA's."""
    how = dict(of_one_token=cpu_attention.decode_attention)
    return _after_writing(extend_attention, raw.batch.sequences, raw, pages, **how)


@_over_pages
def extend_sm90(tuning: ExtendTuning, raw: RawHeads, pages: Pages) -> tuple[jax.Array, Pages]:
    """Norms, rotation and storing in one kernel; then a sequence's tokens read its keys together."""
    q, pages = _rotated(raw, pages, pdl=False)
    rows = raw.table, *raw.batch.sequences
    return sm90_extend.extend_attention(q, (*pages, raw.index), rows, tuning=tuning), pages


@_over_pages
def extend_sm90_tiles(tuning: ExtendTuning, raw: RawHeads, pages: Pages) -> tuple[jax.Array, Pages]:
    """The same in a launch sequence, which holds kernels alone: tiles are made before it."""
    batch, heads = raw.batch, raw.spec.heads
    counts, num_tokens = batch.sequences[2], len(batch.tokens)
    tiles = batch.once(("tiles", heads), lambda: sm90_extend.tiles_of(counts, num_tokens, heads, tuning))
    q, pages = _rotated(raw, pages, pdl=True)
    rows = raw.table, *batch.sequences
    return sm90_extend.extend_tiles(q, (*pages, raw.index), tiles, rows, tuning=tuning), pages


@_over_pages
def extend_sm90_by_token(tuning: DecodeTuning, raw: RawHeads, pages: Pages) -> tuple[jax.Array, Pages]:
    """In a launch sequence: each token reads its sequence's keys for itself, as decode rows do."""
    batch = raw.batch
    q, pages = _rotated(raw, pages, pdl=True)
    rows = raw.table, batch.slots, batch.lengths
    return sm90_decode.decode_attention(q, (*pages, raw.index), rows, tuning=tuning), pages


def _rotated(raw: RawHeads, pages: Pages, *, pdl: bool) -> tuple[jax.Array, Pages]:
    """q [T, N, H], and the pages with keys and values stored."""
    where = raw.pages, raw.batch.offsets
    q, *pages = sm90_rope.rotate_write(raw.qkv, raw.angles, *pages, raw.index, *where, **raw.norms_of_heads, pdl=pdl)
    return q, tuple(pages)
