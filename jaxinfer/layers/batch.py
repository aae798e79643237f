"""Batch: what the layers of one step know of its tokens, and how they compute."""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import jax

from jaxinfer.layers import rope
from jaxinfer.layers.products import XLA, Products
from jaxinfer.layers.spec import Attention

type AttentionOp = Callable[[Any, Any], tuple[jax.Array, Any]]
"""(attention.RawHeads, cache) -> (out [T, N, H], cache): stores keys and values in the cache, and attends."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """The tokens of a step, while it is traced. Make it inside of the function that is traced.

    tokens, positions: i32[T].    attention, products: how they are computed.
    The rest is for attention over pages.    table: i32[S, M], the pages of each slot's sequence in order.
    slots, lengths: i32[T], each token's slot, and its sequence's length up to it; 0 for padding.
    pages, offsets: i32[T], where each token's key and value are stored.
    sequences: i32[R] each: slots, index of the first token, number of tokens, and length with them; None where each
      sequence has one token.
    count: tokens without those that only pad for a kernel.
    """

    tokens: jax.Array
    positions: jax.Array
    attention: AttentionOp
    products: Products = XLA
    table: Any = None
    slots: Any = None
    lengths: Any = None
    pages: Any = None
    offsets: Any = None
    sequences: Any = None
    count: int | None = None
    _known: dict[Hashable, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def once[T](self, key: Hashable, make: Callable[[], T]) -> T:
        """make(), computed for the first layer that asks and kept for the others."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def angles(self, spec: Attention) -> tuple[jax.Array, jax.Array]:
        """cos and sin of the tokens' positions, f32[T, 1, H / 2] each."""
        key = spec.rope, spec.head_dim
        return self.once(key, lambda: rope.rotation(*key, self.positions))
