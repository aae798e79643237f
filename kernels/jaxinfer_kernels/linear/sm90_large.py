"""Gate and up of the many rows of a prompt step, with silu(gate) * up, for Hopper (Mosaic GPU).

One CTA a multiprocessor takes tile after tile: 128 rows by 128 columns of gate and the same of up. One warpgroup copies
blocks of both through a ring and runs ahead into the next tile; two multiply 64 rows each, and the accumulators of gate
and up have one layout, so that they meet in registers and only the product of the two is stored. The second one begins
some blocks late: while one finishes its tile the other multiplies alone.
Bound by compute: 4 T F K floating point operations at what wgmma runs at; that is our bar.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.linear.xla import fit
from jaxinfer_kernels.sm90 import (
    F32,
    H200,
    I32,
    HopperGpu,
    Ref,
    Smem,
    compiler_params,
    free_stage,
    named,
    operand,
    store_tile,
    swiglu,
)

ROWS = 64  # of one warpgroup, the wgmma's M
TILE_ROWS = 128
COLUMNS = 128  # of a tile, of gate and of up each
BLOCK = 64  # of the inner dimension, in one step


@dataclasses.dataclass(frozen=True)
class GateUpTuning:
    """How the work is cut and ordered; results are the same bits whatever it says."""

    stages: int = 4  # blocks in flight
    group: int = 8  # clusters' tiles of rows whose columns are taken together, so that both stay in the L2
    late: int = 2  # blocks after which the second warpgroup begins
    cluster: int = 0  # CTAs, 1 or 2, that share the weights of a tile; 0: two, if the rows can be cut so
    warpgroups: int = 2  # that multiply; interpreted with one, since each holds one of XLA's threads
    gpu: HopperGpu = H200


DEFAULT = GateUpTuning()


@dataclasses.dataclass(frozen=True)
class GateUpConfig:
    """Static facts of one launch."""

    rows: int
    depth: int
    out: int
    dtype: jnp.dtype
    tuning: GateUpTuning
    interpret: "plgpu.InterpretGPUParams | None"

    @property
    def cluster(self) -> int:
        return self.tuning.cluster or 2 - bool(self.rows % (2 * self.tile_rows))

    @property
    def tile_rows(self) -> int:
        return ROWS * self.tuning.warpgroups

    @property
    def row_tiles(self) -> int:
        """Of a cluster."""
        return self.rows // (self.tile_rows * self.cluster)

    @property
    def tiles(self) -> int:
        return self.row_tiles * (self.out // COLUMNS)

    @property
    def clusters(self) -> int:
        return min(self.tuning.gpu.multiprocessors // self.cluster, self.tiles)

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
    x: jax.Array, w: jax.Array, *, tuning: GateUpTuning = DEFAULT, interpret: "plgpu.InterpretGPUParams | None" = None
) -> jax.Array:
    """silu(gate) * up of x @ w.T, in f32, then rounded.

      x: [T, K], T a multiple of 128.    w: [2F, K], the rows of gate, then of up.
    Returns [T, F].
    """
    if not fit(x, w) or not supported(len(x), *w.shape, x.dtype):
        raise ValueError(
            f"the Mosaic gate_up needs x [T, K] and w [2F, K], both bf16 or f16, T a multiple of {TILE_ROWS}, F of "
            f"{COLUMNS} and K of {BLOCK}, got {x.aval} and {w.aval}; use linear.api.gate_up"
        )
    plan = GateUpConfig(len(x), x.shape[1], len(w) // 2, x.dtype, tuning, interpret)
    if plan.rows % (plan.tile_rows * plan.cluster):
        raise ValueError(f"{plan.rows} rows cannot be shared by clusters of {plan.cluster}; use the default tuning")
    return _launch(plan)(x, w)


def supported(rows: int, out_features: int, in_features: int, dtype: jnp.dtype) -> bool:
    """Whether this kernel can run w [out_features, in_features] on that many rows."""
    fits = rows % TILE_ROWS == out_features % (2 * COLUMNS) == in_features % BLOCK == 0
    return fits and dtype in (jnp.bfloat16, jnp.float16)


def _launch(plan: GateUpConfig) -> Callable[..., jax.Array]:
    stages, cluster, warpgroups = plan.tuning.stages, plan.cluster, plan.tuning.warpgroups
    free = dict(num_arrivals=warpgroups, num_barriers=stages)
    smem = dict(
        x=operand((stages, warpgroups, ROWS, BLOCK), plan.dtype),
        w=operand((stages, 2, COLUMNS, BLOCK), plan.dtype),
        out=operand((warpgroups, ROWS, COLUMNS), plan.dtype),
        ready=plgpu.Barrier(num_arrivals=warpgroups + 2, num_barriers=stages),
        free=plgpu.ClusterBarrier(collective_axes=("part",), **free) if cluster > 1 else plgpu.Barrier(**free),
        late=plgpu.Barrier(num_arrivals=1),
    )
    return plgpu.kernel(
        named("prompt_gate_up", functools.partial(_kernel, plan)),
        out_type=jax.ShapeDtypeStruct((plan.rows, plan.out), plan.dtype),
        scratch_types=smem,
        grid=(plan.clusters,),
        grid_names=("first",),
        cluster=(cluster,),
        cluster_names=("part",),
        num_threads=warpgroups + 1,
        thread_name="warpgroup",
        interpret=plan.interpret,
        compiler_params=compiler_params(),
    )


def _kernel(plan: GateUpConfig, x_ref: Ref, w_ref: Ref, out_ref: Ref, **smem: Ref) -> None:
    """x [T, K], w [2F, K], out [T, F]."""
    first, part, warpgroup = (lax.axis_index(name) for name in ("first", "part", "warpgroup"))
    count = lax.div(plan.tiles - 1 - first, I32(plan.clusters)) + 1  # tiles of this CTA

    def tile_of(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        row, column = plan.place(first + i * plan.clusters)
        return row + part * plan.tile_rows, column

    @pl.when(warpgroup == plan.tuning.warpgroups)
    def _():
        if not plan.interpret:
            plgpu.set_max_registers(40, action="decrease")

        def copy(i: jax.Array, _: None) -> None:
            row, column = tile_of(i)
            lax.fori_loop(
                0, plan.blocks, functools.partial(_copy_block, plan, smem, x_ref, w_ref, i, row, column), None
            )

        lax.fori_loop(0, count, copy, None)

    @pl.when(warpgroup < plan.tuning.warpgroups)
    def _():
        if not plan.interpret:
            plgpu.set_max_registers(232, action="increase")
        pl.when(warpgroup == 1)(functools.partial(plgpu.barrier_wait, smem["late"]))

        def compute(i: jax.Array, _: None) -> None:
            row, column = tile_of(i)
            gate, up = _products(plan, smem, warpgroup, i, count)
            place = out_ref.at[pl.ds(row + warpgroup * ROWS, ROWS), pl.ds(column, COLUMNS)]
            store_tile(smem["out"].at[warpgroup], swiglu(gate, up).astype(plan.dtype), place)

        lax.fori_loop(0, count, compute, None)
        plgpu.wait_smem_to_gmem(0)


def _copy_block(
    plan: GateUpConfig,
    smem: Smem,
    x_ref: Ref,
    w_ref: Ref,
    i: jax.Array,
    row: jax.Array,
    column: jax.Array,
    block: jax.Array,
    _: None,
) -> None:
    """Start copying a block of this CTA's i-th tile, once nobody reads the one before it in that stage."""
    stage = free_stage(smem["free"], i * plan.blocks + block, plan.tuning.stages)
    inner, ready = pl.ds(block * BLOCK, BLOCK), smem["ready"].at[stage]
    for side in range(2):
        source = w_ref.at[pl.ds(side * plan.out + column, COLUMNS), inner]
        shared = dict(collective_axes="part") if plan.cluster > 1 else {}
        plgpu.copy_gmem_to_smem(source, smem["w"].at[stage, side], ready, **shared)
    for j in range(plan.tuning.warpgroups):
        plgpu.copy_gmem_to_smem(x_ref.at[pl.ds(row + j * ROWS, ROWS), inner], smem["x"].at[stage, j], ready)


def _products(plan: GateUpConfig, smem: Smem, warpgroup: jax.Array, i: jax.Array, count: jax.Array) -> list[jax.Array]:
    """f32[ROWS, COLUMNS] of gate and of up, of this CTA's i-th tile of `count`."""
    stages, total = plan.tuning.stages, count * plan.blocks

    def run(*sums: Ref) -> list[jax.Array]:
        def step(block: jax.Array, _: None) -> None:
            now = i * plan.blocks + block
            stage = lax.rem(now, I32(stages))
            plgpu.barrier_wait(smem["ready"].at[stage])
            for side, one in enumerate(sums):
                plgpu.wgmma(one, smem["x"].at[stage, warpgroup], smem["w"].at[stage, side].transpose((1, 0)))
            plgpu.wgmma_wait(len(sums))  # for the products of the step before
            _release(plan, smem, now - 1, (block > 0) & (now - 1 + stages < total))
            begun = (warpgroup == 0) & (now == min(plan.tuning.late, plan.blocks - 1))
            pl.when(begun)(functools.partial(plgpu.barrier_arrive, smem["late"]))

        lax.fori_loop(0, plan.blocks, step, None)
        plgpu.wgmma_wait(0)
        last = (i + 1) * plan.blocks - 1
        _release(plan, smem, last, last + stages < total)
        return [one[...] for one in sums]

    return pl.run_scoped(run, *[plgpu.ACC((ROWS, COLUMNS), F32)] * 2)


def _release(plan: GateUpConfig, smem: Smem, step: jax.Array, wanted: jax.Array) -> None:
    """Let the stage of a step be filled again, if there is something left to fill it with."""
    stage = lax.rem(step + plan.tuning.stages, I32(plan.tuning.stages))
    pl.when(wanted)(functools.partial(plgpu.barrier_arrive, smem["free"].at[stage]))
