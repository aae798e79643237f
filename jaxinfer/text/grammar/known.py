"""What is known of places: what one answer found out serves all that come to the same one."""

import threading
from collections.abc import Hashable, Sequence

import numpy as np

from jaxinfer.text.grammar.places import Places

type Key = tuple[Places, Hashable]
MAX_BYTES, MAX_PLACES = 64 << 20, 4096  # of masks, over all grammars


class Known:
    """Masks, and tokens that are forced, of the places where answers were last. Safe from any thread.

    A key is a pair of Places and what they call a place; one that is None stands for a place of which nothing can be
    known.
    """

    def __init__(self, vocab_size: int, max_places: int = MAX_PLACES) -> None:
        width = -(-vocab_size // 32)
        num_rows = max(1, min(max_places, MAX_BYTES // (4 * width)))
        self._masks = np.empty((num_rows, width), np.int32)  # takes no memory until it is written
        self._asked = np.zeros(num_rows, np.int64)  # when each was asked for last, in calls
        self._rows: dict[Key, int] = {}
        self._keys: list[Key | None] = []  # by row
        self._free: list[int] = []
        self._forced: dict[int, list[int]] = {}  # by row
        self._now = 0
        self._lock = threading.Lock()

    def fill(self, keys: Sequence[Key | None], masks: np.ndarray) -> list[int]:
        """Set the rows of masks, i32[len(keys), ceil(V / 32)], that are known. Returns the others."""
        with self._lock:
            find = self._rows.get
            rows = np.array([-1 if key is None else find(key, -1) for key in keys], np.intp)
            is_known = rows >= 0
            self._now += 1
            self._asked[rows[is_known]] = self._now
            if is_known.all():
                np.take(self._masks, rows, axis=0, out=masks, mode="clip")  # "raise" would copy twice
            else:
                masks[is_known] = self._masks[rows[is_known]]
        return np.flatnonzero(~is_known).tolist()

    def add(self, keys: Sequence[Key | None], masks: np.ndarray) -> None:
        """Keep these, in the place of what nobody has asked for longest."""
        with self._lock:
            self._now += 1
            for key, mask in zip(keys, masks, strict=True):
                if key is not None and key not in self._rows and not key[0].is_over:
                    row = self._new_row()
                    self._keys[row] = key
                    self._rows[key] = row
                    self._masks[row], self._asked[row] = mask, self._now

    def _new_row(self) -> int:
        if len(self._keys) < len(self._masks):
            self._keys.append(None)
            return len(self._keys) - 1
        if not self._free:
            self._drop(int(self._asked.argmin()))
        return self._free.pop()

    def _drop(self, row: int) -> None:
        key, self._keys[row] = self._keys[row], None
        assert key is not None, "a row that is free"
        del self._rows[key]
        self._forced.pop(row, None)
        self._free.append(row)

    def forget(self, places: Places | None) -> None:
        """Their grammar is not kept any more: neither is what is known of them."""
        if places is None:
            return
        with self._lock:
            places.is_over = True
            for row, key in enumerate(self._keys):
                if key is not None and key[0] is places:
                    self._drop(row)

    def forced(self, key: Key) -> list[int] | None:
        """None: that is not known."""
        with self._lock:
            return self._forced.get(self._rows.get(key, -1))

    def add_forced(self, key: Key, tokens: list[int]) -> None:
        """Of a place whose mask is known; otherwise nothing is kept."""
        with self._lock:
            if key in self._rows:
                self._forced[self._rows[key]] = tokens
