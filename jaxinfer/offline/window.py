"""The rows between being read and being written: how many they may be, and the order in which they leave."""

import asyncio
from collections import deque

from jaxinfer.offline.records import Record

MAX_HELD_BYTES = 16 * 2**20  # of rows and answers together; one larger row is held alone


class Window:
    """Invariant: at most `most` rows are inside, and of more than one row at most MAX_HELD_BYTES when one comes in."""

    def __init__(self, most: int, *, ordered: bool) -> None:
        self._most = most
        self._ordered = ordered
        self._held: dict[int, int] = {}  # bytes, by row
        self._order: deque[int] = deque()
        self._finished: dict[int, Record] = {}
        self._num_bytes = 0
        self._changed = asyncio.Event()

    async def enter(self, row: int, num_bytes: int) -> None:
        """Wait until there is room for the next row."""
        while self._held and (len(self._held) >= self._most or self._num_bytes + num_bytes > MAX_HELD_BYTES):
            self._changed.clear()
            await self._changed.wait()
        self._hold(row, num_bytes)
        if self._ordered:
            self._order.append(row)

    def finish(self, record: Record) -> list[Record]:
        """A row is answered; returns the records to be written now."""
        if not self._ordered:
            self._drop(record.number)
            return [record]
        self._finished[record.number] = record
        self._hold(record.number, len(record.line))
        ready = []
        while self._order and self._order[0] in self._finished:
            row = self._order.popleft()
            self._drop(row)
            ready.append(self._finished.pop(row))
        return ready

    def _hold(self, row: int, num_bytes: int) -> None:
        self._num_bytes += num_bytes - self._held.get(row, 0)
        self._held[row] = num_bytes

    def _drop(self, row: int) -> None:
        self._num_bytes -= self._held.pop(row)
        self._changed.set()
