"""OffloadPool: sessions' pages that the device's pool had no room for, in host memory until their prefix is hit.

A page's content is on the device or here, never both. What a session remembers, the digests of its conversation's full
pages wherever those are, decides what is worth saving when the pool reuses a page; until a turn is recorded its pages
are worth it too. Full, it drops first what came first: the ends of the conversations that were used least recently.

Contents are the runner's: the engine has it save pages before what reused them runs, and load them before what found
them does (`saves`, `loads`). Invariants (`check`): at most `most` pages; each is remembered or came from a turn; the
counts by session are those of what is here.
"""

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from jaxinfer.cache.prefix import PageKey, stands_for

type Content = tuple[int, bytes]  # page table, digest


@dataclasses.dataclass(slots=True, eq=False)
class OffloadedPage:
    """A full page that the device holds no more."""

    table: int  # page table that it is for
    key: PageKey
    data: object = None  # what the runner made of it; None until it is saved


class OffloadPool:
    """At most `most` pages; 0 is none ever. Used by the engine's thread, but for the numbers."""

    def __init__(self, most: int, num_tables: int = 1) -> None:
        self.most = most
        self._tables = range(num_tables)
        self.saves: dict[OffloadedPage, int] = {}  # what is to be saved, and the page that still holds it
        self.loads: dict[OffloadedPage, int] = {}  # what is to be loaded, and the page that is to hold it
        self._pages: OrderedDict[Content, OffloadedPage] = OrderedDict()  # first what came first
        self._remembered: dict[str, list[bytes]] = {}  # digests by session
        self._sessions: dict[bytes, set[str]] = {}  # the same by digest
        self._num_by: Counter[str] = Counter()  # pages here, by the sessions that remember them

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[OffloadedPage]:
        return iter(self._pages.values())

    @property
    def num_by(self) -> dict[str, int]:
        """Pages here by session; safe from any thread."""
        return {session: count for session, count in dict(self._num_by).items() if count}

    def find(self, table: int, key: PageKey, parent: PageKey) -> OffloadedPage | None:
        """The page that holds for a table what `key`, which follows `parent`, says."""
        page = self._pages.get((table, key.digest))
        return page if page is not None and stands_for(page.key, key, parent) else None

    def remembers(self, key: PageKey) -> bool:
        """Whether the page is part of a session's conversation."""
        return key.digest in self._sessions

    def put(self, table: int, key: PageKey, page: int) -> None:
        """The device's `page` is about to be reused: have its content saved."""
        if self.most:
            self.add(saved := OffloadedPage(table, key))
            self.saves[saved] = page

    def add(self, page: OffloadedPage) -> None:
        """A page that the device does not hold is here from now on, as the last that came."""
        self.drop((page.table, page.key.digest))
        while len(self._pages) >= self.most:
            self.drop(next(iter(self._pages)))
        self._pages[page.table, page.key.digest] = page
        self._num_by.update(self._sessions.get(page.key.digest, ()))

    def take(self, page: OffloadedPage) -> None:
        """A page goes back to the device: a save that it still waits for is made all the same."""
        del self._pages[page.table, page.key.digest]
        self._num_by.subtract(self._sessions.get(page.key.digest, ()))

    def drop(self, content: Content) -> None:
        """A page is here no longer, if it was."""
        page = self._pages.get(content)
        if page is not None:
            self.take(page)
            self.saves.pop(page, None)

    def remember(self, session: str, keys: Sequence[PageKey]) -> None:
        """These pages are a session's conversation, instead of what was; what nobody remembers any more is dropped."""
        if not self.most:
            return
        digests = list(dict.fromkeys(key.digest for key in keys))
        for digest in digests:
            self._sessions.setdefault(digest, set()).add(session)
        for digest in set(self._remembered.pop(session, ())).difference(digests):
            sessions = self._sessions[digest]
            sessions.discard(session)
            if not sessions:
                for page in self._with(digest):
                    self.drop((page.table, digest))
                del self._sessions[digest]
        del self._num_by[session]
        if digests:
            self._remembered[session] = digests
            self._num_by[session] = sum(len(self._with(digest)) for digest in digests)

    def _with(self, digest: bytes) -> list[OffloadedPage]:
        """The pages here of one digest, of each table."""
        return [page for table in self._tables if (page := self._pages.get((table, digest)))]

    def check(self, published: Iterable[Content]) -> None:
        """Recompute every invariant; AssertionError names the one that does not hold. published: on the device."""
        assert len(self._pages) <= self.most, "host memory holds more pages than it may"
        found = {(page.table, page.key.digest) for page in self}
        assert found == self._pages.keys(), "a page is here as another"
        assert found.isdisjoint(published), "a page is on the device and in host memory"
        remembered = {(digest, session) for session, digests in self._remembered.items() for digest in digests}
        sessions = {(digest, session) for digest, names in self._sessions.items() for session in names}
        assert remembered == sessions, "what sessions remember and who remembers a page differ"
        assert all(self._sessions.values()), "a page is remembered by nobody"
        counted = Counter(session for digest, session in remembered for _ in self._with(digest))
        assert self.num_by == dict(counted), f"{self.num_by} pages by session, {dict(counted)} are here"
        unsaved = [page for page in self if page.data is None]
        assert all(page in self.saves for page in unsaved), "a page's content is nowhere"
