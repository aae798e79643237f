"""Weights of linear layers in fewer bits than they were trained in, and how they lie in memory.

fp8: float8_e4m3fn [N, K] as checkpoints publish them, and float32 scales [N / R, K / C] rounded up: a block of R x C
  weights has one, a weight is scale * value. Blocks are 128 x 128, or a row with R of 1 and C of K. Members of a fused
  matrix may have fewer rows than blocks have: R then divides them all, and a scale is there several times.
int8: each row of a matrix has one scale in float32; a weight is scale * value of int8 [N, K].
  What is rounded here has values -127 .. 127, what checkpoints publish -128 too.
int4: each 32 weights of a row have one scale in bfloat16, [N, K / 32]; a weight is scale * (value - 8), value 0 .. 15.
  A byte of uint8 [N, K / 2] holds two: byte i of a group's 16 its value i in the lower half, and its value 16 + i.
packed4: as checkpoints of 4 bits are held, in tiles: packed4.py.
fp4: the same tiles with codes of e2m1. Scales are float8_e4m3fn, and each is multiplied or divided by that of its row,
  float32 [N] (NVFP4), or float8_e8m0fnu (MXFP4).
"""

import dataclasses
import enum
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer_kernels.linear import packed4

GROUP = 32  # weights of int4 that share a scale


class Format(enum.StrEnum):
    """How weights are held."""

    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    PACKED4 = "packed4"
    FP4 = "fp4"

    def fits(self, columns: int) -> bool:
        """Whether rows of so many columns can be held so."""
        return self is not Format.INT4 or columns % GROUP == 0

    @property
    def is_tiled(self) -> bool:
        """Whether values are words in tiles (packed4.py)."""
        return self in (Format.PACKED4, Format.FP4)


ROUNDED = (Format.INT8, Format.INT4)  # what `quantize` makes


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["values", "scales", "zeros", "of_rows"],
    meta_fields=["format", "dtype", "block", "divides"],
)
@dataclasses.dataclass(frozen=True)
class Quantized:
    """A matrix [N, K] of weights in a format.

    dtype: of what they stand for, where they are looked up or widened; None: of what they are multiplied by.
    block: rows and columns that share a scale of fp8.    zeros: of packed4, which value stands for 0; None: 8 does.
    of_rows: of fp4, what the scales of each row are multiplied by, or divided by where it divides; None: as they are.
    """

    values: Any
    scales: Any
    format: Format
    dtype: Any = None
    block: tuple[int, int] = (1, 1)
    zeros: Any = None
    of_rows: Any = None
    divides: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        if self.format.is_tiled:
            return self.values.shape[0] * packed4.ROWS, self.values.shape[1] * 16
        rows, width = self.values.shape
        return rows, 2 * width if self.format is Format.INT4 else width

    @property
    def ndim(self) -> int:
        return 2

    def __getitem__(self, rows: jax.Array) -> Float[Array, "T K"]:
        """Some rows, as an embedding takes them."""
        return dataclasses.replace(self, values=self.values[rows], scales=self.scales[rows]).widened(self.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def widened(self, dtype: jax.typing.DTypeLike) -> Float[Array, "N K"]:
        """What the weights stand for, rounded to a dtype."""
        if self.format is Format.FP8:
            return (self.values.astype(jnp.float32) * self._scale_of_each()).astype(dtype)
        if self.format is Format.PACKED4:
            return packed4.widened(self.values, self.scales, self.zeros).astype(dtype)
        if self.format is Format.FP4:
            scales = packed4.by_row(self.scales.astype(jnp.float32))
            if self.of_rows is not None:
                # Where XLA sees that a row has one divisor, it multiplies by the rounded inverse.
                of_rows = jax.lax.optimization_barrier(jnp.broadcast_to(self.of_rows[:, None], scales.shape))
                scales = scales / of_rows if self.divides else scales * of_rows
            return packed4.widened_fp4(self.values, scales).astype(dtype)
        if self.format is Format.INT8:
            values, scales = self.values.astype(jnp.float32), self.scales[:, None]
            return (values * scales).astype(dtype)
        groups = self.values.reshape(len(self), -1, GROUP // 2)
        both = jnp.concatenate([groups & 15, groups >> 4], axis=-1).astype(jnp.float32) - 8
        return (both * self.scales[..., None].astype(jnp.float32)).astype(dtype).reshape(self.shape)

    def rows(self, first: int, stop: int) -> "Quantized":
        """Some of the rows of what is published; first is a multiple of the block's or tile's."""
        if self.format.is_tiled:
            tiles = slice(first // packed4.ROWS, stop // packed4.ROWS)
            parts = {name: getattr(self, name) for name in ("values", "scales", "zeros")}
            held = {name: part[tiles] for name, part in parts.items() if part is not None}
            if self.of_rows is not None:
                held["of_rows"] = self.of_rows[first:stop]
            return dataclasses.replace(self, **held)
        of_block = self.block[0]
        scales = self.scales[first // of_block : -(-stop // of_block)]
        return dataclasses.replace(self, values=self.values[first:stop], scales=scales)

    def _scale_of_each(self) -> Float[Array, "N K"]:
        """Of fp8."""
        (rows, columns), scales = self.shape, self.scales
        if self.block[0] > 1:
            scales = jnp.repeat(scales, self.block[0], axis=0)[:rows]
        if scales.shape[1] == 1:
            return scales
        return jnp.repeat(scales, self.block[1], axis=1)[:, :columns]


def scales_fit(block: tuple[int, int], columns: int) -> bool:
    """Whether kernels that take 64 rows and 128 columns of fp8 at once find a scale for each row, or one for all.

    block: rows and columns that share a scale.    columns: of the matrix.
    """
    return block == (1, columns) or (block[1] == 128 and block[0] % 64 == 0)


def told(w: "jax.Array | Quantized") -> str:
    """Its format and shape, for people."""
    return f"{w.format}[{w.shape[0]},{w.shape[1]}]" if isinstance(w, Quantized) else str(w.aval)


def quantized_shapes(shape: tuple[int, int], kind: Format, dtype: Any, **more: Any) -> Quantized:
    """Of a matrix of this shape, without arrays.    more: of jax.ShapeDtypeStruct."""
    rows, columns = shape
    made = functools.partial(jax.ShapeDtypeStruct, **more)
    if kind is Format.INT8:
        return Quantized(made((rows, columns), jnp.int8), made((rows,), jnp.float32), kind, dtype)
    scales = made((rows, columns // GROUP), jnp.bfloat16)
    return Quantized(made((rows, columns // 2), jnp.uint8), scales, kind, dtype)


@functools.partial(jax.jit, static_argnames=("kind", "dtype"))
def quantize(weights: Float[Array, "N K"], kind: Format, dtype: Any) -> Quantized:
    """Round weights to the nearest that a format has. A NaN or an infinity makes all of its scale's weights NaN."""
    wide = weights.astype(jnp.float32)
    if kind is Format.INT8:
        scales = _finite(wide, jnp.max(jnp.abs(wide), axis=1) / 127)
        values = jnp.round(wide * _inverse(scales)[:, None])
        return Quantized(jnp.clip(values, -127, 127).astype(jnp.int8), scales, kind, dtype)
    groups = wide.reshape(wide.shape[0], -1, GROUP)
    # The weight that is farthest from 0 becomes -8, the value that has no counterpart: the scale may be negative.
    least, most = groups.min(axis=-1), groups.max(axis=-1)
    farthest = jnp.where(-least > most, least, most)
    scales = _finite(groups, farthest / -8).astype(jnp.bfloat16)
    values = jnp.round(groups * _inverse(scales.astype(jnp.float32))[..., None]) + 8
    values = jnp.clip(values, 0, 15).astype(jnp.uint8)
    packed = values[..., : GROUP // 2] | values[..., GROUP // 2 :] << 4
    return Quantized(packed.reshape(wide.shape[0], -1), scales, kind, dtype)


def _finite(weights: jax.Array, scales: jax.Array) -> jax.Array:
    """NaN where a weight is not finite: XLA's maxima on CPUs may leave NaN out."""
    return jnp.where(jnp.isfinite(weights).all(axis=-1), scales, jnp.nan)


def _inverse(scales: jax.Array) -> jax.Array:
    """1 / scale; 0 of a scale that is 0 or none, so that its values are 0 in any case."""
    is_usable = jnp.isfinite(scales) & (jnp.abs(scales) > 1e-35)
    return jnp.where(is_usable, 1 / jnp.where(is_usable, scales, 1), 0)
