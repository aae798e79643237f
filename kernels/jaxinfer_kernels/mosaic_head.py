"""Logits of up to 256 rows, stored where they stay, with each row's largest, for Hopper (Mosaic GPU).

A tile (mosaic_tiles) is all rows of a CTA, 128 at most, by 256 tokens of the vocabulary; more rows take a cluster of
two CTAs, which share the weights. The products leave in f32, straight to the rows of logits that the caller keeps, and
the largest of each tile leaves beside them: nobody reads or copies the logits again to find the token.
Bound by memory: V * K * itemsize bytes of weights read and T * V * 4 written; that is our bar.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.mosaic_decode_plan import (
    CTAS_WANTED,
    F32,
    I32,
    Ref,
    round_up,
    store,
)
from jaxinfer_kernels.mosaic_linear_plan import padded
from jaxinfer_kernels.mosaic_tiles import BLOCK, COLUMNS, ROWS, SIDES, Work, launch, run_tiles

MAX_ROWS = 256
TILE = SIDES * COLUMNS  # tokens of the vocabulary
ROOM = 227_000  # bytes of shared memory
MAX_STAGES = 8


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the work is cut; results are the same bits whatever it says."""

    stages: int = 0  # blocks in flight; 0: what fits
    late: int = 2  # blocks after which the second warpgroup begins


DEFAULT = Tuning()


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static facts of one launch."""

    rows: int  # a multiple of 8
    depth: int
    vocab: int
    dtype: jnp.dtype
    tuning: Tuning
    interpret: plgpu.InterpretGPUParams | None

    @property
    def cluster(self) -> int:
        return 1 if self.rows <= 2 * ROWS else 2

    @property
    def warpgroups(self) -> int:
        return 1 if self.rows <= ROWS else 2

    @property
    def stages(self) -> int:
        item, out = 2, self.warpgroups * ROWS * COLUMNS * 4
        fit = (ROOM - out) // ((self.warpgroups * ROWS + TILE) * BLOCK * item)
        return self.tuning.stages or min(fit, MAX_STAGES)

    @property
    def late(self) -> int:
        return self.tuning.late

    @property
    def blocks(self) -> int:
        return self.depth // BLOCK

    @property
    def tiles(self) -> int:
        return -(-self.vocab // TILE)

    @property
    def clusters(self) -> int:
        return min(CTAS_WANTED // self.cluster, self.tiles)

    @property
    def part_rows(self) -> int:
        """Of one warpgroup."""
        return min(self.rows, ROWS)

    def row(self, part: jax.Array, warpgroup: jax.Array | int) -> jax.Array:
        """The first row of a warpgroup: the last ones repeat rows of those before them, and their values."""
        return jnp.minimum((part * self.warpgroups + warpgroup) * ROWS, self.rows - self.part_rows)


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def head(
    x: jax.Array,
    w: jax.Array,
    logits: jax.Array,
    *,
    tuning: Tuning = DEFAULT,
    interpret: plgpu.InterpretGPUParams | None = None,
) -> tuple[jax.Array, jax.Array]:
    """x @ w.T in f32 as the first rows of logits, and where each row is largest.

      x: [T, K].    w: [V, K].    logits: f32[L, V], updated in place where the caller donates it; of its rows, the
      first T come out as the product, those up to the next multiple of 8 as zeros.
    Returns logits and i32[T], the lowest id among equals; any id for a row with a NaN.
    """
    fits = x.ndim == w.ndim == 2 and x.shape[1] == w.shape[1] and x.dtype == w.dtype
    if not fits or logits.shape[1] != len(w) or not supported(len(x), len(logits), *w.shape, x.dtype):
        raise ValueError(
            f"the Mosaic head needs x [T, K] with T <= {MAX_ROWS}, w [V, K], both bf16 or f16, V >= {TILE} a multiple "
            f"of {COLUMNS}, K of {BLOCK}, and logits f32[L, V] with L at least T rounded up to 8, "
            f"got {x.aval}, {w.aval} and {logits.aval}; use linear.linear"
        )
    plan = Plan(round_up(len(x), 8), x.shape[1], len(w), x.dtype, tuning, interpret)
    results = [jax.ShapeDtypeStruct((plan.tiles, max(plan.rows, ROWS)), dtype) for dtype in (F32, I32)]
    swizzled = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    out = plgpu.SMEM((plan.warpgroups, ROWS, COLUMNS), F32, transforms=swizzled)
    kept = jax.new_ref(logits)
    largest, ids = launch(plan, "head", _kernel, results, out)(padded(x), w, kept)
    tile = jnp.argmax(largest[:, : len(x)], axis=0)  # of equals the first, which has the lower ids
    return jax.freeze(kept), ids[tile, jnp.arange(len(x))]


def supported(rows: int, kept: int, vocab: int, in_features: int, dtype: jnp.dtype) -> bool:
    """Whether this kernel can run w [vocab, in_features] on that many rows, of logits of `kept` rows."""
    return (
        dtype in (jnp.bfloat16, jnp.float16)
        and rows <= MAX_ROWS
        and round_up(rows, 8) <= kept
        and vocab >= TILE
        and vocab % COLUMNS == in_features % BLOCK == 0
    )


def _kernel(plan: Plan, x_ref: Ref, w_ref: Ref, logits_ref: Ref, largest_ref: Ref, ids_ref: Ref, **smem: Ref) -> None:
    """x [T, K], w [V, K], logits [L, V], largest and ids [tiles, T or 64 if that is more]."""
    part = lax.axis_index("part")

    def place(tile: jax.Array) -> tuple[jax.Array, jax.Array]:
        return tile, jnp.minimum(tile * TILE, plan.vocab - TILE)  # the last tile may begin with the last side before it

    def rows(_: object, warpgroup: int, block: jax.Array) -> tuple[Ref, int]:
        place = pl.ds(plan.row(part, warpgroup), plan.part_rows), pl.ds(block * BLOCK, BLOCK)
        return x_ref.at[place], plan.part_rows

    def weights(place: tuple[jax.Array, jax.Array], side: int, block: jax.Array) -> Ref:
        return w_ref.at[pl.ds(place[1] + side * COLUMNS, COLUMNS), pl.ds(block * BLOCK, BLOCK)]

    def finish(place: tuple[jax.Array, jax.Array], warpgroup: jax.Array, products: list[jax.Array]) -> None:
        (tile, token), row = place, plan.row(part, warpgroup)
        out = smem["out"].at[warpgroup]

        def put(side: int, product: jax.Array) -> None:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            store(out, product)
            plgpu.commit_smem()
            result = logits_ref.at[pl.ds(row, plan.part_rows), pl.ds(token + side * COLUMNS, COLUMNS)]
            plgpu.copy_smem_to_gmem(out.at[pl.ds(0, plan.part_rows)], result)

        pl.when(token == tile * TILE)(lambda: put(0, products[0]))
        put(1, products[1])
        largest, ids = _largest(plan, token, products)
        store(largest_ref.at[tile, pl.ds(row, ROWS)], largest)
        store(ids_ref.at[tile, pl.ds(row, ROWS)], ids)

    run_tiles(plan, smem, Work(place, rows, weights, finish))


def _largest(plan: Plan, token: jax.Array, products: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """f32[ROWS] and i32[ROWS] of a tile whose first token that is."""
    shape = (ROWS, COLUMNS)
    largest = functools.reduce(jnp.maximum, [jnp.max(product, axis=1) for product in products])
    everywhere = lax.broadcast_in_dim(largest, shape, [0])

    def lowest(side: int, product: jax.Array) -> jax.Array:
        tokens = plgpu.broadcasted_iota(I32, shape, 1, layout=plgpu.Layout.WGMMA) + (token + side * COLUMNS)
        return jnp.min(jnp.where(product == everywhere, tokens, I32(plan.vocab - 1)), axis=1)

    return largest, functools.reduce(jnp.minimum, [lowest(*each) for each in enumerate(products)])
