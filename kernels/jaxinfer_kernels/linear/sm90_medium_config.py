"""How a launch of Mosaic linears of many rows is cut: what the caller may tune, and what follows from the shapes."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import jax
import jax.numpy as jnp

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.linear.quantized import Format, Quantized, scales_fit, told
from jaxinfer_kernels.linear.xla import fit
from jaxinfer_kernels.sm90 import H200, HopperGpu, Layout, round_up, row_layout

ROWS = 64  # of one warpgroup, the wgmma's M
MAX_ROWS = 256
HALVED_ROWS = 192  # and more are shared by two CTAs
BLOCK = 64  # of the inner dimension, in one step
FP8_ROWS = 128  # most where weights are fp8
FP8_BLOCK = 128  # of the inner dimension, of those
WIDE = 2  # blocks of them that are widened at once
MAX_COLUMNS = 256  # the wgmma's N
MAX_STAGES = 8
REGISTERS = {1: 232, 2: 232, 3: 152, 4: 104}  # of a thread that multiplies, by the number of its warpgroups
WIDENING = {1: (232, 232), 2: (160, 152)}  # the same where another warpgroup widens weights, and that one's
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
    shared: tuple[int, int] | None = None  # weights are fp8: rows and columns of them that share a scale

    @property
    def block(self) -> int:
        """Of the inner dimension, in one step."""
        return BLOCK if self.shared is None else FP8_BLOCK

    @property
    def widens(self) -> int:
        """Warpgroups that make weights of fp8."""
        return 0 if self.shared is None else 1

    @property
    def has_blocks(self) -> bool:
        """Whether blocks of fp8 have scales, not rows."""
        return self.shared is not None and self.shared[0] > 1

    @property
    def blocks(self) -> int:
        return self.depth // self.block

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that multiplies, and of one that widens."""
        return (REGISTERS[self.warpgroups], 0) if self.shared is None else WIDENING[self.warpgroups]

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
        weights, wide = self.sides * self.columns * self.block * item, 0
        if self.shared is not None:
            weights, wide = weights // 2, WIDE * weights
        return max(min((room - early - wide) // (rows * self.block * item + weights), MAX_STAGES), 0)

    def parts(self) -> Iterator[tuple[int, int]]:
        """Each warpgroup and how many rows it has."""
        return ((i, min(ROWS, self.tile_rows - i * ROWS)) for i in range(self.warpgroups))

    def first_finished(self, warpgroup: jax.Array, split: jax.Array) -> jax.Array:
        """The first of a warpgroup's rows that a CTA finishes. Where rows are few, some are finished by several."""
        rows = jnp.minimum(self.tile_rows - warpgroup * ROWS, ROWS)
        return jnp.minimum(split * self.finished, jnp.maximum(rows - self.finished, 0))


def supported(
    rows: int, out_features: int, in_features: int, dtype: jnp.dtype, shared: tuple[int, int] | None = None
) -> bool:
    """Whether these kernels can run w [out_features, in_features] on that many rows; else use linear.api.linear.

    shared: rows and columns that share a scale, if w is fp8.
    """
    if shared is not None and not scales_fit(shared, in_features):
        return False
    most, block = (MAX_ROWS, BLOCK) if shared is None else (FP8_ROWS, FP8_BLOCK)
    return (
        dtype in (jnp.bfloat16, jnp.float16)
        and rows <= most
        and in_features % block == 0
        and out_features % 16 == 0
        and out_features >= ROWS
    )


def can_defer_norm(
    rows: int,
    out_features: int,
    dtype: jnp.dtype,
    tuning: MediumTuning = DEFAULT,
    shared: tuple[int, int] | None = None,
) -> bool:
    """Whether linear_residual can begin the norm of its result: tiles that repeat columns would count them twice, and
    f16, scaled before it is normed, might overflow."""
    columns, *_ = _cut(rows, out_features, False, tuning, shared)
    return dtype == jnp.bfloat16 and out_features % columns == 0


def plan_launch(
    x: jax.Array,
    w: jax.Array | Quantized,
    after: Literal["bias", "residual", "silu"] | None,
    tuning: MediumTuning,
    interpret: "plgpu.InterpretGPUParams | None",
    **norm: float | bool | None,
) -> MediumConfig:
    """Raises ValueError for shapes and tunings that cannot run."""
    shared = w.block if isinstance(w, Quantized) and w.format is Format.FP8 else None
    is_other = isinstance(w, Quantized) and shared is None
    if is_other or not fit(x, w) or not supported(x.shape[0], *w.shape, x.dtype, shared):
        raise ValueError(
            f"the Mosaic batch linears need x [T, K] with T <= {MAX_ROWS} and w [N, K], both bf16 or f16, with "
            f"N % 16 == 0, N >= {ROWS} and K % {BLOCK} == 0, or T <= {FP8_ROWS} and w in fp8 with K % {FP8_BLOCK} == 0 "
            f"and a scale per row or per {FP8_BLOCK} columns and {ROWS} rows or more, got {x.aval} and {told(w)}; "
            "use linear.api.linear"
        )
    (out, depth), rows = w.shape, round_up(x.shape[0], 8)
    out //= 2 if after == "silu" else 1  # columns of the result
    columns, splits, halves = _cut(rows, out, after == "silu", tuning, shared)
    pdl = tuning.pdl and interpret is None  # interpret mode knows no early launch
    cut = dict(columns=columns, splits=splits, halves=halves, stages=tuning.stages, shared=shared)
    plan = MediumConfig(
        rows, depth, out, x.dtype, after=after, pdl=pdl, interpret=interpret, gpu=tuning.gpu, **cut, **norm
    )
    plan = dataclasses.replace(plan, stages=tuning.stages or plan.most_stages)
    shared_rows = splits == 1 or (columns in (64, 128) and splits in (2, 4, 8))
    unfit = columns % (8 * halves) or columns > out or (shared and halves > 1)
    if not shared_rows or unfit or not 2 <= plan.stages <= plan.most_stages:
        raise ValueError(
            "columns must be a multiple of 8 * halves, at most the result's, 64 or 128 with splits, of fp8 no halves, "
            f"and two blocks and more fit the shared memory, got w {told(w)} and {tuning}; use the default tuning"
        )
    return plan


def _cut(
    rows: int, out: int, gated: bool, tuning: MediumTuning, shared: tuple[int, int] | None = None
) -> tuple[int, int, int]:
    """Columns of a tile, splits and halves. Tiles are as many as multiprocessors, or a multiple of that where their
    accumulators would not fit the registers, or have 64 columns if there is no gate.
    """
    gpu, halves = tuning.gpu, tuning.halves or (2 if rows > HALVED_ROWS else 1)
    warpgroups = -(-round_up(rows // halves, 8) // ROWS)
    registers = REGISTERS[warpgroups] if shared is None else WIDENING[warpgroups][0]
    fitting = min((registers - SPARE) * (1 if gated else 2), MAX_COLUMNS)
    most = fitting // (8 * halves) * 8 * halves
    rounds = -(-out * halves // (gpu.multiprocessors * most))
    all_at_once = round_up(-(-out * halves // (gpu.multiprocessors * rounds)), 8 * halves)
    columns = tuning.columns or (all_at_once if gated else max(all_at_once, 64))
    tiles = -(-out // columns)
    _, at_once = gpu.resident[1]
    splits = (n for n in (4, 2) if not gated and tiles <= at_once[n * halves - 1])
    return columns, tuning.splits or next(splits, 1), halves
