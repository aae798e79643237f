"""Weights of 4 bits in the order in which a kernel for Hopper has them in registers.

values: int32 [N / 64, K / 16, 128]. A tile of 64 x 128 weights is 8 rows of 128 words, 4 KB one behind another. A
  warpgroup reads one in two loads of 16 bytes a thread: words [half, thread, i], half 0 .. 1, thread 0 .. 127,
  i 0 .. 3. A word is what the thread gives wgmma.m64nNk16 as its part of operand A, columns 64 * half + 16 * i of the
  tile and the 15 after (PTX ISA, fragments of wgmma): eight weights a0 .. a7, of which a[2j] lies at bit 4j and
  a[2j + 1] at bit 16 + 4j. So a shift by 4j and one mask leave a pair in the two halves of a register.
scales, zeros: [N / 64, K / group, 64], by tile, group and row; zeros are uint8, or None where each is 8.
A weight is scale * (value - zero), value 0 .. 15. Of fp4 a value is a code of e2m1, and a weight scale * what it stands
for.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, UInt8

ROWS, COLUMNS = 64, 128  # of a tile
ZERO = 8  # where none is stored
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)  # what each code stands for
# A row is 16 * warp + 8 * j0 + lane // 4, a column 64 * half + 16 * i + 8 * j1 + 2 * (lane % 4) + odd.
_ROW, _COLUMN = (4, 2, 8), (2, 4, 2, 4, 2)  # sizes of (warp, j0, lane // 4) and (half, i, j1, lane % 4, odd)
_WORDS = (0, 4, 5, 1, 3, 8, 6)  # of the two, behind one axis of tiles each: where the axes of words come from
_NIBBLES = (9, 7, 2)  # odd, j1, j0: a nibble is 4 * odd + 2 * j1 + j0


def supported(rows: int, columns: int) -> bool:
    return rows % ROWS == 0 and columns % COLUMNS == 0


def pack(values: np.ndarray) -> np.ndarray:
    """int32 [N / 64, K / 16, 128] of values u8[N, K], on a little-endian machine."""
    rows, columns = values.shape
    axes = np.ascontiguousarray(values).reshape(rows // ROWS, *_ROW, columns // COLUMNS, *_COLUMN)
    of_rows = axes[:, :, 0] | axes[:, :, 1] << 4  # j0
    both = of_rows[..., 0, :, :].astype(np.uint16, order="C")  # j1
    both |= of_rows[..., 1, :, :].astype(np.uint16) << 8
    words = both.view(np.int32)[..., 0]  # [tile, warp, lane // 4, tile, half, i, lane % 4]
    return words.transpose(0, 3, 4, 1, 2, 6, 5).reshape(rows // ROWS, columns // 16, 128)


def unpack(values: Int32[Array, "R C 128"]) -> UInt8[Array, "N K"]:
    """The inverse of pack, by XLA."""
    tiles, width, _ = values.shape
    warps, _, lanes = _ROW
    half, i, _, quarter, _ = _COLUMN
    words = values.reshape(tiles, width * 16 // COLUMNS, half, warps, lanes, quarter, i)
    shifts = jnp.arange(0, 32, 4, dtype=jnp.int32)
    nibbles = (jnp.right_shift(words[..., None], shifts) & 15).astype(jnp.uint8)
    axes = nibbles.reshape(*words.shape, 2, 2, 2)
    return axes.transpose(np.argsort((*_WORDS, *_NIBBLES))).reshape(tiles * ROWS, width * 16)


def widened(
    values: Int32[Array, "R C 128"], scales: Float[Array, "R G 64"], zeros: UInt8[Array, "R G 64"] | None
) -> Float[Array, "N K"]:
    """What the weights stand for, in float32."""
    whole = unpack(values).astype(jnp.float32)
    rows, columns = whole.shape
    groups = whole.reshape(rows, scales.shape[1], -1)
    zero = jnp.float32(ZERO) if zeros is None else by_row(zeros.astype(jnp.float32))[..., None]
    return ((groups - zero) * by_row(scales.astype(jnp.float32))[..., None]).reshape(rows, columns)


def widened_fp4(values: Int32[Array, "R C 128"], scales: Float[Array, "N G"]) -> Float[Array, "N K"]:
    """What codes of e2m1 stand for, in float32.    scales: in float32, by row."""
    whole = jnp.asarray(E2M1, jnp.float32)[unpack(values)]
    groups = whole.reshape(*scales.shape, -1)
    return (groups * scales[..., None]).reshape(whole.shape)


def by_row(parts: jax.Array) -> jax.Array:
    """[N, G] of scales or zeros."""
    return parts.swapaxes(1, 2).reshape(-1, parts.shape[1])
