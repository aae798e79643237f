"""How a file stores a tensor, where that is not how the model takes it.

A layout says which shape the file has (`file_shape`), which rows of it are touched for some of the model's (`touched`),
and reads those (`read`). Rows are along the first dimension of what the model takes.
"""

import dataclasses
from typing import Literal

import numpy as np

from jaxinfer.models.published import Packing
from jaxinfer_kernels.linear import packed4

Part = Literal["values", "scales", "zeros"]
_ONES = np.uint32(0x11111111)  # in each of a word's eight
IN_A_WORD = 8  # numbers of 4 bits in 32
_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight columns lies at each place of a word, from its lowest bits


@dataclasses.dataclass(frozen=True)
class FileLayout:
    """Rows, in an order.

    transposed: a matrix is [in, out].    order: of rows within each block of len(order), the file's row for each of the
    model's. So interleaved rotary pairs of heads of 4 are (0, 2, 1, 3).
    shared: rows of the model's that each are the same row of the file's.
    ones_may_be_left_out: of its shape in the file, as a number for all may be [], [1] or [1, 1].
    """

    transposed: bool = False
    order: tuple[int, ...] = ()
    shared: int = 1
    ones_may_be_left_out: bool = False

    def __post_init__(self) -> None:
        assert sorted(self.order) == list(range(len(self.order))), "an order names each row of a block once"
        assert self.shared == 1 or not (self.order or self.transposed), "what is shared is in order"

    def file_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of a tensor that is `shape` for the model."""
        stored = -(-shape[0] // self.shared), *shape[1:]
        return stored[::-1] if self.transposed else stored

    def takes(self, wanted: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Whether a tensor may have this shape where file_shape says another."""
        if not self.ones_may_be_left_out:
            return shape == wanted
        return [size for size in shape if size != 1] == [size for size in wanted if size != 1]

    def file_rows(self, rows: range) -> np.ndarray:
        """The file's row for each of these rows of the model's."""
        index = np.arange(rows.start, rows.stop) // self.shared
        if not self.order:
            return index
        within = index % len(self.order)
        return index - within + np.asarray(self.order)[within]

    def touched(self, rows: range, num_file_rows: int) -> range:
        """Rows of the file that are read for these of the model's.

        All of a tensor whose ones may be left out: its numbers may lie along any dimension.
        """
        if self.transposed or self.ones_may_be_left_out:
            return range(num_file_rows)
        wanted = self.file_rows(rows)
        return range(int(wanted.min()), int(wanted.max()) + 1)

    def read(self, source: np.ndarray, rows: range, rest: tuple[slice, ...]) -> np.ndarray:
        """These rows of the model's.    rest: what is wanted of each row.    source: the whole tensor as stored."""
        if self.ones_may_be_left_out:
            source = source.reshape(-1, *(part.stop for part in rest))
        source = source.T if self.transposed else source
        if self.order or self.shared > 1:
            return source[self.file_rows(rows)][(slice(None), *rest)]
        return source[(slice(rows.start, rows.stop), *rest)]


@dataclasses.dataclass(frozen=True)
class Int4Layout:
    """A part of a matrix of 4 bits, which the model takes in tiles of 64 rows (jaxinfer_kernels/linear/packed4.py).

    A word of 32 bits holds eight values: of a row's columns in [N, K] (compressed-tensors), of N in [K, N] (awq), or of
    K in [K, N] (gptq). Of fp4 a byte holds two of a row's, and four bytes are a word. A word of zeros holds those of
    eight rows. The first version of gptq stores words of zeros less 1 in each, as integers: where a zero is 0, it
    borrows from the next.
    """

    packing: Packing
    part: Part

    @property
    def _is_across(self) -> bool:
        """Whether the file has rows of the matrix along its last dimension."""
        return self.packing not in ("compressed-tensors", "fp4")

    def file_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        tiles, width, _ = shape
        rows = tiles * packed4.ROWS
        if self.part == "values":
            columns = width * 16
            if self.packing == "fp4":
                return rows, columns // 2
            if self.packing == "awq":
                return columns, rows // IN_A_WORD
            return (columns // IN_A_WORD, rows) if self._is_across else (rows, columns // IN_A_WORD)
        held = rows // IN_A_WORD if self.part == "zeros" else rows
        return (width, held) if self._is_across else (held, width)

    def takes(self, wanted: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        return shape == wanted

    def touched(self, rows: range, num_file_rows: int) -> range:
        if self._is_across:
            return range(num_file_rows)
        of_tile = packed4.ROWS // (IN_A_WORD if self.part == "zeros" else 1)
        return range(rows.start * of_tile, rows.stop * of_tile)

    def read(self, source: np.ndarray, rows: range, rest: tuple[slice, ...]) -> np.ndarray:
        is_along = self.part == "zeros" or (self.part == "values" and self.packing == "awq")
        of_tile = packed4.ROWS // (IN_A_WORD if is_along else 1)
        wanted = slice(rows.start * of_tile, rows.stop * of_tile)
        held = source[:, wanted] if self._is_across else source[wanted]
        if self.part == "scales":
            held = held.view("float8_e8m0fnu") if held.dtype == np.uint8 else held  # exponents, of MXFP4
            return self._by_tile(held.T if self._is_across else held)
        if self.part == "zeros" and self.packing == "gptq":
            held = held.view(np.uint32) + _ONES
        order = _AWQ if self.packing == "awq" else tuple(range(IN_A_WORD))
        is_last = is_along == self._is_across  # whether the eight numbers of a word follow each other in a row
        numbers = _unpacked(held, 1 if is_last else 0, order)
        numbers = numbers.T if self._is_across else numbers
        if self.part == "values":
            return packed4.pack(numbers)
        return self._by_tile(numbers)

    def _by_tile(self, parts: np.ndarray) -> np.ndarray:
        """[tiles, G, 64] of [N, G]."""
        return parts.reshape(-1, packed4.ROWS, parts.shape[1]).swapaxes(1, 2)


@dataclasses.dataclass(frozen=True)
class Int8Layout:
    """int8 as pack-quantized stores it: a word of 32 bits holds four of a row's, each as value + 128."""

    def file_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[0], -(-shape[1] // 4)

    def takes(self, wanted: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        return shape == wanted

    def touched(self, rows: range, num_file_rows: int) -> range:
        return rows

    def read(self, source: np.ndarray, rows: range, rest: tuple[slice, ...]) -> np.ndarray:
        numbers = source[rows.start : rows.stop].view(np.uint8)[(slice(None), *rest)]
        return (numbers ^ np.uint8(128)).view(np.int8)


def _unpacked(words: np.ndarray, axis: int, order: tuple[int, ...]) -> np.ndarray:
    """uint8: eight numbers of each word, along an axis of a matrix.    order: which of the eight lies at each place."""
    bits = words.view(np.uint32)  # of bytes, four at a time
    parts = np.empty((IN_A_WORD, *bits.shape), np.uint8)
    for place, number in enumerate(order):
        parts[number] = (bits >> np.uint32(4 * place)) & np.uint32(15)
    rows, columns = bits.shape
    if axis == 0:
        return parts.transpose(1, 0, 2).reshape(rows * IN_A_WORD, columns)
    return parts.transpose(1, 2, 0).reshape(rows, columns * IN_A_WORD)


type Layout = FileLayout | Int4Layout | Int8Layout
AS_STORED = FileLayout()
