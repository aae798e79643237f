"""The logprob of a token, its rank and the most likely tokens, of a row in shared memory, for Hopper (Mosaic GPU).

The K most likely are looked for once. Each CTA has 16 groups of tokens; within the K-th largest of all groups' largest
logits there are K tokens and hardly more, and each CTA takes those it has, one by one. A token's place is the number of
tokens before it in the lists of all CTAs.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.sampling.columns import DrawnColumn
from jaxinfer_kernels.sampling.sm90_argmax import WORDS
from jaxinfer_kernels.sampling.sm90_row import (
    COUNTS,
    LIST,
    MASS,
    NEAREST,
    NUM_LISTS,
    CtaRow,
    bits_of,
    float_of,
    full,
    nearest_group,
    value_layout,
)
from jaxinfer_kernels.sm90 import F32, I32, Ref

MOST = NUM_LISTS * WORDS  # tokens that are listed

type Lists = tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]  # logits and ids, NUM_LISTS [WORDS] each


def write_logprobs(row: CtaRow, chosen: jax.Array, most: int, out_ref: Ref) -> None:
    """Write what is said of a token whose raw logit is `chosen`.

    row: holds raw logits.    out_ref: i32[len(DrawnColumn) + 2 most], but for TOKEN; of tokens that are not there,
    because fewer logits are finite, ids are 0 and logprobs minus infinity.
    """

    def look(t: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        largest, above = carry
        x = row.tile(t)
        return jnp.maximum(largest, x), above + jnp.where(x > chosen, I32(1), I32(0))

    largest, above = row.over_tiles(look, (full(-jnp.inf), full(0, I32)))
    row.share(NEAREST, largest.max(axis=1))
    row.share(COUNTS, above.sum(axis=1))
    pl.when(row.split == 0)(functools.partial(_blank, most, out_ref))
    row.cluster_sync()
    groups = row.of_all(NEAREST)
    highest = functools.reduce(jnp.maximum, groups).max()
    limit = float_of(nearest_group([highest - each for each in groups], most))
    mass = row.over_tiles(lambda t, found: found + jnp.exp(row.tile(t) - highest), full(0))
    row.share(MASS, mass.sum(axis=1))
    count, own = _most_likely(row, highest, limit, most)
    for part, values in enumerate((*own[0], *own[1])):
        row.share(LIST + part, values)
    row.cluster_sync()
    total = highest + jnp.log(row.total(MASS))
    _write_places(row, count, own, total, most, out_ref)

    @pl.when(row.split == 0)
    def _():
        out_ref[DrawnColumn.LOGPROB] = bits_of(chosen - total)
        out_ref[DrawnColumn.RANK] = 1 + row.total(COUNTS, I32)


def _blank(most: int, out_ref: Ref) -> None:
    def blank(i: jax.Array, _: None) -> None:
        out_ref[len(DrawnColumn) + i] = I32(0)
        out_ref[len(DrawnColumn) + most + i] = bits_of(F32(-jnp.inf))

    lax.fori_loop(0, most, blank, None)


def _most_likely(row: CtaRow, highest: jax.Array, limit: jax.Array, most: int) -> tuple[jax.Array, Lists]:
    """How many tokens within `limit` of the highest logit this CTA has, `most` at most, and these: falling, lower ids
    first among equals."""
    none = F32(-jnp.inf)

    def next_one(last: jax.Array, last_token: jax.Array) -> tuple[jax.Array, jax.Array]:
        def look(t: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            best, at = carry
            x, tokens = row.tile(t), row.tokens(t)
            is_later = (x < last) | ((x == last) & (tokens > last_token))
            larger = is_later & (highest - x <= limit) & (x > best)
            return jnp.where(larger, x, best), jnp.where(larger, tokens, at)

        beyond = I32(row.plan.width)
        best, at = row.over_tiles(look, (full(-jnp.inf), full(row.plan.width, I32)))
        value = best.max(axis=1).max()
        return value, jnp.where(best == value, at, beyond).min(axis=1).min()

    def take(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        count, value, token, *lists = carry
        others = [_places(half) != count for half in range(NUM_LISTS)] * 2
        new = [value] * NUM_LISTS + [token] * NUM_LISTS
        lists = [jnp.where(other, old, each) for other, old, each in zip(others, lists, new, strict=True)]
        return count + 1, *next_one(value, token), *lists

    empty = [_nothing()] * NUM_LISTS + [_places(0)] * NUM_LISTS
    first = I32(0), *next_one(F32(jnp.inf), I32(-1)), *empty
    count, _, _, *lists = lax.while_loop(lambda carry: (carry[0] < most) & (carry[1] > none), take, first)
    return count, (tuple(lists[:NUM_LISTS]), tuple(lists[NUM_LISTS:]))


def _write_places(row: CtaRow, count: jax.Array, own: Lists, total: jax.Array, most: int, out_ref: Ref) -> None:
    """Write the tokens of this CTA's lists where they belong among those of all CTAs."""
    every = [
        pair
        for half in range(NUM_LISTS)
        for pair in zip(row.of_all(LIST + half), row.of_all(LIST + NUM_LISTS + half, I32), strict=True)
    ]

    def write(i: jax.Array, _: None) -> None:
        here = [_places(half) == i for half in range(NUM_LISTS)]
        value = functools.reduce(jnp.maximum, map(functools.partial(_at, F32(-jnp.inf)), here, own[0]))
        token = functools.reduce(jnp.maximum, map(functools.partial(_at, I32(0)), here, own[1]))
        before = [(values > value) | ((values == value) & (tokens < token)) for values, tokens in every]
        place = functools.reduce(jnp.add, [jnp.where(each, I32(1), I32(0)) for each in before]).sum()

        @pl.when(place < most)
        def _():
            out_ref[len(DrawnColumn) + place] = token
            out_ref[len(DrawnColumn) + most + place] = bits_of(value - total)

    lax.fori_loop(0, count, write, None)


def _at(other: jax.Array, here: jax.Array, values: jax.Array) -> jax.Array:
    """The one of values [WORDS] that is `here`; `other`, which is no larger than any, if none is."""
    return jnp.where(here, values, other).max()


def _places(half: int) -> jax.Array:
    """Where each of one list's entries lies in the lists of a CTA, [WORDS]."""
    return plgpu.broadcasted_iota(I32, (WORDS,), 0, layout=value_layout()) + half * WORDS


def _nothing() -> jax.Array:
    """A list's logits before there are any, [WORDS]."""
    return plgpu.layout_cast(jnp.full((WORDS,), -jnp.inf, F32), value_layout())
