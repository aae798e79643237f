"""How one launch of the Mosaic linear layers is cut: what the caller may tune, and what follows from the shapes."""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.linear.quantized import Format, Quantized, scales_fit, told
from jaxinfer_kernels.linear.xla import fit
from jaxinfer_kernels.sm90 import H200, HopperGpu, round_up

ROWS = 64  # of a tile of weights, the wgmma's M
MAX_COLUMNS = 64  # activations of one launch
CONVERTED = 8  # activations up to which weights in fp8 and they are multiplied as float16
MAX_STAGES = 8
MAX_FP8_STAGES = 4  # of half the bytes: eight of them were 5 to 10 % slower at 8 rows
SMALL = 8_000_000  # bytes of weights for which fewer, shorter CTAs are the faster ones


@dataclasses.dataclass(frozen=True)
class SmallTuning:
    """How the work is cut; 0: as the shapes suggest. Results differ between tunings in rounding only."""

    splits: int = 0  # CTAs of a cluster, which share the inner dimension: 1 to 8
    clusters: int = 0  # that share the tiles of 64 rows of weights
    stages: int = 0  # copies of [64, block] weights in flight in one CTA
    block: int = 128  # a multiple of 64; of fp8, a swizzle's width: 128
    pdl: bool = True  # start fetching weights while the kernel before this one still runs
    gpu: HopperGpu = H200


DEFAULT = SmallTuning()


@dataclasses.dataclass(frozen=True)
class SmallCut:
    """What a tuning comes to.

    spare: bytes of shared memory that nothing is in. Behind the kernel before it, a CTA more than was reckoned with
      would find room on some multiprocessors and none be left for others.
    """

    clusters: int
    splits: int
    stages: int
    spare: int = 0


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
    shared: tuple[int, int] | None = None  # weights are fp8: rows and columns of them that share a scale

    @property
    def tiles(self) -> int:
        return self.out // ROWS

    @property
    def has_blocks(self) -> bool:
        """Whether blocks of fp8 have scales, not rows."""
        return self.shared is not None and self.shared[0] > 1

    @property
    def operand_dtype(self) -> jnp.dtype:
        """Of what the wgmma multiplies: this chip converts fp8 to float16 alone, which has all of its values.

        To convert that to bfloat16 takes less than to convert many rows of x.
        """
        return self.dtype if self.shared is None or self.columns > CONVERTED else jnp.dtype(jnp.float16)

    @property
    def scales_x(self) -> bool:
        """Whether rows of x need factors of their own: what is not normed yet, or was bfloat16, may not fit float16."""
        return self.operand_dtype == jnp.float16 and (self.shared is not None or self.norm_eps is not None)

    @property
    def blocks(self) -> int:
        """Copies that one CTA makes for one tile."""
        return self.depth // self.block // self.cut.splits


def supported(
    rows: int,
    out_features: int,
    in_features: int,
    dtype: jnp.dtype,
    gpu: HopperGpu,
    shared: tuple[int, int] | None = None,
) -> bool:
    """Whether these kernels can run w [out_features, in_features] on that many rows; else use linear.api.linear.

    shared: rows and columns that share a scale, if w is fp8.
    """
    if shared is not None and not scales_fit(shared, in_features):
        return False
    return (
        dtype in (jnp.bfloat16, jnp.float16)
        and out_features % ROWS == 0
        and in_features % DEFAULT.block == 0
        and rows <= MAX_COLUMNS
        and _cut(round_up(rows, 8), in_features, out_features, SmallTuning(gpu=gpu), 1 if shared else 2) is not None
    )


def plan_launch(
    x: jax.Array,
    w: jax.Array | Quantized,
    tuning: SmallTuning,
    interpret: "plgpu.InterpretGPUParams | None",
    **neighbours: object,
) -> SmallConfig:
    """Raises ValueError for shapes and tunings that cannot run."""
    shared = w.block if isinstance(w, Quantized) and w.format is Format.FP8 else None
    is_other = isinstance(w, Quantized) and shared is None
    if is_other or not fit(x, w) or not supported(x.shape[0], *w.shape, x.dtype, tuning.gpu, shared):
        raise ValueError(
            f"the Mosaic linear layers need x [T, K] with T <= {MAX_COLUMNS} and w [N, K], both bf16 or f16, with "
            f"N % {ROWS} == 0 and K % {DEFAULT.block} == 0, or w in fp8 with a scale per row or per {DEFAULT.block} "
            f"columns and {ROWS} rows or a multiple, got {x.aval} and {told(w)}; use linear.api.linear"
        )
    (out, depth), columns = w.shape, round_up(x.shape[0], 8)
    right = tuning.block == DEFAULT.block if shared else tuning.block % 64 == 0
    cut = _cut(columns, depth, out, tuning, 1 if shared else 2) if right else None
    if cut is None:
        raise ValueError(
            f"block must be a multiple of 64, for fp8 {DEFAULT.block}, block * splits divide K and {columns} "
            f"activations fit the shared memory, got w {told(w)} and {tuning}; use the default tuning"
        )
    pdl = tuning.pdl and interpret is None  # interpret mode knows no early launch
    return SmallConfig(columns, depth, out, x.dtype, cut, tuning.block, pdl, interpret, shared=shared, **neighbours)


def _cut(columns: int, depth: int, out: int, tuning: SmallTuning, of_weight: int) -> SmallCut | None:
    """Work for all multiprocessors at once, two CTAs each where they fit, in few splits; None: nothing fits.

    of_weight: bytes.
    """
    item, tiles, gpu = 2, out // ROWS, tuning.gpu
    wanted = gpu.scaled(96 if out * depth * of_weight < SMALL else 210)
    stage, most = ROWS * tuning.block * of_weight, MAX_STAGES if of_weight > 1 else MAX_FP8_STAGES
    found, best = None, -math.inf
    for splits in [tuning.splits] if tuning.splits else range(1, 9):
        if splits > 8 or depth % (tuning.block * splits):
            continue
        for at_once, (room, resident) in gpu.resident.items():
            clusters = tuning.clusters or -(-tiles // -(-tiles // resident[splits - 1]))
            x_and_norm, tile = (columns + 1) * depth // splits * item, ROWS * columns * (item + 4)
            units = depth // tuning.block // splits * (tiles // clusters)
            stages = tuning.stages or min((room - x_and_norm - tile) // stage, most)
            if stages < 1 or (stages < 3 and stages < units and not tuning.stages):
                continue
            if x_and_norm + tile + min(stages, units) * stage > room:
                continue
            worth = (
                min(clusters * splits, wanted) - gpu.scaled(12) * splits
            )  # a split costs a sync of the cluster a tile
            if worth > best:
                stages = min(stages, units)
                least = columns * depth // splits * item + stages * stage  # that a CTA has
                spare = max(gpu.shared_bytes // (at_once + 1) - least, 0) if of_weight == 1 else 0
                found, best = SmallCut(min(clusters, tiles), splits, stages, spare), worth
    return found
