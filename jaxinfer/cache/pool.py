"""PagePool: who owns which page, and which pages hold a prefix worth finding again.

A page is in exactly one of three places: free (blank), cached (nobody's, but findable by its key) or owned (named by
one or more page tables). Sessions may pin published pages: while nobody owns those they are cached, and reused after
all other cached ones, so that a running sequence never waits for a session. What is reused of their conversations goes
to host memory (OffloadPool), and comes back when its prefix is hit. Pages that hold the same tokens for several tables
of a group live and die together. Invariants, recomputed from nothing by `check`: free + cached + owned = total; a
page's reference count is the number of tables that name it; free pages have no key, cached and pinned pages have one;
no content is on the device and on the host.

Page 0 is the null page that padding reads; the pool never hands it out. A pool's pages may also be rows of recurrent
state: then each is a snapshot, and one that was never hit is reused before all others.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence

from jaxinfer.cache.offload import OffloadedPage, OffloadPool
from jaxinfer.cache.prefix import PageKey, same_chain, stands_for

type Unit = int | OffloadedPage  # a page of the device, 0 for none; or of the host


class PagePool:
    """Hands out pages 1 .. num_pages - 1 and remembers what the freed ones hold until they are reused."""

    def __init__(
        self, num_pages: int, num_host_pages: int = 0, tables: Sequence[int] = (1,), *, unhit_first: bool = False
    ) -> None:
        """tables: of each group, how many page tables it has."""
        self.offload = OffloadPool(num_host_pages, sum(tables))
        self.num_total = num_pages - 1
        self._groups: list[range] = []  # by table: those of its group
        for count in tables:
            self._groups += [range(len(self._groups), len(self._groups) + count)] * count
        self._free = list(range(num_pages - 1, 0, -1))  # blank, used last in, first out
        self._unhit_first = unhit_first
        self._hit: set[int] = set()  # pages that were found by a sequence; only where it matters
        self._unhit: OrderedDict[int, None] = OrderedDict()  # nobody's but findable, the next to be reused first
        self._cached: OrderedDict[int, None] = OrderedDict()  # likewise, after those
        self._pinned: OrderedDict[int, None] = OrderedDict()  # likewise, after those
        self._pins: dict[int, set[str]] = {}  # sessions by page, nobody's or owned
        self._pinned_by: OrderedDict[str, list[int]] = OrderedDict()  # in order of the tokens; oldest pin first
        self._references = [0] * num_pages
        self._keys: list[PageKey | None] = [None] * num_pages
        self._tables = [0] * num_pages  # the page table that a published page is for
        self._page_of: list[dict[bytes, int]] = [{} for _ in self._groups]  # by table and digest
        self._of_turns: set[int] = set()  # published by turns of sessions that may yet be recorded

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._unhit) + len(self._cached) + len(self._pinned)

    @property
    def num_pinned(self) -> int:
        """Pages that sessions pin, those that are owned too."""
        return len(self._pins)

    @property
    def num_pinned_by(self) -> dict[str, int]:
        """By session, if it pins any; safe from any thread."""
        return {session: len(pages) for session, pages in list(self._pinned_by.items())}

    @property
    def num_available(self) -> int:
        """Pages that can be handed out now, the cached ones included."""
        return len(self._free) + self.num_cached

    @property
    def num_spare(self) -> int:
        """Pages whose reuse loses nothing that was ever hit or pinned."""
        return len(self._free) + len(self._unhit)

    def key_of(self, page: int) -> PageKey | None:
        """The key that `page` is published under, or None."""
        return self._keys[page]

    def find(self, table: int, key: PageKey, parent: PageKey) -> int:
        """The page that holds for a table what `key`, which follows `parent`, says; 0: there is none."""
        page = self._page_of[table].get(key.digest, 0)
        known = self._keys[page]
        return page if known is not None and stands_for(known, key, parent) else 0

    def unit(self, table: int, key: PageKey, parent: PageKey) -> Unit:
        """The same on the device or on the host."""
        return self.find(table, key, parent) or self.offload.find(table, key, parent) or 0

    def match(self, table: int, root: PageKey, keys: Iterable[PageKey]) -> tuple[list[Unit], list[PageKey]]:
        """The longest run of a table's pages that hold what `keys` (a chain starting at `root`) say, and their keys."""
        pages, units, known, parent = self._page_of[table], list[Unit](), list[PageKey](), root
        for key in keys:
            page = pages.get(key.digest, 0)
            mine = self._keys[page]
            if mine is not None and stands_for(mine, key, parent):
                units.append(page)
            elif (on_host := self.offload.find(table, key, parent)) is not None:
                units.append(on_host)
                mine = on_host.key
            else:
                break
            known.append(mine)
            parent = mine
        return units, known

    def num_unowned(self, page_ids: Iterable[int]) -> int:
        """How many of these pages nobody owns, so that they count as available."""
        return sum(1 for page in page_ids if not self._references[page])

    def share(self, page_ids: Iterable[int]) -> None:
        """One more table names these published pages."""
        for page in page_ids:
            if not self._references[page]:
                del self._place_of(page)[page]
            self._references[page] += 1
            if self._unhit_first:
                self._hit.add(page)

    def grow(self, page_ids: list[int], count: int) -> bool:
        """Append `count` pages with no content to a table. Changes nothing when it says False."""
        if self.num_available < count:
            return False
        self.take(page_ids, count)
        return True

    def take(self, page_ids: list[int], count: int) -> None:
        """The same where so many are available."""
        for _ in range(count):
            page = self._free.pop() if self._free else self._evict()
            self._references[page] = 1
            page_ids.append(page)

    def publish(self, page: int, key: PageKey, table: int = 0, of_turn: bool = False) -> PageKey:
        """Make an owned page findable by `key`; all of its positions are computed, committed and known to be finite.

        The first copy of a content stays the findable one; a second stays private, but for one on the host, which it
        replaces. Returns the key to go on from: the first copy's when there is one. of_turn: a session's turn may yet
        be recorded with it.
        """
        first = self._page_of[table].get(key.digest)
        if of_turn:
            self._of_turns.add(page if first is None else first)
        if first is None:
            self.offload.drop((table, key.digest))
            self._page_of[table][key.digest] = page
            self._keys[page], self._tables[page] = key, table
            return key
        known = self._keys[first]
        return known if known is not None and same_chain(known, key) else key

    def release(self, page_ids: Sequence[int]) -> list[int]:
        """The one place where pages lose an owner. Returns the pages that are now blank.

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
        return blank

    def discard(self, page: int, key: PageKey) -> None:
        """Forget a page if it is still published as `key`, nobody owns or pins it, and it was never hit."""
        if page in self._unhit and self._keys[page] is key:
            del self._unhit[page]
            self._unpublish(page)
            self._free.append(page)

    def pin(self, session: str, page_ids: Sequence[int], most: int) -> None:
        """Let a session pin these pages, in order of their tokens, instead of what it pinned.

        All sessions together pin at most `most`: beyond that, the ends of those that were pinned least recently are
        cached like any other page.
        """
        for page in reversed(page_ids):
            unowned = not self._references[page]
            if unowned:
                del self._place_of(page)[page]
            self._pins.setdefault(page, set()).add(session)
            if unowned:
                self._pinned[page] = None
        now = set(page_ids)
        self._unpin(session, [page for page in self._pinned_by.pop(session, ()) if page not in now])
        if page_ids:
            self._pinned_by[session] = list(page_ids)
        while len(self._pins) > most:
            oldest, pages = next(iter(self._pinned_by.items()))
            last, length = self._keys[pages[-1]], len(pages) - 1
            while length and last and (key := self._keys[pages[length - 1]]) and key.digest == last.digest:
                length -= 1  # another table's, same tokens
            self._cut(oldest, length)

    def remember(self, session: str, page_ids: Sequence[int], keys: Sequence[PageKey], most: int) -> None:
        """`keys` are the full pages of a session's conversation, wherever they are. It pins `page_ids` of them (see
        `pin`); whatever of them is reused goes to the host."""
        self.pin(session, page_ids, most)
        for pages in self._page_of:
            self._of_turns.difference_update(pages.get(key.digest, 0) for key in keys)
        self.offload.remember(session, keys)

    def forget(self, session: str) -> None:
        """End a session: what only it pinned and nobody owns is blank at once, and is found by nobody any more; what
        only it has on the host is dropped."""
        self.offload.remember(session, ())
        for page in reversed(self._pinned_by.pop(session, [])):
            sessions = self._pins[page]
            sessions.discard(session)
            if sessions:
                continue
            del self._pins[page]
            if not self._references[page]:
                del self._pinned[page]
                self._unpublish(page)
                self._free.append(page)

    def check(self, tables: Iterable[Sequence[int]], from_root: Collection[int] = (0,)) -> None:
        """Recompute every invariant from the page tables in use; AssertionError names the one that does not hold.

        from_root: the page tables whose pins begin with a conversation's first page.
        """
        named = Counter(page for table in tables for page in table)
        assert named[0] == 0, "page 0 is the null page and has an owner"
        references = {page: count for page, count in enumerate(self._references) if count}
        assert references == dict(named), f"reference counts {references} differ from the tables' {dict(named)}"
        places = [*self._free, *self._unhit, *self._cached, *self._pinned, *named]
        assert sorted(places) == list(range(1, self.num_total + 1)), "free + cached + owned is not the whole pool"
        assert not any(self._keys[page] for page in self._free), "a free page is still published"
        assert all(self._keys[page] for page in (*self._unhit, *self._cached)), "a cached page has no key"
        assert self._hit.isdisjoint(self._unhit), "a page that was hit is reused as one that was not"
        published = {(self._tables[page], key.digest): page for page, key in enumerate(self._keys) if key}
        found = {(table, digest): page for table, pages in enumerate(self._page_of) for digest, page in pages.items()}
        assert published == found, "the published pages and the index of digests differ"
        for table, group in enumerate(self._groups):
            assert self._page_of[table].keys() == self._page_of[group[0]].keys(), "tables of a group hold other tokens"
        assert all(self._keys[page] for page in self._of_turns), "a turn's page has no key"
        self._check_pins(from_root)
        self.offload.check(published)

    def _check_pins(self, from_root: Collection[int]) -> None:
        pins = {(page, session) for page, sessions in self._pins.items() for session in sessions}
        pinned = {(page, session) for session, pages in self._pinned_by.items() for page in pages}
        assert pins == pinned, "what sessions pin and who pins a page differ"
        assert all(self._pinned_by.values()), "a session that pins nothing is remembered"
        assert all(self._keys[page] for page in self._pins), "a pinned page has no key"
        assert self._pins.keys() >= self._pinned.keys(), "a page is pinned by no session"
        assert self._pins.keys().isdisjoint([*self._unhit, *self._cached]), "a pinned page is reused like any other"
        for pages in self._pinned_by.values():
            for table in range(len(self._groups)):
                keys = [key for page in pages if self._tables[page] == table and (key := self._keys[page])]
                parents = [key.parent for key in keys]
                assert all(map(same_chain, parents[1:], keys)), "a session pins what cannot be found"
                if keys and table in from_root:
                    assert parents[0] is not None and parents[0].parent is None, "a session does not pin its beginning"

    def _place_of(self, page: int) -> OrderedDict[int, None]:
        """Where a published page belongs that nobody owns."""
        if page in self._pins:
            return self._pinned
        return self._unhit if self._unhit_first and page not in self._hit else self._cached

    def _cut(self, session: str, length: int) -> None:
        """Leave a session the first of its pages: the later ones cannot be found without those before them."""
        pages = self._pinned_by[session]
        self._unpin(session, pages[length:])
        del pages[length:]
        if not pages:
            del self._pinned_by[session]

    def _unpin(self, session: str, pages: Sequence[int]) -> None:
        """A session pins these pages no longer; they stay cached."""
        for page in reversed(pages):
            sessions = self._pins[page]
            sessions.discard(session)
            if not sessions:
                del self._pins[page]
                if page in self._pinned:
                    del self._pinned[page]
                    self._place_of(page)[page] = None

    def _evict(self) -> int:
        """Forget the cached page that is worth least, with those of its group that hold the same tokens."""
        page, _ = (self._unhit or self._cached or self._pinned).popitem(last=False)
        key, group = self._keys[page], self._groups[self._tables[page]]
        assert key is not None
        for table in group if len(group) > 1 else ():
            if (part := self._page_of[table][key.digest]) != page:
                self._offload(part, key)
                del self._place_of(part)[part]
                self._drop(part)
                self._free.append(part)
        self._offload(page, key)
        self._drop(page)
        return page

    def _offload(self, page: int, key: PageKey) -> None:
        """What is reused of a conversation goes to the host."""
        if page in self._of_turns or self.offload.remembers(key):
            self.offload.put(self._tables[page], key, page)

    def _drop(self, page: int) -> None:
        """A page that nobody owns is found no longer."""
        for session in sorted(self._pins.get(page, ())):
            self._cut(session, self._pinned_by[session].index(page))
        self._unpublish(page)

    def _unpublish(self, page: int) -> None:
        key = self._keys[page]
        assert key is not None
        del self._page_of[self._tables[page]][key.digest]
        self._keys[page] = None
        self._of_turns.discard(page)
        self._hit.discard(page)
