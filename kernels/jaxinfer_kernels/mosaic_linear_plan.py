"""How one launch of the Mosaic linear layers is cut: what the caller may tune, and what follows from the shapes."""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.mosaic_decode_plan import CTAS_WANTED, Layout, round_up

ROWS = 64  # of a tile of weights, the wgmma's M
MAX_COLUMNS = 64  # activations of one launch
SMEM_BYTES = 232_448 - 1_024  # of a CTA; barriers and what the compiler reserves apart


@dataclasses.dataclass(frozen=True)
class Ahead:
    """Which columns of a later kernel's weights are brought into the L2: `start` to `stop` of each slice."""

    slices: int = 1  # equal parts of the inner dimension, as that kernel's `splits`
    start: int = 0
    stop: int = 0  # 0: to the end of the slice


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the work is cut. Results differ between tunings in rounding only."""

    splits: int = 0  # CTAs of a cluster that share a tile's inner dimension; 0: so that all multiprocessors have work
    clusters: int = 0  # that share the tiles; 0: one for each tile
    block: int = 128  # columns of weights copied at once: a multiple of 64
    stages: int = 4  # such copies in flight in one CTA
    pdl: bool = True  # start fetching weights while the kernel before this one still runs
    ahead: tuple[Ahead, ...] = ()  # one for each of the arrays `ahead`


DEFAULT = Tuning()


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static facts of one launch: f32[columns, out] = x [columns, depth] @ w.T, and what is done before and after."""

    columns: int
    depth: int
    out: int  # rows of w; gated: twice the columns of the result
    dtype: jnp.dtype
    out_dtype: jnp.dtype
    tuning: Tuning
    interpret: plgpu.InterpretGPUParams | None
    norm_eps: float | None = None  # norm x first
    after: Literal["bias", "residual", "silu"] | None = None

    @property
    def tiles(self) -> int:
        return self.out // ROWS

    @property
    def clusters(self) -> int:
        return min(self.tuning.clusters or self.tiles, self.tiles)

    @property
    def splits(self) -> int:
        """As given, or the fewest that give every multiprocessor a CTA; every card takes clusters of 8."""
        if self.tuning.splits:
            return self.tuning.splits
        blocks = self.depth // self.tuning.block
        fitting = [n for n in range(1, 9) if blocks % n == 0]
        return next((n for n in fitting if self.tiles * n >= CTAS_WANTED), fitting[-1])

    @property
    def blocks(self) -> int:
        """Copies that one CTA makes for one tile."""
        return self.depth // self.tuning.block // self.splits

    @property
    def stages(self) -> int:
        return min(self.tuning.stages, self.blocks * -(-self.tiles // self.clusters))

    @property
    def ctas(self) -> int:
        return self.clusters * self.splits

    @property
    def pdl(self) -> bool:
        return self.tuning.pdl and not self.interpret

    @property
    def smem_bytes(self) -> int:
        item = self.dtype.itemsize
        weights = self.stages * ROWS * self.tuning.block * item
        x = self.columns * self.blocks * self.tuning.block * item
        tile = ROWS * self.columns * ((item if self.after == "silu" else 0) + (4 if self.splits > 1 else 0))
        return weights + x + tile + self.depth // self.splits * item

    def check(self) -> None:
        """Raises ValueError for tunings that cannot run."""
        block, splits = self.tuning.block, self.splits
        if block % 64 or self.depth % (block * splits):
            raise ValueError(
                f"block must be a multiple of 64 and block * splits divide {self.depth}, got {self.tuning}"
            )
        if self.tuning.stages < 1 or splits > 8:
            raise ValueError(f"stages must be at least 1 and splits at most 8, got {self.tuning}")
        if self.smem_bytes > SMEM_BYTES:
            raise ValueError(
                f"{self.columns} activations of {self.depth} with {self.tuning} need {self.smem_bytes} bytes of shared "
                f"memory, {SMEM_BYTES} are there; use more splits or fewer stages"
            )


def supported(rows: int, out_features: int, in_features: int, dtype: jnp.dtype) -> bool:
    """Whether these kernels can run w [out_features, in_features] on that many rows; else use linear.linear."""
    if dtype not in (jnp.bfloat16, jnp.float16) or out_features % ROWS or in_features % DEFAULT.block:
        return False
    columns = round_up(rows, 8)
    if columns > MAX_COLUMNS:
        return False
    dtype = jnp.dtype(dtype)
    return Plan(columns, in_features, out_features, dtype, dtype, DEFAULT, None).smem_bytes <= SMEM_BYTES


def row_layout(width: int) -> Layout:
    """A tile [8 n, width] spread so that a warp holds two whole rows: sums along them stay inside it.

    No lane holds 32 bits of bf16: for those jax 0.11.2 turns to ldmatrix, which is made for the layouts of wgmma.
    """
    lanes = 16 if width == 64 else 32  # of a row; 4 values a lane of 64 columns, 1 of 32
    tiling = plgpu.Tiling(((8, width), (2, width), (width // lanes,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-5,), lane_dims=(-2,) if lanes == 32 else (-3, -2), vector_dim=-1)


def operand(shape: tuple[int, ...], dtype: jnp.dtype) -> object:
    """Shared memory laid out as the wgmma wants it."""
    return plgpu.SMEM(shape, dtype, transforms=(plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)))


def plan_launch(x: jax.Array, w: jax.Array, plan: Plan) -> Plan:
    """plan, if x and w are of its kind. Raises ValueError otherwise."""
    fits = x.ndim == w.ndim == 2 and x.shape[1] == w.shape[1] and x.dtype == w.dtype
    if not fits or not supported(x.shape[0], *w.shape, x.dtype):
        raise ValueError(
            f"the Mosaic linear layers need x [T, K] with T <= {MAX_COLUMNS} and w [N, K], both bf16 or f16, with "
            f"N % {ROWS} == 0 and K % {DEFAULT.block} == 0, got {x.aval} and {w.aval}; use linear.linear"
        )
    plan.check()
    return plan


def pieces_ahead(ahead: Ahead, shape: tuple[int, int]) -> tuple[int, int]:
    """Columns of one piece of 64 rows, which the copy engine takes at once, and how many pieces a row of slices has."""
    stop = ahead.stop or shape[1] // ahead.slices
    width = math.gcd(stop - ahead.start, 256)
    return width, (stop - ahead.start) // width
