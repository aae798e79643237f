"""CacheManager, alone: a small scheduler drives it over a memory that knows what every position of every page holds.

Hypothesis draws layouts and workloads, and prints the smallest one that breaks a law: a row finds in each table what
its group's spec says it reads, and in its recurrent state the tokens before it; a prefix is the longest that every
group can resume at; what is found by a key is what the key says; what was not finite is zeroed before it is reused.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jaxinfer.cache.manager import CacheManager, SequenceCache
from jaxinfer.cache.prefix import PageKey, chain, root_key
from jaxinfer.cache.spec import CacheLayout
from jaxinfer.errors import ConfigError
from tests.engine.device import make_limits
from tests.engine.hybrid import make_layout

MAX_LENGTH = 64
NAN, NOISE = (-1,), (-2,)  # what a position may hold beside the tokens up to it
TEXTS = [tuple((i * i + seed * i) % 3 for i in range(90)) for seed in range(3)]  # beginnings are shared


@dataclasses.dataclass(eq=False)
class Stream:
    """A sequence: all tokens that it will ever have, those that are committed, and how far its rows have come."""

    text: tuple[int, ...]
    cache: SequenceCache
    num_prompt: int
    dispatched: int = 0
    state: tuple[int, ...] = NOISE  # tokens that its slot's recurrent state is behind
    has_ended: bool = False

    @property
    def tokens(self) -> list[int]:
        return self.cache.tokens


@dataclasses.dataclass
class FlyingRow:
    stream: Stream
    start: int
    end: int
    is_known: bool  # its tokens were committed when it was planned
    is_finite: bool = True


class Host:
    """The manager with waiting and running streams, and at most two steps in flight."""

    def __init__(self, layout: CacheLayout, tile: int, spare: int, page_size: int, num_host_pages: int) -> None:
        tables, num_pages = len(layout.windows), -(-MAX_LENGTH // page_size) + spare
        limits = make_limits(
            page_size=page_size,
            num_pages=num_pages * tables + 1,
            max_model_len=MAX_LENGTH,
            page_tables=tables,
            num_host_pages=num_host_pages,
        )
        self.layout, self.size, self.run = layout, page_size, max(tile, page_size)
        self.manager = CacheManager(limits, layout, tile=tile)
        self.memory = [[NOISE] * page_size for _ in range(limits.num_pages)]
        self.snapshots = [NOISE] * (layout.num_snapshots + 1)
        self.waiting: list[Stream] = []
        self.running: list[Stream] = []
        self.flying: list[list[FlyingRow]] = []
        self.reached: Counter[str] = Counter()

    # ---- what a workload is made of ----

    def add(self, text: int, length: int) -> None:
        """A stream of a prompt and up to 20 tokens more; others may have the same beginning."""
        start = text % 3 * 13
        whole = (*TEXTS[0][:start], *TEXTS[text // 3][start : length + text % 5 * 5 + 1])
        cache = SequenceCache(root_key(""), list(whole[:length]), is_turn=text % 2 == 0)
        self.waiting.append(Stream(whole, cache, length))

    def step(self, chunk: int, nan: int) -> None:
        """Start who fits, plan a row for each, then commit the step before. nan: which row is not finite, if any."""
        rows: list[FlyingRow] = []
        wanted = sum(self.manager.missing(s.cache, self._end_of_row(s, chunk)) for s in self.running)
        while self.flying and wanted > self.manager.pool.num_available:
            self.commit()  # before anybody is preempted
        for stream in list(self.running):
            if stream.dispatched + 1 < len(stream.text):
                rows += self._row(stream, chunk)
        while self.waiting and len(self.running) < 4 and self._start(self.waiting[0], chunk):
            self.running.append(self.waiting.pop(0))
            rows += self._row(self.running[-1], chunk)
        if nan < len(rows):
            rows[nan].is_finite = False
        before = [row.stream for earlier in self.flying for row in earlier if not row.is_finite]
        for row in rows:
            row.is_finite &= row.stream not in before  # it reads what that one wrote
        self._move_pages()
        for row in rows:
            self._write(row)
        for row in rows:
            if row.is_finite:
                self._read(row)
        self.flying.append(rows)
        if len(self.flying) > 1 or not rows:
            self.commit()

    def commit(self) -> None:
        if not self.flying:
            return
        for row in self.flying[0]:
            if not row.is_finite:
                row.stream.cache.nonfinite = True
                self.end(row.stream)
            elif not row.stream.has_ended:
                self._commit(row)
        del self.flying[0]
        self.manager.step_committed()
        for page in self.manager.pages_to_zero:
            self.memory[page] = [NOISE] * self.size
        self.manager.pages_to_zero = []

    def end(self, stream: Stream) -> None:
        if stream.has_ended:
            return
        stream.has_ended = True
        (self.running if stream in self.running else self.waiting).remove(stream)
        self.manager.release(stream.cache, len(self.flying) if stream.cache.tables else 0)

    def keep(self, session: int, stream: Stream) -> None:
        self.manager.keep("ab"[session % 2], "", stream.tokens)

    def export_and_import(self, text: int, length: int) -> None:
        """What an export of some tokens would read here; then an import of as many from elsewhere."""
        tokens = TEXTS[text % 3][: length // self.run * self.run]
        self._check_export(tokens)
        keys, firsts = list(chain(root_key(""), tokens, self.size)), self.manager.firsts_at(len(tokens))
        if not keys:
            return
        contents = [
            [functools.partial(held_by, number, tokens, i, self.size) for i in range(first, len(keys))]
            for number, first in enumerate(firsts)
        ]
        room, snapshots = self.manager.pool.offload.most, self.manager.snapshots
        all_or_none = self.layout.row_bytes or None not in self.layout.windows or len(set(self.layout.windows)) > 1
        expected = min(len(keys), room // len(self.layout.windows)) * self.size
        if all_or_none and sum(map(len, contents)) > room:
            expected = 0
        elif all_or_none:
            expected = len(tokens)
        try:
            num_tokens, snapshot = self.manager.take_in(keys, contents)
        except ConfigError as refusal:
            assert expected == 0 or ("snapshot" in str(refusal) and not snapshots.num_available)
            return
        assert num_tokens == expected > 0
        if snapshot:
            self.snapshots[snapshot] = tokens
        assert self.manager.cached_prefix("", tokens).length >= num_tokens, "what was imported is not found"
        self.reached["imports"] += 1

    def _check_export(self, tokens: tuple[int, ...]) -> None:
        prefix = self.manager.cached_prefix("", tokens)
        for number, table in enumerate(prefix.units):
            first = self.manager.firsts_at(prefix.length)[number]
            assert all(table[first:]) and not any(table[:first]), "other pages than an import expects"
            for i, unit in enumerate(table[first:], first):
                held = self.memory[unit] if isinstance(unit, int) else unit.data
                assert held == held_by(number, tokens, i, self.size), "an export holds other tokens"
        assert not prefix.snapshot or self.snapshots[prefix.snapshot] == tokens[: prefix.length]

    # ---- what a scheduler and a device do ----

    def _start(self, stream: Stream, chunk: int) -> bool:
        prefix = self.manager.find(stream.cache)
        assert prefix.length == self._longest(stream), "a prefix is not the longest that every group can resume"
        end = min(len(stream.tokens), prefix.length + chunk)
        if not self.manager.start(stream.cache, prefix, end, 0):
            return False
        stream.dispatched = prefix.length
        self.reached["hits"] += prefix.length > 0
        self.reached["hits of snapshots"] += prefix.snapshot > 0
        self.reached["hits behind a window"] += any(stream.cache.freed)
        return True

    def _end_of_row(self, stream: Stream, chunk: int) -> int:
        start, known = stream.dispatched, len(stream.tokens)
        return min(start + chunk, known) if start < known else start + 1

    def _row(self, stream: Stream, chunk: int) -> list[FlyingRow]:
        """A stream's row, if it finds room: else it is preempted."""
        start, known, end = stream.dispatched, len(stream.tokens), self._end_of_row(stream, chunk)
        if end - known > 1:
            return []  # one token ahead at most
        if not self.manager.grow(stream.cache, end):
            assert not self.flying
            self._preempt(stream)
            return []
        for entry, page in self.manager.unsent(stream.cache):
            assert NAN not in self.memory[page], "a page with NaN has a new owner"
            number, index = divmod(entry, -(-MAX_LENGTH // self.size))
            assert stream.cache.tables[number][index] == page
        stream.dispatched = end
        return [FlyingRow(stream, start, end, start < known)]

    def _preempt(self, stream: Stream) -> None:
        self.reached["preemptions"] += 1
        self.manager.publish(stream.cache, stream.dispatched)
        self.running.remove(stream)
        self.manager.release(stream.cache)
        self.manager.hold(stream.cache)
        self.waiting.insert(0, stream)

    def _commit(self, row: FlyingRow) -> None:
        stream = row.stream
        if row.is_known or row.end % self.size == 0:
            self.manager.publish(stream.cache, row.end)
            freed = list(stream.cache.freed)
            self.manager.trim(stream.cache, row.end)
            self.reached["windows that let go"] += freed != stream.cache.freed
        if row.end == len(stream.tokens):
            stream.tokens.append(stream.text[row.end])
        if len(stream.tokens) == len(stream.text):
            self.manager.publish(stream.cache, row.end)
            self.end(stream)

    def _move_pages(self) -> None:
        offload = self.manager.pool.offload
        self.reached["loads"] += len(offload.loads)
        for saved, page in offload.saves.items():
            saved.data = list(self.memory[page])
        for loaded, page in offload.loads.items():
            assert isinstance(loaded.data, list)
            self.memory[page] = list(loaded.data)
        offload.saves.clear()
        offload.loads.clear()

    def _write(self, row: FlyingRow) -> None:
        stream, cache = row.stream, row.stream.cache
        for position in range(row.start, row.end):
            for number, table in enumerate(cache.tables):
                page = table[position // self.size]
                held = (number, *stream.text[: position + 1]) if row.is_finite else NAN
                self.memory[page][position % self.size] = held
        if self.layout.row_bytes:
            self._advance(row)

    def _advance(self, row: FlyingRow) -> None:
        stream = row.stream
        if stream.cache.load is not None:
            stream.state = self.snapshots[stream.cache.load] if stream.cache.load else ()
            stream.cache.load = None
        assert stream.state == stream.text[: len(stream.state)], "a recurrent state is behind other tokens"
        saves = self.manager.unsaved(stream.cache, row.start, row.end, len(stream.tokens))
        high = row.end if row.is_known else row.start
        for position, snapshot in saves:
            assert row.start <= position <= high, "a state that the row does not have was to be stored"
            self.snapshots[snapshot] = stream.text[:position]
        stream.state = stream.text[:high]

    def _read(self, row: FlyingRow) -> None:
        """What the row attends to: of a window every tile that its first token reads from."""
        for number, window in enumerate(self.layout.windows):
            low = 0 if window is None else max(0, row.start + 1 - window) // self.run * self.run
            for position in range(low, row.start):
                page = row.stream.cache.tables[number][position // self.size]
                held = self.memory[page][position % self.size]
                assert held == (number, *row.stream.text[: position + 1]), f"position {position} is not there"

    # ---- laws ----

    def _longest(self, stream: Stream) -> int:
        """By looking at everything that can be found."""
        pool, snapshots = self.manager.pool, self.manager.snapshots
        pages = {(pool._tables[p], tokens_of(key)) for p in range(1, pool.num_total + 1) if (key := pool.key_of(p))}
        pages |= {(page.table, tokens_of(page.key)) for page in pool.offload}
        states = {tokens_of(key) for row in range(1, snapshots.num_total + 1) if (key := snapshots.key_of(row))}
        best = 0
        for length in range(self.size, len(stream.tokens), self.size):
            there = True
            for number, window in enumerate(self.layout.windows):
                low = 0 if window is None else max(0, length + 1 - window) // self.run * self.run
                ends = range(low + self.size, length + 1, self.size)
                there &= all((number, stream.text[:end]) in pages for end in ends)
            if there and (not self.layout.row_bytes or stream.text[:length] in states):
                best = length
        return best

    def check(self) -> None:
        manager = self.manager
        manager.check([s.cache for s in self.running], [s.cache for s in self.waiting])
        for page in range(1, manager.pool.num_total + 1):
            key = manager.pool.key_of(page)
            if key is not None and page not in manager.pool.offload.loads.values():
                tokens, number = tokens_of(key), manager.pool._tables[page]
                held = held_by(number, tokens, len(tokens) // self.size - 1, self.size)
                assert self.memory[page] == held, "a page holds other tokens"
        for row in range(1, manager.snapshots.num_total + 1):
            if (key := manager.snapshots.key_of(row)) is not None:
                assert self.snapshots[row] == tokens_of(key), "a snapshot is the state behind other tokens"
        for stream in self.running:
            assert stream.cache.covered == -(-max(stream.dispatched, 1) // self.size) * self.size


def held_by(number: int, tokens: tuple[int, ...], i: int, size: int) -> list[tuple[int, ...]]:
    """What a table's page i of some tokens holds."""
    return [(number, *tokens[:end]) for end in range(i * size + 1, (i + 1) * size + 1)]


def tokens_of(key: PageKey) -> tuple[int, ...]:
    parts = []
    while key.parent is not None:
        parts.append(tuple(memoryview(key.tokens).cast("i")))
        key = key.parent
    return tuple(token for part in reversed(parts) for token in part)


HOSTS = st.builds(
    lambda size, window, snapshots, num_full, **rest: Host(
        make_layout(size, window, snapshots, num_full), page_size=size, **rest
    ),
    size=st.sampled_from((4, 2, 8)),
    window=st.sampled_from((7, 1, 20)),
    snapshots=st.sampled_from((0, 3, 40)),
    num_full=st.sampled_from((1, 3)),
    tile=st.sampled_from((8, 1, 16)),
    spare=st.sampled_from((0, 4, 20)),
    num_host_pages=st.sampled_from((0, 30)),
)
SMALL = st.integers(0, 8)
WORKLOADS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SMALL, st.integers(1, 40)),
        st.tuples(st.just("add"), SMALL, st.integers(30, 40)),
        st.tuples(st.just("steps"), st.integers(4, 40), st.integers(1, 40)),
        st.tuples(st.just("step"), st.integers(1, 40), st.integers(0, 5)),
        st.tuples(st.sampled_from(("end", "keep", "keep", "forget", "preempt")), SMALL, SMALL),
        st.tuples(st.just("import"), SMALL, st.integers(1, 40)),
    ),
    min_size=12,
    max_size=40,
)


def drive(host: Host, workload: list[tuple[str, int, int]]) -> None:
    """Carry a workload out, every law held after each of its parts."""
    for kind, first, second in workload:
        streams = host.running + host.waiting
        match kind:
            case "add":
                host.add(first, second)
            case "step":
                host.step(first, second)
            case "steps":
                for _ in range(second):
                    host.step(first, 99)
            case "import":
                host.export_and_import(first, second)
            case "forget":
                host.manager.forget("ab"[first % 2])
            case "end" if streams:
                host.end(streams[first % len(streams)])
            case "keep" if streams:
                host.keep(second, streams[first % len(streams)])
            case "preempt" if host.running:
                while host.flying:
                    host.commit()
                if host.running:
                    host._preempt(host.running[-1])
        host.check()


def hold_the_law(num_examples: int, *phases: Phase) -> Counter[str]:
    """Returns how often the workloads came to what they are meant to come to."""
    reached: Counter[str] = Counter()

    @settings(
        max_examples=num_examples,
        phases=phases or tuple(Phase),
        report_multiple_bugs=False,
        derandomize=True,
        database=None,
    )
    @given(HOSTS, WORKLOADS)
    def law(host: Host, workload: list[tuple[str, int, int]]) -> None:
        drive(host, workload)
        reached.update(host.reached)

    law()
    return reached


def test_any_workload_finds_in_every_group_what_its_spec_says():
    reached = hold_the_law(15)
    assert len(reached) == 7 and min(reached.values()) > 2, reached


@pytest.mark.slow
def test_many_more_workloads_find_it_too():
    hold_the_law(100)


def free_a_page_too_early(patch: Callable) -> None:
    first = CacheManager._first
    patch(CacheManager, "_first", lambda self, window, upto: first(self, window, upto) + (upto >= (window or 999)))


def take_a_snapshot_a_token_late(patch: Callable) -> None:
    unsaved = CacheManager.unsaved
    patch(CacheManager, "unsaved", lambda self, *row: [(position + 1, s) for position, s in unsaved(self, *row)])


@pytest.mark.parametrize("mutation", [free_a_page_too_early, take_a_snapshot_a_token_late])
def test_a_mutation_has_a_counterexample(mutation, monkeypatch):
    mutation(monkeypatch.setattr)
    with pytest.raises((AssertionError, IndexError)):
        hold_the_law(300, Phase.generate)  # without looking for the smallest one
