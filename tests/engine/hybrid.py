"""HybridRunner: a FakeRunner of a model whose layers remember in several ways.

The first table keeps everything, and is what tokens are drawn from. Each other table holds the same numbers under a key
of its own, and a recurrent state the fold of all of them. Where a row does not find in them what the first table says,
the last number that it writes is another one, and so are the tokens: a page that a window let go too early, or a
snapshot of another position, changes an answer.
"""

from collections.abc import Callable

import numpy as np

from jaxinfer.cache.spec import CacheLayout, PagedKV, Recurrent, layout_of
from jaxinfer.config import Limits
from jaxinfer.runtime.plan import Plan, Row, StateMoves
from tests.engine.device import WEIGHTS, FakeRunner, fold
from tests.engine.numbers import MASK


def make_layout(page_size: int, window: int, snapshots: int = 0, num_full: int = 3) -> CacheLayout:
    """Full layers, two of a window, and two recurrent ones if there are to be snapshots. Each layer has a table."""
    full, windowed = (PagedKV(2, 8, 8, "float32", window=size) for size in (None, window))
    specs = [full] * num_full + [windowed] * 2
    if snapshots:
        specs += [Recurrent((("delta", (4, 4), "float32"),), snapshots)] * 2
    return layout_of(specs, page_size)


class HybridRunner(FakeRunner):
    def __init__(
        self, limits: Limits, layout: CacheLayout, tile: int, on_run: Callable[[Plan], None] | None = None
    ) -> None:
        self.layout = layout
        self.run_tokens = max(tile, limits.page_size)
        assert layout.windows[0] is None
        super().__init__(limits, on_run)

    def reset(self) -> None:
        super().reset()
        limits, noise = self.limits, np.random.default_rng(2)
        slots = limits.max_num_seqs + 1
        width = len(self.layout.windows) * limits.max_pages_per_seq
        self.page_table = noise.integers(0, limits.num_pages, (slots, width))
        self.states = [int(state) for state in noise.integers(0, MASK, slots, np.uint64)]
        self.bases = [-1] * slots  # positions that each state is behind
        self.pending: list[dict[int, int]] = [{} for _ in range(slots)]  # numbers by position, not applied yet
        self.snapshots = [int(state) for state in noise.integers(0, MASK, self.layout.num_snapshots + 1, np.uint64)]

    def _num_whole(self, row: Row) -> int:
        return sum(i < self.limits.max_pages_per_seq for i, _ in row.new_pages)

    def _entries(self, slot: int, table: int) -> np.ndarray:
        width = self.limits.max_pages_per_seq
        entries: np.ndarray = self.page_table[slot, table * width : (table + 1) * width]
        return entries

    def _attend(self, rows: list[Row]) -> None:
        for row in rows:
            self._copy(row)
        if self.layout.row_bytes:
            moves = [row.state for row in rows if row.state is not None]
            loads = {move.load for move in moves} - {None, 0}
            assert loads.isdisjoint(s for move in moves for _, s in move.saves), "a snapshot is loaded and stored"
        for row in rows:
            found = self._sees_all(row)
            if self.layout.row_bytes:
                found &= self._advance(row)
            if not found:
                end = row.start + row.count - 1
                place = self._entries(row.slot, 0)[end // self.limits.page_size], end % self.limits.page_size
                self.kv[place] ^= np.uint64(1)

    def _copy(self, row: Row) -> None:
        """Write a row's numbers to the other tables."""
        positions = np.arange(row.start, row.start + row.count)
        pages, offsets = positions // self.limits.page_size, positions % self.limits.page_size
        first = self._entries(row.slot, 0)[pages], offsets
        for table in range(1, len(self.layout.windows)):
            place = self._entries(row.slot, table)[pages], offsets
            self.kv[place], self.bad[place] = self.kv[first] ^ np.uint64(table), self.bad[first]
            self.spoilt.update(place[0][self.bad[place]].tolist())

    def _sees_all(self, row: Row) -> bool:
        """Whether each table holds what the row reads there: of a window all of the tiles that it touches."""
        size, end = self.limits.page_size, row.start + row.count
        for table, window in enumerate(self.layout.windows):
            low = 0 if window is None else max(0, row.start + 1 - window) // self.run_tokens * self.run_tokens
            positions = np.arange(low, end)
            places = [self._entries(row.slot, t)[positions // size] for t in (0, table)]
            kv, bad = (array[places[1], positions % size] for array in (self.kv, self.bad))
            same = kv == self.kv[places[0], positions % size] ^ np.uint64(table)
            if not same.all() or (bad & ~self.bad[places[0], positions % size]).any():
                return False
        return True

    def _advance(self, row: Row) -> bool:
        """Bring a slot's recurrent state on: numbers of known tokens at once, that of a drawn one with the next row."""
        slot, end = row.slot, row.start + row.count
        moves = row.state or StateMoves()
        if moves.load is not None:
            self.states[slot] = self.snapshots[moves.load] if moves.load else 0
            self.bases[slot], self.pending[slot] = row.start, {}
        assert self.bases[slot] <= row.start, "a row begins before the state"
        values = self._visible(self.kv, slot, end)
        numbers = self.pending[slot] | {i: int(values[i]) for i in range(row.start, end)}
        saves = dict(moves.saves)
        assert all(self.bases[slot] <= position <= end for position in saves), "a state that the row does not have"
        for position in range(self.bases[slot], end + 1):
            if position in saves:
                self.snapshots[saves.pop(position)] = self.states[slot]
            if position == (row.start if row.tokens is None else end):
                break
            self.states[slot] = (self.states[slot] + numbers[position] * int(WEIGHTS[position])) & MASK
        assert not saves, "a state that is not there yet was to be stored"
        self.bases[slot] = row.start if row.tokens is None else end
        self.pending[slot] = {row.start: numbers[row.start]} if row.tokens is None else {}
        behind = fold(values[: self.bases[slot]])
        return self.states[slot] == behind
