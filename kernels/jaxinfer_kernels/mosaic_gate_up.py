"""Gate and up of the many rows of a prompt step, with silu(gate) * up, for Hopper (Mosaic GPU).

A tile (mosaic_tiles) is 128 rows by 128 columns of gate and the same of up. Their accumulators have one layout, so that
they meet in registers and only the product of the two is stored.
Bound by compute: 4 T F K floating point operations at what wgmma runs at; that is our bar.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.mosaic_decode_plan import CTAS_WANTED, F32, I32, Ref, store
from jaxinfer_kernels.mosaic_linear_plan import operand
from jaxinfer_kernels.mosaic_tiles import BLOCK, COLUMNS, ROWS, Work, launch, run_tiles

TILE_ROWS = 128


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the work is cut and ordered; results are the same bits whatever it says."""

    stages: int = 4  # blocks in flight
    group: int = 8  # clusters' tiles of rows whose columns are taken together, so that both stay in the L2
    late: int = 2  # blocks after which the second warpgroup begins
    cluster: int = 0  # CTAs, 1 or 2, that share the weights of a tile; 0: two, if the rows can be cut so
    warpgroups: int = 2  # that multiply; interpreted with one, since each holds one of XLA's threads


DEFAULT = Tuning()


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static facts of one launch."""

    rows: int
    depth: int
    out: int
    dtype: jnp.dtype
    tuning: Tuning
    interpret: plgpu.InterpretGPUParams | None

    @property
    def cluster(self) -> int:
        return self.tuning.cluster or 2 - bool(self.rows % (2 * self.tile_rows))

    @property
    def warpgroups(self) -> int:
        return self.tuning.warpgroups

    @property
    def stages(self) -> int:
        return self.tuning.stages

    @property
    def late(self) -> int:
        return self.tuning.late

    @property
    def tile_rows(self) -> int:
        return ROWS * self.warpgroups

    @property
    def row_tiles(self) -> int:
        """Of a cluster."""
        return self.rows // (self.tile_rows * self.cluster)

    @property
    def tiles(self) -> int:
        return self.row_tiles * (self.out // COLUMNS)

    @property
    def clusters(self) -> int:
        return min(CTAS_WANTED // self.cluster, self.tiles)

    @property
    def blocks(self) -> int:
        return self.depth // BLOCK

    def place(self, tile: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The first row and column of a tile: through the columns with `group` tiles of rows, then with the next."""
        group = next(n for n in range(min(self.tuning.group, self.row_tiles), 0, -1) if self.row_tiles % n == 0)
        columns = self.out // COLUMNS
        band, inside = lax.div(tile, I32(group * columns)), lax.rem(tile, I32(group * columns))
        row = band * group + lax.rem(inside, I32(group))
        return row * self.cluster * self.tile_rows, lax.div(inside, I32(group)) * COLUMNS


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def gate_up(
    x: jax.Array, w: jax.Array, *, tuning: Tuning = DEFAULT, interpret: plgpu.InterpretGPUParams | None = None
) -> jax.Array:
    """silu(gate) * up of x @ w.T, in f32, then rounded.

      x: [T, K], T a multiple of 128.    w: [2F, K], the rows of gate, then of up.
    Returns [T, F].
    """
    fits = x.ndim == w.ndim == 2 and x.shape[1] == w.shape[1] and x.dtype == w.dtype
    if not fits or not supported(len(x), *w.shape, x.dtype):
        raise ValueError(
            f"the Mosaic gate_up needs x [T, K] and w [2F, K], both bf16 or f16, T a multiple of {TILE_ROWS}, F of "
            f"{COLUMNS} and K of {BLOCK}, got {x.aval} and {w.aval}; use linear.norm_gate_up"
        )
    plan = Plan(len(x), x.shape[1], len(w) // 2, x.dtype, tuning, interpret)
    if plan.rows % (plan.tile_rows * plan.cluster):
        raise ValueError(f"{plan.rows} rows cannot be shared by clusters of {plan.cluster}; use the default tuning")
    result = jax.ShapeDtypeStruct((plan.rows, plan.out), plan.dtype)
    out = operand((plan.warpgroups, ROWS, COLUMNS), plan.dtype)
    gated: jax.Array = launch(plan, "prompt_gate_up", _kernel, result, out)(x, w)
    return gated


def supported(rows: int, out_features: int, in_features: int, dtype: jnp.dtype) -> bool:
    """Whether this kernel can run w [out_features, in_features] on that many rows."""
    fits = rows % TILE_ROWS == out_features % (2 * COLUMNS) == in_features % BLOCK == 0
    return fits and dtype in (jnp.bfloat16, jnp.float16)


def _kernel(plan: Plan, x_ref: Ref, w_ref: Ref, out_ref: Ref, **smem: Ref) -> None:
    """x [T, K], w [2F, K], out [T, F]."""
    part = lax.axis_index("part")

    def place(tile: jax.Array) -> tuple[jax.Array, jax.Array]:
        row, column = plan.place(tile)
        return row + part * plan.tile_rows, column

    def rows(place: tuple[jax.Array, jax.Array], warpgroup: int, block: jax.Array) -> tuple[Ref, int]:
        return x_ref.at[pl.ds(place[0] + warpgroup * ROWS, ROWS), pl.ds(block * BLOCK, BLOCK)], ROWS

    def weights(place: tuple[jax.Array, jax.Array], side: int, block: jax.Array) -> Ref:
        return w_ref.at[pl.ds(side * plan.out + place[1], COLUMNS), pl.ds(block * BLOCK, BLOCK)]

    def finish(place: tuple[jax.Array, jax.Array], warpgroup: jax.Array, products: list[jax.Array]) -> None:
        (row, column), (gate, up) = place, products
        y = gate * jnp.square(lax.rsqrt(F32(1) + jnp.exp(-gate))) * up  # a division is no instruction there
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        store(smem["out"].at[warpgroup], y.astype(plan.dtype))
        plgpu.commit_smem()
        result = out_ref.at[pl.ds(row + warpgroup * ROWS, ROWS), pl.ds(column, COLUMNS)]
        plgpu.copy_smem_to_gmem(smem["out"].at[warpgroup], result)

    run_tiles(plan, smem, Work(place, rows, weights, finish))
