"""What a request's controls make of a row of logits, and a drawn token of its counts, for Hopper (Mosaic GPU)."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.sampling.columns import ANY, MOST_COUNTED, ControlColumn, ControlFlag, DrawColumn
from jaxinfer_kernels.sampling.sm90_argmax import BITS, WORDS, word_layout
from jaxinfer_kernels.sampling.sm90_row import SHAPE, CtaRow, float_of, spread, value_layout
from jaxinfer_kernels.sm90 import F32, I32, Ref

MOST_TOGETHER = 12  # ids that are asked for before the first is looked at: global memory answers after 500 cycles


@dataclasses.dataclass(frozen=True)
class SlotControls:
    """One slot's. columns i32[len(ControlColumn)], bias i32[2, n], bits i32[2, W], counts u16[W, 32], and the upload's
    row i32[len(DrawColumn) + 2 n]."""

    flags: jax.Array
    position: jax.Array
    columns_ref: Ref
    bias_ref: Ref
    bits_ref: Ref
    counts_ref: Ref
    upload_ref: Ref

    def uses(self, flag: ControlFlag) -> jax.Array:
        return self.flags & flag != 0

    def apply(self, row: CtaRow, wait: Callable[[], None]) -> None:
        """Change the row's logits, for which `wait` waits, in the order of jaxinfer.runtime.controls. What has to be
        read beside them is asked for before."""

        def wait_and_add_bias() -> None:
            wait()
            pl.when(self.uses(ControlFlag.BIAS))(functools.partial(self._add_bias, row))

        @pl.when(self.uses(ControlFlag.PENALTIES))
        def _():
            self._penalize(row, wait_and_add_bias)

        pl.when(jnp.logical_not(self.uses(ControlFlag.PENALTIES)))(wait_and_add_bias)
        early = self.uses(ControlFlag.MIN_TOKENS) & (self.position < self.columns_ref[ControlColumn.MIN_LENGTH])
        pl.when(self.uses(ControlFlag.ALLOWED) | early)(functools.partial(self._forbid, row, early))
        pl.when(self.uses(ControlFlag.BANNED))(functools.partial(self._ban, row))

    def take(self, token: jax.Array) -> None:
        """Note the token drawn, and count it if there are penalties."""
        self.columns_ref[ControlColumn.LAST] = token
        pl.when(self.uses(ControlFlag.PENALTIES))(functools.partial(self._count, token))

    def _count(self, token: jax.Array) -> None:
        """One more of the token; a count at its most stays there."""
        place = lax.div(token, I32(BITS)), lax.rem(token, I32(BITS))
        before = self.counts_ref[place].astype(I32)
        more = jnp.where(before & MOST_COUNTED < MOST_COUNTED, I32(1), I32(0))
        self.counts_ref[place] = (before + more).astype(jnp.uint16)

    def _add_bias(self, row: CtaRow) -> None:
        def add(tile: jax.Array, here: jax.Array, value: jax.Array) -> jax.Array:
            return jnp.where(here, tile + float_of(value), tile)

        ids_ref, values_ref = self.bias_ref.at[0], self.bias_ref.at[1]
        together = _together(ids_ref.shape[0])
        lasts = [ids_ref[i + together - 1] for i in range(0, ids_ref.shape[0], together)]
        before = sum(jnp.where(last < row.begin * BITS, I32(together), I32(0)) for last in lasts)
        end = (row.begin + row.plan.tiles * WORDS) * BITS
        _change_at(row, ids_ref, values_ref, before, end, add)

    def _penalize(self, row: CtaRow, before: Callable[[], None]) -> None:
        numbers = (ControlColumn.PRESENCE, ControlColumn.FREQUENCY, ControlColumn.REPETITION)
        presence, frequency, repetition = (float_of(self.columns_ref[column]) for column in numbers)
        waited = []

        def load(t: int) -> jax.Array:
            return plgpu.load(self.counts_ref.at[row.piece(t)], layout=word_layout(), optimized=False)

        def penalize(t: int, counted: jax.Array) -> None:
            if not waited:
                before()
                waited.append(True)
            x, counts = row.tile(t), counted.astype(I32)
            used = (counts & MOST_COUNTED).astype(F32)
            repeated = jnp.where(x > 0, x / repetition, x * repetition)
            penalty = frequency * used + jnp.where(used > 0, presence, F32(0))
            row.put(t, jnp.where(counts > 0, repeated, x) - penalty)

        row.in_groups(load, penalize)

    def _forbid(self, row: CtaRow, early: jax.Array) -> None:
        """What is not allowed, and what would end the sequence while it is too early."""
        every, none = (jnp.where(some, I32(-1), I32(0)) for some in (~self.uses(ControlFlag.ALLOWED), ~early))

        def load(t: int) -> jax.Array:
            words = functools.partial(plgpu.load, layout=value_layout(), optimized=False)
            allowed, ends = (words(self.bits_ref.at[i, row.piece(t)]) for i in (0, 1))
            return (allowed | every) & (~ends | none)

        def forbid(t: int, allowed: jax.Array) -> None:
            bit = jnp.left_shift(I32(1), plgpu.broadcasted_iota(I32, SHAPE, 1, layout=word_layout()))
            row.put(t, jnp.where(spread(allowed) & bit != 0, row.tile(t), F32(-jnp.inf)))

        row.in_groups(load, forbid)

    def _ban(self, row: CtaRow) -> None:
        start, most = len(DrawColumn), (self.upload_ref.shape[0] - len(DrawColumn)) // 2
        last = self.columns_ref[ControlColumn.LAST]

        def ban(tile: jax.Array, here: jax.Array, after: jax.Array) -> jax.Array:
            return jnp.where(here & ((after == ANY) | (after == last)), F32(-jnp.inf), tile)

        ids_ref, after_ref = (self.upload_ref.at[pl.ds(first, most)] for first in (start, start + most))
        _change_at(row, ids_ref, after_ref, I32(0), I32(row.plan.width), ban)


def _together(size: int) -> int:
    """How many of so many ids are asked for before the first is looked at. It divides their number."""
    return max(n for n in range(1, MOST_TOGETHER + 1) if size % n == 0)


def _change_at(
    row: CtaRow,
    ids_ref: Ref,
    beside_ref: Ref,
    first: jax.Array,
    end: jax.Array,
    change: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
) -> None:
    """Change the tiles that hold the tokens of i32[n], from the `first` to the one that is `end` or more.

    change(tile, here, beside): the tile, with what the value beside an id asks for at `here`. A lane changes what is
    its own alone. Of the ids that are asked for together, all that lie in one tile change it in one go: to read and to
    write a tile takes longer than to compare it with all of them.
    """

    together, none = _together(ids_ref.shape[0]), I32(row.plan.tiles)

    def body(i: jax.Array) -> jax.Array:
        ids, beside = ([ref[i + j] for j in range(together)] for ref in (ids_ref, beside_ref))
        words = [lax.div(token, I32(BITS)) - row.begin for token in ids]
        held = [(token < row.plan.width) & (word >= 0) for token, word in zip(ids, words, strict=True)]
        tiles = [jnp.where(h, lax.div(word, I32(WORDS)), none) for h, word in zip(held, words, strict=True)]

        def change_tile(t: jax.Array) -> jax.Array:
            tile, tokens = row.tile(t), row.tokens(t)
            for token, each in zip(ids, beside, strict=True):
                tile = change(tile, tokens == token, each)
            row.put(t, tile)
            return nearest_behind(t)

        def nearest_behind(t: jax.Array) -> jax.Array:
            behind = (jnp.where(each > t, each, none) for each in tiles)
            return functools.reduce(jnp.minimum, behind)

        lax.while_loop(lambda t: t < none, change_tile, nearest_behind(I32(-1)))
        return jnp.where(ids[-1] < end, i + together, I32(ids_ref.shape[0]))

    lax.while_loop(lambda i: i < ids_ref.shape[0], body, first)
