"""Products of many rows in fp8, activations and weights, for Hopper (Mosaic GPU).

Each row of x is rounded to fp8 with a scale of its own (`rounded`). One CTA a multiprocessor takes tile after tile: 128
or 192 rows by 128 rows of weights, of which 64 are gate's and 64 up's if there is a gate. One warpgroup copies blocks
of 128 of the inner dimension through a ring and runs ahead into the next tile; the others multiply 64 rows each. A sum
of fp8 products keeps some 14 bits, so each block's products are added to a sum in float32, times the weights' scale.
Bound by compute: 2 T N K floating point operations at what wgmma runs at in fp8; that is our bar.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float8e4m3fn

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.linear.quantized import Format, Quantized, scales_fit
from jaxinfer_kernels.sm90 import (
    F32,
    H200,
    I32,
    HopperGpu,
    Ref,
    Smem,
    compiler_params,
    free_stage,
    named,
    operand,
    store_tile,
    swiglu,
)

ROWS = 64  # of one warpgroup, the wgmma's M
COLUMNS = 128  # rows of weights in a tile
BLOCK = 128  # of the inner dimension, in one step: what a scale of a block is for
FP8 = jnp.float8_e4m3fn
LARGEST = float(jnp.finfo(FP8).max)


@dataclasses.dataclass(frozen=True)
class W8A8Tuning:
    """How the work is cut and ordered; results are the same bits whatever it says."""

    warpgroups: int = 0  # that multiply; 0: two or three, whichever has less to do
    stages: int = 0  # blocks in flight; 0: as many as there is room for
    group: int = 8  # tiles of rows whose columns are taken together, so that both stay in the L2
    gpu: HopperGpu = H200


DEFAULT = W8A8Tuning()


@dataclasses.dataclass(frozen=True)
class W8A8Config:
    """Static facts of one launch.    shared: rows of weights with one scale per block; None: each row has its own."""

    rows: int
    depth: int
    out: int
    gated: bool
    shared: int | None
    dtype: jnp.dtype
    tuning: W8A8Tuning
    interpret: "plgpu.InterpretGPUParams | None"

    @property
    def warpgroups(self) -> int:
        return self.tuning.warpgroups or min((2, 3), key=self._cost)

    def _cost(self, warpgroups: int) -> float:
        """Rows that the busiest multiprocessor works through. Three warpgroups take 6 % less time for each."""
        tiles = -(-self.rows // (ROWS * warpgroups)) * self.columns
        rounds = -(-tiles // self.tuning.gpu.multiprocessors)
        return rounds * warpgroups * (0.94 if warpgroups == 3 else 1)

    @property
    def tile_rows(self) -> int:
        return ROWS * self.warpgroups

    @property
    def row_tiles(self) -> int:
        """The last one may be cut off: what it lacks is zeros, and is not stored."""
        return -(-self.rows // self.tile_rows)

    @property
    def width(self) -> int:
        """Columns of the result in a tile."""
        return COLUMNS // 2 if self.gated else COLUMNS

    @property
    def columns(self) -> int:
        """Tiles that share rows of x."""
        return self.out // self.width

    @property
    def tiles(self) -> int:
        return self.row_tiles * self.columns

    @property
    def ctas(self) -> int:
        return min(self.tuning.gpu.multiprocessors, self.tiles)

    @property
    def blocks(self) -> int:
        return self.depth // BLOCK

    @property
    def stages(self) -> int:
        room = self.tuning.gpu.shared_bytes - self.tile_rows * self.width * 2 - 1024
        return self.tuning.stages or room // ((self.tile_rows + COLUMNS) * BLOCK)

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that copies, and of one that multiplies."""
        return (24, 160) if self.warpgroups == 3 else (40, 232)

    @property
    def parts(self) -> int:
        """Of a tile's weights, one behind another in memory and with one scale per block."""
        return 2 if self.gated or (self.shared or COLUMNS) % COLUMNS else 1

    def first(self, part: int, column: jax.Array) -> jax.Array:
        """The first row of weights of a part of a tile whose result begins at this column."""
        return column + part * (self.out if self.gated else COLUMNS // 2)

    def place(self, tile: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The first row and column of a tile: through the columns with `group` tiles of rows, then with the next."""
        of_band = I32(self.tuning.group * self.columns)
        first = lax.div(tile, of_band) * self.tuning.group
        inside, high = lax.rem(tile, of_band), jnp.minimum(self.tuning.group, self.row_tiles - first)
        return (first + lax.rem(inside, high)) * self.tile_rows, lax.div(inside, high) * self.width


def rounded(x: Float[Array, "T K"]) -> tuple[Float8e4m3fn[Array, "T K"], Float[Array, " T"]]:
    """x in fp8, and the scale of each row, f32: its largest value becomes the largest code. By XLA."""
    wide = x.astype(F32)
    scale = jnp.max(jnp.abs(wide), axis=1) / LARGEST
    inverse = jnp.where(scale < jnp.finfo(F32).tiny, 0, 1 / scale)
    return (wide * inverse[:, None]).astype(FP8), scale


@functools.partial(jax.jit, static_argnames=("dtype", "gated", "tuning", "interpret"))
def product(
    x: Float8e4m3fn[Array, "T K"],
    scale: Float[Array, " T"],
    w: Quantized,
    *,
    dtype: DTypeLike,
    gated: bool = False,
    tuning: W8A8Tuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> Float[Array, "T N"]:
    """x @ w.T of rows as `rounded` makes them, or silu(gate) * up of it, in f32, then rounded to dtype.

    w: [N, K] in fp8, or if gated [2N, K], the rows of gate, then of up.
    """
    if w.format is not Format.FP8 or x.shape[1] != w.shape[1] or not supported(*w.shape, dtype, w.block):
        raise ValueError(
            f"the product in fp8 needs x [T, K] and w [N, K], K a multiple of {BLOCK}, N of {COLUMNS}, w with a scale "
            f"per row or per 128 columns, and bf16 or f16 to make, got {x.aval}, {w.format}{list(w.shape)} in blocks "
            f"of {w.block} and {jnp.dtype(dtype)}; use linear.xla.linear"
        )
    out = w.shape[0] // 2 if gated else w.shape[0]
    shared = None if w.block[0] == 1 else w.block[0]
    plan = W8A8Config(len(x), x.shape[1], out, gated, shared, jnp.dtype(dtype), tuning, interpret)
    missing = plan.row_tiles * plan.tile_rows - plan.rows
    return _launch(plan)(x, jnp.pad(scale, (0, missing)), w.values, w.scales)


def supported(out_features: int, in_features: int, dtype: DTypeLike, block: tuple[int, int]) -> bool:
    """Whether this kernel can run w [out_features, in_features].    block: rows and columns that share a scale."""
    fits = out_features % COLUMNS == in_features % BLOCK == 0
    return fits and scales_fit(block, in_features) and dtype in (jnp.bfloat16, jnp.float16)


def _launch(plan: W8A8Config) -> Callable[..., jax.Array]:
    stages, warpgroups = plan.stages, plan.warpgroups
    smem = dict(
        x=operand((stages, warpgroups, ROWS, BLOCK), FP8),
        w=operand((stages, COLUMNS, BLOCK), FP8),
        out=operand((warpgroups, ROWS, plan.width), plan.dtype),
        ready=plgpu.Barrier(num_arrivals=warpgroups + plan.parts, num_barriers=stages),
        free=plgpu.Barrier(num_arrivals=warpgroups, num_barriers=stages),
    )
    return plgpu.kernel(
        named("prompt_fp8_gate_up" if plan.gated else "prompt_fp8", functools.partial(_kernel, plan)),
        out_type=jax.ShapeDtypeStruct((plan.rows, plan.out), plan.dtype),
        scratch_types=smem,
        grid=(plan.ctas,),
        grid_names=("first",),
        num_threads=warpgroups + 1,
        thread_name="warpgroup",
        interpret=plan.interpret,
        compiler_params=compiler_params(),
    )


def _kernel(plan: W8A8Config, x_ref: Ref, x_scales: Ref, w_ref: Ref, w_scales: Ref, out_ref: Ref, **smem: Ref) -> None:
    """x [T, K] and its scales, w [N, K] and its scales by block or row, out [T, columns]."""
    first, warpgroup = lax.axis_index("first"), lax.axis_index("warpgroup")
    count = lax.div(plan.tiles - 1 - first, I32(plan.ctas)) + 1  # tiles of this CTA

    @pl.when(warpgroup == plan.warpgroups)
    def _():
        if not plan.interpret:
            plgpu.set_max_registers(plan.registers[0], action="decrease")

        def copy(i: jax.Array, _: None) -> None:
            row, column = plan.place(first + i * plan.ctas)
            one = functools.partial(_copy_block, plan, smem, x_ref, w_ref, i, row, column)
            lax.fori_loop(0, plan.blocks, one, None)

        lax.fori_loop(0, count, copy, None)

    @pl.when(warpgroup < plan.warpgroups)
    def _():
        if not plan.interpret:
            plgpu.set_max_registers(plan.registers[1], action="increase")

        def compute(i: jax.Array, _: None) -> None:
            row, column = plan.place(first + i * plan.ctas)
            row = row + warpgroup * ROWS
            total = _product(plan, smem, w_scales, warpgroup, column, i, count)
            of_rows = plgpu.load(x_scales.at[pl.ds(row, ROWS)], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
            total = total * lax.broadcast_in_dim(of_rows, total.shape, [0])
            if plan.shared is None:
                total = total * _of_each_row(plan, w_scales, column)
            if plan.gated:
                total = swiglu(total[:, : plan.width], total[:, plan.width :])
            place = out_ref.at[pl.ds(row, ROWS), pl.ds(column, plan.width)]
            store_tile(smem["out"].at[warpgroup], total.astype(plan.dtype), place)

        lax.fori_loop(0, count, compute, None)
        plgpu.wait_smem_to_gmem(0)


def _copy_block(
    plan: W8A8Config,
    smem: Smem,
    x_ref: Ref,
    w_ref: Ref,
    i: jax.Array,
    row: jax.Array,
    column: jax.Array,
    block: jax.Array,
    _: None,
) -> None:
    """Start copying a block of this CTA's i-th tile, once nobody reads the one before it in that stage."""
    stage = free_stage(smem["free"], i * plan.blocks + block, plan.stages)
    inner, ready, height = pl.ds(block * BLOCK, BLOCK), smem["ready"].at[stage], COLUMNS // plan.parts
    for part in range(plan.parts):
        source = w_ref.at[pl.ds(plan.first(part, column), height), inner]
        plgpu.copy_gmem_to_smem(source, smem["w"].at[stage, pl.ds(part * height, height)], ready)
    for j in range(plan.warpgroups):
        plgpu.copy_gmem_to_smem(x_ref.at[pl.ds(row + j * ROWS, ROWS), inner], smem["x"].at[stage, j], ready)


def _product(
    plan: W8A8Config,
    smem: Smem,
    w_scales: Ref,
    warpgroup: jax.Array,
    column: jax.Array,
    i: jax.Array,
    count: jax.Array,
) -> jax.Array:
    """f32[ROWS, COLUMNS] of this CTA's i-th tile of `count`, without the scales of rows."""

    def step(block: jax.Array, total: jax.Array) -> jax.Array:
        now = i * plan.blocks + block
        stage = lax.rem(now, I32(plan.stages))
        # Asked for before the product, needed behind it.
        scale = None if plan.shared is None else _of_block(plan, w_scales, column, block)
        plgpu.barrier_wait(smem["ready"].at[stage])

        def multiply(part: Ref) -> jax.Array:
            plgpu.wgmma(part, smem["x"].at[stage, warpgroup], smem["w"].at[stage].transpose((1, 0)))
            plgpu.wgmma_wait(0)
            return part[...]

        part = pl.run_scoped(multiply, plgpu.ACC((ROWS, COLUMNS), F32))
        wanted = now + plan.stages < count * plan.blocks  # there is something left to fill the stage with
        pl.when(wanted)(functools.partial(plgpu.barrier_arrive, smem["free"].at[stage]))
        return total + (part if scale is None else part * scale)

    zeros = plgpu.layout_cast(jnp.zeros((ROWS, COLUMNS), F32), plgpu.Layout.WGMMA)
    return lax.fori_loop(0, plan.blocks, step, zeros)


def _of_block(plan: W8A8Config, scales: Ref, column: jax.Array, block: jax.Array) -> jax.Array:
    """The scale of a tile's weights in a block, f32[ROWS, COLUMNS] where its parts have one each."""
    assert plan.shared is not None
    firsts = [plan.first(part, column) for part in range(plan.parts)]
    found = [scales[lax.div(first, I32(plan.shared)), block] for first in firsts]
    if plan.parts == 1:
        return found[0]
    columns = plgpu.broadcasted_iota(I32, (ROWS, COLUMNS), 1, layout=plgpu.Layout.WGMMA)
    return jnp.where(columns < COLUMNS // 2, *found)


def _of_each_row(plan: W8A8Config, scales: Ref, column: jax.Array) -> jax.Array:
    """f32[ROWS, COLUMNS]: the scale of the row of weights that each column of a tile is of."""
    height, layout = COLUMNS // plan.parts, plgpu.Layout.WGMMA
    firsts = [plan.first(part, column) for part in range(plan.parts)]
    found = [
        plgpu.load(scales.at[pl.ds(first, height), 0], layout=layout.reduce(0), optimized=False) for first in firsts
    ]
    parts = [lax.broadcast_in_dim(one, (ROWS, height), [1]) for one in found]
    return parts[0] if plan.parts == 1 else lax.concatenate(parts, 1)
