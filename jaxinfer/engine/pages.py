"""PagePool: who owns which page of the KV cache, and which pages hold a prefix worth finding again.

A page is in exactly one of three places: free (blank), cached (nobody's, but matchable by its key) or owned (named by
one or more page tables). Sessions may keep published pages: while nobody owns those they are cached, and reused after
all other cached ones, so that a running sequence never waits for a session. What is reused of their conversations goes
to host memory (HostPages), and comes back when its prefix is hit. Invariants, recomputed from nothing by `check`:
free + cached + owned = total; a page's reference count is the number of tables that name it; free pages have no key,
cached and kept pages have one; no content is on the device and on the host.

Page 0 is the null page that padding reads; the pool never hands it out.
"""

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice, tee

from jaxinfer.engine.host_pages import HostPage, HostPages
from jaxinfer.engine.page_keys import PageKey, same_chain, stands_for


@dataclasses.dataclass(slots=True)
class Hit:
    """What a prompt begins with: pages of the device, and behind them pages of the host that are to be loaded."""

    pages: list[int] = dataclasses.field(default_factory=list)
    loads: list[HostPage] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pages) + len(self.loads)


class PagePool:
    """Hands out pages 1 .. num_pages - 1 and remembers what the freed ones hold until they are reused."""

    def __init__(self, num_pages: int, num_host_pages: int = 0) -> None:
        self.host = HostPages(num_host_pages)
        self.num_total = num_pages - 1
        self._free = list(range(num_pages - 1, 0, -1))  # blank, used last in, first out
        self._cached: OrderedDict[int, None] = OrderedDict()  # nobody's but matchable, the next to be reused first
        self._kept: OrderedDict[int, None] = OrderedDict()  # those of the same that sessions keep
        self._keepers: dict[int, set[str]] = {}  # by page, nobody's or owned
        self._kept_by: OrderedDict[str, list[int]] = OrderedDict()  # session: a chain; first who kept least recently
        self._references = [0] * num_pages
        self._keys: list[PageKey | None] = [None] * num_pages
        self._page_of: dict[bytes, int] = {}
        self._of_turns: set[int] = set()  # published by turns of sessions that may yet be recorded

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Pages that sessions keep, those that are owned too."""
        return len(self._keepers)

    @property
    def num_kept_by(self) -> dict[str, int]:
        """By session, if it keeps any; safe from any thread."""
        return {session: len(pages) for session, pages in list(self._kept_by.items())}

    @property
    def num_available(self) -> int:
        """Pages that can be handed out now, the cached ones included."""
        return len(self._free) + self.num_cached

    def key_of(self, page: int) -> PageKey | None:
        """The key that `page` is published under, or None."""
        return self._keys[page]

    def match(self, root: PageKey, keys: Iterable[PageKey]) -> list[int]:
        """The longest run of pages that hold what `keys` (a chain starting at `root`) say; takes none of them."""
        pages: list[int] = []
        parent: PageKey | None = root
        for key in keys:
            page = self._page_of.get(key.digest)
            known = None if page is None else self._keys[page]
            if page is None or known is None or not stands_for(known, key, parent):
                break
            pages.append(page)
            parent = known
        return pages

    def find(self, root: PageKey, keys: Iterable[PageKey]) -> Hit:
        """The longest run of pages as `match` finds it, and what the host has behind it; takes none of them."""
        keys, again = tee(keys)
        pages = self.match(root, keys)
        parent = self._keys[pages[-1]] if pages else root
        assert parent is not None
        return Hit(pages, self.host.find(parent, islice(again, len(pages), None)))

    def num_unowned(self, page_ids: Iterable[int]) -> int:
        """How many of these pages nobody owns, so that they count as available."""
        return sum(1 for page in page_ids if not self._references[page])

    def share(self, page_ids: list[int], hit: Hit, num_fresh: int, reserve: int) -> bool:
        """Give the empty table `page_ids` the pages found and `num_fresh` blank ones, leaving `reserve` pages.

        What is to be loaded is published at once. Changes nothing when it says False.
        """
        pages, loads = hit.pages, hit.loads
        if self.num_available - self.num_unowned(pages) < len(loads) + num_fresh + reserve:
            return False
        for page in pages:
            if not self._references[page]:
                del self._place_of(page)[page]
            self._references[page] += 1
        page_ids.extend(pages)
        for found in loads:  # before pages are reused, of which one could take its place
            self.host.take(found)
        self.grow(page_ids, len(loads) + num_fresh)
        for found, page in zip(loads, page_ids[len(pages) : len(hit)], strict=True):
            self.host.loads[found] = page
            self.publish(page, found.key, of_turn=not self.host.remembers(found.key))
        return True

    def grow(self, page_ids: list[int], count: int) -> bool:
        """Append `count` pages with no content to a table. Changes nothing when it says False."""
        if self.num_available < count:
            return False
        for _ in range(count):
            page = self._free.pop() if self._free else self._evict()
            self._references[page] = 1
            page_ids.append(page)
        return True

    def publish(self, page: int, key: PageKey, of_turn: bool = False) -> PageKey:
        """Make an owned page findable by `key`; all of its positions are computed, committed and known to be finite.

        The first copy of a content stays the findable one; a second stays private, but for one on the host, which it
        replaces. Returns the key to go on from: the first copy's when there is one. of_turn: a session's turn may yet
        be recorded with it.
        """
        first = self._page_of.get(key.digest)
        if of_turn:
            self._of_turns.add(page if first is None else first)
        if first is None:
            self.host.drop(key.digest)
            self._page_of[key.digest] = page
            self._keys[page] = key
            return key
        known = self._keys[first]
        return known if known is not None and same_chain(known, key) else key

    def release(self, page_ids: list[int]) -> list[int]:
        """Empty a table: the one place where pages lose an owner. Returns the pages that are now blank.

        The last pages of a prefix are worth least, so they are the first to be reused.
        """
        blank = []
        for page in reversed(page_ids):
            self._references[page] -= 1
            if self._references[page]:
                continue
            if self._keys[page] is None:
                blank.append(page)
            else:
                self._place_of(page)[page] = None
        self._free += blank
        page_ids.clear()
        return blank

    def keep(self, session: str, page_ids: Sequence[int], most: int) -> None:
        """Let a session keep these matched pages, a chain, instead of what it kept; none is nothing any more.

        All sessions together keep at most `most`: beyond that, the ends of those that kept least recently are cached
        like any other page.
        """
        for page in reversed(page_ids):
            unowned = not self._references[page]
            if unowned:
                del self._place_of(page)[page]
            self._keepers.setdefault(page, set()).add(session)
            if unowned:
                self._kept[page] = None
        now = set(page_ids)
        self._cease(session, [page for page in self._kept_by.pop(session, ()) if page not in now])
        if page_ids:
            self._kept_by[session] = list(page_ids)
        while len(self._keepers) > most:
            oldest, pages = next(iter(self._kept_by.items()))
            self._cut(oldest, len(pages) - 1)

    def remember(self, session: str, root: PageKey, keys: Sequence[PageKey], most: int) -> None:
        """These are the full pages of a session's conversation, wherever they are. It keeps those that are matched
        (most: see `keep`); whatever of them is reused goes to the host."""
        self.keep(session, self.match(root, keys), most)
        self._of_turns.difference_update(self._page_of.get(key.digest, 0) for key in keys)
        self.host.remember(session, keys)

    def forget(self, session: str) -> None:
        """End a session: what only it kept and nobody owns is blank at once, and is found by nobody any more; what only
        it has on the host is dropped."""
        self.host.remember(session, ())
        for page in reversed(self._kept_by.pop(session, [])):
            keepers = self._keepers[page]
            keepers.discard(session)
            if keepers:
                continue
            del self._keepers[page]
            if not self._references[page]:
                del self._kept[page]
                self._unpublish(page)
                self._free.append(page)

    def _place_of(self, page: int) -> OrderedDict[int, None]:
        """Where a published page belongs that nobody owns."""
        return self._kept if page in self._keepers else self._cached

    def _cut(self, session: str, length: int) -> None:
        """Leave a session the first pages of its chain: the later ones cannot be found without those before them."""
        pages = self._kept_by[session]
        self._cease(session, pages[length:])
        del pages[length:]
        if not pages:
            del self._kept_by[session]

    def _cease(self, session: str, pages: Sequence[int]) -> None:
        """A session keeps these of its chain no longer; they stay cached."""
        for page in reversed(pages):
            keepers = self._keepers[page]
            keepers.discard(session)
            if not keepers:
                del self._keepers[page]
                if page in self._kept:
                    del self._kept[page]
                    self._cached[page] = None

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Recompute every invariant from the page tables in use; AssertionError names the one that does not hold."""
        named = Counter(page for table in tables for page in table)
        assert named[0] == 0, "page 0 is the null page and has an owner"
        references = {page: count for page, count in enumerate(self._references) if count}
        assert references == dict(named), f"reference counts {references} differ from the tables' {dict(named)}"
        places = [*self._free, *self._cached, *self._kept, *named]
        assert sorted(places) == list(range(1, self.num_total + 1)), "free + cached + owned is not the whole pool"
        assert not any(self._keys[page] for page in self._free), "a free page is still published"
        assert all(self._keys[page] for page in self._cached), "a cached page has no key"
        keepers = {(page, session) for page, sessions in self._keepers.items() for session in sessions}
        kept = {(page, session) for session, pages in self._kept_by.items() for page in pages}
        assert keepers == kept, "what sessions keep and who keeps a page differ"
        assert all(self._kept_by.values()), "a session that keeps nothing is remembered"
        assert all(self._keys[page] for page in self._keepers), "a kept page has no key"
        assert self._keepers.keys() >= self._kept.keys(), "a page is kept by no session"
        assert self._keepers.keys().isdisjoint(self._cached), "a kept page is reused like any other"
        for pages in self._kept_by.values():
            keys = [self._keys[page] for page in pages]
            parents = [key.parent for key in keys if key]
            assert parents[0] is not None and parents[0].parent is None, "a session does not keep its beginning"
            assert all(map(same_chain, parents[1:], keys)), "a session keeps what cannot be found"
        published = {key.digest: page for page, key in enumerate(self._keys) if key}
        assert published == self._page_of, "the published pages and the index of digests differ"
        assert all(self._keys[page] for page in self._of_turns), "a turn's page has no key"
        self.host.check(published)

    def _evict(self) -> int:
        """Forget the least recently used cached page; one that a session keeps only if there is no other. What is of a
        conversation goes to the host."""
        page, _ = (self._cached or self._kept).popitem(last=False)
        key = self._keys[page]
        if key is not None and (page in self._of_turns or self.host.remembers(key)):
            self.host.put(key, page)
        for session in sorted(self._keepers.get(page, ())):
            self._cut(session, self._kept_by[session].index(page))
        self._unpublish(page)
        return page

    def _unpublish(self, page: int) -> None:
        key = self._keys[page]
        assert key is not None
        del self._page_of[key.digest]
        self._keys[page] = None
        self._of_turns.discard(page)
