"""PagePool: who owns which page of the KV cache, and which pages hold a prefix worth finding again.

A page is in exactly one of three places: free (blank), cached (nobody's, but matchable by its key) or owned (named by
one or more page tables). Sessions may keep published pages: while nobody owns those they are cached, and reused after
all other cached ones, so that a running sequence never waits for a session. Invariants, recomputed from nothing by
`check`: free + cached + owned = total; a page's reference count is the number of tables that name it; free pages have
no key, cached and kept pages have one.

Page 0 is the null page that padding reads; the pool never hands it out.
"""

import dataclasses
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PageKey:
    """What a full page holds: its tokens and, through `parent`, every token before them, down to the salt.

    digest: 128 bits over the whole chain. Digests find candidates; `same_chain` decides, since a digest may collide.
    tokens: the page's ids as native int32 bytes; the salt's bytes in a root, whose parent is None.
    """

    digest: bytes
    tokens: bytes
    parent: "PageKey | None"


def page_digest(parent: bytes, tokens: bytes) -> bytes:
    return blake2b(tokens, key=parent, digest_size=16).digest()


def root_key(salt: str) -> PageKey:
    """The start of a chain. Equal prefixes under different salts share nothing."""
    content = salt.encode()
    return PageKey(page_digest(b"", content), content, None)


def next_key(parent: PageKey, tokens: Sequence[int]) -> PageKey:
    """The key of the full page of `tokens` that follows `parent`."""
    content = array("i", tokens).tobytes()
    return PageKey(page_digest(parent.digest, content), content, parent)


def chain(root: PageKey, tokens: Sequence[int], page_size: int) -> Iterator[PageKey]:
    """The keys of all full pages of `tokens`."""
    parent = root
    for end in range(page_size, len(tokens) + 1, page_size):
        parent = next_key(parent, tokens[end - page_size : end])
        yield parent


def same_chain(a: PageKey | None, b: PageKey | None) -> bool:
    """Whether two keys stand for the same salt and the same tokens from position 0; almost always by identity."""
    while a is not b:
        if a is None or b is None or a.tokens != b.tokens:
            return False
        a, b = a.parent, b.parent
    return True


class PagePool:
    """Hands out pages 1 .. num_pages - 1 and remembers what the freed ones hold until they are reused."""

    def __init__(self, num_pages: int) -> None:
        self.num_total = num_pages - 1
        self._free = list(range(num_pages - 1, 0, -1))  # blank, used last in, first out
        self._cached: OrderedDict[int, None] = OrderedDict()  # nobody's but matchable, the next to be reused first
        self._kept: OrderedDict[int, None] = OrderedDict()  # those of the same that sessions keep
        self._keepers: dict[int, set[str]] = {}  # by page, nobody's or owned
        self._kept_by: OrderedDict[str, list[int]] = OrderedDict()  # session: a chain; first who kept least recently
        self._references = [0] * num_pages
        self._keys: list[PageKey | None] = [None] * num_pages
        self._page_of: dict[bytes, int] = {}

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
            if page is None or known is None or known.tokens != key.tokens or not same_chain(known.parent, parent):
                break
            pages.append(page)
            parent = known
        return pages

    def num_unowned(self, page_ids: Iterable[int]) -> int:
        """How many of these pages nobody owns, so that they count as available."""
        return sum(1 for page in page_ids if not self._references[page])

    def share(self, page_ids: list[int], hit: Sequence[int], num_fresh: int, reserve: int) -> bool:
        """Give the empty table `page_ids` the matched pages `hit` and `num_fresh` blank ones, leaving `reserve` pages.

        Changes nothing when it says False.
        """
        if self.num_available - self.num_unowned(hit) < num_fresh + reserve:
            return False
        for page in hit:
            if not self._references[page]:
                del self._place_of(page)[page]
            self._references[page] += 1
        page_ids.extend(hit)
        return self.grow(page_ids, num_fresh)

    def grow(self, page_ids: list[int], count: int) -> bool:
        """Append `count` pages with no content to a table. Changes nothing when it says False."""
        if self.num_available < count:
            return False
        for _ in range(count):
            page = self._free.pop() if self._free else self._evict()
            self._references[page] = 1
            page_ids.append(page)
        return True

    def publish(self, page: int, key: PageKey) -> PageKey:
        """Make an owned page findable by `key`; all of its positions are computed, committed and known to be finite.

        The first copy of a content stays the findable one; a second stays private. Returns the key to go on from:
        the first copy's when there is one.
        """
        first = self._page_of.get(key.digest)
        if first is None:
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

    def forget(self, session: str) -> None:
        """End a session: what only it kept and nobody owns is blank at once, and is found by nobody any more."""
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

    def _evict(self) -> int:
        """Forget the least recently used cached page; one that a session keeps only if there is no other."""
        page, _ = (self._cached or self._kept).popitem(last=False)
        for session in sorted(self._keepers.get(page, ())):
            self._cut(session, self._kept_by[session].index(page))
        self._unpublish(page)
        return page

    def _unpublish(self, page: int) -> None:
        key = self._keys[page]
        assert key is not None
        del self._page_of[key.digest]
        self._keys[page] = None
