"""Which row starts next: rows whose prompts begin alike run one after another, so that pages are computed once."""

import asyncio
import bisect
from collections.abc import Sequence

LONGEST_WAIT = 64  # starts after which the row that came first goes first
type Chain = tuple[int, ...]  # a number for each whole page of a prompt, which names all that is before it too
_PAST_ALL = 2**64  # more than any hash


class Starts:
    """Rows wait here for their start, and say when their prompt is computed and when they have ended.

    Invariant: rows running together have at most `most` choices, unless one row alone has more; a row does not start
    while another computes a page that it could share; no row waits for more than LONGEST_WAIT times the rows before it.
    """

    def __init__(self, most: int, page_size: int, num_pages: int) -> None:
        """page_size: 0 when no pages are shared.    num_pages: how many the engine can remember."""
        self._most = most
        self._page_size = page_size
        self._num_pages = num_pages
        self._num_running = 0
        self._computing: dict[int, list[int]] = {}  # row -> pages nobody had computed when it started
        self._pages: set[int] = set()  # all of those
        self._known: dict[int, None] = {}  # computed before, the oldest first
        self._waiting: list[tuple[Chain, int]] = []  # sorted: neighbours begin alike
        self._turns: dict[int, tuple[int, asyncio.Event]] = {}  # of a row that waits, in the order they came
        self._last: tuple[Chain, int] = ((), -1)
        self._num_starts = 0

    def chain(self, ids: Sequence[int], salt: str) -> Chain:
        """Of a prompt. The page of its last token is never found computed, since that one is never shared."""
        found, page = [], hash(salt)
        for end in range(self._page_size, len(ids), self._page_size) if self._page_size else ():
            page = hash((page, *ids[end - self._page_size : end]))
            found.append(page)
        return tuple(found)

    async def wait(self, row: int, chain: Chain, num_choices: int) -> None:
        """Return when the row may run; `end` must follow."""
        turn = asyncio.Event()
        bisect.insort(self._waiting, (chain, row))
        self._turns[row] = num_choices, turn
        try:
            self._start_some()
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self.end(row, num_choices)
            else:
                self._waiting.remove((chain, row))
                del self._turns[row]
            raise

    def computed(self, row: int) -> None:
        """The row's prompt is computed: others may find its pages."""
        pages = self._computing.pop(row, None)
        if pages is not None:
            self._pages.difference_update(pages)
            self._known |= dict.fromkeys(pages)
            while len(self._known) > self._num_pages:
                del self._known[next(iter(self._known))]
            self._start_some()

    def end(self, row: int, num_choices: int) -> None:
        """The row runs no longer."""
        self._pages.difference_update(self._computing.pop(row, ()))
        self._num_running -= num_choices
        self._start_some()

    def _start_some(self) -> None:
        while self._waiting and self._num_running < self._most and (index := self._next()) is not None:
            chain, row = self._waiting[index]
            num_choices, turn = self._turns[row]
            if self._num_running and self._num_running + num_choices > self._most:
                return
            del self._waiting[index], self._turns[row]
            self._last = chain, row
            self._num_starts += 1
            self._num_running += num_choices
            self._computing[row] = [page for page in chain if page not in self._known]
            self._pages.update(self._computing[row])
            turn.set()

    def _next(self) -> int | None:
        """Of those that need not wait for pages, the neighbour of the last that started; now and then the oldest."""
        start = bisect.bisect_right(self._waiting, self._last)
        if self._num_starts % LONGEST_WAIT == LONGEST_WAIT - 1:
            oldest = next(iter(self._turns))
            start = next(index for index, (_, row) in enumerate(self._waiting) if row == oldest)
        found = self._first_free(start, len(self._waiting))
        return self._first_free(0, start) if found is None else found

    def _first_free(self, index: int, end: int) -> int | None:
        while index < end:
            chain = self._waiting[index][0]
            depth = next((depth for depth, page in enumerate(chain) if page in self._pages), None)
            if depth is None:
                return index
            index = bisect.bisect_left(self._waiting, ((*chain[: depth + 1], _PAST_ALL), 0))
        return None
