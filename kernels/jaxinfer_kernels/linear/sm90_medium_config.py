"""How a launch of Mosaic linears of many rows is cut: what the caller may tune, and what follows from the shapes."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import jax
import jax.numpy as jnp

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.linear.xla import fit
from jaxinfer_kernels.sm90 import H200, HopperGpu, Layout, round_up, row_layout

ROWS = 64  # of one warpgroup, the wgmma's M
MAX_ROWS = 256
HALVED_ROWS = 192  # and more are shared by two CTAs
BLOCK = 64  # of the inner dimension, in one step
MAX_COLUMNS = 256  # the wgmma's N
MAX_STAGES = 8
REGISTERS = {1: 232, 2: 232, 3: 152, 4: 104}  # of a thread that multiplies, by the number of its warpgroups
SPARE = 16  # of them that no accumulator has


@dataclasses.dataclass(frozen=True)
class MediumTuning:
    """How the work is cut; 0: as the shapes suggest. Results differ between tunings in rounding only."""

    columns: int = 0  # of a tile, of gate and of up each: a multiple of 8
    splits: int = 0  # CTAs of a cluster that share the inner dimension: 1, or 2, 4 or 8 where columns are 64 or 128
    halves: int = 0  # CTAs of a cluster that share the rows, and fetch weights for each other: 1 or 2
    stages: int = 0  # blocks in flight
    pdl: bool = True  # start fetching weights while the kernel before this one still runs
    gpu: HopperGpu = H200


DEFAULT = MediumTuning()


@dataclasses.dataclass(frozen=True)
class MediumConfig:
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
    interpret: "plgpu.InterpretGPUParams | None"
    gpu: HopperGpu
    eps: float | None = None  # of the norm that x has begun
    defers_norm: bool = False  # of the result

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
    def finished(self) -> int:
        """Of a warpgroup's ROWS, those that one CTA finishes."""
        return ROWS // self.splits

    @property
    def layout(self) -> Layout:
        """Of what one CTA finishes."""
        return plgpu.Layout.WGMMA if self.splits == 1 else row_layout(self.columns)

    @property
    def squares(self) -> tuple[int, ...]:
        """The shape of DeferredNorm.squares: a part for each tile, and some that say nothing."""
        return self.halves, self.warpgroups, ROWS, round_up(self.tiles, 8)

    @property
    def most_stages(self) -> int:
        """Blocks that fit the shared memory beside what else is there at the same time."""
        rows, item = self.warpgroups * ROWS, 2
        out = rows // self.splits * self.columns * item
        partial = rows * self.columns * 4 if self.splits > 1 else 0
        early, late = (out, partial + out * self.defers_norm) if self.after == "residual" else (0, out + partial)
        room, _ = self.gpu.resident[1]
        if early + late > room:
            return 0
        return min((room - early) // ((rows + self.sides * self.columns) * BLOCK * item), MAX_STAGES)

    def parts(self) -> Iterator[tuple[int, int]]:
        """Each warpgroup and how many rows it has."""
        return ((i, min(ROWS, self.tile_rows - i * ROWS)) for i in range(self.warpgroups))

    def first_finished(self, warpgroup: jax.Array, split: jax.Array) -> jax.Array:
        """The first of a warpgroup's rows that a CTA finishes. Where rows are few, some are finished by several."""
        rows = jnp.minimum(self.tile_rows - warpgroup * ROWS, ROWS)
        return jnp.minimum(split * self.finished, jnp.maximum(rows - self.finished, 0))


def supported(rows: int, out_features: int, in_features: int, dtype: jnp.dtype) -> bool:
    """Whether these kernels can run w [out_features, in_features] on that many rows; else use linear.api.linear."""
    return (
        dtype in (jnp.bfloat16, jnp.float16)
        and rows <= MAX_ROWS
        and in_features % BLOCK == 0
        and out_features % 16 == 0
        and out_features >= ROWS
    )


def can_defer_norm(rows: int, out_features: int, dtype: jnp.dtype, tuning: MediumTuning = DEFAULT) -> bool:
    """Whether linear_residual can begin the norm of its result: tiles that repeat columns would count them twice, and
    f16, scaled before it is normed, might overflow."""
    columns, *_ = _cut(rows, out_features, False, tuning)
    return dtype == jnp.bfloat16 and out_features % columns == 0


def plan_launch(
    x: jax.Array,
    w: jax.Array,
    after: Literal["bias", "residual", "silu"] | None,
    tuning: MediumTuning,
    interpret: "plgpu.InterpretGPUParams | None",
    **norm: float | bool | None,
) -> MediumConfig:
    """Raises ValueError for shapes and tunings that cannot run."""
    if not fit(x, w) or not supported(x.shape[0], *w.shape, x.dtype):
        raise ValueError(
            f"the Mosaic batch linears need x [T, K] with T <= {MAX_ROWS} and w [N, K], both bf16 or f16, with "
            f"N % 16 == 0, N >= {ROWS} and K % {BLOCK} == 0, got {x.aval} and {w.aval}; use linear.api.linear"
        )
    (out, depth), rows = w.shape, round_up(x.shape[0], 8)
    out //= 2 if after == "silu" else 1  # columns of the result
    columns, splits, halves = _cut(rows, out, after == "silu", tuning)
    pdl = tuning.pdl and interpret is None  # interpret mode knows no early launch
    plan = MediumConfig(
        rows, depth, out, x.dtype, columns, splits, halves, tuning.stages, after, pdl, interpret, tuning.gpu, **norm
    )
    plan = dataclasses.replace(plan, stages=tuning.stages or plan.most_stages)
    shared_rows = splits == 1 or (columns in (64, 128) and splits in (2, 4, 8))
    if not shared_rows or columns % (8 * halves) or columns > out or not 2 <= plan.stages <= plan.most_stages:
        raise ValueError(
            "columns must be a multiple of 8 * halves and at most the result's, 64 or 128 with splits, and two blocks "
            f"and more fit the shared memory, got w {w.aval} and {tuning}; use the default tuning"
        )
    return plan


def _cut(rows: int, out: int, gated: bool, tuning: MediumTuning) -> tuple[int, int, int]:
    """Columns of a tile, splits and halves. Tiles are as many as multiprocessors, or a multiple of that where their
    accumulators would not fit the registers, or have 64 columns if there is no gate.
    """
    gpu, halves = tuning.gpu, tuning.halves or (2 if rows > HALVED_ROWS else 1)
    warpgroups = -(-round_up(rows // halves, 8) // ROWS)
    fitting = min((REGISTERS[warpgroups] - SPARE) * (1 if gated else 2), MAX_COLUMNS)
    most = fitting // (8 * halves) * 8 * halves
    rounds = -(-out * halves // (gpu.multiprocessors * most))
    all_at_once = round_up(-(-out * halves // (gpu.multiprocessors * rounds)), 8 * halves)
    columns = tuning.columns or (all_at_once if gated else max(all_at_once, 64))
    tiles = -(-out // columns)
    _, at_once = gpu.resident[1]
    splits = (n for n in (4, 2) if not gated and tiles <= at_once[n * halves - 1])
    return columns, tuning.splits or next(splits, 1), halves
