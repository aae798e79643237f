"""How one launch of the Mosaic linear layers is cut: what the caller may tune, and what follows from the shapes."""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxinfer_kernels import linear, plgpu
from jaxinfer_kernels.mosaic_decode_plan import Layout, round_up

ROWS = 64  # of a tile of weights, the wgmma's M
MAX_COLUMNS = 64  # activations of one launch
MAX_STAGES = 8
SMALL = 8_000_000  # bytes of weights for which fewer, shorter CTAs are the faster ones

# CTAs beside each other on a multiprocessor: the shared memory of each, and how many clusters of 1 to 8 CTAs then run
# at once, as an H200 answered (its 132 multiprocessors are grouped by 14 to 18). More would wait for a second wave.
RESIDENT = {
    2: (112_000, (264, 132, 79, 62, 47, 39, 32, 30)),
    1: (229_000, (132, 66, 39, 30, 22, 17, 15, 15)),
}


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the work is cut; 0: as the shapes suggest. Results differ between tunings in rounding only."""

    splits: int = 0  # CTAs of a cluster, which share the inner dimension: 1 to 8
    clusters: int = 0  # that share the tiles of 64 rows of weights
    stages: int = 0  # copies of [64, block] weights in flight in one CTA
    block: int = 128  # a multiple of 64
    pdl: bool = True  # start fetching weights while the kernel before this one still runs


DEFAULT = Tuning()


@dataclasses.dataclass(frozen=True)
class Cut:
    """What a tuning comes to."""

    clusters: int
    splits: int
    stages: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static facts of one launch: f32[columns, out] = x [columns, depth] @ w.T, and what is done before and after."""

    columns: int
    depth: int
    out: int  # rows of w; gated: twice the columns of the result
    dtype: jnp.dtype
    out_dtype: jnp.dtype
    cut: Cut
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


def supported(rows: int, out_features: int, in_features: int, dtype: jnp.dtype) -> bool:
    """Whether these kernels can run w [out_features, in_features] on that many rows; else use linear.linear."""
    return (
        dtype in (jnp.bfloat16, jnp.float16)
        and out_features % ROWS == 0
        and in_features % DEFAULT.block == 0
        and rows <= MAX_COLUMNS
        and _cut(round_up(rows, 8), in_features, out_features, DEFAULT) is not None
    )


def plan_launch(
    x: jax.Array,
    w: jax.Array,
    tuning: Tuning,
    interpret: "plgpu.InterpretGPUParams | None",
    *,
    out_dtype: DTypeLike | None = None,
    **neighbours: object,
) -> Plan:
    """Raises ValueError for shapes and tunings that cannot run."""
    if not linear.fit(x, w) or not supported(x.shape[0], *w.shape, x.dtype):
        raise ValueError(
            f"the Mosaic linear layers need x [T, K] with T <= {MAX_COLUMNS} and w [N, K], both bf16 or f16, with "
            f"N % {ROWS} == 0 and K % {DEFAULT.block} == 0, got {x.aval} and {w.aval}; use linear.linear"
        )
    (out, depth), columns = w.shape, round_up(x.shape[0], 8)
    cut = None if tuning.block % 64 else _cut(columns, depth, out, tuning)
    if cut is None:
        raise ValueError(
            f"block must be a multiple of 64, block * splits divide K and {columns} activations fit the shared memory, "
            f"got w {w.aval} and {tuning}; use the default tuning"
        )
    dtype = jnp.dtype(out_dtype or x.dtype)
    pdl = tuning.pdl and interpret is None  # interpret mode knows no early launch
    return Plan(columns, depth, out, x.dtype, dtype, cut, tuning.block, pdl, interpret, **neighbours)


def _cut(columns: int, depth: int, out: int, tuning: Tuning) -> Cut | None:
    """Work for all multiprocessors at once, two CTAs each where they fit, in few splits; None: nothing fits."""
    item, tiles = 2, out // ROWS
    wanted = 96 if out * depth * item < SMALL else 210
    stage = ROWS * tuning.block * item
    found, best = None, -math.inf
    for splits in [tuning.splits] if tuning.splits else range(1, 9):
        if splits > 8 or depth % (tuning.block * splits):
            continue
        for room, resident in RESIDENT.values():
            clusters = tuning.clusters or -(-tiles // -(-tiles // resident[splits - 1]))
            x_and_norm, tile = (columns + 1) * depth // splits * item, ROWS * columns * (item + 4)
            units = depth // tuning.block // splits * (tiles // clusters)
            stages = tuning.stages or min((room - x_and_norm - tile) // stage, MAX_STAGES)
            if stages < 1 or (stages < 3 and stages < units and not tuning.stages):
                continue
            if x_and_norm + tile + min(stages, units) * stage > room:
                continue
            worth = min(clusters * splits, wanted) - 12 * splits  # a split costs a meeting of the cluster a tile
            if worth > best:
                found, best = Cut(min(clusters, tiles), splits, min(stages, units)), worth
    return found


def row_layout(width: int) -> Layout:
    """A tile [8 n, width] spread so that a warp holds two whole rows: sums along them stay inside it.

    No lane holds 32 bits of bf16: for those jax 0.11.2 turns to ldmatrix, which is made for the layouts of wgmma.
    """
    lanes = 16 if width == 64 else 32  # of a row; 1, 4 or 4 values a lane for 32, 64 or 128 columns
    tiling = plgpu.Tiling(((8, width), (2, width), (width // lanes,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-5,), lane_dims=(-2,) if lanes == 32 else (-3, -2), vector_dim=-1)


def padded(x: jax.Array) -> jax.Array:
    """With rows of zeros, up to a multiple of 8."""
    return jnp.pad(x, ((0, -len(x) % 8), (0, 0))) if len(x) % 8 else x


def operand(shape: tuple[int, ...], dtype: jnp.dtype) -> object:
    """Shared memory laid out as the wgmma wants it."""
    return plgpu.SMEM(shape, dtype, transforms=(plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)))
