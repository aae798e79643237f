"""A row of the vocabulary in the shared memory of a cluster's CTAs, for Hopper (Mosaic GPU), and what these tell each
other of it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.sampling.sm90_argmax import BITS, WORDS, word_layout
from jaxinfer_kernels.sm90 import F32, I32, Ref, cluster_sync, store

TILES, MAX_SPLITS = 20, 16  # tiles of a CTA, unless there are more than this many CTAs have; CTAs of a cluster
MAX_TILES = 96  # that find room in a CTA's shared memory
SHAPE = (WORDS, BITS)  # of a tile: 512 tokens, four of one word to a lane
NUM_TRIES = 4  # distances within which one pass over a row counts
FIELD = 10  # bits of a count of groups, of which there are 256 at most
INFINITY = 0x7F800000  # as bits
# What a CTA leaves for its peers, one value a word. Between two writes of one part lies a meeting behind its reading.
# Counts have two of each, used in turns.
LARGEST, LARGEST_ID, NEAREST, MASS, BEST, BEST_ID, BEST_DISTANCE, ABOVE, COUNTS = range(9)
LIST = COUNTS + 2 * NUM_TRIES  # of the most likely tokens that a CTA has: the logits, then the ids
NUM_LISTS = 2
NUM_PARTS = LIST + 2 * NUM_LISTS


@dataclasses.dataclass(frozen=True)
class DrawConfig:
    """Static facts of one launch."""

    rows: int
    width: int
    splits: int
    interpret: "plgpu.InterpretGPUParams | None"

    def __post_init__(self) -> None:
        assert self.tiles * WORDS <= self.words, "what a CTA holds lies within the row"

    @property
    def words(self) -> int:
        return self.width // BITS

    @property
    def tiles(self) -> int:
        """Of a CTA. The last CTAs' end with the row; what they then have of others' words counts once."""
        return -(-self.words // (WORDS * self.splits))

    @property
    def spills(self) -> bool:
        """Interpret mode has no distributed shared memory: there, and only there, peers meet in global memory."""
        return self.interpret is not None and self.splits > 1


def supported(width: int) -> bool:
    """Whether a row of so many tokens can be held."""
    return width % BITS == 0 and WORDS * BITS <= width <= MAX_SPLITS * MAX_TILES * WORDS * BITS


def splits_of(width: int) -> int:
    """CTAs that share a row: the fewest, a power of two, that hold TILES tiles at most. One holds whole tiles alone:
    its last has no words of other CTAs to begin with."""
    tiles, rest = -(-width // (WORDS * BITS)), width % (WORDS * BITS)
    return next((n for n in (1, 2, 4, 8) if tiles <= n * TILES and (n > 1 or rest == 0)), MAX_SPLITS)


@dataclasses.dataclass(frozen=True)
class CtaRow:
    """The part of a row that one CTA has, as its code sees it."""

    plan: DrawConfig
    split: jax.Array
    tiles: jax.Array  # plan.tiles: as a number that the compiler does not know, so that it unrolls no loop by it
    x_ref: Ref  # f32[tiles * WORDS, BITS], shared: logits, or distances
    parts_ref: Ref  # i32[NUM_PARTS, WORDS], shared
    spilled_ref: Ref | None  # i32[splits, NUM_PARTS, WORDS] in global memory, where the plan spills
    peers: Ref | None

    @property
    def own(self) -> jax.Array:
        """The first word that no other CTA has."""
        return self.split * (self.plan.tiles * WORDS)

    @property
    def begin(self) -> jax.Array:
        """The first word of this CTA's part."""
        return jnp.minimum(self.own, self.plan.words - self.plan.tiles * WORDS)

    def tile(self, t: jax.Array | int) -> jax.Array:
        return plgpu.load(self.x_ref.at[pl.ds(t * WORDS, WORDS)], layout=word_layout(), optimized=False)

    def put(self, t: jax.Array | int, tile: jax.Array) -> None:
        self.x_ref[pl.ds(t * WORDS, WORDS)] = tile

    def piece(self, t: jax.Array | int) -> Any:
        """The words of a tile in the row."""
        return pl.ds(self.begin + t * WORDS, WORDS)

    def words(self, t: jax.Array | int) -> jax.Array:
        """Each token's word in the row."""
        return plgpu.broadcasted_iota(I32, SHAPE, 0, layout=word_layout()) + (self.begin + t * WORDS)

    def tokens(self, t: jax.Array | int) -> jax.Array:
        return self.words(t) * BITS + plgpu.broadcasted_iota(I32, SHAPE, 1, layout=word_layout())

    def over_tiles(self, body: Callable[..., Any], first: Any) -> Any:
        return lax.fori_loop(0, self.tiles, body, first)

    def in_groups(self, load: Callable[[int], Any], body: Callable[[int, Any], None]) -> None:
        """body(t, load(t)) of every tile, where load reads global memory: many tiles ahead of the first body."""
        for first in range(0, self.plan.tiles, TILES):
            tiles = range(first, min(first + TILES, self.plan.tiles))
            loaded = [load(t) for t in tiles]
            for t, each in zip(tiles, loaded, strict=True):
                body(t, each)

    def leave_to_peers(self) -> None:
        """Forget what another CTA has too, so that it counts once."""

        def body(t: jax.Array, _: None) -> None:
            self.put(t, jnp.where(self.words(t) < self.own, F32(-jnp.inf), self.tile(t)))

        pl.when(self.own != self.begin)(functools.partial(self.over_tiles, body, None))

    def share(self, part: int | jax.Array, value: jax.Array) -> None:
        """Leave value [WORDS], i32 or f32, for the peers, who may read it from the next meeting on."""
        value = value if value.dtype == I32 else lax.bitcast_convert_type(value, I32)
        store(self.parts_ref.at[part], value)
        if self.spilled_ref is not None:
            store(self.spilled_ref.at[self.split, part], value)

    def cluster_sync(self) -> None:
        if self.peers is None:
            plgpu.commit_smem()
        else:
            cluster_sync(self.peers)

    def of(self, peer: int | jax.Array, part: int | jax.Array, dtype: jnp.dtype = F32) -> jax.Array:
        """What a CTA of the row has left, [WORDS]."""
        if self.plan.splits == 1:
            ref = self.parts_ref
        elif self.spilled_ref is not None:
            ref = self.spilled_ref.at[peer]
        else:
            ref = plgpu.cluster_ref(self.parts_ref, {"split": I32(peer)})
        value = plgpu.load(ref.at[part], layout=value_layout(), optimized=False)
        return value if dtype == I32 else lax.bitcast_convert_type(value, dtype)

    def of_all(self, part: int | jax.Array, dtype: jnp.dtype = F32) -> list[jax.Array]:
        return [self.of(peer, part, dtype) for peer in range(self.plan.splits)]

    def total(self, part: int | jax.Array, dtype: jnp.dtype = F32) -> jax.Array:
        """The sum of what all CTAs have left, in one order."""
        return functools.reduce(jnp.add, self.of_all(part, dtype)).sum()

    def share_best(self, part: int, best: jax.Array, tokens: jax.Array) -> jax.Array:
        """Leave each word's largest of a tile, and in the next part the lowest of its tokens, which it returns."""
        highest = best.max(axis=1)
        token = jnp.where(best == spread(highest), tokens, I32(self.plan.width - 1)).min(axis=1)
        self.share(part, highest)
        self.share(part + 1, token)
        return token

    def best(self, part: int) -> tuple[jax.Array, jax.Array]:
        """The largest of what share_best left in all CTAs, and the lowest of its tokens; some token if it is NaN."""
        values, tokens = self.of_all(part), self.of_all(part + 1, I32)
        highest, last = functools.reduce(jnp.maximum, values).max(), I32(self.plan.width - 1)
        found = [jnp.where(value == highest, each, last) for value, each in zip(values, tokens, strict=True)]
        return highest, functools.reduce(jnp.minimum, found).min()


def nearest_group(nearest: Sequence[jax.Array], wanted: jax.Array | int) -> jax.Array:
    """As bits, the least distance within which `wanted` groups of tokens have one, or the largest that is finite if
    there are not so many groups. nearest: each group's least distance, [WORDS] of each CTA."""

    def groups_within(distances: Sequence[jax.Array]) -> jax.Array:
        """How many groups have a token within each of up to three distances, FIELD bits each."""
        pairs = [(each, i, distance) for each in nearest for i, distance in enumerate(distances)]
        ones = [jnp.where(each <= distance, I32(1 << FIELD * i), I32(0)) for each, i, distance in pairs]
        return functools.reduce(jnp.add, ones).sum()

    def quarter(i: jax.Array, bound: jax.Array) -> jax.Array:
        """Two more bits of the largest distance within which too few groups have a token."""
        tries = [jnp.minimum(bound + lax.shift_left(I32(digit), 28 - 2 * i), I32(INFINITY)) for digit in (1, 2, 3)]
        found = groups_within([float_of(each) for each in tries])
        for j, each in enumerate(tries):
            field = lax.shift_right_logical(found, FIELD * j) & ((1 << FIELD) - 1)
            bound = jnp.where(field < wanted, each, bound)
        return bound

    two = bits_of(F32(2))  # the one bit that pairs leave over
    first = jnp.where(groups_within([F32(2)]) < wanted, two, I32(0))
    return jnp.minimum(lax.fori_loop(0, 15, quarter, first) + 1, I32(INFINITY - 1))


def value_layout() -> "plgpu.Layout":
    """Of one value a word, [WORDS]."""
    return word_layout().reduce(1)


def spread(values: jax.Array) -> jax.Array:
    """[WORDS] as a tile: each word's value at all of its tokens."""
    return plgpu.layout_cast(lax.broadcast_in_dim(values, SHAPE, [0]), word_layout())


def full(value: float, dtype: jnp.dtype = F32) -> jax.Array:
    """A tile of one value."""
    return plgpu.layout_cast(jnp.full(SHAPE, value, dtype), word_layout())


def float_of(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, F32)


def bits_of(values: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(values, I32)


def smem_of(plan: DrawConfig) -> dict[str, Any]:
    """The shared memory of a Row."""
    smem = dict(
        x=plgpu.SMEM((plan.tiles * WORDS, BITS), F32),
        parts=plgpu.SMEM((NUM_PARTS, WORDS), I32),
    )
    return smem | (dict(peers=plgpu.ClusterBarrier(collective_axes=("split",))) if plan.splits > 1 else {})


def spills_of(plan: DrawConfig) -> Sequence[jax.ShapeDtypeStruct]:
    """The results in which peers meet where the plan spills."""
    shape = (plan.rows, plan.splits, NUM_PARTS, WORDS)
    return [jax.ShapeDtypeStruct(shape, I32)] if plan.spills else []
