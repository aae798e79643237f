"""How one launch of the Mosaic linear layers is cut: what the caller may tune, and what follows from the shapes."""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.linear import packed4, sm90_packed4
from jaxinfer_kernels.linear.quantized import Format, Quantized, scales_fit, told
from jaxinfer_kernels.linear.xla import fit
from jaxinfer_kernels.sm90 import H200, HopperGpu, round_up

ROWS = 64  # of a tile of weights, the wgmma's M
MAX_COLUMNS = 64  # activations of one launch
CONVERTED = 8  # activations up to which weights in fp8 and they are multiplied as float16
MAX_STAGES = 8
MAX_FP8_STAGES = 4  # of half the bytes: eight of them were 5 to 10 % slower at 8 rows
MAX_PACKED_STAGES = 4
MAX_PACKED_RESIDENT, MAX_ROWS_OF_MANY = 4, 8  # CTAs of a multiprocessor, and rows up to which so many are faster than 3
SMALL = 8_000_000  # bytes of weights for which fewer, shorter CTAs are the faster ones


@dataclasses.dataclass(frozen=True)
class SmallTuning:
    """How the work is cut; 0: as the shapes suggest. Results differ between tunings in rounding only."""

    splits: int = 0  # CTAs of a cluster, which share the inner dimension: 1 to 8
    clusters: int = 0  # that share the tiles of 64 rows of weights
    stages: int = 0  # copies of [64, block] weights in flight in one CTA
    resident: int = 0  # CTAs of a multiprocessor
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
class WeightForm:
    """How they are held: each of x's dtype (format None), in fp8, or packed, 4 bits each.

    shared: rows and columns that share a scale.    has_zeros: whether that many have a value that stands for 0, too.
    """

    format: Format | None = None
    shared: tuple[int, int] = (1, 1)
    has_zeros: bool = False

    @classmethod
    def of(cls, w: jax.Array | Quantized) -> "WeightForm":
        if not isinstance(w, Quantized):
            return cls()
        if w.format is Format.PACKED4:
            return cls(w.format, (1, w.shape[1] // w.scales.shape[1]), w.zeros is not None)
        return cls(w.format, w.block)

    def fit(self, columns: int) -> bool:
        """Whether the kernels read rows of so many columns that are held so."""
        if self.format is Format.PACKED4:
            groups = columns // self.shared[1]
            return self.shared[1] % packed4.COLUMNS == 0 and (groups >= sm90_packed4.GROUPS or not self.has_zeros)
        return self.format is None or (self.format is Format.FP8 and scales_fit(self.shared, columns))

    def bytes_of(self, columns: int) -> int:
        """Of ROWS of so many columns as they are copied, with scales and zeros."""
        if self.format is Format.PACKED4:
            return ROWS * (columns // 2 + 4 + sm90_packed4.GROUPS * 2 * self.has_zeros)
        return ROWS * columns * (1 if self.format else 2)

    @property
    def most_stages(self) -> int:
        return {None: MAX_STAGES, Format.FP8: MAX_FP8_STAGES}.get(self.format, MAX_PACKED_STAGES)

    def most_resident(self, columns: int) -> int:
        """CTAs of a multiprocessor. Of 4 bits, two have so little to wait for that their arithmetic is the bound."""
        if self.format is not Format.PACKED4:
            return 2
        return MAX_PACKED_RESIDENT if columns <= MAX_ROWS_OF_MANY else 3


PLAIN = WeightForm()


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
    weights: WeightForm = PLAIN

    @property
    def tiles(self) -> int:
        return self.out // ROWS

    @property
    def parts(self) -> int:
        """Of a tile, from matrices one behind another."""
        return 2 if self.after == "silu" else 1

    @property
    def copies(self) -> int:
        """That a block of weights arrives in."""
        if not self.is_packed:
            return self.parts
        return sm90_packed4.copies(self.parts, has_zeros=self.weights.has_zeros)

    @property
    def is_quantized(self) -> bool:
        return self.weights.format is not None

    @property
    def is_packed(self) -> bool:
        return self.weights.format is Format.PACKED4

    @property
    def has_blocks(self) -> bool:
        """Whether blocks of fp8 have scales, not rows."""
        return self.weights.format is Format.FP8 and self.weights.shared[0] > 1

    @property
    def operand_dtype(self) -> jnp.dtype:
        """Of what the wgmma multiplies: this chip converts fp8 to float16 alone, which has all of its values.

        To convert that to bfloat16 takes less than to convert many rows of x.
        """
        is_narrow = self.weights.format is Format.FP8 and self.columns <= CONVERTED
        return jnp.dtype(jnp.float16) if is_narrow else self.dtype

    @property
    def scales_x(self) -> bool:
        """Whether rows of x need factors of their own: what is not normed yet, or was bfloat16, may not fit float16."""
        of_fp8 = self.weights.format is Format.FP8
        return self.operand_dtype == jnp.float16 and (of_fp8 or self.norm_eps is not None)

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
    weights: WeightForm = PLAIN,
) -> bool:
    """Whether these kernels can run w [out_features, in_features] on that many rows; else use linear.api.linear."""
    return (
        dtype in (jnp.bfloat16, jnp.float16)
        and out_features % ROWS == 0
        and in_features % DEFAULT.block == 0
        and rows <= MAX_COLUMNS
        and weights.fit(in_features)
        and _cut(round_up(rows, 8), in_features, out_features, SmallTuning(gpu=gpu), weights) is not None
    )


def plan_launch(
    x: jax.Array,
    w: jax.Array | Quantized,
    tuning: SmallTuning,
    interpret: "plgpu.InterpretGPUParams | None",
    **neighbours: object,
) -> SmallConfig:
    """Raises ValueError for shapes and tunings that cannot run."""
    weights = WeightForm.of(w)
    if not fit(x, w) or not supported(x.shape[0], *w.shape, x.dtype, tuning.gpu, weights):
        raise ValueError(
            f"the Mosaic linear layers need x [T, K] with T <= {MAX_COLUMNS} and w [N, K], both bf16 or f16, with "
            f"N % {ROWS} == 0 and K % {DEFAULT.block} == 0, or w in fp8 with a scale per row or per {DEFAULT.block} "
            f"columns and {ROWS} rows or a multiple, or in packed4 with a scale per {DEFAULT.block} columns or a "
            f"multiple, and more than one in a row where there are zeros, got {x.aval} and {told(w)}; use "
            "linear.api.linear"
        )
    (out, depth), columns = w.shape, round_up(x.shape[0], 8)
    right = tuning.block == DEFAULT.block if weights.format else tuning.block % 64 == 0
    cut = _cut(columns, depth, out, tuning, weights) if right else None
    if cut is None:
        raise ValueError(
            f"block must be a multiple of 64, for quantized weights {DEFAULT.block}, block * splits divide K and "
            f"{columns} activations fit the shared memory, got w {told(w)} and {tuning}; use the default tuning"
        )
    pdl = tuning.pdl and interpret is None  # interpret mode knows no early launch
    return SmallConfig(columns, depth, out, x.dtype, cut, tuning.block, pdl, interpret, weights=weights, **neighbours)


def _cut(columns: int, depth: int, out: int, tuning: SmallTuning, weights: WeightForm) -> SmallCut | None:
    """Work for all multiprocessors at once, two CTAs each where they fit, in few splits; None: nothing fits."""
    item, tiles, gpu = 2, out // ROWS, tuning.gpu
    most_resident = weights.most_resident(columns)
    many = 330 if most_resident == MAX_PACKED_RESIDENT else 210
    wanted = gpu.scaled(96 if weights.bytes_of(depth) * tiles < SMALL else many)
    stage, most = weights.bytes_of(tuning.block), weights.most_stages
    found, best = None, -math.inf
    for splits in [tuning.splits] if tuning.splits else range(1, 9):
        if splits > 8 or depth % (tuning.block * splits):
            continue
        for at_once, (room, resident) in gpu.resident.items():
            if (at_once != tuning.resident) if tuning.resident else (at_once > most_resident):
                continue
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
                spare = max(gpu.shared_bytes // (at_once + 1) - least, 0) if weights.format else 0
                found, best = SmallCut(min(clusters, tiles), splits, stages, spare), worth
    return found
