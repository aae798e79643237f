"""The MLP of a decode step for Hopper (Mosaic GPU) in one launch: norm, gate and up, silu, down, residual.

One CTA a multiprocessor, each with a ring of copies of weights that goes on from the rows of gate and up into those of
down, so that memory never idles; only what down is multiplied with, written to global memory by all, must wait until
all have written. Therefore all CTAs must run at once: no more than the card has multiprocessors, and no other kernel of
this kind beside this one.
Sums that CTAs share are added in a fixed order. Bound by memory: it must read `3 * F * D * itemsize` bytes of weights.

Rows are padded to a multiple of 8: hand over padded rows, else that costs two small kernels.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.mosaic_decode_plan import COMPILER_PARAMS, F32, I32, Layout, Ref, Smem, round_up, store
from jaxinfer_kernels.mosaic_linear import bring_x, copy_norm, load_added, padded
from jaxinfer_kernels.mosaic_linear_plan import ROWS, Cut, Plan, operand

MAX_ROWS = 16
MAX_STAGES = 16
SMEM_BYTES = 231_000  # of the 232,448 that a CTA may have; barriers and alignment take the rest
FIRST_TILE = 32  # counters of down's tiles, 128 bytes behind the grid's: another cache line
MAX_POLLS = 1 << 24  # seconds; then the launch fails instead of waiting for ever


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the work is cut; 0: as the shapes suggest. Results differ between tunings in rounding only."""

    ctas: int = 132  # at most the card's multiprocessors, or the launch waits for CTAs that cannot start
    height: int = 0  # rows of gate and up, half each, in a tile: 16, 32, 48 or 64
    splits: int = 0  # CTAs that share a tile of down
    stages: int = 0  # copies of [64, block] weights in flight in one CTA
    block: int = 128  # a multiple of 64


DEFAULT = Tuning()


@dataclasses.dataclass(frozen=True)
class MlpPlan:
    """Static facts of one launch."""

    gate_up: Plan
    down: Plan
    ctas: int
    height: int
    interpret: plgpu.InterpretGPUParams | None

    @property
    def stages(self) -> int:
        return self.down.cut.stages

    @property
    def width(self) -> int:
        """Columns of the gated activations that one tile of gate and up makes."""
        return self.height // 2

    @property
    def tiles(self) -> int:
        """Of gate and up; the last begins early enough to be whole, and computes some columns again."""
        return -(-self.down.depth // self.width)

    @property
    def workers(self) -> int:
        """CTAs, the last ones, that have tiles of down."""
        return self.down.cut.clusters * self.down.cut.splits


def supported(rows: int, mlp_width: int, width: int, dtype: jnp.dtype, multiprocessors: int = DEFAULT.ctas) -> bool:
    """Whether this kernel can run down [width, mlp_width] on that many rows; else use the linear layers.

    multiprocessors: of the card (`device.core_count`).
    """
    return (
        dtype in (jnp.bfloat16, jnp.float16)
        and rows <= MAX_ROWS
        and multiprocessors >= DEFAULT.ctas
        and width % DEFAULT.block == 0
        and mlp_width % DEFAULT.block == 0
        and width % ROWS == 0
        and _cut(round_up(rows, 8), mlp_width, width, DEFAULT) is not None
    )


def counters(width: int) -> jax.Array:
    """What the CTAs of mlp count on, for a model of that width: made once, and each call's handed to the next."""
    return jnp.zeros((FIRST_TILE + width // ROWS,), I32)


@functools.partial(jax.jit, static_argnames=("eps", "tuning", "interpret"))
def mlp(
    x: jax.Array,
    norm: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    counter: jax.Array,
    layer: jax.Array,
    *,
    eps: float,
    tuning: Tuning = DEFAULT,
    interpret: plgpu.InterpretGPUParams | None = None,
) -> tuple[jax.Array, jax.Array]:
    """x + (silu(gate) * up) @ down.T with gate and up of rms_norm(x) @ gate_up.T.

      x: [T, D].    norm: [L, D].    gate_up: [2F, D], the rows of gate, then of up.    down: [D, F].
      counter: of counters(D), or what the last call returned.    layer: i32[], of norm.
    Rounded where mosaic_linear.norm_gate_up and then linear_residual round. Returns [T, D] and the counter, which is
    updated in place where its buffer is free.
    """
    plan = plan_launch(x, gate_up, down, tuning, interpret, eps)
    count = jax.new_ref(counter)
    out, *_ = _launch(plan)(padded(x), gate_up, layer.reshape(1), norm, down, count)
    return out[: len(x)], jax.freeze(count)


def plan_launch(
    x: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    tuning: Tuning,
    interpret: plgpu.InterpretGPUParams | None,
    eps: float,
) -> MlpPlan:
    """Raises ValueError for shapes and tunings that cannot run."""
    width, mlp_width = down.shape
    fits = (
        x.shape[1:] == (width,) and gate_up.shape == (2 * mlp_width, width) and x.dtype == gate_up.dtype == down.dtype
    )
    if not fits or not supported(x.shape[0], mlp_width, width, x.dtype):
        raise ValueError(
            f"the Mosaic MLP needs x [T, D] with T <= {MAX_ROWS}, gate_up [2F, D] and down [D, F], all bf16 or f16, "
            f"with D and F divisible by {DEFAULT.block}, got {x.aval}, {gate_up.aval} and {down.aval}; "
            "use mosaic_linear's norm_gate_up and linear_residual"
        )
    columns = round_up(x.shape[0], 8)
    found = None if tuning.block % 64 else _cut(columns, mlp_width, width, tuning)
    if found is None:
        raise ValueError(
            f"block must be a multiple of 64, block * splits divide F and all fit the shared memory of {tuning.ctas} "
            f"CTAs, got down {down.aval} and {tuning}; use the default tuning"
        )
    height, cut = found
    shared = dict(columns=columns, dtype=x.dtype, out_dtype=x.dtype, block=tuning.block, pdl=False, interpret=interpret)
    first = Cut(clusters=tuning.ctas, splits=1, stages=cut.stages)
    return MlpPlan(
        gate_up=Plan(depth=width, out=2 * mlp_width, cut=first, norm_eps=eps, after="silu", **shared),
        down=Plan(depth=mlp_width, out=width, cut=cut, after="residual", **shared),
        ctas=tuning.ctas,
        height=height,
        interpret=interpret,
    )


def _cut(columns: int, mlp_width: int, width: int, tuning: Tuning) -> tuple[int, Cut] | None:
    """Rows of gate and up's tiles and the cut of down that give the busiest CTA least to read; None: nothing fits."""
    heights = [tuning.height] if tuning.height else [64, 48, 32, 16]
    height = min(heights, key=lambda rows: -(-mlp_width // (rows // 2) // tuning.ctas) * rows)
    item, tiles = 2, width // ROWS
    stage = ROWS * tuning.block * item
    found, best = None, math.inf
    for splits in [tuning.splits] if tuning.splits else range(1, 17):
        each = -(-tiles * splits // tuning.ctas)  # tiles of a CTA
        if mlp_width % (tuning.block * splits) or width % tuning.block or tiles % each:
            continue
        room = SMEM_BYTES - max(width, mlp_width // splits) * columns * item - width * item - ROWS * columns * item
        stages = tuning.stages or min(room // stage, MAX_STAGES)
        if stages < 2 or stages * stage > room:
            continue
        work = each * mlp_width // splits // tuning.block + splits - stages / 4
        if work < best:
            found, best = (height, Cut(tiles // each, splits, stages)), work
    return found


def _launch(plan: MlpPlan) -> Callable[..., list[jax.Array]]:
    columns, block, dtype = plan.gate_up.columns, plan.gate_up.block, plan.gate_up.dtype
    splits, tiles = plan.down.cut.splits, plan.down.tiles
    out = [
        jax.ShapeDtypeStruct((columns, plan.down.out), dtype),
        jax.ShapeDtypeStruct((columns, plan.down.depth), dtype),
    ]
    if splits > 1:
        out += [jax.ShapeDtypeStruct((tiles, splits, ROWS, columns), F32)]
    smem = dict(
        x=operand((max(plan.gate_up.blocks, plan.down.blocks), columns, block), dtype),
        w=operand((plan.stages, ROWS, block), dtype),
        w_ready=plgpu.Barrier(num_arrivals=2, num_barriers=plan.stages),
        norm=plgpu.SMEM((plan.gate_up.depth,), dtype),
        norm_ready=plgpu.Barrier(num_arrivals=plan.gate_up.blocks),
        gate_up=plgpu.SMEM((columns, ROWS), dtype),
    )
    grid = dict(grid=(plan.ctas,), grid_names=("cta",))
    if plan.interpret is not None:  # which knows no atomics: there the grid is one cluster
        smem |= dict(all=plgpu.ClusterBarrier(collective_axes=("cta",)))
        grid = dict(cluster=(plan.ctas,), cluster_names=("cta",))
    return plgpu.kernel(
        functools.partial(_kernel, plan),
        out_type=out,
        scratch_types=smem,
        num_threads=1,
        thread_name="warpgroup",
        interpret=plan.interpret,
        compiler_params=COMPILER_PARAMS,
        **grid,
    )


def _kernel(
    plan: MlpPlan, x_ref: Ref, gate_up_ref: Ref, layer_ref: Ref, norm_ref: Ref, *refs: Ref, **smem: Ref
) -> None:
    down_ref, count_ref, out_ref, gated_ref, *partials = refs
    ref = dict(x=x_ref, gate_up=gate_up_ref, layer=layer_ref, norm=norm_ref, down=down_ref, count=count_ref)
    ref |= dict(out=out_ref, gated=gated_ref, residual=x_ref, partials=partials[0] if partials else None)
    cta, stages = lax.axis_index("cta"), plan.stages
    tiles = lax.div(plan.tiles - 1 - cta, I32(plan.ctas)) + 1  # of gate and up, this CTA's
    worker = cta - (plan.ctas - plan.workers)
    units = tiles * plan.gate_up.blocks
    end = units + jnp.where(worker >= 0, I32(_tiles_of_worker(plan) * plan.down.blocks), I32(0))

    def fetch(unit: jax.Array) -> None:
        pl.when(unit < units)(functools.partial(_fetch_gate_up, plan, smem, ref["gate_up"], cta, unit))
        late = functools.partial(_fetch_down, plan, smem, ref["down"], worker, unit, unit - units)
        pl.when((unit >= units) & (unit < end))(late)

    for i in range(stages):
        fetch(I32(i))
    copy_norm(plan.gate_up, smem, ref, I32(0))
    bring_x(plan.gate_up, smem, ref, cta, I32(0))

    def gate_up_step(i: jax.Array, _: None) -> None:
        acc = _product(plan.gate_up, smem, i * plan.gate_up.blocks, fetch)
        _store_gated(plan, smem, ref["gated"], cta + i * plan.ctas, acc)

    lax.fori_loop(0, tiles, gate_up_step, None)
    _meet(plan, smem, ref["count"])
    work = functools.partial(_down, plan, smem, ref, worker, units, fetch)
    if plan.workers == plan.ctas:
        work()
    else:
        pl.when(worker >= 0)(work)


def _tiles_of_worker(plan: MlpPlan) -> int:
    return plan.down.tiles // plan.down.cut.clusters


def _fetch_gate_up(plan: MlpPlan, smem: Smem, w_ref: Ref, cta: jax.Array, unit: jax.Array) -> None:
    """Start copying this CTA's unit-th block of gate's and up's rows."""
    slot, blocks = lax.rem(unit, I32(plan.stages)), I32(plan.gate_up.blocks)
    first = _first_column(plan, cta + lax.div(unit, blocks) * plan.ctas)
    columns = pl.ds(lax.rem(unit, blocks) * plan.gate_up.block, plan.gate_up.block)
    for i in range(2):
        source = w_ref.at[pl.ds(first + i * plan.down.depth, plan.width), columns]
        place = smem["w"].at[slot, pl.ds(i * plan.width, plan.width)]
        plgpu.copy_gmem_to_smem(source, place, smem["w_ready"].at[slot])


def _first_column(plan: MlpPlan, tile: jax.Array) -> jax.Array:
    """Of the gated activations that a tile makes."""
    return jnp.minimum(tile * plan.width, plan.down.depth - plan.width)


def _fetch_down(plan: MlpPlan, smem: Smem, w_ref: Ref, worker: jax.Array, unit: jax.Array, place: jax.Array) -> None:
    """Start copying the place-th of this worker's blocks of down into the ring."""
    slot, down = lax.rem(unit, I32(plan.stages)), plan.down
    tile, split = _tile_of_worker(plan, worker, lax.div(place, I32(down.blocks)))
    columns = pl.ds((split * down.blocks + lax.rem(place, I32(down.blocks))) * down.block, down.block)
    half = ROWS // 2
    for i in range(2):  # as many copies as of gate and up
        source = w_ref.at[pl.ds(tile * ROWS + i * half, half), columns]
        plgpu.copy_gmem_to_smem(source, smem["w"].at[slot, pl.ds(i * half, half)], smem["w_ready"].at[slot])


def _tile_of_worker(plan: MlpPlan, worker: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A worker's i-th tile of down, and which share of its inner dimension."""
    splits = I32(plan.down.cut.splits)
    return lax.div(worker, splits) + i * plan.down.cut.clusters, lax.rem(worker, splits)


def _product(plan: Plan, smem: Smem, first: jax.Array, fetch: Callable[[jax.Array], None]) -> jax.Array:
    """f32[ROWS, columns] of the next plan.blocks units of the ring, the first of which is `first`."""
    stages = plan.cut.stages

    def product(acc: Ref) -> jax.Array:
        def step(j: jax.Array, _: None) -> None:
            slot = lax.rem(first + j, I32(stages))
            plgpu.barrier_wait(smem["w_ready"].at[slot])
            plgpu.wgmma(acc, smem["w"].at[slot], smem["x"].at[j].transpose((1, 0)))
            plgpu.wgmma_wait(0)
            fetch(first + j + stages)

        lax.fori_loop(0, plan.blocks, step, None)
        return acc[...]

    return pl.run_scoped(product, plgpu.ACC((ROWS, plan.columns), F32))


def _transposable(plan: MlpPlan, x: jax.Array) -> jax.Array:
    """x, of a tile, in the registers from which its transpose is stored."""
    return plgpu.layout_cast(x, plgpu.Layout.WGMMA if plan.interpret else plgpu.Layout.WGMMA_TRANSPOSED)


def _store_gated(plan: MlpPlan, smem: Smem, gated_ref: Ref, tile: jax.Array, acc: jax.Array) -> None:
    """Store silu(gate) * up of a tile whose first rows are gate's, the next up's, eight columns at a time."""
    dtype, layout = plan.down.dtype, _eight_columns()
    store(smem["gate_up"].T, _transposable(plan, acc.astype(dtype)))
    plgpu.commit_smem()
    for i in range(0, plan.width, 8):
        sides = [smem["gate_up"].at[:, pl.ds(first + i, 8)] for first in (0, plan.width)]
        gate, up = (plgpu.load(side, layout=layout, optimized=False).astype(F32) for side in sides)
        gated = (gate / (F32(1) + jnp.exp(-gate)) * up).astype(dtype)
        store(gated_ref.at[:, pl.ds(_first_column(plan, tile) + i, 8)], gated)
    plgpu.commit_smem()  # before the next tile overwrites what slower warps still read


def _eight_columns() -> Layout:
    """A tile [8 n, 8] of which each warp holds two rows, and its two halves the same."""
    tiling = plgpu.Tiling(((8, 8), (2, 8), (1,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-5,), lane_dims=(plgpu.Replicated(2), -3, -2), vector_dim=-1)


def _down(
    plan: MlpPlan,
    smem: Smem,
    ref: dict[str, Ref],
    worker: jax.Array,
    units: jax.Array,
    fetch: Callable[[jax.Array], None],
) -> None:
    """This worker's tiles of the second product; `units` of the ring were of the first."""
    down, splits = plan.down, plan.down.cut.splits
    tile, split = _tile_of_worker(plan, worker, I32(0))
    bring_x(down, smem, dict(x=ref["gated"]), tile, split)

    def tile_step(i: jax.Array, _: None) -> None:
        tile, split = _tile_of_worker(plan, worker, i)
        added = load_added(down, ref, tile) if splits == 1 else None
        acc = _product(down, smem, units + i * down.blocks, fetch)
        if splits == 1:
            _store_sum(plan, ref["out"], tile, acc, added)
        else:
            store(ref["partials"].at[tile, split], acc)
            _arrive(plan, ref["count"], tile)

    def finish_step(i: jax.Array, _: None) -> None:
        tile, split = _tile_of_worker(plan, worker, i)

        @pl.when(split == lax.rem(tile, I32(splits)))
        def _():
            added = load_added(down, ref, tile)
            _await_peers(plan, ref["count"], tile)
            shares = [ref["partials"].at[tile, i] for i in range(splits)]
            shares = [plgpu.load(share, layout=plgpu.Layout.WGMMA, optimized=False) for share in shares]
            _store_sum(plan, ref["out"], tile, functools.reduce(jnp.add, shares), added)

    lax.fori_loop(0, _tiles_of_worker(plan), tile_step, None)
    if splits > 1:
        if plan.interpret is not None:
            _meet(plan, smem, ref["count"])
        lax.fori_loop(0, _tiles_of_worker(plan), finish_step, None)


def _store_sum(plan: MlpPlan, out_ref: Ref, tile: jax.Array, acc: jax.Array, added: jax.Array) -> None:
    y = _transposable(plan, acc.astype(plan.down.out_dtype))
    store(out_ref.T.at[pl.ds(tile * ROWS, ROWS)], y + added)


def _meet(plan: MlpPlan, smem: Smem, count_ref: Ref) -> None:
    """Wait until all CTAs are here; what each wrote to global memory before, each sees after.

    They add 2^31 to the counter, which changes its highest bit and leaves it ready for the next launch.
    """
    if plan.interpret is not None:
        plgpu.barrier_arrive(smem["all"])
        plgpu.barrier_wait(smem["all"])
        return
    add_and_wait = f"""
        mov.u32 now, %ctaid.x;
        setp.eq.u32 p, now, 0;
        selp.b32 now, {(1 << 31) - (plan.ctas - 1)}, 1, p;
        atom.add.release.gpu.global.u32 old, [$0], now;
        {_poll("xor.b32 now, now, old; setp.ge.s32 p, now, 0;")}"""
    _count(count_ref, 0, add_and_wait)


def _arrive(plan: MlpPlan, count_ref: Ref, tile: jax.Array) -> None:
    """Say that this CTA's share of a tile is written."""
    if plan.interpret is None:
        _count(count_ref, FIRST_TILE + tile, "red.release.gpu.global.add.u32 [$0], 1;")


def _await_peers(plan: MlpPlan, count_ref: Ref, tile: jax.Array) -> None:
    """Wait until all shares of a tile are written, and make its counter ready for the next launch."""
    if plan.interpret is None:
        wait = _poll(f"setp.lt.u32 p, now, {plan.down.cut.splits};")
        _count(count_ref, FIRST_TILE + tile, f"{wait} st.relaxed.gpu.global.u32 [$0], 0;")


def _poll(test: str) -> str:
    """Read the counter until `test` of `now` clears p."""
    return f"""
        mov.u32 polls, 0;
        AGAIN:
        ld.acquire.gpu.global.u32 now, [$0];
        {test}
        add.u32 polls, polls, 1;
        setp.gt.u32 q, polls, {MAX_POLLS};
        @q trap;
        @p bra AGAIN;"""


def _count(count_ref: Ref, index: jax.Array | int, ptx: str) -> None:
    """Run PTX on the address of a counter in one thread, behind all that this CTA did and before all that it will."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
    def run(_: object, counter: object) -> None:
        mgpu.warpgroup_barrier()
        with mgpu.single_thread(scope=mgpu.ThreadSubset.WARPGROUP):
            pointer = mgpu.utils.memref_ptr(counter)
            text = "{ .reg .b32 old, now, polls; .reg .pred p, q; " + ptx + " }"
            mgpu.utils.inline_ptx(text, pointer, has_side_effects=True)
        mgpu.warpgroup_barrier()

    run(count_ref.at[pl.ds(index, 1)])
