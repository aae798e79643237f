"""CacheManager: the scheduler's only view of memory. It gives sequences pages and snapshots, and finds their prefixes.

The scheduler knows sequences and positions; groups, page tables, windows and recurrent states are known here alone. All
page tables of a sequence have the same length: entry i of each holds tokens i * page_size ..., or is 0 where a window
has left them behind. A prefix is as long as the longest length at which every group can resume: the tables that keep
everything need all its pages, those of a window the last ones, recurrent layers a snapshot of exactly that length.

A window frees whole runs of max(page_size, `tile`) tokens, never half: attention reads a tile whole, and multiplies
what it must not see by 0, which leaves a NaN as it is. Snapshots lie at absolute multiples of the same number. One is
findable once its tokens are committed and the step that took it was finite. Pages and snapshots of a sequence that
ends with a row in flight wait for that row (decision 0002): what is not finite is zeroed before it is anyone's again.

Invariants (`check`): those of PagePool for pages and for snapshots; the tables of a sequence have one length.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, cast

from jaxinfer.cache.offload import OffloadedPage
from jaxinfer.cache.pool import PagePool, Unit
from jaxinfer.cache.prefix import PageKey, chain, next_key, root_key
from jaxinfer.cache.spec import CacheLayout
from jaxinfer.config import Limits
from jaxinfer.errors import ConfigError

TILE = 64  # tokens that attention reads at once, and a recurrent layer's chunk
SNAPSHOT_EVERY = 1024  # tokens: snapshots that later ones of the same sequence do not replace


@dataclasses.dataclass(slots=True, eq=False)
class SequenceCache:
    """What one sequence has of the cache."""

    root: PageKey  # of its salt
    tokens: list[int]  # the sequence's own list: what is committed
    prompt: Sequence[int] = ()  # its first tokens again; keys of an array are made in half the time
    is_turn: bool = False  # a session may yet record it
    owner: tuple[str, int] = ("", 0)  # request id and choice, for people
    tables: Sequence[list[int]] = ()  # page ids by table; empty: it has none
    covered: int = 0  # positions for which there are pages
    num_sent: int = 0  # entries of each table that the device knows
    keys: list[PageKey] = dataclasses.field(default_factory=list)  # of the full pages that are published or shared
    lookup: list[PageKey] = dataclasses.field(default_factory=list)  # of the tokens; kept so that waiting costs no hash
    freed: Sequence[int] = ()  # by table, entries that its window has left behind
    nonfinite: bool = False  # a row was not finite: its pages may hold NaN
    load: int | None = None  # snapshot that its first row begins with, 0: zeros; None: it has begun
    held: int = 0  # snapshot that must stay until it has been loaded; 0: none
    taking: Sequence["Taking"] = ()  # by rows in flight, the oldest first
    resume_at: int = 0  # the last position for which a snapshot was taken or loaded
    junction: int = 0  # a position behind the prefix where others' tokens were found too
    replaceable: tuple[int, PageKey] | None = None  # the last snapshot published, if the next one replaces it

    def page_ids(self) -> list[int]:
        """Every page it owns, in order of the tokens."""
        if len(self.tables) == 1 and not self.freed[0]:
            return self.tables[0]
        return [page for column in zip(*self.tables, strict=True) for page in column if page]

    def lookup_keys(self, page_size: int) -> Iterator[PageKey]:
        """Keys of all full pages but one: at least one token must be computed for there to be logits.

        Each is made once, when it is asked for: where the first is not found, no other is made.
        """
        keys = self.lookup
        for i in range((len(self.tokens) - 1) // page_size):
            if i == len(keys):
                parent, end = keys[-1] if keys else self.root, (i + 1) * page_size
                known = self.prompt if end <= len(self.prompt) else self.tokens
                keys.append(next_key(parent, known[end - page_size : end]))
            yield keys[i]


class Taking(NamedTuple):
    """A snapshot that a row in flight takes."""

    end: int  # of the row: once so many positions are committed, so is the snapshot
    position: int
    row: int
    is_lasting: bool  # the sequence's next snapshot does not replace it


@dataclasses.dataclass(slots=True)
class Prefix:
    """What a sequence can begin with. Units are pages of the device, or of the host; 0 is none."""

    length: int = 0  # tokens, whole pages
    units: Sequence[list[Unit]] = ()  # by table; empty: nothing was found
    keys: list[PageKey] = dataclasses.field(default_factory=list)  # by page
    pages: Sequence[int] = ()  # the units of the device
    loads: Sequence[OffloadedPage] = ()  # the units of the host
    snapshot: int = 0  # row that recurrent layers resume from
    matched: int = 0  # tokens of which pages were found, resumable or not

    @property
    def num_offloaded(self) -> int:
        """Pages of tokens of which some table's are on the host."""
        return len({page.key.digest for page in self.loads})


class CacheManager:
    """Pages and snapshots of one engine. Used by its thread, but for the numbers of `pool`."""

    def __init__(self, limits: Limits, layout: CacheLayout | None = None, *, tile: int = TILE) -> None:
        """layout: None is one table that keeps everything.    tile: tokens."""
        self.page_size = limits.page_size
        self.layout = layout
        self._limits = limits
        self.has_state = layout is not None and layout.row_bytes > 0
        self._windows = (None,) if layout is None else layout.windows
        self._num_snapshots = layout.num_snapshots if layout is not None and limits.enable_prefix_caching else 0
        self._run = max(limits.page_size, tile)  # tokens
        self._table_width = limits.max_pages_per_seq
        self._row_width = self._table_width * len(self._windows)
        self._whole = [t for t, window in enumerate(self._windows) if window is None]
        self._windowed = [(t, window) for t, window in enumerate(self._windows) if window is not None]
        contiguous = limits.kv_layout == "contiguous"
        self._reserved = limits.max_pages_per_seq if contiguous else 0  # pages of each table that a start takes
        self.watermark = 0 if contiguous else -(-(limits.num_pages - 1) // 100)  # pages
        self.reset(())

    def reset(self, waiting: Iterable[SequenceCache]) -> None:
        """The device has lost its state: nothing is cached any more. waiting: sequences that own no pages."""
        tables = [len(list(same)) for _, same in itertools.groupby(self._windows)]
        self.pool = PagePool(self._limits.num_pages, self._limits.num_host_pages, tables)
        self.snapshots = PagePool(self._num_snapshots + 1, unhit_first=True)
        self.pages_to_zero: list[int] = []  # freed pages that may hold NaN, to be zeroed before any reuse
        self._deferred: list[tuple[int, SequenceCache]] = []  # with the number of commits after which they go
        self._num_committed = 0
        for sequence in waiting:
            sequence.held = 0

    # ---- a sequence comes and goes ----

    def find(self, sequence: SequenceCache) -> Prefix:
        """The longest prefix of a sequence's tokens, but for the last, at which every group can resume; takes none."""
        return self._longest(sequence.root, sequence.lookup_keys(self.page_size))

    def price(self, prefix: Prefix, upto: int) -> int:
        """How many of the available pages a start with this prefix and room up to a position takes."""
        fresh = (self._reserved or -(-upto // self.page_size)) - len(prefix.keys)
        return self.pool.num_unowned(prefix.pages) + len(prefix.loads) + max(0, fresh) * len(self._windows)

    def start(self, sequence: SequenceCache, prefix: Prefix, upto: int, leave: int) -> bool:
        """Give a sequence its prefix and room up to a position, and leave so many pages available.

        What is to be loaded is published at once. Changes nothing when it says False.
        """
        if self.pool.num_available < self.price(prefix, upto) + leave:
            return False
        self.pool.share(prefix.pages)
        for page in prefix.loads:  # all of them before pages are reused: one could take its place
            self.pool.offload.take(page)
        units = prefix.units or [[] for _ in self._windows]
        if prefix.loads:
            loaded: dict[Unit, Unit] = {page: self._load(page) for page in prefix.loads}
            units = [[loaded.get(unit, unit) for unit in table] for table in units]
        sequence.tables = cast(Sequence[list[int]], units)
        sequence.freed = self.firsts_at(prefix.length)
        sequence.keys, sequence.lookup = prefix.keys, []
        self._extend(sequence, self._reserved or -(-upto // self.page_size))
        if self.has_state:
            self._hold(sequence, prefix.snapshot)
            sequence.load, sequence.resume_at, sequence.replaceable = prefix.snapshot, prefix.length, None
            sequence.junction = prefix.matched // self._run * self._run
        return True

    def grow(self, sequence: SequenceCache, upto: int) -> bool:
        """Give a sequence room up to a position. Changes nothing when it says False."""
        if self.missing(sequence, upto) > self.pool.num_available:
            return False
        self._extend(sequence, -(-upto // self.page_size))
        return True

    def missing(self, sequence: SequenceCache, upto: int) -> int:
        """How many pages a sequence lacks for room up to a position."""
        if upto <= sequence.covered:
            return 0
        return -(-(upto - sequence.covered) // self.page_size) * len(self._windows)

    def most_missing(self, num_rows: int, num_tokens: int) -> int:
        """The most pages that so many rows can lack for so many tokens."""
        return (num_rows + num_tokens // self.page_size) * len(self._windows)

    def publish(self, sequence: SequenceCache, upto: int) -> None:
        """Positions 0 .. upto - 1 are committed and finite: make their full pages and snapshots findable."""
        if not self._limits.enable_prefix_caching:
            return
        size, keys = self.page_size, sequence.keys
        for i in range(len(keys), upto // size):
            key = next_key(keys[-1] if keys else sequence.root, sequence.tokens[i * size : (i + 1) * size])
            for number, table in enumerate(sequence.tables):
                key = self.pool.publish(table[i], key, number, sequence.is_turn)
            keys.append(key)
        if self.has_state:
            self._publish_snapshots(sequence, upto)

    def trim(self, sequence: SequenceCache, upto: int) -> None:
        """No row in flight begins before `upto`: free what windows have left behind."""
        for number, window in self._windowed:
            table, freed, first = sequence.tables[number], sequence.freed[number], self._first(window, upto)
            if first > freed:
                self.pool.release(table[freed:first])
                table[freed:first] = [0] * (first - freed)
                sequence.freed = [*sequence.freed[:number], first, *sequence.freed[number + 1 :]]

    def release(self, sequence: SequenceCache, in_flight: int = 0) -> None:
        """Take everything from a sequence, once so many steps in flight are committed."""
        if in_flight:
            self._deferred.append((self._num_committed + in_flight, sequence))
            return
        blank = self.pool.release(sequence.page_ids())
        if sequence.nonfinite:
            self.pages_to_zero += blank
        if self.has_state:
            self._hold(sequence, 0)
            self.snapshots.release([taking.row for taking in sequence.taking])
        sequence.tables = sequence.freed = sequence.taking = ()
        sequence.covered = sequence.num_sent = 0
        sequence.keys, sequence.lookup = [], sequence.keys or sequence.lookup

    def step_committed(self) -> None:
        """The oldest step in flight has been read."""
        self._num_committed += 1
        if self._deferred:
            due = [sequence for at, sequence in self._deferred if at <= self._num_committed]
            self._deferred = [(at, sequence) for at, sequence in self._deferred if at > self._num_committed]
            for sequence in due:
                self.release(sequence)

    def hold(self, sequence: SequenceCache) -> None:
        """A sequence waits: the snapshot that it can resume from stays until it has."""
        if self.has_state:
            self._hold(sequence, self.find(sequence).snapshot)

    @property
    def deferred(self) -> list[SequenceCache]:
        """Ended sequences that a row in flight may still write for."""
        return [sequence for _, sequence in self._deferred]

    # ---- what the device is told ----

    def unsent(self, sequence: SequenceCache) -> list[tuple[int, int]]:
        """(entry, page) of the sequence's row of the page table that the device does not know yet. The row has
        max_pages_per_seq entries for each table, one table after the other."""
        sent, sequence.num_sent = sequence.num_sent, len(sequence.tables[0])
        if sent == sequence.num_sent:
            return []
        starts = zip(range(0, self._row_width, self._table_width), sequence.tables, strict=True)
        return [(start + i, table[i]) for start, table in starts for i in range(sent, len(table)) if table[i]]

    def unsaved(self, sequence: SequenceCache, start: int, end: int, num_known: int) -> list[tuple[int, int]]:
        """(position, snapshot): states to be stored by a row of positions start .. end - 1. Where the row's tokens are
        not among the `num_known` ones, only the state before them can be: a later step decides whether they stay."""
        last, found = (num_known - 1) // self._run * self._run, []
        low, high = max(start, sequence.resume_at + 1), start if num_known <= start else end
        for position in range(-(-low // self._run) * self._run, high + 1, self._run):
            is_lasting = position % SNAPSHOT_EVERY == 0 or (num_known > start and position in (last, sequence.junction))
            rows: list[int] = []
            if is_lasting or (num_known <= start and self.snapshots.num_spare):
                self.snapshots.grow(rows, 1)
            for row in rows:  # none, where all are owned
                found.append((position, row))
                sequence.taking = [*sequence.taking, Taking(end, position, row, is_lasting)]
                sequence.resume_at = position
        return found

    # ---- sessions ----

    def keep(self, session: str, salt: str, tokens: Sequence[int]) -> None:
        """Pin what there is of a session's conversation, instead of what it pinned; what is reused goes to the host."""
        root = root_key(salt)
        keys = list(chain(root, tokens, self.page_size))
        prefix = self._longest(root, keys)
        pages: list[int] = []
        for column in zip(*prefix.units, strict=True):
            if any(isinstance(unit, OffloadedPage) for unit in column):
                break
            pages += [unit for unit in column if isinstance(unit, int) and unit]
        self.pool.remember(session, pages, keys, self._limits.most_session_pages)
        self.snapshots.pin(session, [prefix.snapshot] if prefix.snapshot else [], self._num_snapshots // 2)

    def forget(self, session: str) -> None:
        """End a session: what only it has is dropped."""
        self.pool.forget(session)
        self.snapshots.forget(session)

    # ---- export and import ----

    def cached_prefix(self, salt: str, tokens: Sequence[int]) -> Prefix:
        """The longest prefix of whole pages at which every group can resume; takes none."""
        root = root_key(salt)
        return self._longest(root, chain(root, tokens, self.page_size))

    def firsts_at(self, length: int) -> list[int]:
        """By table, the first page that is needed to go on from so many tokens."""
        return [self._first(window, length) for window in self._windows]

    def take_in(self, keys: Sequence[PageKey], contents: Sequence[Sequence[Callable[[], object]]]) -> tuple[int, int]:
        """Have those pages of a prefix on the host that are not on the device; sequences find them by their keys.

        As many as have room there, instead of what came first. Where a group can resume at the end alone, all or none.
        contents: make those of each table's pages from `firsts_at` on.
        Returns the tokens that were taken in, and the snapshot that is to be loaded, 0: none. Raises ConfigError, and
        has changed nothing then.
        """
        room, needed = self.pool.offload.most, sum(map(len, contents))
        all_or_none = bool(self._windowed) or self.has_state
        count = len(keys) if needed <= room else 0 if all_or_none else room // len(self._windows)
        if not count:
            least = needed if all_or_none else len(self._windows)
            raise ConfigError(
                f"host memory must have room for {least} pages of this prefix, got {room}; raise kv_offloading_bytes"
            )
        parents = [keys[0].parent or keys[0], *keys]  # a root is no page's key
        needs_snapshot = self.has_state and not self._snapshot(count * self.page_size, keys[-1], parents[-2])
        if needs_snapshot and not self.snapshots.num_available:
            raise ConfigError(f"a snapshot must be free, all {self._num_snapshots} are in use; import it again later")
        firsts = self.firsts_at(count * self.page_size)
        for i in reversed(range(count)):  # the first pages are worth most, so they are dropped last
            for table, first in enumerate(firsts):
                if i >= first and not self.pool.find(table, keys[i], parents[i]):
                    self.pool.offload.add(OffloadedPage(table, keys[i], contents[table][i - first]()))
        return count * self.page_size, self._new_snapshot(keys[-1]) if needs_snapshot else 0

    def _new_snapshot(self, key: PageKey) -> int:
        """A snapshot that is found by a key, and is to be loaded before anybody resumes from it."""
        rows: list[int] = []
        self.snapshots.take(rows, 1)
        self.snapshots.publish(rows[0], key)
        self.snapshots.release(rows)
        return rows[0]

    # ---- invariants ----

    def check(self, running: Iterable[SequenceCache], waiting: Iterable[SequenceCache] = ()) -> None:
        """Recompute every invariant from all sequences; AssertionError names the one that does not hold."""
        owners = [*running, *self.deferred]
        for sequence in owners:
            lengths = {len(table) for table in sequence.tables}
            assert lengths == {-(-sequence.covered // self.page_size)}, f"page tables of lengths {lengths}"
            for table, freed in zip(sequence.tables, sequence.freed, strict=True):
                assert not any(table[:freed]) and all(table[freed:]), "a page is missing from the middle of a table"
        self.pool.check([sequence.page_ids() for sequence in owners], self._whole)
        held = [[sequence.held] for sequence in (*owners, *waiting) if sequence.held]
        self.snapshots.check([*held, *([taking.row for taking in s.taking] for s in owners)], ())

    # ---- inside ----

    def _first(self, window: int | None, upto: int) -> int:
        """The first entry of a table that a row from position `upto` on reads."""
        if window is None:
            return 0
        return max(0, upto - window + 1) // self._run * self._run // self.page_size

    def _longest(self, root: PageKey, keys: Iterable[PageKey]) -> Prefix:
        """What there is of a chain of keys."""
        if self._whole:
            units, known = self.pool.match(self._whole[0], root, keys)
        else:
            units, known = list[Unit](), list(keys)
        found = Prefix(len(known) * self.page_size, [units], known, matched=len(known) * self.page_size)
        if len(self._windows) > 1 or not self._whole or self.has_state:
            self._cut(found, root)
        found.pages = [unit for table in found.units for unit in table if unit and isinstance(unit, int)]
        if len(self.pool.offload):
            found.loads = [unit for table in found.units for unit in table if isinstance(unit, OffloadedPage)]
        return found

    def _cut(self, found: Prefix, root: PageKey) -> None:
        """Shorten what one table has to the longest prefix at which all groups can resume."""
        keys, tables, best = found.keys, [list[Unit]() for _ in self._windows], 0
        missing = [-1] * len(tables)  # by table, the last page that was not found
        for i, key in enumerate(keys):
            length, parent = (i + 1) * self.page_size, keys[i - 1] if i else root
            for number, table in enumerate(tables):
                unit = self.pool.unit(number, key, parent)
                table.append(unit)
                if not unit:
                    missing[number] = i
                else:
                    keys[i] = unit.key if isinstance(unit, OffloadedPage) else self.pool.key_of(unit) or key
            firsts = self.firsts_at(length)
            snapshot = self._snapshot(length, keys[i], parent) if all(map(int.__lt__, missing, firsts)) else None
            if snapshot is not None:
                best, found.snapshot = i + 1, snapshot
        found.length = best * self.page_size
        for first, table in zip(self.firsts_at(found.length), tables, strict=True):
            table[:first] = [0] * first
        found.units = [table[:best] for table in tables]
        del keys[best:]

    def _snapshot(self, length: int, key: PageKey, parent: PageKey) -> int | None:
        """The snapshot behind so many tokens, 0 where none is needed; None: recurrent layers cannot resume there."""
        if not self.has_state:
            return 0
        return (self.snapshots.find(0, key, parent) or None) if length % self._run == 0 else None

    def _load(self, page: OffloadedPage) -> int:
        """Have a page of the host loaded into one of the device, of which there are enough."""
        fresh: list[int] = []
        self.pool.take(fresh, 1)
        self.pool.offload.loads[page] = fresh[0]
        self.pool.publish(fresh[0], page.key, page.table, of_turn=not self.pool.offload.remembers(page.key))
        return fresh[0]

    def _extend(self, sequence: SequenceCache, num_entries: int) -> None:
        """Append pages to each table, of which there are enough."""
        for table in sequence.tables:
            self.pool.take(table, num_entries - len(table))
        sequence.covered = num_entries * self.page_size

    def _hold(self, sequence: SequenceCache, snapshot: int) -> None:
        """Hold a snapshot instead of the one that was."""
        if snapshot:
            self.snapshots.share([snapshot])
        if sequence.held:
            self.snapshots.release([sequence.held])
        sequence.held = snapshot

    def _publish_snapshots(self, sequence: SequenceCache, upto: int) -> None:
        self._hold(sequence, 0)  # its first row has been committed
        while sequence.taking and sequence.taking[0].end <= upto:
            taking, *sequence.taking = sequence.taking
            key = sequence.keys[taking.position // self.page_size - 1]
            self.snapshots.publish(taking.row, key)
            self.snapshots.release([taking.row])
            if sequence.replaceable is not None:
                self.snapshots.discard(*sequence.replaceable)
            sequence.replaceable = None if taking.is_lasting else (taking.row, key)
