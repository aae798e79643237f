"""Batch: what the layers of one step know of its tokens, and how they compute."""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import jax

from jaxinfer.cache.spec import CacheLayout
from jaxinfer.layers import rope
from jaxinfer.layers.products import XLA, Products
from jaxinfer.layers.spec import Attention

type AttentionOp = Callable[[Any, Any], tuple[jax.Array, Any]]
"""(attention.RawHeads, pages) -> (out [T, N, H], pages): stores keys and values in the pages, and attends."""


@dataclasses.dataclass(frozen=True)
class Moves:
    """What a step does with the states of recurrent layers, row by row; layers/recurrent.py says why.

    slots, starts: i32[R], each row's slot, and the position of its first token.    bases: i32[R], the position that the
    slot's state is behind.    drawn: bool[R], whether the row's one token was drawn on the device.
    loads: i32[R], 0: the state is the slot's; 1: zeros; n + 1: snapshot n. None: it is the slot's.
    before: i32[T], the snapshot that the state before each token becomes.    behind: i32[R], likewise the state behind
      each row. 0: none.
    """

    slots: jax.Array
    starts: jax.Array
    bases: jax.Array
    drawn: jax.Array
    before: jax.Array
    loads: jax.Array | None = None
    behind: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Batch:
    """The tokens of a step, while it is traced. Make it inside of the function that is traced.

    tokens, positions: i32[T].    attention, products: how they are computed.
    layout: where layers find what they remember. None: all in one page table, in order.
    The rest is for attention over pages.    tables: i32[S, M] each, the pages of each slot's sequence in order.
    slots, lengths: i32[T], each token's slot, and its sequence's length up to it; 0 for padding.
    pages, offsets: for each table i32[T], the page where each token's key and value are stored; i32[T].
    sequences: i32[R] each: slots, index of the first token, number of tokens, and length with them; None where each
      sequence has one token.
    moves: of recurrent layers.    count: tokens without those that only pad for a kernel.
    """

    tokens: jax.Array
    positions: jax.Array
    attention: AttentionOp
    products: Products = XLA
    layout: CacheLayout | None = None
    tables: tuple[Any, ...] = ()
    slots: Any = None
    lengths: Any = None
    pages: tuple[Any, ...] = ()
    offsets: Any = None
    sequences: Any = None
    moves: Moves | None = None
    count: int | None = None
    _known: dict[Hashable, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def place(self, layer: int) -> tuple[int, int]:
        """Where a layer finds what it remembers, as CacheLayout.place."""
        return (0, layer) if self.layout is None else self.layout.place(layer)

    def once[T](self, key: Hashable, make: Callable[[], T]) -> T:
        """make(), computed for the first layer that asks and kept for the others."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def angles(self, spec: Attention) -> tuple[jax.Array, jax.Array]:
        """cos and sin of the tokens' positions, f32[T, 1, H / 2] each."""
        key = spec.rope, spec.head_dim
        return self.once(key, lambda: rope.rotation(*key, self.positions))
