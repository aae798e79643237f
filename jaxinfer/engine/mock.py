"""MockRunner: a device without a model. Its tokens are made up, everything around them is real. No jax.

A position's entry in the pages is a hash of every token up to there, found through the slot's page table; the next
token is a hash of that and of the seed, and what an embedding pools is made of it too. So an answer depends on its
prompt and sampling alone, as with a model: not on its neighbours, on what was preempted, or on which engine goes on
with it.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxinfer.config import Limits
from jaxinfer.errors import EngineError
from jaxinfer.runtime.mask_table import ANY, Masks, MaskTable
from jaxinfer.runtime.plan import DeviceFacts, Logprobs, Plan, Row, Sampler, Sampling, StepResult

END_EVERY = 64  # an answer ends by itself after so many tokens on average


@dataclasses.dataclass(slots=True)
class MockPending:
    """A step whose results can be read from `ready_s` on."""

    result: StepResult
    ready_s: float
    on_masks: Callable[[Masks], None]

    def draw(self, masks: Masks) -> None:
        self.on_masks(masks)

    def wait(self) -> StepResult:
        time.sleep(max(0.0, self.ready_s - time.monotonic()))
        return self.result


class MockRunner:
    """A Runner that takes `step_s` for each step, one after the other, and leaves the processor free meanwhile.

    words: the ids it answers with.    end_ids: of which the first ends an answer now and then.    hidden_size: numbers
    of an embedding.
    Of controls those that forbid are kept: allowed ids, bad words, min_tokens; penalties and biases change nothing.
    """

    compiles_after_ready = 0
    exports = None

    def __init__(
        self,
        limits: Limits,
        words: Sequence[int],
        end_ids: Sequence[int] = (),
        step_s: float = 0.0,
        hidden_size: int = 8,
    ) -> None:
        self._limits = limits
        self._hidden_size = hidden_size
        self._words = np.array(words, np.int32)
        self._end_ids = tuple(end_ids)
        self._step_s = step_s
        self.mask_table = MaskTable(limits.vocab_size, limits.max_num_seqs)
        self._free_s = 0.0  # when the last step given will be over
        self.reset()

    def run(self, plan: Plan) -> MockPending:
        for row in plan.rows:
            for index, page in row.new_pages:
                self._page_table[row.slot, index] = page
            if row.sampling is not None:
                self._start(row, row.sampling)
        hashes = np.zeros(len(plan.rows), np.uint64)
        decoding = [i for i, row in enumerate(plan.rows) if row.tokens is None]
        hashes[decoding] = self._decode([plan.rows[i] for i in decoding])
        for i, row in enumerate(plan.rows):
            if row.tokens is not None:
                hashes[i] = self._extend(row, row.tokens)
        tokens = self._draw(plan.rows, hashes)
        result = StepResult(tokens, np.ones(len(plan.rows), bool))
        if plan.wants_logprobs:
            result.logprobs = self._logprobs(tokens)
        result.targets = {
            i: self._logprobs(np.array(row.targets, np.int32)) for i, row in enumerate(plan.rows) if row.targets
        }
        result.pooled = {i: self._pool(row) for i, row in enumerate(plan.rows) if row.num_pooled}
        self._free_s = max(self._free_s, time.monotonic()) + self._step_s
        return MockPending(result, self._free_s, partial(self._draw_masked, plan, tokens))

    def _draw_masked(self, plan: Plan, tokens: np.ndarray, masks: Masks) -> None:
        """Draw the masked rows anew: an end wherever one may come."""
        self._masks |= dict(zip(masks.news.tolist(), masks.words, strict=True))
        masked = [i for i, row in enumerate(plan.rows) if row.masked]
        for i, place in zip(masked, masks.rows.tolist(), strict=True):
            if place == ANY:
                continue
            slot = plan.rows[i].slot
            allowed = np.flatnonzero(np.unpackbits(self._masks[place].view(np.uint8), bitorder="little"))
            if not len(allowed):
                continue  # its request has failed, and nobody takes its token
            ends = sorted(self._ends[slot].intersection(allowed.tolist()))
            key = _mix(np.array([tokens[i]], np.uint64) + self._seeds[slot])
            tokens[i] = ends[0] if ends else allowed[int(key[0] % np.uint64(len(allowed)))]
            self._last_token[slot] = tokens[i]

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        self._hashes[list(page_ids)] = 0

    def save_pages(self, page_ids: Sequence[int]) -> list[np.ndarray]:
        return list(self._hashes[list(page_ids)])

    def load_pages(self, page_ids: Sequence[int], contents: Sequence[Any]) -> None:
        for page, content in zip(page_ids, contents, strict=True):
            self._hashes[page] = content

    def reset(self) -> None:
        limits = self._limits
        self.mask_table.clear()
        slots = limits.max_num_seqs + 1
        self._hashes = np.zeros((limits.num_pages, limits.page_size), np.uint64)
        self._page_table = np.zeros((slots, limits.max_pages_per_seq), np.int64)
        self._last_token = np.zeros(slots, np.int32)
        self._seeds = np.zeros(slots, np.uint64)
        self._sampling = [Sampling()] * slots
        self._num_drawn = np.zeros(slots, np.int64)  # with what other engines drew, for min_tokens
        self._ends: list[frozenset[int]] = [frozenset()] * slots
        self._masks: dict[int, np.ndarray] = {}  # by row of the table

    def facts(self) -> DeviceFacts:
        """There is no device."""
        return DeviceFacts()

    def profile(self, folder: str | None) -> None:
        raise EngineError("a trace needs a device, a dry run has none; serve a model")

    def close(self) -> None:
        """There is nothing to free."""

    def _start(self, row: Row, sampling: Sampling) -> None:
        """A slot's new owner."""
        drawn = (sampling.seed, sampling.sample_index + 1) if sampling.temperature else (0, 0)
        self._sampling[row.slot] = sampling
        self._seeds[row.slot] = _mix(np.array(drawn, np.uint64)).sum(dtype=np.uint64)
        if row.history is not None:
            self._num_drawn[row.slot], self._ends[row.slot] = len(row.history.output), row.history.end_ids

    def _decode(self, rows: list[Row]) -> np.ndarray:
        """Append each slot's last token to its pages; u64[rows], the hashes there."""
        slots = np.array([row.slot for row in rows], np.int64)
        positions = np.array([row.start for row in rows], np.int64)
        hashes: np.ndarray = self._before(slots, positions) + _values(self._last_token[slots], positions)
        self._hashes[self._places(slots, positions)] = hashes
        return hashes

    def _extend(self, row: Row, tokens: Sequence[int]) -> np.uint64:
        """Append a row's tokens to its pages; the hash at the last."""
        slot, positions = np.array([row.slot]), np.arange(row.start, row.start + row.count)
        values = _values(np.array(tokens, np.int32), positions)
        hashes = self._before(slot, positions[:1]) + np.cumsum(values, dtype=np.uint64)
        self._hashes[self._places(slot, positions)] = hashes
        last: np.uint64 = hashes[-1]
        return last

    def _pool(self, row: Row) -> np.ndarray:
        """f32[hidden_size]: made of the hashes at the positions that a row pools; exact, whatever the order."""
        end = row.start + row.count
        hashes = self._hashes[self._places(np.array([row.slot]), np.arange(end - row.num_pooled, end))]
        keys = _mix(hashes[:, None] + np.arange(self._hidden_size, dtype=np.uint64))
        states = (keys >> np.uint64(56)).astype(np.float32) / 128 - 1
        total: np.ndarray = states.sum(axis=0)
        return total

    def _places(self, slots: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = self._limits.page_size
        return self._page_table[slots, positions // size], positions % size

    def _before(self, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The hashes of what comes before these positions; 0 before the first."""
        known = self._hashes[self._places(slots, np.maximum(positions - 1, 0))]
        return np.where(positions > 0, known, np.uint64(0))

    def _draw(self, rows: Sequence[Row], hashes: np.ndarray) -> np.ndarray:
        """i32[rows]: the tokens after these hashes."""
        slots = np.array([row.slot for row in rows], np.int64)
        keys = _mix(hashes + self._seeds[slots])
        tokens = self._words[keys % np.uint64(len(self._words))]
        if self._end_ids:
            ends = keys >> np.uint64(32)
            tokens = np.where(ends % np.uint64(END_EVERY) == 0, np.int32(self._end_ids[0]), tokens)
        for i, row in enumerate(rows):
            if row.sampler is Sampler.FULL:
                tokens[i] = self._permitted(int(tokens[i]), keys[i : i + 1], row)
        self._last_token[slots] = tokens
        self._num_drawn[slots] += [row.sample for row in rows]
        return tokens

    def _permitted(self, token: int, key: np.ndarray, row: Row) -> int:
        """That token if the row's controls permit it, else another."""
        controls = self._sampling[row.slot].controls
        if controls is None:
            return token
        allowed = controls.allowed_token_ids
        last = self._last_token[row.slot]
        banned = {banned for after, banned in row.bans if after in (ANY, last)}
        banned |= {word[0] for word in controls.bad_words if len(word) == 1}
        if self._num_drawn[row.slot] < controls.min_tokens:
            banned |= self._ends[row.slot]
        while token in banned or (allowed is not None and token not in allowed):
            key = _mix(key)
            choices = self._words if allowed is None else allowed
            token = int(choices[int(key[0]) % len(choices)])
        return token

    def _logprobs(self, tokens: np.ndarray) -> Logprobs:
        """As if each token had half of the probability, the id after it a quarter, and so on."""
        num_top = min(self._limits.max_logprobs, self._limits.vocab_size)
        falling = -np.log(2.0) * np.arange(1, num_top + 1)
        return Logprobs(
            np.full(len(tokens), falling[0], np.float32),
            np.ones(len(tokens), np.int32),
            ((tokens[:, None] + np.arange(num_top)) % self._limits.vocab_size).astype(np.int32),
            np.tile(falling.astype(np.float32), (len(tokens), 1)),
        )


def _values(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """u64[n]: what each token adds to the hash of its sequence."""
    hashes: np.ndarray = _mix(tokens.astype(np.uint64)) + positions.astype(np.uint64)
    return _mix(hashes)


def _mix(keys: np.ndarray) -> np.ndarray:
    """splitmix64 (Steele et al., 2014): u64[n] to u64[n], every bit of the result depending on every bit given."""
    mixed: np.ndarray = keys + np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
