"""A large product tile after tile, for Hopper (Mosaic GPU): the ring of blocks that two kernels share.

One CTA a multiprocessor takes tile after tile: 64 rows of each warpgroup that multiplies by two sides of 128 columns.
One more warpgroup copies blocks of rows and weights through the ring and runs ahead into the next tile. The second one
that multiplies begins some blocks late: while one finishes its tile the other multiplies alone.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.mosaic_decode_plan import COMPILER_PARAMS, F32, I32, Ref, Smem, named
from jaxinfer_kernels.mosaic_linear_plan import operand

ROWS = 64  # of one warpgroup, the wgmma's M
COLUMNS = 128  # of a side of a tile
SIDES = 2
BLOCK = 64  # of the inner dimension, in one step


class Ring(Protocol):
    """What the ring needs to know of a launch."""

    @property
    def dtype(self) -> jnp.dtype: ...

    @property
    def warpgroups(self) -> int:
        """That multiply."""

    @property
    def cluster(self) -> int:
        """CTAs, 1 or 2, that share the weights of a tile."""

    @property
    def stages(self) -> int:
        """Blocks in flight."""

    @property
    def blocks(self) -> int:
        """Of the whole inner dimension."""

    @property
    def tiles(self) -> int: ...

    @property
    def clusters(self) -> int:
        """That share the tiles."""

    @property
    def late(self) -> int:
        """Blocks after which the second warpgroup begins."""

    @property
    def interpret(self) -> plgpu.InterpretGPUParams | None: ...


def launch(plan: Ring, name: str, body: Callable[..., None], out_type: object, out: object) -> Callable[..., Any]:
    """A kernel of one CTA a multiprocessor, as profilers show it by `name`: body(plan, *operands and results, **smem).

    out: the shared memory in which results are laid out.
    """
    free = dict(num_arrivals=plan.warpgroups, num_barriers=plan.stages)
    smem = dict(
        x=operand((plan.stages, plan.warpgroups, ROWS, BLOCK), plan.dtype),
        w=operand((plan.stages, SIDES, COLUMNS, BLOCK), plan.dtype),
        out=out,
        ready=plgpu.Barrier(num_arrivals=plan.warpgroups + SIDES, num_barriers=plan.stages),
        free=plgpu.ClusterBarrier(collective_axes=("part",), **free) if plan.cluster > 1 else plgpu.Barrier(**free),
        late=plgpu.Barrier(num_arrivals=1),
    )
    return plgpu.kernel(
        named(name, functools.partial(body, plan)),
        out_type=out_type,
        scratch_types=smem,
        grid=(plan.clusters,),
        grid_names=("first",),
        cluster=(plan.cluster,),
        cluster_names=("part",),
        num_threads=plan.warpgroups + 1,
        thread_name="warpgroup",
        interpret=plan.interpret,
        compiler_params=COMPILER_PARAMS,
    )


@dataclasses.dataclass(frozen=True)
class Work[Place]:
    """What one kernel multiplies and what it does with the products."""

    place: Callable[[jax.Array], Place]  # of a tile by its number
    rows: Callable[[Place, int, jax.Array], tuple[Ref, int]]  # [n, BLOCK] of a warpgroup, and n; tile, warpgroup, block
    weights: Callable[[Place, int, jax.Array], Ref]  # [COLUMNS, BLOCK]; tile, side, block
    finish: Callable[[Place, jax.Array, list[jax.Array]], None]  # tile, warpgroup, f32[ROWS, COLUMNS] of each side


def run_tiles[Place](plan: Ring, smem: Smem, work: Work[Place]) -> None:
    """Multiply this CTA's share of the tiles; copies out of the last one have ended."""
    first, warpgroup = lax.axis_index("first"), lax.axis_index("warpgroup")
    count = lax.div(plan.tiles - 1 - first, I32(plan.clusters)) + 1

    def place(i: jax.Array) -> Place:
        return work.place(first + i * plan.clusters)

    @pl.when(warpgroup == plan.warpgroups)
    def _():
        if not plan.interpret:
            plgpu.set_max_registers(40, action="decrease")

        def copy(i: jax.Array, _: None) -> None:
            one = functools.partial(_copy_block, plan, smem, work, i, place(i))
            lax.fori_loop(0, plan.blocks, one, None)

        lax.fori_loop(0, count, copy, None)

    @pl.when(warpgroup < plan.warpgroups)
    def _():
        if not plan.interpret:
            plgpu.set_max_registers(232, action="increase")
        pl.when(warpgroup == 1)(lambda: plgpu.barrier_wait(smem["late"]))

        def compute(i: jax.Array, _: None) -> None:
            work.finish(place(i), warpgroup, _products(plan, smem, warpgroup, i, count))

        lax.fori_loop(0, count, compute, None)
        plgpu.wait_smem_to_gmem(0)


def _copy_block[Place](
    plan: Ring, smem: Smem, work: Work[Place], i: jax.Array, place: Place, block: jax.Array, _: None
) -> None:
    """Start copying a block of this CTA's i-th tile, once nobody reads the one before it in that stage."""
    step = i * plan.blocks + block
    stage = lax.rem(step, I32(plan.stages))
    pl.when(step >= plan.stages)(lambda: plgpu.barrier_wait(smem["free"].at[stage]))
    ready = smem["ready"].at[stage]
    shared = dict(collective_axes="part") if plan.cluster > 1 else {}
    for side in range(SIDES):
        plgpu.copy_gmem_to_smem(work.weights(place, side, block), smem["w"].at[stage, side], ready, **shared)
    for j in range(plan.warpgroups):
        source, rows = work.rows(place, j, block)
        plgpu.copy_gmem_to_smem(source, smem["x"].at[stage, j, pl.ds(0, rows)], ready)


def _products(plan: Ring, smem: Smem, warpgroup: jax.Array, i: jax.Array, count: jax.Array) -> list[jax.Array]:
    """f32[ROWS, COLUMNS] of each side, of this CTA's i-th tile of `count`."""
    total = count * plan.blocks

    def run(*sums: Ref) -> list[jax.Array]:
        def step(block: jax.Array, _: None) -> None:
            now = i * plan.blocks + block
            stage = lax.rem(now, I32(plan.stages))
            plgpu.barrier_wait(smem["ready"].at[stage])
            for side, one in enumerate(sums):
                plgpu.wgmma(one, smem["x"].at[stage, warpgroup], smem["w"].at[stage, side].transpose((1, 0)))
            plgpu.wgmma_wait(len(sums))  # for the products of the step before
            _release(plan, smem, now - 1, (block > 0) & (now - 1 + plan.stages < total))
            begun = (warpgroup == 0) & (now == min(plan.late, plan.blocks - 1))
            pl.when(begun)(lambda: plgpu.barrier_arrive(smem["late"]))

        lax.fori_loop(0, plan.blocks, step, None)
        plgpu.wgmma_wait(0)
        last = (i + 1) * plan.blocks - 1
        _release(plan, smem, last, last + plan.stages < total)
        return [one[...] for one in sums]

    return pl.run_scoped(run, *[plgpu.ACC((ROWS, COLUMNS), F32)] * SIDES)


def _release(plan: Ring, smem: Smem, step: jax.Array, wanted: jax.Array) -> None:
    """Let the stage of a step be filled again, if there is something left to fill it with."""
    stage = lax.rem(step + plan.stages, I32(plan.stages))
    pl.when(wanted)(lambda: plgpu.barrier_arrive(smem["free"].at[stage]))
