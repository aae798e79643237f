"""One int32 array per step: its columns, and the host code that fills it from a plan. No jax here."""

import dataclasses
import enum
import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxinfer.config import ExtendBucket
from jaxinfer.runtime.mask_table import ANY, Masks
from jaxinfer.runtime.plan import (
    MAX_BANNED,
    MAX_LOGIT_BIAS,
    Controls,
    Logprobs,
    Plan,
    Row,
    Sampler,
    Sampling,
)
from jaxinfer_kernels.sampling import columns
from jaxinfer_kernels.sampling.columns import (
    IN_PROMPT,
    MOST_COUNTED,
    NO_ID,
    ControlColumn,
    ControlFlag,
    DrawColumn,
    SamplingColumn,
)


class MaskColumn(enum.IntEnum):
    """A row of logits that a grammar has a say in, or its neighbour. MASK: a row of the table of masks, or ANY.

    KEEP: in the first row, 1 if a sampler draws from what the masks leave.
    """

    SLOT = 0
    MASK = 1
    KEEP = 2


class DecodeColumn(enum.IntEnum):
    """A row of the decode step. PAGE_ID 0: the row's page table stays as it is. Padding is all zeros.

    MASKED: in the first row, 1 if masks will say which token may be drawn.
    SNAPSHOT: what the state before the row's token becomes, or 0; only of models with recurrent layers.
    """

    SLOT = 0
    PAGE_INDEX = 1
    PAGE_ID = 2
    MASKED = 3
    SNAPSHOT = 4


class RowColumn(enum.IntEnum):
    """A row of the extend step; the sampling columns follow. Padding has COUNT 0, START past the end, LOGITS_ROW -1.

    START: of its tokens in the step.    POSITION: of its first token, or -1 for a decode row (the device knows).
    LOGITS_ROW: which row of logits it samples from, or -1.    ADMIT: 1 if the sampling columns are to be stored.
    MASKED: as in DecodeColumn.
    """

    SLOT = 0
    START = 1
    COUNT = 2
    POSITION = 3
    LOGITS_ROW = 4
    ADMIT = 5
    MASKED = 6


class PageColumn(enum.IntEnum):
    """One changed entry of the page table. All zeros is padding."""

    SLOT = 0
    INDEX = 1
    PAGE_ID = 2


class SaveColumn(enum.IntEnum):
    """A state of recurrent layers to be stored. PLACE: the token before which it is, in the step, or the number of the
    step's tokens and the row behind which it is. All zeros is padding."""

    PLACE = 0
    SNAPSHOT = 1


class PieceColumn(enum.IntEnum):
    """Tokens that follow each other in one row of an extend step, to be pooled. START: in the step. Zeros: padding."""

    START = 0
    COUNT = 1


ROW_WIDTH = len(RowColumn) + len(SamplingColumn)
DRAW_WIDTH = len(DrawColumn) + 2 * MAX_BANNED
_LEAST_UPDATES = 160  # pages: 10,240 tokens on a GPU; each is 12 bytes of a step's upload
NOT_FINITE = -1  # in the place of a row's token


@dataclasses.dataclass(frozen=True)
class UploadLayout:
    """Where the parts of an array lie, one after the other: their shapes by name."""

    shapes: dict[str, tuple[int, ...]]

    @functools.cached_property
    def ends(self) -> dict[str, int]:
        return dict(zip(self.shapes, itertools.accumulate(map(math.prod, self.shapes.values())), strict=True))

    @property
    def size(self) -> int:
        return max(self.ends.values())

    def part(self, array: Any, name: str) -> Any:
        """Of the array, on the host a view."""
        end, shape = self.ends[name], self.shapes[name]
        return array[end - math.prod(shape) : end].reshape(shape)


@functools.cache
def extend_layout(bucket: ExtendBucket, page_size: int, *, has_state: bool = False) -> UploadLayout:
    """Of an extend step's array; of models with recurrent layers with loads, as batch.Moves has them, and saves.

    It has room for the pages that the step's own tokens open, and for those of some cached prefix; a longer one goes
    ahead by itself, in a call of its own.
    """
    most = bucket.rows + bucket.tokens // page_size
    shapes = {
        "tokens": (bucket.tokens,),
        "rows": (bucket.rows, ROW_WIDTH),
        "pages": (max(_LEAST_UPDATES, most), len(PageColumn)),
    }
    return UploadLayout(shapes | ({"loads": (bucket.rows,), "saves": (most, len(SaveColumn))} if has_state else {}))


@functools.cache
def slot_layout(vocab_size: int) -> UploadLayout:
    """Of set_slot's array. bits: two rows of a bit per token."""
    shapes = {"slot": (1,), "columns": (len(ControlColumn),), "bias": (2, MAX_LOGIT_BIAS)}
    return UploadLayout(shapes | {"bits": (2 * -(-vocab_size // 32),), "counts": (-(-vocab_size // 2),)})


def flags_of(sampling: Sampling) -> ControlFlag:
    flags, controls = ControlFlag.LOGPROBS if sampling.logprobs else ControlFlag(0), sampling.controls
    if controls is None:
        return flags
    single = any(len(word) == 1 for word in controls.bad_words)
    used = {
        ControlFlag.PENALTIES: controls.penalize,
        ControlFlag.BIAS: bool(controls.logit_bias),
        ControlFlag.ALLOWED: controls.allowed_token_ids is not None or single,
        ControlFlag.MIN_TOKENS: controls.min_tokens > 0,
        ControlFlag.BANNED: controls.bans_by_context,
    }
    for flag, is_used in used.items():
        flags |= flag if is_used else 0
    return flags


def sampling_columns(sampling: Sampling) -> np.ndarray:
    """i32[len(SamplingColumn)]."""
    floats = np.array([sampling.temperature, sampling.top_p, sampling.min_p], np.float32)
    words = [sampling.top_k, sampling.seed >> 32, sampling.seed & 0xFFFFFFFF, sampling.sample_index, flags_of(sampling)]
    return np.concatenate([floats.view(np.int32), np.array(words, np.uint32).view(np.int32)])


def page_updates(rows: list[Row]) -> np.ndarray:
    """i32[n, 3]: every page table entry that the rows bring."""
    entries = [(row.slot, index, page_id) for row in rows for index, page_id in row.new_pages]
    return np.array(entries, np.int32).reshape(-1, len(PageColumn))


# A packer returns a fresh array: on a CPU device the step may read this very memory after the call returns. Into what
# pack_masks writes, nothing reads any more (host_array).


def decode_width(*, has_state: bool = False) -> int:
    """How many columns of DecodeColumn a decode step is given."""
    return len(DecodeColumn) if has_state else DecodeColumn.SNAPSHOT


def pack_decode(plan: Plan, batch: int, *, masked: bool, has_state: bool = False) -> np.ndarray:
    """i32[batch, decode_width]. Of a row's new pages it carries the first; more than one must have been written
    beforehand."""
    out = np.zeros((batch, decode_width(has_state=has_state)), np.int32)
    out[: len(plan.rows), DecodeColumn.SLOT] = [row.slot for row in plan.rows]
    for i, row in enumerate(plan.rows):
        if row.new_pages:
            out[i, DecodeColumn.PAGE_INDEX : DecodeColumn.PAGE_ID + 1] = row.new_pages[0]
        if has_state and row.state is not None:
            out[i, DecodeColumn.SNAPSHOT] = max([snapshot for _, snapshot in row.state.saves], default=0)
    out[0, DecodeColumn.MASKED] = masked
    return out


def pack_extend(plan: Plan, layout: UploadLayout, updates: np.ndarray, *, masked: bool) -> np.ndarray:
    """i32[layout.size]; at most as many page updates as it has room for."""
    out, num_rows = np.zeros(layout.size, np.int32), len(plan.rows)
    counts, samples = np.array([row.count for row in plan.rows]), np.array([row.sample for row in plan.rows])
    ends, tokens = counts.cumsum(), list[int]()
    for row in plan.rows:
        tokens += (0,) if row.tokens is None else row.tokens
    out[: len(tokens)] = tokens
    rows = layout.part(out, "rows")
    rows[:, RowColumn.START], rows[:, RowColumn.LOGITS_ROW] = ends[-1], -1
    ours = rows[:num_rows]
    ours[:, RowColumn.SLOT] = [row.slot for row in plan.rows]
    ours[:, RowColumn.START], ours[:, RowColumn.COUNT] = ends - counts, counts
    ours[:, RowColumn.POSITION] = [-1 if row.tokens is None else row.start for row in plan.rows]
    ours[:, RowColumn.LOGITS_ROW] = np.where(samples, samples.cumsum() - 1, -1)
    for i, row in enumerate(plan.rows):
        if row.sampling is not None:
            rows[i, RowColumn.ADMIT], rows[i, len(RowColumn) :] = 1, sampling_columns(row.sampling)
    rows[0, RowColumn.MASKED] = masked
    layout.part(out, "pages")[: len(updates)] = updates
    if "saves" in layout.shapes:
        _pack_moves(plan, layout, ends - counts, out)
    return out


def _pack_moves(plan: Plan, layout: UploadLayout, firsts: np.ndarray, out: np.ndarray) -> None:
    """firsts: i32[rows], each row's first token in the step."""
    saves, loads, num_tokens = list[tuple[int, int]](), layout.part(out, "loads"), layout.shapes["tokens"][0]
    for i, (row, first) in enumerate(zip(plan.rows, firsts.tolist(), strict=True)):
        if row.state is not None:
            loads[i] = 0 if row.state.load is None else 1 + row.state.load
            end = row.start + row.count
            saves += [
                (num_tokens + i if position == end else first + position - row.start, snapshot)
                for position, snapshot in row.state.saves
            ]
    layout.part(out, "saves")[: len(saves)] = np.array(saves, np.int32).reshape(-1, len(SaveColumn))


def pack_slot(row: Row, vocab_size: int) -> np.ndarray:
    """i32[slot_layout(vocab_size).size]: what the full sampler must know of a sequence that enters a slot with `row`.

    Zeros where its flags ask for nothing: of a large vocabulary, to write all took 0.6 ms of each request.
    """
    assert row.sampling is not None and row.history is not None, "set_slot is for rows that bring controls"
    controls, history = row.sampling.controls, row.history
    assert controls is not None, "set_slot is for rows that bring controls"
    layout = slot_layout(vocab_size)
    out = np.zeros(layout.size, np.int32)
    out[0] = row.slot
    columns = layout.part(out, "columns")
    penalties = (controls.presence_penalty, controls.frequency_penalty, controls.repetition_penalty)
    columns[: len(penalties)] = np.array(penalties, np.float32).view(np.int32)
    columns[ControlColumn.MIN_LENGTH] = len(history.prompt) + controls.min_tokens
    columns[ControlColumn.LAST] = [NO_ID, *history.prompt[-1:], *history.output[-1:]][-1]
    ids, values = layout.part(out, "bias")
    ids[:] = NO_ID
    bias = sorted(controls.logit_bias)  # a part of the vocabulary finds its own
    ids[: len(bias)] = [token for token, _ in bias]
    biases = np.array([value for _, value in bias], np.float32)
    values[: len(biases)] = biases.view(np.int32)
    allowed, ends = layout.part(out, "bits").reshape(2, -1)
    flags = flags_of(row.sampling)
    if ControlFlag.ALLOWED in flags:
        allowed[:] = bits_of(allowed_by(controls, vocab_size))
    if ControlFlag.MIN_TOKENS in flags:
        ends[:] = bits_of(marked(history.end_ids, vocab_size))
    if ControlFlag.PENALTIES in flags:
        counts = layout.part(out, "counts").view(np.uint16)
        used, times = np.unique(np.asarray(history.output, np.int64), return_counts=True)
        counts[used] = np.minimum(times, MOST_COUNTED)
        counts[np.asarray(history.prompt, np.int64)] |= IN_PROMPT
    return out


def pack_draw(plan: Plan, size: int, *, full: bool) -> np.ndarray:
    """i32[size, DRAW_WIDTH if full else len(DrawColumn)]: the rows that sample, in the order of their logits."""
    out = np.zeros((size, DRAW_WIDTH if full else len(DrawColumn)), np.int32)
    ids, after = out[:, len(DrawColumn) : -MAX_BANNED], out[:, -MAX_BANNED:]
    ids[:] = NO_ID
    for i, row in enumerate(row for row in plan.rows if row.sample):
        out[i, DrawColumn.SLOT] = row.slot
        if full and row.bans:  # logprobs are taken of rows that ban, too
            after[i, : len(row.bans)], ids[i, : len(row.bans)] = zip(*row.bans, strict=True)
    return out


def pack_masks(plan: Plan, masks: Masks, out: np.ndarray) -> None:
    """Into i32[any, len(MaskColumn)]: of the rows that sample, in the order of their logits."""
    rows = [row for row in plan.rows if row.sample]
    out[:] = 0
    out[: len(rows), MaskColumn.SLOT] = [row.slot for row in rows]
    out[:, MaskColumn.MASK] = ANY
    out[[i for i, row in enumerate(rows) if row.masked], MaskColumn.MASK] = masks.rows
    out[0, MaskColumn.KEEP] = plan.sampler is not Sampler.LARGEST  # logprobs are of the raw logits


def pack_new_masks(masks: Masks, first: int, size: int) -> np.ndarray:
    """i32[size, 1 + ceil(V / 32)]: up to `size` new masks from `first`, each after its row of the table."""
    ids, words = masks.news[first : first + size], masks.words[first : first + size]
    out = np.zeros((size, 1 + words.shape[1]), np.int32)
    out[: len(ids), 0], out[: len(ids), 1:] = ids, words
    return out


def pieces(plan: Plan, width: int) -> tuple[np.ndarray, list[int]]:
    """i32[n, len(PieceColumn)]: what is to be pooled, cut from each row's first such token on, and whose row it is."""
    found, owners, end = [], [], 0
    for i, row in enumerate(plan.rows):
        end += row.count
        for start in range(end - row.num_pooled, end, width):
            found.append((start, min(width, end - start)))
            owners.append(i)
    return np.array(found, np.int32).reshape(-1, len(PieceColumn)), owners


def unpack_logprobs(columns: np.ndarray) -> Logprobs:
    """Of i32[n, 2 + 2 K], as controls.logprobs lays them out."""
    top = (columns.shape[1] - 2) // 2
    columns = np.ascontiguousarray(columns)
    floats = columns.view(np.float32)
    return Logprobs(floats[:, 0], columns[:, 1], columns[:, 2 : 2 + top], floats[:, 2 + top :])


def chunks(values: np.ndarray, size: int) -> list[np.ndarray]:
    """`values` in pieces of `size` along axis 0, the last one padded with zeros."""
    padded = np.zeros((-(-len(values) // size) * size, *values.shape[1:]), np.int32)
    padded[: len(values)] = values
    return list(padded.reshape(-1, size, *values.shape[1:]))


def allowed_by(controls: Controls, vocab_size: int) -> np.ndarray:
    """bool[V]: what may ever be drawn."""
    ids = controls.allowed_token_ids
    allowed = np.ones(vocab_size, bool) if ids is None else marked(ids, vocab_size)
    allowed[[word[0] for word in controls.bad_words if len(word) == 1]] = False
    return allowed


def marked(ids: Iterable[int], vocab_size: int) -> np.ndarray:
    """bool[V]: True at these ids."""
    found = np.zeros(vocab_size, bool)
    found[list(ids)] = True
    return found


def bits_of(flags: np.ndarray) -> np.ndarray:
    """bool[V] as i32 words, the lowest bit first."""
    padded = np.zeros(-(-len(flags) // 32) * 32, bool)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little").view(np.int32)


assert columns.ANY == ANY, "bans are packed as they are planned"
