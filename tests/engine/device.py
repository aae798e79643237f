"""FakeRunner: a device without a model, truthful about everything the host must get right.

Keys and values of a position are one number that depends on its token, its position and every number before it, read
through the slot's page table; the next token is a hash of all of them. So a page that is shared wrongly, reused too
early, published before it is full, or missing from the table changes the tokens. Steps run only when one is waited for,
in the order they were dispatched, from what was uploaded then: run-ahead is real.

Device puts faults around it: a step that fails takes the whole state with it.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.engine.sequence import Request, ThoughtLimit
from jaxinfer.runtime.mask_table import ANY, Masks, MaskTable
from jaxinfer.runtime.plan import Controls, History, Logprobs, Pending, Plan, Row, Sampling, StepResult
from jaxinfer.testing.faults import Fault, FaultStruck, FaultyRunner, JaxRuntimeError
from tests.engine.grammars import begins, bits_to_ids, permitted
from tests.engine.numbers import BAD, CURSED, MASK, VOCAB, completes_a_bad_word, mix

WEIGHTS = np.random.default_rng(0).integers(1, MASK, 4096, np.uint64, endpoint=True) | np.uint64(1)


def make_limits(**changes) -> Limits:
    """Limits of a small engine: pages of 4 tokens, 8 sequences, steps of 32 tokens."""
    values = {
        "max_model_len": 128,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "page_size": 4,
        "num_pages": 257,
        "vocab_size": VOCAB,
        "decode_buckets": (8,),
        "extend_buckets": (ExtendBucket(32, 8, 8),),
    }
    return Limits(**values | changes)


def fold(values: np.ndarray) -> int:
    """One number for a whole history u64[n], sensitive to each position."""
    return int((values * WEIGHTS[: len(values)]).sum(dtype=np.uint64))


def value_of(token: int, position: int, before: int) -> int:
    """What the pages hold for a token; `before` is the fold of all positions before it."""
    return mix(token, position, before)


@dataclasses.dataclass
class Seen:
    """What controls depend on: who was given and drawn, and what is banned this time."""

    prompt: list[int]
    output: list[int]
    end_ids: frozenset[int]
    banned: Sequence[int] = ()
    among: frozenset[int] | None = None  # of a masked row: nothing else is asked then


def draw(history: int, position: int, sampling: Sampling, seen: Seen) -> int:
    """The token after `position`, by a history's fold; BAD and CURSED only at temperatures above 1."""
    noise = (sampling.seed, sampling.sample_index, position) if sampling.temperature else ()
    state, num_ids = mix(history, *noise), VOCAB if sampling.temperature > 1 else CURSED
    controls = sampling.controls or Controls()
    if sampling.controls is None and not sampling.masked:
        return state % num_ids
    if controls.penalize:  # depends on how often each token was seen, not on their order
        state = mix(state, sum(mix(t, 1) for t in set(seen.prompt)) + sum(mix(t, 2) for t in seen.output))
    if seen.among is not None:
        choices = sorted(seen.among) or [0]  # whatever a device makes of nothing
        return choices[state % len(choices)]
    early = len(seen.output) < controls.min_tokens
    while (token := state % num_ids) in seen.banned or (early and token in seen.end_ids):
        state = mix(state)
    return token


def logprob(history: int, token: int) -> float:
    """What stands for a token's logprob after a history."""
    return -float(mix(history, token, 3) % 1024)


def hidden(history: int) -> np.ndarray:
    """What stands for a position's hidden state: f32[2] of small integers, whose sums are exact in any order."""
    return np.array([mix(history, 4) % 1024, mix(history, 5) % 1024], np.float32)


def embedding(request: Request) -> bytes:
    """The oracle of an embedding."""
    states = np.stack([hidden(history) for history in histories(request.prompt)])
    pooled = states.sum(axis=0) / np.float32(len(states)) if request.pooling == "mean" else states[-1]
    return pooled.tobytes()


def histories(tokens: Sequence[int]) -> list[int]:
    """The fold up to each position, that position included."""
    found, history = [], 0
    for position, token in enumerate(tokens):
        history = (history + value_of(token, position, history) * int(WEIGHTS[position])) & MASK
        found.append(history)
    return found


def alone(request: Request, index: int, limits: Limits) -> tuple[list[int], str]:
    """The oracle: a choice's output tokens and finish reason, computed without engine, pages or steps."""
    controls, ends = request.controls, request.eos_token_ids | request.stop_token_ids
    masked = False
    tokens, values, history, output = list(request.prompt), 0, 0, []
    while True:
        for position in range(values, len(tokens)):
            weight = int(WEIGHTS[position])
            history = (history + value_of(tokens[position], position, history) * weight) & MASK
        if BAD in tokens[values:]:
            return output, "error"
        if request.pooling is not None:
            return [], "stop"
        values = len(tokens)
        banned = list(completes_a_bad_word(controls, tokens)) if controls else []
        if request.structure is not None and not masked and begins(request.structure, output) is not None:
            masked, ends = True, ends | request.structure.end_ids
        sampling = Sampling(
            request.temperature, seed=request.seed, sample_index=index, controls=controls, masked=masked
        )
        among = frozenset(permitted(request, output)) if masked else None
        if among is not None and not among:
            return output, "error"
        token = draw(history, values - 1, sampling, Seen(list(request.prompt), output, ends, banned, among))
        if closes_thoughts(request.thoughts, output):
            token = request.thoughts.close_id
        tokens.append(token)
        output.append(token)
        if token in ends:
            return output, "stop"
        if len(output) == request.max_tokens or len(tokens) == limits.max_model_len:
            return output, "length"


def closes_thoughts(limit: ThoughtLimit | None, output: list[int]) -> bool:
    """Whether the thoughts are as long as they may be, so that the next token must close them."""
    if limit is None:
        return False
    begins = [0] if limit.is_open else [i + 1 for i, token in enumerate(output[:4]) if token == limit.open_id][:1]
    return any(len(output) == at + limit.budget and limit.close_id not in output[at:] for at in begins)


@dataclasses.dataclass
class FakePending:
    runner: "FakeRunner"
    result: StepResult | None = None
    is_masked: bool = False
    masks: list[np.ndarray | None] | None = None  # None of a row where anything may be drawn

    def draw(self, masks: Masks) -> None:
        assert self.is_masked and self.masks is None, "only a masked plan draws with masks, and once"
        table = self.runner.masks
        assert len({*masks.news.tolist()}) == len(masks.news), "a mask is written twice"
        table |= {row: words.copy() for row, words in zip(masks.news.tolist(), masks.words, strict=True)}
        self.masks = [None if row == ANY else table[row] for row in masks.rows.tolist()]

    def wait(self) -> StepResult:
        self.runner.run_until(self)
        assert self.result is not None
        return self.result


class FakeSaved:
    """A page on its way to the host, and there once the device has come to it."""

    kv: np.ndarray | None = None
    bad: np.ndarray | None = None


class FakeRunner:
    """The Runner protocol over numpy arrays. `on_run` sees each plan as it is dispatched."""

    exports = None

    def __init__(self, limits: Limits, on_run: Callable[[Plan], None] | None = None) -> None:
        self.limits = limits
        self.plans = 0
        self.zeroed: list[int] = []
        self._on_run = on_run
        self.mask_table = MaskTable(limits.vocab_size, limits.max_num_seqs)
        self.reset()

    def reset(self) -> None:
        limits = self.limits
        self.wrecked = False
        self._last: FakePending | None = None
        self._queue: list[Callable[[], None]] = []
        noise = np.random.default_rng(1)
        shape = (limits.num_pages, limits.page_size)
        self.kv = noise.integers(0, MASK, shape, np.uint64)  # what nobody wrote is noise, not zero
        self.bad = np.ones(shape, bool)
        self.loading = 0  # pages that are to be loaded when their turn comes
        self.spoilt: set[int] = set()  # pages that NaN was written to, until they are zeroed
        slots = limits.max_num_seqs + 1
        self.page_table = noise.integers(0, limits.num_pages, (slots, limits.max_pages_per_seq))
        self.last_token = np.full(slots, -1)
        self.next_position = np.full(slots, -1)
        self.sampling: list[Sampling | None] = [None] * slots
        self.seen: list[Seen | None] = [None] * slots
        self.mask_table.clear()
        self.masks: dict[int, np.ndarray] = {}  # by row of the table

    def wreck(self) -> None:
        """Lose the state, as a step that fails does; only `reset` brings a new one."""
        self.reset()
        self.wrecked = True

    def run(self, plan: Plan) -> FakePending:
        assert not self.wrecked, "a step on a state that was lost"
        if self._on_run:
            self._on_run(plan)
        self._check(plan)
        self.plans += 1
        assert self._last is None or not self._last.is_masked or self._last.masks is not None, "a step did not draw"
        pending = self._last = FakePending(self, is_masked=plan.is_masked)
        uploaded = [msgspec.structs.replace(row, tokens=row.tokens and list(row.tokens)) for row in plan.rows]

        def execute() -> None:
            pending.result = self._execute(uploaded, pending)

        self._queue.append(execute)
        return pending

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        assert not self.wrecked, "pages of a state that was lost"
        pages = list(page_ids)
        self.zeroed += pages

        def execute() -> None:
            self.kv[pages] = 0
            self.bad[pages] = False
            self.spoilt.difference_update(pages)

        self._queue.append(execute)

    def save_pages(self, page_ids: Sequence[int]) -> list["FakeSaved"]:
        assert not self.wrecked, "pages of a state that was lost"
        saved = [FakeSaved() for _ in page_ids]

        def execute() -> None:
            for page, content in zip(page_ids, saved, strict=True):
                assert page not in self.spoilt, "a page with NaN was saved"
                content.kv, content.bad = self.kv[page].copy(), self.bad[page].copy()

        self._queue.append(execute)
        return saved

    def load_pages(self, page_ids: Sequence[int], contents: Sequence[object]) -> None:
        assert not self.wrecked, "pages of a state that was lost"
        self.loading += len(page_ids)

        def execute() -> None:
            for page, content in zip(page_ids, contents, strict=True):
                assert isinstance(content, FakeSaved) and content.kv is not None, "loaded before it was saved"
                self.kv[page], self.bad[page] = content.kv, content.bad
            self.loading -= len(page_ids)

        self._queue.append(execute)

    def run_until(self, pending: FakePending) -> None:
        while pending.result is None:
            self._queue.pop(0)()

    def _check(self, plan: Plan) -> None:
        """What any runner may expect of a plan."""
        slots = [row.slot for row in plan.rows]
        assert slots, "an empty step"
        assert len(set(slots)) == len(slots), "two rows for one slot"
        assert all(1 <= slot <= self.limits.max_num_seqs for slot in slots), "a slot that does not exist"
        assert plan.num_tokens <= self.limits.max_num_batched_tokens, "more tokens than the step budget"
        for row in plan.rows:
            assert row.count >= 1
            assert row.count == len(row.tokens) if row.tokens is not None else (row.count == 1 and row.sample)
            assert all(1 <= page < self.limits.num_pages for _, page in row.new_pages), "a page that is not the pool's"
            if row.sampling is not None:
                assert row.tokens is not None, "a slot's first row must carry its tokens"
                assert [i for i, _ in row.new_pages][: self._num_whole(row)] == list(range(self._num_whole(row)))
                has_state = row.sampling.controls is not None or row.sampling.masked
                assert (row.history is not None) == has_state, "controls without their history"
            assert not row.masked or row.sample
            assert len(row.targets) <= row.count and not (row.targets and row.tokens is None)
            assert row.num_pooled <= row.count and not (row.num_pooled and row.sample)

    def _num_whole(self, row: Row) -> int:
        """Entries of the first table that a row's first step brings."""
        return len(row.new_pages)

    def _execute(self, rows: list[Row], pending: FakePending) -> StepResult:
        assert pending.is_masked == (pending.masks is not None), "masks did not come before the results were read"
        masks = iter(() if pending.masks is None else pending.masks)
        for row in rows:  # uploads first, then all keys and values, then all reads, as on the device
            for i, page in row.new_pages:
                assert page not in self.spoilt, "a page with NaN got a new owner"
                self.page_table[row.slot, i] = page
            if row.sampling is not None:
                self.sampling[row.slot] = row.sampling
                past = row.history or History([], [])
                self.seen[row.slot] = Seen(list(past.prompt), list(past.output), past.end_ids)
        for row in rows:
            self._write(row)
        self._attend(rows)
        targets = {i: self._score(row) for i, row in enumerate(rows) if row.targets}
        scores = np.zeros(len(rows), np.float32)
        tokens = np.full(len(rows), -5, np.int32)
        finite = np.zeros(len(rows), bool)
        for i, row in enumerate(rows):
            end = row.start + row.count
            finite[i] = not self._visible(self.bad, row.slot, end).any()
            self.next_position[row.slot] = end
            self.last_token[row.slot] = -1
            if row.sample:
                sampling, seen = self.sampling[row.slot], self.seen[row.slot]
                assert sampling is not None and seen is not None
                if row.sampler < sampling.sampler:  # the host says that its controls have ended
                    sampling = dataclasses.replace(sampling, controls=None)
                assert row.sampler is sampling.sampler, "drawn by the wrong one"
                assert row.logprobs == sampling.logprobs, "a row whose logprobs nobody takes"
                assert row.masked == sampling.masked, "a row without its mask"
                mask = next(masks) if row.masked else None
                among = None if mask is None else frozenset(bits_to_ids(mask))
                history = fold(self._visible(self.kv, row.slot, end))
                last = [None, *seen.prompt[-1:], *seen.output[-1:]][-1]
                banned = [banned for after, banned in row.bans if after in (ANY, last)]
                tokens[i] = draw(history, end - 1, sampling, dataclasses.replace(seen, banned=banned, among=among))
                seen.output.append(int(tokens[i]))
                scores[i] = logprob(history, int(tokens[i]))
                self.last_token[row.slot] = tokens[i]
        wanted = any(row.logprobs and row.sample for row in rows)
        pooled = {i: self._pool(row) for i, row in enumerate(rows) if row.num_pooled}
        return StepResult(tokens, finite, _logprobs(scores) if wanted else None, targets, pooled)

    def _pool(self, row: Row) -> np.ndarray:
        """The sum of what stands for the hidden states of a row's last positions."""
        end = row.start + row.count
        histories = [fold(self._visible(self.kv, row.slot, i + 1)) for i in range(end - row.num_pooled, end)]
        total: np.ndarray = np.sum([hidden(history) for history in histories], axis=0, dtype=np.float32)
        return total

    def _score(self, row: Row) -> Logprobs:
        """The logprobs of a row's targets."""
        ends = range(row.start + 1, row.start + 1 + len(row.targets))
        folds = [fold(self._visible(self.kv, row.slot, end)) for end in ends]
        return _logprobs(np.array([logprob(h, t) for h, t in zip(folds, row.targets, strict=True)], np.float32))

    def _write(self, row: Row) -> None:
        tokens = row.tokens
        if tokens is None:
            assert self.next_position[row.slot] == row.start, "host and device disagree about a position"
            assert self.last_token[row.slot] >= 0, "a decode row whose token was never drawn"
            tokens = [int(self.last_token[row.slot])]
        history = fold(self._visible(self.kv, row.slot, row.start))
        size = self.limits.page_size
        for position, token in enumerate(tokens, row.start):
            value = value_of(token, position, history)
            place = (self.page_table[row.slot, position // size], position % size)
            self.kv[place] = value
            self.bad[place] = token == BAD
            if token == BAD:
                self.spoilt.add(int(place[0]))
            history = (history + value * int(WEIGHTS[position])) & MASK

    def _attend(self, rows: list[Row]) -> None:
        """Where there is more than one table, which every row reads."""

    def _visible(self, pages: np.ndarray, slot: int, length: int) -> np.ndarray:
        """The first `length` positions of a slot, through its page table."""
        size = self.limits.page_size
        return pages[self.page_table[slot, : -(-length // size)]].reshape(-1)[:length]


def _logprobs(values: np.ndarray) -> Logprobs:
    """Two most likely tokens with each, of no meaning."""
    count = len(values)
    tops = np.tile(np.array([1, 0], np.int32), (count, 1))
    return Logprobs(values, np.ones(count, np.int32), tops, np.zeros((count, 2), np.float32))


class Device(FaultyRunner):
    """Faults around a FakeRunner. bug: what it raised that no fault asked for, which the engine must not hide."""

    inner: FakeRunner
    bug: BaseException | None = None

    def run(self, plan: Plan) -> Pending:
        with self._watched():
            return super().run(plan)

    def read(self, pending: Pending, fault: Fault | None) -> StepResult:
        with self._watched():
            return super().read(pending, fault)

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        with self._watched():
            super().zero_pages(page_ids)

    def save_pages(self, page_ids: Sequence[int]) -> Sequence[object]:
        with self._watched():
            return super().save_pages(page_ids)

    def load_pages(self, page_ids: Sequence[int], contents: Sequence[object]) -> None:
        with self._watched():
            super().load_pages(page_ids, contents)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (FaultStruck, JaxRuntimeError):
            self.inner.wreck()
            raise
        except BaseException as bug:
            self.bug = bug
            raise
