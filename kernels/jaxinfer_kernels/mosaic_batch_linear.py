"""Linear layers of up to 256 rows for Hopper (Mosaic GPU), with what comes after them: bias, residual or gate.

A tile is all rows by some columns of the result, so that every weight is read once and the tiles are as many as the
multiprocessors. One warpgroup copies blocks of activations and weights through a ring, each other one multiplies 64
rows. Where the columns are few, CTAs that share a tile's inner dimension form a cluster and add up through distributed
shared memory, each some columns, in a fixed order. Where the rows are many, a tile is two CTAs, each of which has half
of the rows and fetches half of the weights for both. Gate and up of a tile have accumulators of the same layout, so
that they meet in registers.
Bound by memory: it must read `N * K * itemsize` bytes of weights; that is our bar. What keeps it above: each tile reads
all activations again, from the L2.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.mosaic_decode_plan import (
    COMPILER_PARAMS,
    CTAS_WANTED,
    F32,
    I32,
    Ref,
    Smem,
    begin_early,
    meet,
    named,
    round_up,
    store,
)
from jaxinfer_kernels.mosaic_linear_plan import RESIDENT, operand, padded

ROWS = 64  # of one warpgroup, the wgmma's M
MAX_ROWS = 256
HALVED_ROWS = 192  # and more are shared by two CTAs
BLOCK = 64  # of the inner dimension, in one step
MAX_COLUMNS = 256  # the wgmma's N
MAX_STAGES = 8
ROOM, AT_ONCE = RESIDENT[1]  # bytes of shared memory, and how many clusters of 1 to 8 CTAs run at once
REGISTERS = {
    1: 232,
    2: 232,
    3: 152,
    4: 104,
}  # of each warpgroup that multiplies, by their number, of the block's at launch


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the work is cut; 0: as the shapes suggest. Results differ between tunings in rounding only."""

    columns: int = 0  # of a tile, of gate and of up each: a multiple of 8
    splits: int = 0  # CTAs of a cluster that share the inner dimension: 1 to 8, dividing columns / 8
    halves: int = 0  # CTAs of a cluster that share the rows, and fetch weights for each other: 1 or 2
    stages: int = 0  # blocks in flight
    pdl: bool = True  # start fetching weights while the kernel before this one still runs


DEFAULT = Tuning()


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static facts of one launch."""

    rows: int  # a multiple of 8
    depth: int
    out: int  # columns of the result
    dtype: jnp.dtype
    columns: int
    splits: int
    halves: int
    stages: int
    after: Literal["bias", "residual", "silu"] | None
    pdl: bool
    interpret: plgpu.InterpretGPUParams | None

    @property
    def sides(self) -> int:
        """Products of a tile."""
        return 2 if self.after == "silu" else 1

    @property
    def tile_rows(self) -> int:
        """Of one CTA. Halves of an odd number of eights have eight rows in common, and the same results for them."""
        return round_up(self.rows // self.halves, 8)

    @property
    def warpgroups(self) -> int:
        """That multiply."""
        return -(-self.tile_rows // ROWS)

    @property
    def tiles(self) -> int:
        return -(-self.out // self.columns)

    @property
    def width(self) -> int:
        """Columns of a tile that one CTA finishes."""
        return self.columns // self.splits

    @property
    def most_stages(self) -> int:
        """Blocks that fit the shared memory beside what else is there at the same time."""
        rows, item = self.warpgroups * ROWS, 2
        out, partial = rows * self.width * item, rows * self.columns * 4 if self.splits > 1 else 0
        early, late = (out, partial) if self.after == "residual" else (0, out + partial)
        if early + late > ROOM:
            return 0
        return min((ROOM - early) // ((rows + self.sides * self.columns) * BLOCK * item), MAX_STAGES)

    def parts(self) -> Iterator[tuple[int, int]]:
        """Each warpgroup and how many rows it has."""
        return ((i, min(ROWS, self.tile_rows - i * ROWS)) for i in range(self.warpgroups))


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def linear_bias(
    x: jax.Array,
    w: jax.Array,
    layer: jax.Array,
    *,
    bias: jax.Array | None = None,
    tuning: Tuning = DEFAULT,
    interpret: plgpu.InterpretGPUParams | None = None,
) -> jax.Array:
    """x @ w.T + bias, the product summed in f32 and rounded before the bias.

      x: [T, K].    w: [N, K].    layer: i32[], of bias.    bias: [L, N].
    Returns [T, N].
    """
    plan = plan_launch(x, w, None if bias is None else "bias", tuning, interpret)
    return _launch(plan)(padded(x), w, *([] if bias is None else [layer.reshape(1), bias]))[: len(x)]


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def linear_residual(
    x: jax.Array,
    w: jax.Array,
    residual: jax.Array,
    *,
    tuning: Tuning = DEFAULT,
    interpret: plgpu.InterpretGPUParams | None = None,
) -> jax.Array:
    """residual + x @ w.T, the product summed in f32 and rounded before it is added.

      x: [T, K].    w: [N, K].    residual: [T, N].
    Returns [T, N].
    """
    plan = plan_launch(x, w, "residual", tuning, interpret)
    return _launch(plan)(padded(x), w, padded(residual))[: len(x)]


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def gate_up(
    x: jax.Array, w: jax.Array, *, tuning: Tuning = DEFAULT, interpret: plgpu.InterpretGPUParams | None = None
) -> jax.Array:
    """silu(gate) * up of x @ w.T, in f32 of the rounded products, then rounded.

      x: [T, K].    w: [2F, K], the rows of gate, then of up.
    Returns [T, F].
    """
    plan = plan_launch(x, w, "silu", tuning, interpret)
    return _launch(plan)(padded(x), w)[: len(x)]


def supported(rows: int, out_features: int, in_features: int, dtype: jnp.dtype) -> bool:
    """Whether these kernels can run w [out_features, in_features] on that many rows; else use linear.linear."""
    return (
        dtype in (jnp.bfloat16, jnp.float16)
        and rows <= MAX_ROWS
        and in_features % BLOCK == 0
        and out_features % 16 == 0
        and out_features >= ROWS
    )


def plan_launch(
    x: jax.Array,
    w: jax.Array,
    after: Literal["bias", "residual", "silu"] | None,
    tuning: Tuning,
    interpret: plgpu.InterpretGPUParams | None,
) -> Plan:
    """Raises ValueError for shapes and tunings that cannot run."""
    fits = x.ndim == w.ndim == 2 and x.shape[1] == w.shape[1] and x.dtype == w.dtype
    if not fits or not supported(x.shape[0], *w.shape, x.dtype):
        raise ValueError(
            f"the Mosaic batch linears need x [T, K] with T <= {MAX_ROWS} and w [N, K], both bf16 or f16, with "
            f"N % 16 == 0, N >= {ROWS} and K % {BLOCK} == 0, got {x.aval} and {w.aval}; use linear.linear"
        )
    (out, depth), rows = w.shape, round_up(x.shape[0], 8)
    out //= 2 if after == "silu" else 1  # columns of the result
    halves = tuning.halves or (2 if rows > HALVED_ROWS else 1)
    columns, splits = _cut(out, after == "silu", halves, tuning)
    pdl = tuning.pdl and interpret is None  # interpret mode knows no early launch
    plan = Plan(rows, depth, out, x.dtype, columns, splits, halves, tuning.stages, after, pdl, interpret)
    plan = dataclasses.replace(plan, stages=tuning.stages or plan.most_stages)
    if columns % (8 * splits) or columns % (8 * halves) or columns > out or not 2 <= plan.stages <= plan.most_stages:
        raise ValueError(
            "columns must be a multiple of 8 * splits and of 8 * halves and at most the result's, and two blocks and "
            f"more fit the shared memory, got w {w.aval} and {tuning}; use the default tuning"
        )
    return plan


def _cut(out: int, gated: bool, halves: int, tuning: Tuning) -> tuple[int, int]:
    """Columns of a tile, and splits. Tiles are as many as multiprocessors, or have 64 columns if there is no gate."""
    rounds = -(-out * halves // (CTAS_WANTED * MAX_COLUMNS))
    all_at_once = round_up(-(-out * halves // (CTAS_WANTED * rounds)), 8 * halves)
    columns = tuning.columns or (all_at_once if gated else max(all_at_once, 64))
    tiles = -(-out // columns)
    fitting = (n for n in (4, 2) if not gated and tiles <= AT_ONCE[n * halves - 1])
    return columns, tuning.splits or next(fitting, 1)


def _launch(plan: Plan) -> Callable[..., jax.Array]:
    warpgroups, dtype = plan.warpgroups, plan.dtype
    free = dict(num_arrivals=warpgroups, num_barriers=plan.stages)
    ring = dict(
        x=operand((plan.stages, warpgroups, ROWS, BLOCK), dtype),
        w=operand((plan.stages, plan.sides, plan.columns, BLOCK), dtype),
    )
    late = dict(out=plgpu.SMEM((warpgroups, ROWS, plan.width), dtype))
    smem = dict(
        ready=plgpu.Barrier(num_arrivals=warpgroups + plan.sides, num_barriers=plan.stages),
        free=plgpu.ClusterBarrier(collective_axes=("half",), **free) if plan.halves > 1 else plgpu.Barrier(**free),
        done=plgpu.Barrier(num_arrivals=warpgroups),
    )
    if plan.after == "residual":  # which is fetched to where the result will be
        smem |= dict(out=late.pop("out"), added=plgpu.Barrier(num_arrivals=warpgroups))
    if plan.splits > 1:
        late |= dict(partial=plgpu.SMEM((warpgroups, ROWS, plan.columns), F32))
        smem |= dict(peers=plgpu.ClusterBarrier(collective_axes=("split",), num_arrivals=warpgroups))
    smem |= dict(shared=plgpu.RefUnion(ring, late))
    return plgpu.kernel(
        named(f"batch_linear_{plan.after}", functools.partial(_kernel, plan)),
        out_type=jax.ShapeDtypeStruct((plan.rows, plan.out), dtype),
        scratch_types=smem,
        grid=(plan.tiles,),
        grid_names=("tile",),
        cluster=(plan.splits, plan.halves),
        cluster_names=("split", "half"),
        num_threads=warpgroups + 1,
        thread_name="warpgroup",
        interpret=plan.interpret,
        compiler_params=COMPILER_PARAMS,
    )


def _kernel(plan: Plan, x_ref: Ref, w_ref: Ref, *rest: Ref, **smem: Ref) -> None:
    """x [T, K], w [N, K], then residual [T, N] or layer i32[1] and bias [L, N], out [T, columns of the result]."""
    *added, out_ref = rest
    residual, bias = (added if plan.after == name else [] for name in ("residual", "bias"))
    ring, late = smem.pop("shared")
    smem |= ring | late
    tile, split, half, warpgroup = (lax.axis_index(name) for name in ("tile", "split", "half", "warpgroup"))
    start = jnp.minimum(tile * plan.columns, plan.out - plan.columns)  # the last tile repeats columns, and their values
    share = -(-plan.depth // BLOCK // plan.splits)  # blocks of a CTA
    first = split * share
    count = jnp.minimum(share, plan.depth // BLOCK - first)
    finished = pl.ds(start + split * plan.width, plan.width)  # what this CTA stores
    first_row = half * (plan.rows - plan.tile_rows)

    @pl.when(warpgroup == plan.warpgroups)
    def _():
        if not plan.interpret:
            plgpu.set_max_registers(40, action="decrease")
        copy_w = functools.partial(_copy_weights, plan, smem, w_ref, start, first)
        copy_x = functools.partial(_copy_activations, plan, smem, x_ref, first_row, first)
        at_once = jnp.minimum(count, plan.stages)
        lax.fori_loop(0, at_once, lambda i, _: copy_w(i), None)
        if plan.pdl:
            begin_early()
        for ref in residual:
            for i, rows in plan.parts():
                place = smem["out"].at[i, pl.ds(0, rows)]
                plgpu.copy_gmem_to_smem(ref.at[pl.ds(first_row + i * ROWS, rows), finished], place, smem["added"])
        lax.fori_loop(0, at_once, lambda i, _: copy_x(i), None)

        def refill(i: jax.Array, _: None) -> None:  # once the warpgroups are done with what the stage held
            plgpu.barrier_wait(smem["free"].at[lax.rem(i, I32(plan.stages))])
            copy_w(i)
            copy_x(i)

        lax.fori_loop(at_once, count, refill, None)

    @pl.when(warpgroup < plan.warpgroups)
    def _():
        if not plan.interpret:
            plgpu.set_max_registers(REGISTERS[plan.warpgroups], action="increase")
        sums = _products(plan, smem, warpgroup, count)
        meet(smem["done"])  # what follows is where the ring was
        if plan.splits > 1:
            sums = [_sum_of_peers(plan, smem, warpgroup, split, sums[0])]
        y = _finished(plan, smem, warpgroup, [total.astype(plan.dtype) for total in sums], bias, finished)
        store(smem["out"].at[warpgroup], y)
        plgpu.commit_smem()
        for i, rows in plan.parts():

            @pl.when(warpgroup == i)
            def _(i=i, rows=rows):
                place = out_ref.at[pl.ds(first_row + i * ROWS, rows), finished]
                plgpu.copy_smem_to_gmem(smem["out"].at[i, pl.ds(0, rows)], place)

        plgpu.wait_smem_to_gmem(0)
        if plan.splits > 1:
            meet(smem["peers"])  # a CTA that ends takes its shared memory with it


def _copy_weights(plan: Plan, smem: Smem, w_ref: Ref, start: jax.Array, first: jax.Array, i: jax.Array) -> None:
    """Start copying the weights of this CTA's i-th block."""
    stage, inner = lax.rem(i, I32(plan.stages)), pl.ds((first + i) * BLOCK, BLOCK)
    for side in range(plan.sides):
        source = w_ref.at[pl.ds(side * plan.out + start, plan.columns), inner]
        shared = dict(collective_axes="half") if plan.halves > 1 else {}
        plgpu.copy_gmem_to_smem(source, smem["w"].at[stage, side], smem["ready"].at[stage], **shared)


def _copy_activations(plan: Plan, smem: Smem, x_ref: Ref, first_row: jax.Array, first: jax.Array, i: jax.Array) -> None:
    """Start copying the activations of this CTA's i-th block."""
    stage, inner = lax.rem(i, I32(plan.stages)), pl.ds((first + i) * BLOCK, BLOCK)
    ready = smem["ready"].at[stage]
    for j, rows in plan.parts():
        source = x_ref.at[pl.ds(first_row + j * ROWS, rows), inner]
        plgpu.copy_gmem_to_smem(source, smem["x"].at[stage, j, pl.ds(0, rows)], ready)


def _products(plan: Plan, smem: Smem, warpgroup: jax.Array, count: jax.Array) -> list[jax.Array]:
    """f32[ROWS, columns] of each side, over this CTA's blocks."""

    def run(*sums: Ref) -> list[jax.Array]:
        def step(i: jax.Array, _: None) -> None:
            stage = lax.rem(i, I32(plan.stages))
            plgpu.barrier_wait(smem["ready"].at[stage])
            for side, total in enumerate(sums):
                weights = smem["w"].at[stage, side].transpose((1, 0))
                plgpu.wgmma(total, smem["x"].at[stage, warpgroup], weights)
            plgpu.wgmma_wait(len(sums))  # for the products of the step before
            before = lax.rem(i + (plan.stages - 1), I32(plan.stages))

            @pl.when((i > 0) & (i - 1 + plan.stages < count))
            def _():
                plgpu.barrier_arrive(smem["free"].at[before])

        lax.fori_loop(0, count, step, None)
        plgpu.wgmma_wait(0)
        return [total[...] for total in sums]

    return pl.run_scoped(run, *[plgpu.ACC((ROWS, plan.columns), F32)] * plan.sides)


def _sum_of_peers(plan: Plan, smem: Smem, warpgroup: jax.Array, split: jax.Array, mine: jax.Array) -> jax.Array:
    """This CTA's columns, f32[ROWS, width], of the sum over the cluster, in the CTAs' order."""
    store(smem["partial"].at[warpgroup], mine)
    meet(smem["peers"])

    def share(peer: int) -> jax.Array:
        ref = plgpu.cluster_ref(smem["partial"], {"split": I32(peer)})
        ref = ref.at[warpgroup, :, pl.ds(split * plan.width, plan.width)]
        return plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)

    return functools.reduce(jnp.add, [share(i) for i in range(plan.splits)])


def _finished(
    plan: Plan, smem: Smem, warpgroup: jax.Array, products: list[jax.Array], bias: Sequence[Ref], columns: object
) -> jax.Array:
    if plan.after == "silu":
        gate, up = (product.astype(F32) for product in products)
        return (gate / (F32(1) + jnp.exp(-gate)) * up).astype(plan.dtype)
    if plan.after == "bias":
        layer_ref, bias_ref = bias
        added = plgpu.load(bias_ref.at[layer_ref[0], columns], layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
        return products[0] + lax.broadcast_in_dim(added, products[0].shape, [1])
    if plan.after is None:
        return products[0]
    plgpu.barrier_wait(smem["added"])
    return products[0] + plgpu.load(smem["out"].at[warpgroup], layout=plgpu.Layout.WGMMA, optimized=False)
