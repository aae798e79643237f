"""Weights of 4 bits, as packed4.py packs them, widened in the registers from which a wgmma takes them (Mosaic GPU).

Pallas has no operation for that, so the instructions are written here, 11 for 8 weights: a shift by 4j and one mask
leave a pair of weights in the two halves of a register, where they are the last bits of 128 + value in bfloat16, or of
1024 + value in float16. From that, the same with the value that stands for 0 is subtracted, which is exact.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.linear import packed4
from jaxinfer_kernels.linear.packed4 import COLUMNS, ROWS, ZERO
from jaxinfer_kernels.sm90 import F32, I32, Ref, Smem

WORDS = ROWS * COLUMNS // 8 // 128  # rows of 128 words that a tile has
HALF = WORDS // 2  # those of half of its columns
GROUPS = 2  # of rows, whose zeros are copied together
# The bits of a number to whose last bits a value of 0 .. 15 may be added, in both halves of a register.
_BASES = {jnp.dtype(jnp.bfloat16): 0x4300_4300, jnp.dtype(jnp.float16): 0x6400_6400}


def scratch(stages: int, parts: int, *, has_zeros: bool) -> dict[str, Any]:
    """Shared memory for tiles on their way.

    parts: matrices of which a tile has rows: 1, or 2 with half of them each.
    """
    smem = dict(w=plgpu.SMEM((stages, WORDS, 128), I32), scales=plgpu.SMEM((stages, ROWS), F32))
    if has_zeros:
        smem["zeros"] = plgpu.SMEM((stages, parts, GROUPS, ROWS), jnp.uint8)
    return smem


def copies(parts: int, *, has_zeros: bool) -> int:
    """That `copy` makes for all parts of a tile."""
    return (1 if parts == 1 else 4) + parts * (1 + has_zeros)


@dataclasses.dataclass(frozen=True)
class TilePart:
    """Of a part of a tile, and of the scales of its rows.

    first: its first row in the matrix.    part: its number, of `parts`.    number: of the tile among those beside it.
    shared: columns that share a scale.    groups: that there are of them.
    """

    first: jax.Array
    part: int
    parts: int
    number: jax.Array
    shared: int
    groups: int

    @property
    def rows(self) -> int:
        return ROWS // self.parts

    @property
    def tile(self) -> jax.Array:
        return lax.div(self.first, I32(ROWS))

    @property
    def row(self) -> jax.Array:
        """The first of the tile's."""
        return lax.rem(self.first, I32(ROWS))

    @property
    def group(self) -> jax.Array:
        return lax.div(self.number * COLUMNS, I32(self.shared))

    @property
    def brought(self) -> jax.Array:
        """The first of the GROUPS whose zeros are copied: those of one have too few bytes for a copy."""
        return jnp.minimum(self.group, self.groups - GROUPS)


def copy(ref: Smem, smem: Smem, slot: jax.Array, ready: Ref, at: TilePart) -> None:
    """Start copying a part of a tile.    ref, smem: w, scales and perhaps zeros."""
    words, into = at.number * WORDS, smem["w"].at[slot]
    if at.parts == 1:
        plgpu.copy_gmem_to_smem(ref["w"].at[at.tile, pl.ds(words, WORDS)], into, ready)
    else:
        few = HALF // 2  # rows of words: two warps have half of a tile's rows
        source = words + lax.div(at.row, I32(at.rows)) * few
        for half in (0, HALF):
            part = into.at[pl.ds(half + at.part * few, few)]
            plgpu.copy_gmem_to_smem(ref["w"].at[at.tile, pl.ds(source + half, few)], part, ready)
    scales = smem["scales"].at[slot, pl.ds(at.part * at.rows, at.rows)]
    plgpu.copy_gmem_to_smem(ref["scales"].at[at.tile, at.group, pl.ds(at.row, at.rows)], scales, ready)
    if "zeros" in smem:
        source = ref["zeros"].at[at.tile, pl.ds(at.brought, GROUPS)]
        plgpu.copy_gmem_to_smem(source, smem["zeros"].at[slot, at.part], ready)


def widened(smem: Smem, slot: jax.Array, places: Sequence[TilePart], dtype: jnp.dtype, *, interpret: bool) -> jax.Array:
    """value - zero of a tile's weights, [ROWS, COLUMNS] in the layout of a wgmma's left operand.

    places: of the tile's parts.
    """
    words, zeros = smem["w"].at[slot], []
    if "zeros" in smem:
        zeros = [smem["zeros"].at[slot, at.part, at.group - at.brought, pl.ds(at.row, at.rows)] for at in places]
    if interpret:
        values = packed4.unpack(words[...][None]).astype(jnp.float32)
        if not zeros:
            return (values - ZERO).astype(dtype)
        return (values - jnp.concatenate([zero[...] for zero in zeros]).astype(jnp.float32)[:, None]).astype(dtype)
    inline = plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(),) * (1 + len(zeros)),
        return_type=plgpu.ShapeDtypeStruct((ROWS, COLUMNS), dtype, layout=plgpu.Layout.WGMMA),
    )
    return inline(functools.partial(_widen, dtype))(words, *zeros)


def _widen(dtype: jnp.dtype, _context: Any, words: Any, *zeros: Any) -> Any:
    """The same of references in MLIR; those of zeros have half of the rows each if there are two.

    A word has rows r and r + 8, and of 16 columns c, c + 1, c + 8 and c + 9.
    """
    from jax.experimental.mosaic import gpu as mgpu
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import arith, llvm, memref, vector

    i32, index = ir.IntegerType.get_signless(32), ir.IndexType.get()
    pair = ir.VectorType.get((2,), {jnp.bfloat16: ir.BF16Type, jnp.float16: ir.F16Type}[dtype.type].get())

    def number(value: int) -> Any:
        return mgpu.c(value, i32)

    def place(value: Any) -> Any:
        return arith.index_cast(index, value)

    def pair_of(bits: Any) -> Any:
        return vector.bitcast(pair, vector.broadcast(ir.VectorType.get((1,), i32), bits))

    base = number(_BASES[dtype])
    thread = arith.andi(mgpu.thread_idx(), number(127))
    warp, lane = arith.shrui(thread, number(5)), arith.andi(thread, number(31))

    def zero_of(below: int) -> Any:
        """Of the row that this thread has, or of the one that lies so many below."""
        if not zeros:
            return pair_of(number(_BASES[dtype] | ZERO << 16 | ZERO))
        row = arith.addi(arith.muli(warp, number(16)), arith.addi(arith.shrui(lane, number(2)), number(below)))
        found = [memref.load(part, [place(arith.andi(row, number(ROWS // len(zeros) - 1)))]) for part in zeros]
        if len(zeros) > 1:
            is_first = arith.cmpi(arith.CmpIPredicate.ult, row, number(ROWS // 2))
            found = [arith.select(is_first, *found)]
        return pair_of(arith.ori(base, arith.muli(arith.extui(i32, found[0]), number(1 << 16 | 1))))

    zero_of_rows = [zero_of(0), zero_of(8)]
    four = ir.VectorType.get((4,), i32)
    layout = mgpu.WGMMA_LAYOUT
    registers = np.empty(layout.registers_shape((ROWS, COLUMNS)), object)
    for half in range(2):
        row = place(arith.addi(warp, number(half * HALF)))
        loaded = vector.load(four, words, [row, place(arith.muli(lane, number(4)))])
        for i in range(4):
            word = vector.extract(loaded, [], [i])
            for j in range(4):
                shifted = arith.shrui(word, number(4 * j)) if j else word
                # (shifted & mask) | base: written with two operations, it becomes two
                both = llvm.inline_asm(i32, [shifted, base], "lop3.b32 $0, $1, 0x000f000f, $2, 0xea;", "=r,r,r")
                value = pair_of(both)
                eight = (half * 4 + i) * 2 + j // 2  # of columns
                registers[0, eight, 0, 0, j % 2, 0, 0, 0, 0] = arith.subf(value, zero_of_rows[j % 2])
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)
