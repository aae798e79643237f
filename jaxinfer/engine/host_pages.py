"""HostPages: pages of sessions for which the device's pool had no room, in host memory until their prefix is hit again.

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

from jaxinfer.engine.page_keys import PageKey, stands_for


@dataclasses.dataclass(slots=True, eq=False)
class HostPage:
    """A full page that the device holds no more. content: what the runner made of it, None until it is saved."""

    key: PageKey
    content: object = None


class HostPages:
    """At most `most` pages; 0 is none ever. Used by the engine's thread, but for the numbers."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.saves: dict[HostPage, int] = {}  # what is to be saved, and the page that still holds it
        self.loads: dict[HostPage, int] = {}  # what is to be loaded, and the page that is to hold it
        self._held: OrderedDict[bytes, HostPage] = OrderedDict()  # first what came first
        self._remembered: dict[str, list[bytes]] = {}  # by session
        self._sessions: dict[bytes, set[str]] = {}  # the same by digest
        self._num_by: Counter[str] = Counter()  # pages here, by the sessions that remember them

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HostPage]:
        return iter(self._held.values())

    @property
    def num_by(self) -> dict[str, int]:
        """Pages here by session; safe from any thread."""
        return {session: count for session, count in dict(self._num_by).items() if count}

    def find(self, parent: PageKey, keys: Iterable[PageKey]) -> list[HostPage]:
        """The longest run of pages here that hold what `keys` (going on from `parent`) say; takes none of them."""
        found: list[HostPage] = []
        for key in keys:
            page = self._held.get(key.digest)
            if page is None or not stands_for(page.key, key, parent):
                break
            found.append(page)
            parent = page.key
        return found

    def remembers(self, key: PageKey) -> bool:
        """Whether the page is part of a session's conversation."""
        return key.digest in self._sessions

    def put(self, key: PageKey, page: int) -> None:
        """The device's `page` is about to be reused: have its content saved."""
        if not self.most:
            return
        while len(self._held) >= self.most:
            self.drop(next(iter(self._held)))
        kept = self._held[key.digest] = HostPage(key)
        self._num_by.update(self._sessions.get(key.digest, ()))
        self.saves[kept] = page

    def take(self, page: HostPage) -> None:
        """A page goes back to the device: a save that it still waits for is made all the same."""
        del self._held[page.key.digest]
        self._num_by.subtract(self._sessions.get(page.key.digest, ()))

    def drop(self, digest: bytes) -> None:
        """A page is here no longer, if it was."""
        page = self._held.get(digest)
        if page is not None:
            self.take(page)
            self.saves.pop(page, None)

    def remember(self, session: str, keys: Sequence[PageKey]) -> None:
        """These pages are a session's conversation, instead of what was; what nobody remembers any more is dropped."""
        if not self.most:
            return
        before = self._remembered.pop(session, [])
        digests = list(dict.fromkeys(key.digest for key in keys))
        for digest in digests:
            self._sessions.setdefault(digest, set()).add(session)
        for digest in set(before).difference(digests):
            sessions = self._sessions[digest]
            sessions.discard(session)
            if not sessions:
                self.drop(digest)
                del self._sessions[digest]
        del self._num_by[session]
        if digests:
            self._remembered[session] = digests
            self._num_by[session] = sum(digest in self._held for digest in digests)

    def check(self, published: Iterable[bytes]) -> None:
        """Recompute every invariant; AssertionError names the one that does not hold. published: on the device."""
        assert len(self._held) <= self.most, "host memory holds more pages than it may"
        assert all(digest == page.key.digest for digest, page in self._held.items()), "a page is here as another"
        assert self._held.keys().isdisjoint(published), "a page is on the device and in host memory"
        remembered = {(digest, session) for session, digests in self._remembered.items() for digest in digests}
        sessions = {(digest, session) for digest, names in self._sessions.items() for session in names}
        assert remembered == sessions, "what sessions remember and who remembers a page differ"
        assert all(self._sessions.values()), "a page is remembered by nobody"
        counted = Counter(session for digest, session in remembered if digest in self._held)
        assert self.num_by == dict(counted), f"{self.num_by} pages by session, {dict(counted)} are here"
        unsaved = [page for page in self._held.values() if page.content is None]
        assert all(page in self.saves for page in unsaved), "a page's content is nowhere"
