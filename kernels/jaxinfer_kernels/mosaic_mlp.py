"""The MLP of a decode step for Hopper (Mosaic GPU) in one launch: norm, gate and up, silu, down, residual.

One CTA a multiprocessor, in which two warpgroups share each sum, each with a ring of copies of weights that goes on
from the rows of gate and up into those of down, so that memory never idles. What down is multiplied with goes through
global memory and a counter: first the columns of all waves of tiles but the last, for which few have to wait, and while
those are used the last wave's become ready. Therefore all CTAs must run at once: no more than the card has
multiprocessors, and no other kernel of this kind beside this one.
Sums that CTAs share are added in a fixed order. Bound by memory: it must read `3 * F * D * itemsize` bytes of weights.

Rows are padded to a multiple of 8: hand over padded rows, else that costs two small kernels.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.mosaic_decode_plan import COMPILER_PARAMS, F32, I32, Layout, Ref, Smem, round_up, store
from jaxinfer_kernels.mosaic_linear import bring_x, copy_norm, load_added, padded
from jaxinfer_kernels.mosaic_linear_plan import ROWS, Cut, Plan, operand, row_layout

MAX_ROWS = 16
MAX_STAGES = 8
WARPGROUPS = 2  # of a CTA, each with half of the inner dimensions and of the ring
SMEM_BYTES = 231_000  # of the 232,448 that a CTA may have; barriers and alignment take the rest
EARLY, LATE, FIRST_TILE = 0, 32, 64  # counters of the grid and of down's tiles, each kind in a cache line of its own
MAX_POLLS = 1 << 24  # seconds; then the launch fails instead of waiting for ever


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the work is cut; 0: as the shapes suggest. Results differ between tunings in rounding only."""

    ctas: int = 132  # at most the card's multiprocessors, or the launch waits for CTAs that cannot start
    height: int = 0  # rows of gate and up, half each, in a tile: 16, 32, 48 or 64
    splits: int = 0  # CTAs that share a tile of down
    stages: int = 0  # copies of [64, block] weights in flight in one warpgroup
    block: int = 128  # a multiple of 64
    trace: str = ""  # folder for a timeline of every launch, JSON that Perfetto shows


DEFAULT = Tuning()


@dataclasses.dataclass(frozen=True)
class MlpPlan:
    """Static facts of one launch."""

    gate_up: Plan
    down: Plan
    ctas: int
    height: int
    trace: str
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
    def waves(self) -> int:
        """Tiles of gate and up that a CTA makes at most: all but the last wave's columns are early, for all CTAs."""
        return -(-self.tiles // self.ctas)

    @property
    def early_blocks(self) -> int:
        """Blocks, of every split, that need early columns only."""
        early = (self.waves - 1) * self.ctas * self.width
        return early // (self.down.block * self.down.cut.splits)

    @property
    def workers(self) -> int:
        """Warpgroups, the last ones, that have tiles of down."""
        return self.down.cut.clusters * self.down.cut.splits


def supported(rows: int, mlp_width: int, width: int, dtype: jnp.dtype, multiprocessors: int = DEFAULT.ctas) -> bool:
    """Whether this kernel can run down [width, mlp_width] on that many rows; else use the linear layers.

    multiprocessors: of the card (`device.core_count`).
    """
    return (
        dtype in (jnp.bfloat16, jnp.float16)
        and rows <= MAX_ROWS
        and multiprocessors >= DEFAULT.ctas
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
            f"with D and F divisible by {DEFAULT.block * WARPGROUPS}, got {x.aval}, {gate_up.aval} and {down.aval}; "
            "use mosaic_linear's norm_gate_up and linear_residual"
        )
    columns = round_up(x.shape[0], 8)
    found = None if tuning.block % 64 else _cut(columns, mlp_width, width, tuning)
    if found is None:
        raise ValueError(
            "block must be a multiple of 64, 2 * block * splits divide F and all fit the shared memory of "
            f"{tuning.ctas} CTAs, got down {down.aval} and {tuning}; use the default tuning"
        )
    height, cut = found
    shared = dict(columns=columns, dtype=x.dtype, out_dtype=x.dtype, block=tuning.block, pdl=False, interpret=interpret)
    first = Cut(clusters=tuning.ctas, splits=WARPGROUPS, stages=cut.stages)
    return MlpPlan(
        gate_up=Plan(depth=width, out=2 * mlp_width, cut=first, norm_eps=eps, after="silu", **shared),
        down=Plan(depth=mlp_width, out=width, cut=cut, after="residual", **shared),
        ctas=tuning.ctas,
        height=height,
        trace=tuning.trace,
        interpret=interpret,
    )


def _cut(columns: int, mlp_width: int, width: int, tuning: Tuning) -> tuple[int, Cut] | None:
    """Rows of gate and up's tiles and the cut of down that give the busiest CTA least to read; None: nothing fits."""
    heights = [tuning.height] if tuning.height else [64, 48, 32, 16]
    height = min(heights, key=lambda rows: -(-mlp_width // (rows // 2) // tuning.ctas) * rows)
    item, tiles = 2, width // ROWS
    stage = WARPGROUPS * ROWS * tuning.block * item
    found, best = None, math.inf
    if width % (tuning.block * WARPGROUPS):
        return None
    for splits in [tuning.splits] if tuning.splits else range(1, 17):
        each = -(-tiles * splits // tuning.ctas)  # tiles of a CTA
        if mlp_width % (tuning.block * splits * WARPGROUPS) or tiles % each:
            continue
        room = SMEM_BYTES - max(width, mlp_width // splits) * columns * item - width * item
        room -= ROWS * columns * (item + 2 * 4)
        stages = tuning.stages or min(room // stage, MAX_STAGES)
        if stages < 2 or stages * stage > room:
            continue
        work = each * mlp_width // splits // tuning.block + splits - 3 * stages
        if work < best:
            found, best = (height, Cut(tiles // each, splits * WARPGROUPS, stages)), work
    return found


def _launch(plan: MlpPlan) -> Callable[..., list[jax.Array]]:
    columns, block, dtype = plan.gate_up.columns, plan.gate_up.block, plan.gate_up.dtype
    first, down = plan.gate_up, plan.down
    out = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((columns, down.out), (columns, down.depth))]
    out += [jax.ShapeDtypeStruct((down.tiles, down.cut.splits, ROWS, columns), F32)]
    smem = dict(
        x=operand((WARPGROUPS, max(first.blocks, down.blocks), columns, block), dtype),
        w=operand((WARPGROUPS, plan.stages, ROWS, block), dtype),
        w_ready=plgpu.Barrier(num_arrivals=2, num_barriers=WARPGROUPS * plan.stages),
        norm=plgpu.SMEM((WARPGROUPS, first.depth // WARPGROUPS), dtype),
        norm_ready=plgpu.Barrier(num_arrivals=first.blocks, num_barriers=WARPGROUPS),
        squares=plgpu.SMEM((WARPGROUPS, columns), F32),
        share=plgpu.SMEM((2, ROWS, columns), F32),
        gate_up=plgpu.SMEM((columns, ROWS), dtype),
        both=plgpu.Barrier(num_arrivals=WARPGROUPS),
    )
    params = COMPILER_PARAMS
    if plan.trace:
        params = dataclasses.replace(params, profile_space=64, profile_dir=plan.trace)
    grid = dict(grid=(plan.ctas,), grid_names=("cta",))
    if plan.interpret is not None:  # which knows no atomics: there the grid is one cluster
        smem |= dict(all=plgpu.ClusterBarrier(collective_axes=("cta",)))
        grid = dict(cluster=(plan.ctas,), cluster_names=("cta",))
    return plgpu.kernel(
        functools.partial(_kernel, plan),
        out_type=out,
        scratch_types=smem,
        num_threads=WARPGROUPS,
        thread_name="warpgroup",
        interpret=plan.interpret,
        compiler_params=params,
        **grid,
    )


def _kernel(plan: MlpPlan, x_ref: Ref, *refs: Ref, **smem: Ref) -> None:
    names = ("gate_up", "layer", "norm", "down", "count", "out", "gated", "partials")
    ref = dict(zip(names, refs, strict=True)) | dict(x=x_ref, residual=x_ref)
    cta, half = lax.axis_index("cta"), lax.axis_index("warpgroup")
    smem |= {name: smem[name].at[half] for name in ("x", "w", "norm", "norm_ready")}
    smem["first_ready"] = half * plan.stages
    tiles = lax.div(plan.tiles - 1 - cta, I32(plan.ctas)) + 1  # of gate and up, this CTA's
    idle = plan.ctas - plan.workers // WARPGROUPS  # CTAs, the first ones, that have nothing of down
    worker = (cta - idle) * WARPGROUPS + half
    units = tiles * plan.gate_up.blocks
    end = units + jnp.where(cta >= idle, I32(_tiles_of_worker(plan) * plan.down.blocks), I32(0))

    def fetch(unit: jax.Array) -> None:
        pl.when(unit < units)(functools.partial(_fetch_gate_up, plan, smem, ref["gate_up"], cta, half, unit))
        late = functools.partial(_fetch_down, plan, smem, ref["down"], worker, unit, unit - units)
        pl.when((unit >= units) & (unit < end))(late)

    for i in range(plan.stages):
        fetch(I32(i))
    before = ref["count"][LATE]  # changes after all CTAs have come past here
    with jax.named_scope("bring x"):
        copy_norm(plan.gate_up, smem, ref, half)
        bring_x(plan.gate_up, smem, x_ref, half, functools.partial(_sum_squares, smem, half))
        _meet(smem["both"])

    def gate_up_step(i: jax.Array | int, _: None) -> None:
        with jax.named_scope("gate and up"):
            acc = _product(plan.gate_up, smem, i * plan.gate_up.blocks, plan.gate_up.blocks, fetch)
        with jax.named_scope("silu"):
            _share_gated(plan, smem, ref["gated"], half, i, cta + i * plan.ctas, acc)

    if plan.waves > 1:
        lax.fori_loop(0, plan.waves - 1, gate_up_step, None)
        pl.when(half == 0)(functools.partial(_arrive_all, plan, ref["count"], EARLY))
    pl.when(tiles == plan.waves)(functools.partial(gate_up_step, I32(plan.waves - 1), None))
    pl.when(half == 0)(functools.partial(_arrive_all, plan, ref["count"], LATE))
    work = functools.partial(_down, plan, smem, ref, worker, units, before, fetch)
    if idle == 0:
        work()
    else:
        pl.when(cta >= idle)(work)


def _tiles_of_worker(plan: MlpPlan) -> int:
    return plan.down.tiles // plan.down.cut.clusters


def _meet(barrier: Ref) -> None:
    plgpu.barrier_arrive(barrier)
    plgpu.barrier_wait(barrier)


def _sum_squares(smem: Smem, half: jax.Array, squares: jax.Array) -> jax.Array:
    """The sum of both warpgroups' f32[columns]."""
    store(smem["squares"].at[half], squares)
    plgpu.commit_smem()
    _meet(smem["both"])
    layout = row_layout(64).reduce(1)
    both = [plgpu.load(smem["squares"].at[i], layout=layout, optimized=False) for i in range(WARPGROUPS)]
    return functools.reduce(jnp.add, both)


def _slot(stages: int, smem: Smem, unit: jax.Array) -> tuple[jax.Array, Ref]:
    """Where a unit goes in this warpgroup's ring, and the barrier that says it is there."""
    slot = lax.rem(unit, I32(stages))
    return slot, smem["w_ready"].at[smem["first_ready"] + slot]


def _fetch_gate_up(plan: MlpPlan, smem: Smem, w_ref: Ref, cta: jax.Array, half: jax.Array, unit: jax.Array) -> None:
    """Start copying this warpgroup's unit-th block of gate's and up's rows."""
    (slot, ready), blocks = _slot(plan.stages, smem, unit), I32(plan.gate_up.blocks)
    first = _first_column(plan, cta + lax.div(unit, blocks) * plan.ctas)
    columns = pl.ds((half * blocks + lax.rem(unit, blocks)) * plan.gate_up.block, plan.gate_up.block)
    for i in range(2):
        source = w_ref.at[pl.ds(first + i * plan.down.depth, plan.width), columns]
        place = smem["w"].at[slot, pl.ds(i * plan.width, plan.width)]
        plgpu.copy_gmem_to_smem(source, place, ready)


def _first_column(plan: MlpPlan, tile: jax.Array) -> jax.Array:
    """Of the gated activations that a tile makes."""
    return jnp.minimum(tile * plan.width, plan.down.depth - plan.width)


def _fetch_down(plan: MlpPlan, smem: Smem, w_ref: Ref, worker: jax.Array, unit: jax.Array, place: jax.Array) -> None:
    """Start copying the place-th of this worker's blocks of down into its ring."""
    (slot, ready), down = _slot(plan.stages, smem, unit), plan.down
    tile, split = _tile_of_worker(plan, worker, lax.div(place, I32(down.blocks)))
    columns = pl.ds(_first_of_block(plan, split, lax.rem(place, I32(down.blocks))), down.block)
    half = ROWS // 2
    for i in range(2):  # as many copies as of gate and up
        source = w_ref.at[pl.ds(tile * ROWS + i * half, half), columns]
        plgpu.copy_gmem_to_smem(source, smem["w"].at[slot, pl.ds(i * half, half)], ready)


def _tile_of_worker(plan: MlpPlan, worker: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A worker's i-th tile of down, and which share of its inner dimension."""
    splits = I32(plan.down.cut.splits)
    return lax.div(worker, splits) + i * plan.down.cut.clusters, lax.rem(worker, splits)


def _first_of_block(plan: MlpPlan, split: jax.Array, i: jax.Array | int) -> jax.Array:
    """Column where a split's i-th block begins; the splits take turns, so that first blocks need first columns."""
    return (i * plan.down.cut.splits + split) * plan.down.block


def _product(
    plan: Plan, smem: Smem, first: jax.Array, blocks: int, fetch: Callable[[jax.Array], None], skip: int = 0
) -> jax.Array:
    """f32[ROWS, columns] of the ring's units from `first` on and the blocks of x from `skip` on."""
    stages = plan.cut.stages

    def product(acc: Ref) -> jax.Array:
        def step(j: jax.Array, _: None) -> None:
            slot, ready = _slot(stages, smem, first + j)
            plgpu.barrier_wait(ready)
            if plan.interpret is None:
                _fence()
            plgpu.wgmma(acc, smem["w"].at[slot], smem["x"].at[skip + j].transpose((1, 0)))
            plgpu.wgmma_wait(0)
            fetch(first + j + stages)

        lax.fori_loop(0, blocks, step, None)
        return acc[...]

    return pl.run_scoped(product, plgpu.ACC((ROWS, plan.columns), F32))


@plgpu.inline_mgpu()
def _fence(_: object) -> None:
    """Before a wgmma: where ptxas must put it itself, in a branch, it lets each wgmma wait for the one before."""
    mgpu.utils.inline_ptx("wgmma.fence.sync.aligned;", has_side_effects=True)


def _transposable(plan: MlpPlan, x: jax.Array) -> jax.Array:
    """x, of a tile, in the registers from which its transpose is stored."""
    return plgpu.layout_cast(x, plgpu.Layout.WGMMA if plan.interpret else plgpu.Layout.WGMMA_TRANSPOSED)


def _share_gated(
    plan: MlpPlan, smem: Smem, gated_ref: Ref, half: jax.Array, i: jax.Array, tile: jax.Array, acc: jax.Array
) -> None:
    """Add both warpgroups' shares of this CTA's i-th tile; the first stores what comes of it.

    The second goes on, and meets the first again before it fills the same of two places.
    """
    place = smem["share"].at[lax.rem(i, I32(2))]

    @pl.when(half == 1)
    def _():
        store(place, acc)

    plgpu.commit_smem()
    _meet(smem["both"])

    @pl.when(half == 0)
    def _():
        share = plgpu.load(place, layout=plgpu.Layout.WGMMA, optimized=False)
        _store_gated(plan, smem, gated_ref, tile, acc + share)


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
    before: jax.Array,
    fetch: Callable[[jax.Array], None],
) -> None:
    """This worker's tiles of the second product; `units` of its ring were of the first."""
    down, splits = plan.down, plan.down.cut.splits
    first, split = _tile_of_worker(plan, worker, I32(0))

    def bring(what: int, blocks: range) -> None:
        with jax.named_scope("await early" if what == EARLY else "await late"):
            _await_all(plan, smem, ref["count"], what, before)
        with jax.named_scope("bring gated"):
            _bring_gated(plan, smem, ref["gated"], split, blocks)

    def store_share(i: jax.Array | int, acc: jax.Array) -> None:
        store(ref["partials"].at[first + i * down.cut.clusters, split], acc)
        _arrive(plan, ref["count"], first + i * down.cut.clusters)

    early, acc = plan.early_blocks, None
    if early:
        bring(EARLY, range(early))
        with jax.named_scope("down early"):
            acc = _product(down, smem, units, early, fetch)
    if early < down.blocks:
        bring(LATE, range(early, down.blocks))
        with jax.named_scope("down late"):
            rest = _product(down, smem, units + early, down.blocks - early, fetch, skip=early)
        acc = rest if acc is None else acc + rest
    store_share(0, acc)

    def tile_step(i: jax.Array, _: None) -> None:
        store_share(i, _product(down, smem, units + i * down.blocks, down.blocks, fetch))

    def finish_step(i: jax.Array, _: None) -> None:
        tile = first + i * down.cut.clusters

        @pl.when(split == lax.rem(tile, I32(splits)))
        def _():
            added = load_added(down, ref, tile)
            _await_peers(plan, ref["count"], tile)
            shares = [ref["partials"].at[tile, i] for i in range(splits)]
            shares = [plgpu.load(share, layout=plgpu.Layout.WGMMA, optimized=False) for share in shares]
            _store_sum(plan, ref["out"], tile, functools.reduce(jnp.add, shares), added)

    lax.fori_loop(1, _tiles_of_worker(plan), tile_step, None)
    if plan.interpret is not None:
        _meet_all(smem)
    with jax.named_scope("sum"):
        lax.fori_loop(0, _tiles_of_worker(plan), finish_step, None)


def _store_sum(plan: MlpPlan, out_ref: Ref, tile: jax.Array, acc: jax.Array, added: jax.Array) -> None:
    y = _transposable(plan, acc.astype(plan.down.out_dtype))
    store(out_ref.T.at[pl.ds(tile * ROWS, ROWS)], y + added)


def _bring_gated(plan: MlpPlan, smem: Smem, gated_ref: Ref, split: jax.Array, blocks: range) -> None:
    """Lay out what these of the split's blocks are multiplied with."""
    layout, down = row_layout(64), plan.down
    pieces = [(i, j) for i in blocks for j in range(0, down.block, 64)]
    at_once = max(256 // down.columns, 1)  # loads in flight
    for start in range(0, len(pieces), at_once):
        group = pieces[start : start + at_once]
        places = [pl.ds(_first_of_block(plan, split, i) + j, 64) for i, j in group]
        loaded = [plgpu.load(gated_ref.at[:, place], layout=layout, optimized=False) for place in places]
        for (i, j), gated in zip(group, loaded, strict=True):
            smem["x"][i, :, pl.ds(j, 64)] = gated
    plgpu.commit_smem()


def _meet_all(smem: Smem) -> None:
    """Interpreted: all warpgroups of all CTAs."""
    _meet(smem["both"])
    pl.when(lax.axis_index("warpgroup") == 0)(functools.partial(_meet, smem["all"]))
    _meet(smem["both"])


def _arrive_all(plan: MlpPlan, count_ref: Ref, what: int) -> None:
    """Say that this CTA's early or late columns are written.

    All CTAs add 2^31 to the counter, which changes its highest bit and leaves it ready for the next launch.
    """
    if plan.interpret is None:
        add = f"""
            mov.u32 now, %ctaid.x;
            setp.eq.u32 p, now, 0;
            selp.b32 now, {(1 << 31) - (plan.ctas - 1)}, 1, p;
            red.release.gpu.global.add.u32 [$0], now;"""
        _count(count_ref, what, add)


def _await_all(plan: MlpPlan, smem: Smem, count_ref: Ref, what: int, before: jax.Array) -> None:
    """Wait until all CTAs have arrived: the highest bit is no longer what it was before."""
    if plan.interpret is not None:
        _meet_all(smem)
    else:
        _count(count_ref, what, _poll("xor.b32 now, now, $1; setp.ge.s32 p, now, 0;"), before)


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


def _count(count_ref: Ref, index: jax.Array | int, ptx: str, *values: jax.Array) -> None:
    """Run PTX on the address of a counter in one thread, behind all that this CTA did and before all that it will."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), *[plgpu.Layout.WG_SPLAT] * len(values)))
    def run(_: object, counter: Any, *values: Any) -> None:
        mgpu.warpgroup_barrier()
        with mgpu.single_thread(scope=mgpu.ThreadSubset.WARPGROUP):
            pointer = mgpu.utils.memref_ptr(counter)
            text = "{ .reg .b32 now, polls; .reg .pred p, q; " + ptx + " }"
            mgpu.utils.inline_ptx(text, pointer, *(v.registers.item() for v in values), has_side_effects=True)
        mgpu.warpgroup_barrier()

    run(count_ref.at[pl.ds(index, 1)], *values)
