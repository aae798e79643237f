"""How one launch of the Mosaic linear layers is cut: what the caller may tune, and what follows from the shapes."""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.linear.xla import fit
from jaxinfer_kernels.sm90 import H200, HopperGpu, round_up

ROWS = 64  # of a tile of weights, the wgmma's M
MAX_COLUMNS = 64  # activations of one launch
MAX_STAGES = 8
SMALL = 8_000_000  # bytes of weights for which fewer, shorter CTAs are the faster ones


@dataclasses.dataclass(frozen=True)
class SmallTuning:
    """How the work is cut; 0: as the shapes suggest. Results differ between tunings in rounding only."""

    splits: int = 0  # CTAs of a cluster, which share the inner dimension: 1 to 8
    clusters: int = 0  # that share the tiles of 64 rows of weights
    stages: int = 0  # copies of [64, block] weights in flight in one CTA
    block: int = 128  # a multiple of 64
    pdl: bool = True  # start fetching weights while the kernel before this one still runs
    gpu: HopperGpu = H200


DEFAULT = SmallTuning()


@dataclasses.dataclass(frozen=True)
class SmallCut:
    """What a tuning comes to."""

    clusters: int
    splits: int
    stages: int


@dataclasses.dataclass(frozen=True)
class SmallConfig:
    """Static facts of one launch: f32[columns, out] = x [columns, depth] @ w.T, and what is done before and after."""

    columns: int
    depth: int
    out: int  # rows of w; gated: twice the columns of the result
    dtype: jnp.dtype
    cut: SmallCut
    block: int
    pdl: bool
    interpret: "plgpu.InterpretGPUParams | None"
    norm_eps: float | None = None  # norm x first
    after: Literal["bias", "residual", "silu"] | None = None

    @property
    def tiles(self) -> int:
        return self.out // ROWS

    @property
    def blocks(self) -> int:
        """Copies that one CTA makes for one tile."""
        return self.depth // self.block // self.cut.splits


def supported(rows: int, out_features: int, in_features: int, dtype: jnp.dtype, gpu: HopperGpu) -> bool:
    """Whether these kernels can run w [out_features, in_features] on that many rows; else use linear.api.linear."""
    return (
        dtype in (jnp.bfloat16, jnp.float16)
        and out_features % ROWS == 0
        and in_features % DEFAULT.block == 0
        and rows <= MAX_COLUMNS
        and _cut(round_up(rows, 8), in_features, out_features, SmallTuning(gpu=gpu)) is not None
    )


def plan_launch(
    x: jax.Array,
    w: jax.Array,
    tuning: SmallTuning,
    interpret: "plgpu.InterpretGPUParams | None",
    **neighbours: object,
) -> SmallConfig:
    """Raises ValueError for shapes and tunings that cannot run."""
    if not fit(x, w) or not supported(x.shape[0], *w.shape, x.dtype, tuning.gpu):
        raise ValueError(
            f"the Mosaic linear layers need x [T, K] with T <= {MAX_COLUMNS} and w [N, K], both bf16 or f16, with "
            f"N % {ROWS} == 0 and K % {DEFAULT.block} == 0, got {x.aval} and {w.aval}; use linear.api.linear"
        )
    (out, depth), columns = w.shape, round_up(x.shape[0], 8)
    cut = None if tuning.block % 64 else _cut(columns, depth, out, tuning)
    if cut is None:
        raise ValueError(
            f"block must be a multiple of 64, block * splits divide K and {columns} activations fit the shared memory, "
            f"got w {w.aval} and {tuning}; use the default tuning"
        )
    pdl = tuning.pdl and interpret is None  # interpret mode knows no early launch
    return SmallConfig(columns, depth, out, x.dtype, cut, tuning.block, pdl, interpret, **neighbours)


def _cut(columns: int, depth: int, out: int, tuning: SmallTuning) -> SmallCut | None:
    """Work for all multiprocessors at once, two CTAs each where they fit, in few splits; None: nothing fits."""
    item, tiles, gpu = 2, out // ROWS, tuning.gpu
    wanted = gpu.scaled(96 if out * depth * item < SMALL else 210)
    stage = ROWS * tuning.block * item
    found, best = None, -math.inf
    for splits in [tuning.splits] if tuning.splits else range(1, 9):
        if splits > 8 or depth % (tuning.block * splits):
            continue
        for room, resident in gpu.resident.values():
            clusters = tuning.clusters or -(-tiles // -(-tiles // resident[splits - 1]))
            x_and_norm, tile = (columns + 1) * depth // splits * item, ROWS * columns * (item + 4)
            units = depth // tuning.block // splits * (tiles // clusters)
            stages = tuning.stages or min((room - x_and_norm - tile) // stage, MAX_STAGES)
            if stages < 1 or (stages < 3 and stages < units and not tuning.stages):
                continue
            if x_and_norm + tile + min(stages, units) * stage > room:
                continue
            worth = (
                min(clusters * splits, wanted) - gpu.scaled(12) * splits
            )  # a split costs a sync of the cluster a tile
            if worth > best:
                found, best = SmallCut(min(clusters, tiles), splits, min(stages, units)), worth
    return found
