"""MaskTable: the host's side of the masks that lie on the device: a step names them instead of bringing them."""

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

MAX_SHARED, MAX_BYTES = 4096, 32 << 20  # masks that lie on the device for all
MAX_KEYS = 1 << 15  # where answers have been
ANY = -1  # in the place of a row: anything may be drawn. Row 0 is padding's


@dataclasses.dataclass(slots=True)
class Masks:
    """What the masked rows of a step may draw: rows of a table that stays on the device until `reset`.

    rows: i32[masked rows], in the order of the rows; -1: anything.    news: i32[n], rows of the table that are written
    first, none twice.    words: i32[n, ceil(V / 32)], what with: a bit for each token that may be drawn, the lowest
    first. From `draw` on nobody may change them.
    """

    rows: np.ndarray
    news: np.ndarray
    words: np.ndarray


def mask_rows(vocab_size: int, max_num_seqs: int) -> tuple[int, int]:
    """How many rows of the device's table of masks answers share, padding's included, and how many are for one step."""
    fitting = MAX_BYTES // (4 * -(-vocab_size // 32))
    return max(min(fitting, MAX_SHARED), max_num_seqs + 1) + 1, max_num_seqs


class MaskTable:
    """Masks that answers may share, and behind them room for one of each row's own.

    Places by the thousand have the same few masks: a key says where an answer is, its row what may come there.
    words: i32[rows, ceil(V / 32)], what lies on the device once the next `Masks` has come there.    views: its rows, to
    read one word in a fifth of numpy's time.    only_one: bool[rows], whether a mask leaves one token. Row 0 is
    padding's.
    """

    def __init__(self, vocab_size: int, max_num_seqs: int) -> None:
        num_shared, num_own = mask_rows(vocab_size, max_num_seqs)
        rows = num_shared + num_own
        self.words = np.empty((rows, -(-vocab_size // 32)), np.int32)  # takes no memory until it is written
        self.views = [memoryview(row) for row in self.words]
        self.only_one = np.zeros(rows, bool)
        self._first_own = num_shared
        self._asked = np.zeros(num_shared, np.int64)  # in which step each was asked for last
        self._now = 0
        self.clear()

    def clear(self) -> None:
        """The device has forgotten all."""
        self._rows: dict[Hashable, int] = {}
        self._same: dict[int, int] = {}  # rows by the hash of what is in them
        self._hashes = [0]  # by row, and the keys of each
        self._keys: list[list[Hashable]] = [[]]
        self._news: list[int] = []

    def begin(self, keys: Sequence[Hashable]) -> list[int]:
        """A step's first look: the rows of what is there, ANY for what is not, as None. None goes before the next."""
        find = self._rows.get
        rows = [find(key, ANY) for key in keys]
        self._now += 1
        self._asked[[row for row in rows if row != ANY]] = self._now
        return rows

    def add(self, key: Hashable, mask: np.ndarray) -> int:
        """The row of a key that was not there. One like it may be; else it takes the place of what nobody has asked for
        longest."""
        content = hash(mask.tobytes())
        row = self._same.get(content, ANY)
        if row == ANY or not np.array_equal(self.words[row], mask):
            row = self._new_row()
            self._same[content], self._hashes[row] = row, content
            self._write(row, mask)
        if len(self._rows) == MAX_KEYS:
            self._rows.clear()
            self._keys = [[] for _ in self._keys]
        self._rows[key] = row
        self._keys[row].append(key)
        self._asked[row] = self._now
        return row

    def _new_row(self) -> int:
        row = len(self._keys)
        if row < self._first_own:
            self._keys.append([])
            self._hashes.append(0)
            return row
        row = 1 + int(self._asked[1:].argmin())
        assert self._asked[row] < self._now, "a step has more masks than the table"
        for key in self._keys[row]:
            del self._rows[key]
        self._keys[row] = []
        if self._same.get(self._hashes[row]) == row:
            del self._same[self._hashes[row]]
        return row

    def put(self, index: int, mask: np.ndarray) -> int:
        """The row of a mask that nobody shares, which is there for one step. index: of those."""
        self._write(self._first_own + index, mask)
        return self._first_own + index

    def _write(self, row: int, mask: np.ndarray) -> None:
        self.words[row] = mask
        # words of 32 tokens: most masks have many
        self.only_one[row] = np.count_nonzero(mask) == 1 and np.bitwise_count(mask.view(np.uint32)).sum() == 1
        self._news.append(row)

    def masks(self, rows: Sequence[int]) -> Masks:
        """For the device: these, and what it does not have yet."""
        news, self._news = self._news, []
        return Masks(np.array(rows, np.int32), np.array(news, np.int32), self.words[news])
