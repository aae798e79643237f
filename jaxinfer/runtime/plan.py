"""What the host hands the device for one step, and what comes back. No jax here: the scheduler builds these.

A plan is a list of rows; a row brings one sequence `count` tokens further. A row without tokens is a decode row: its
token and position live on the device, under its slot.

What is made anew for each row of each step is a msgspec.Struct here and in the rooms above: it takes a quarter of the
time that a dataclass does.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from jaxinfer.runtime.mask_table import ANY, Masks, MaskTable

MAX_LOGIT_BIAS = 300  # ids of one request, as OpenAI has it
MAX_BANNED = 64  # tokens that bad words of several tokens may ban in one step
MAX_BOUNDED_K = 64  # the largest top-k whose tokens are looked for among few


type Ban = tuple[int, int]  # a token, or ANY, and the token that must not follow it


@dataclasses.dataclass(frozen=True, slots=True)
class Controls:
    """What changes a sequence's logits before a token is drawn (order of operations: runtime.controls).

    presence_penalty, frequency_penalty: of tokens in the output; 0 is off.    repetition_penalty: of tokens in the
    prompt or the output; 1 is off.    logit_bias: (token id, added to its logit), at most MAX_LOGIT_BIAS.
    allowed_token_ids: no other is drawn; None is all.    bad_words: token sequences of which none is completed.
    min_tokens: no token that would end the sequence is drawn before it has this many.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0

    @property
    def penalize(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)

    @property
    def bans_by_context(self) -> bool:
        """Whether what is banned depends on the tokens before: a bad word has several."""
        return any(len(word) > 1 for word in self.bad_words)

    def banned_after(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that would complete a bad word of several tokens after these."""
        return [word[-1] for word in self._words_begun(tokens, len(tokens), 1)]

    def bans_after(self, tokens: Sequence[int], length: int) -> list[Ban]:
        """What is banned behind `length` tokens, of which the last one may not be among these yet."""
        if len(tokens) >= length:
            return [(ANY, word[-1]) for word in self._words_begun(tokens, length, 1)]
        return [(word[-2], word[-1]) for word in self._words_begun(tokens, len(tokens), 2)]

    def _words_begun(self, tokens: Sequence[int], end: int, num_left: int) -> list[tuple[int, ...]]:
        """The bad words of several tokens whose all but `num_left` end the first `end` of these.

        Asked for each row of each step, of which hardly any ends so: its last token says that.
        """
        last, found = tokens[end - 1] if end else None, []
        for word in self.bad_words:
            size = len(word) - num_left
            if size > 0 and (word[size - 1] != last or size > end or tuple(tokens[end - size : end]) != word[:size]):
                continue
            if len(word) > 1:
                found.append(word)
        return found


class Sampler(enum.IntEnum):
    """What draws a row's token, by what it can do: each all that those before it can.

    LARGEST: the step itself, or what masks its logits.    PLAIN: temperature, min-p.    BOUNDED: top-k up to
    MAX_BOUNDED_K, with any top-p.    WIDE: every top-k and top-p.    FULL: controls.    ANY: all of it in one kernel,
    in which a row costs what it asks for (jaxinfer_kernels.sampling.sm90_draw).
    """

    LARGEST = 0
    PLAIN = 1
    BOUNDED = 2
    WIDE = 3
    FULL = 4
    ANY = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """How one sequence's tokens are sampled; every value concrete and in range. A step takes the largest logit; where
    that is not what is wanted, the least able `sampler` samples again."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # 1 is off
    min_p: float = 0.0  # 0 is off
    seed: int = 0  # any 64-bit pattern, as 0 <= seed < 2**64
    sample_index: int = 0  # which of the request's n choices this is
    controls: Controls | None = None
    logprobs: bool = False  # of the slot's rows that sample
    masked: bool = False  # likewise

    @property
    def sampler(self) -> Sampler:
        """The least that can draw so."""
        if self.controls is not None:
            return Sampler.FULL
        if self.temperature == 0:
            return Sampler.LARGEST
        if self.top_k == 0 and self.top_p == 1:
            return Sampler.PLAIN
        return Sampler.BOUNDED if 0 < self.top_k <= MAX_BOUNDED_K else Sampler.WIDE


@dataclasses.dataclass(slots=True)
class History:
    """What a slot's controls count from: the sequence so far, and the ids that would end it."""

    prompt: Sequence[int]
    output: Sequence[int]
    end_ids: frozenset[int] = frozenset()


class StateMoves(msgspec.Struct, gc=False):
    """What a row does with its slot's recurrent state."""

    load: int | None = None  # first row after admission: the snapshot that the state is; 0: zeros
    # (position, snapshot): the state behind so many tokens is to be stored; positions from the row's start to its end,
    # of a decode row its start alone
    saves: Sequence[tuple[int, int]] = ()


class Row(msgspec.Struct, gc=False):
    """One sequence's share of a step: positions start .. start + count - 1."""

    slot: int  # its row of the device state, 1 .. max_num_seqs; slot 0 belongs to padding
    start: int
    count: int
    tokens: Sequence[int] | None = None  # `count` ids; None: a decode row, whose token and position the device knows
    sample: bool = True  # whether a token is sampled after the last position
    # (entry of the slot's page table, page id) of each page that the slot has not been told of; on the first row after
    # admission of all. Of several tables each has max_pages_per_seq entries, one table after the other
    new_pages: Sequence[tuple[int, int]] = ()
    sampling: Sampling | None = None  # first row after admission: (re)writes the slot's sampling state
    history: History | None = None  # with `sampling` where that has controls or masks; every token is known then
    sampler: Sampler = Sampler.LARGEST  # the slot's
    logprobs: bool = False  # those of its token are wanted
    masked: bool = False  # what may be sampled is said once the tokens before are known (see Pending.draw)
    bans: Sequence[Ban] = ()  # what must not be sampled in this step, at most MAX_BANNED; for the full sampler
    targets: Sequence[int] = ()  # at most `count` tokens that follow the first positions: their logprobs are wanted
    num_pooled: int = 0  # the sum of the hidden states of so many of the last positions is wanted
    state: StateMoves | None = None  # of models with recurrent layers; None: nothing


@dataclasses.dataclass(slots=True)
class Plan:
    """One step: at least one row, at most one row per slot."""

    rows: list[Row]

    @property
    def num_tokens(self) -> int:
        return sum([row.count for row in self.rows])

    @property
    def is_decode(self) -> bool:
        return all([row.tokens is None for row in self.rows])

    @property
    def sampler(self) -> Sampler:
        """The least that can draw for all rows."""
        return max([row.sampler for row in self.rows if row.sample], default=Sampler.LARGEST)

    @property
    def wants_logprobs(self) -> bool:
        """Of the token of some row."""
        return any([row.logprobs and row.sample for row in self.rows])

    @property
    def is_masked(self) -> bool:
        """Whether some row waits for a mask of what may be drawn."""
        return any([row.masked for row in self.rows])


@dataclasses.dataclass(slots=True)
class Logprobs:
    """Of n tokens under the log-softmax of the raw logits, before controls and temperature.

    values f32[n].    ranks i32[n]: 1 is the most likely.    top_ids i32[n, K], top_values f32[n, K]: the K most likely
    tokens, falling.
    """

    values: np.ndarray
    ranks: np.ndarray
    top_ids: np.ndarray
    top_values: np.ndarray


@dataclasses.dataclass(slots=True)
class StepResult:
    """What a step drew, by row of its plan: tokens i32[rows], finite bool[rows].

    `tokens[i]` means nothing where row i did not sample. `finite[i]` is False when the row's last hidden state, or what
    was pooled of it, held a NaN or an infinity: nothing of it may be used.
    logprobs: of `tokens`, by row, when some row wants them; they mean nothing in the others.
    targets: the logprobs of each row's targets, by the row's index.    pooled: f32[D] of each that pools, likewise.
    """

    tokens: np.ndarray
    finite: np.ndarray
    logprobs: Logprobs | None = None
    targets: dict[int, Logprobs] = dataclasses.field(default_factory=dict)
    pooled: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class BackendTime:
    """How long one layer of a step took, when a start compared what can run its op.

    op, backend: as in DeviceFacts.backends.    step: its kind and size.    median_s, least_s: of its runs.
    """

    op: str
    backend: str
    step: str
    median_s: float
    least_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a runner has of the device.

    memory_bytes: by kind.    backends: of each op, the implementation that runs it.    timings: that it was chosen by.
    compiled, loaded: programs that the compiler made, and that came from the cache.    compile_s: what both took, which
    may be more than passed, since several are made at once.
    """

    memory_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    backends: dict[str, str] = dataclasses.field(default_factory=dict)
    timings: tuple[BackendTime, ...] = ()
    compiled: int = 0
    loaded: int = 0
    compile_s: float = 0.0

    def after(self, past: "DeviceFacts") -> "DeviceFacts":
        """This runner's, with the counts of those before it."""
        return dataclasses.replace(
            self,
            compiled=past.compiled + self.compiled,
            loaded=past.loaded + self.loaded,
            compile_s=past.compile_s + self.compile_s,
        )


class Pending(Protocol):
    """A step under way on the device."""

    def draw(self, masks: Masks) -> None:
        """Dispatch the draws of a masked plan: once, and before the next step is run."""

    def wait(self) -> StepResult:
        """Block until the step's results are on the host."""


class Exports(Protocol):
    """What a runner's pages and snapshots are as bytes, for another runner of the same model.

    model: a digest of what they depend on: the model's config, its weights and their dtype.
    """

    @property
    def model(self) -> str: ...

    def to_bytes(self, content: object) -> bytes:
        """Of a page or a snapshot that was saved, once it is on the host."""

    def page(self, data: memoryview) -> object:
        """What `load_pages` takes, from a page's bytes."""

    def save_snapshot(self, snapshot: int) -> object:
        """Copy a snapshot to host memory, after every step already dispatched."""

    def load_snapshot(self, snapshot: int, data: memoryview) -> None:
        """Overwrite a snapshot with its bytes, after every step already dispatched."""


class Runner(Protocol):
    """The device side as the engine sees it. Steps run in the order they were given.

    mask_table: the masks that its device has, for the engine that runs it.
    exports: None where no page can be on the host.
    """

    @property
    def mask_table(self) -> MaskTable: ...

    @property
    def exports(self) -> Exports | None: ...

    def run(self, plan: Plan) -> Pending:
        """Dispatch one step without waiting for it. A masked plan waits for Pending.draw before it draws."""

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        """Overwrite these pages' keys and values with zeros, after every step already dispatched."""

    def save_pages(self, page_ids: Sequence[int]) -> Sequence[object]:
        """Copy these pages to host memory, after every step already dispatched: what `load_pages` takes, page by page,
        at once and also while the copies are still on their way."""

    def load_pages(self, page_ids: Sequence[int], contents: Sequence[object]) -> None:
        """Overwrite these pages with what was saved, after every step already dispatched."""

    def reset(self) -> None:
        """Drop the device state and allocate it anew; every page and slot loses its content."""
