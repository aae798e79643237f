"""One int32 array per step: its columns, and the host code that fills it from a plan. No jax here."""

import dataclasses
import enum

import numpy as np

from jaxinfer.config import ExtendBucket
from jaxinfer.runtime.plan import Plan, Row, Sampling


class SamplingColumn(enum.IntEnum):
    """One slot's sampling state, i32 columns; floats and the seed's halves are bit-cast."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    TOP_K = 3
    SEED_HIGH = 4
    SEED_LOW = 5
    SAMPLE_INDEX = 6


class DecodeColumn(enum.IntEnum):
    """A row of the decode step. PAGE_ID 0: the row's page table stays as it is. Padding is all zeros."""

    SLOT = 0
    PAGE_INDEX = 1
    PAGE_ID = 2


class RowColumn(enum.IntEnum):
    """A row of the extend step; the sampling columns follow. Padding has COUNT 0, START past the end, LOGITS_ROW -1.

    START: of its tokens in the step.    POSITION: of its first token, or -1 for a decode row (the device knows).
    LOGITS_ROW: which row of logits it samples from, or -1.    ADMIT: 1 if the sampling columns are to be stored.
    """

    SLOT = 0
    START = 1
    COUNT = 2
    POSITION = 3
    LOGITS_ROW = 4
    ADMIT = 5


class PageColumn(enum.IntEnum):
    """One changed entry of the page table. All zeros is padding."""

    SLOT = 0
    INDEX = 1
    PAGE_ID = 2


ROW_WIDTH = len(RowColumn) + len(SamplingColumn)


@dataclasses.dataclass(frozen=True, slots=True)
class ExtendLayout:
    """Where the parts of an extend step's array lie: tokens i32[T], rows i32[R, ROW_WIDTH], pages i32[U, 3]."""

    bucket: ExtendBucket
    updates: int

    @classmethod
    def of(cls, bucket: ExtendBucket, page_size: int) -> "ExtendLayout":
        """Room for the pages that the step's own tokens open; a longer cached prefix goes ahead by itself."""
        return cls(bucket, max(32, bucket.rows + bucket.tokens // page_size))

    @property
    def rows_start(self) -> int:
        return self.bucket.tokens

    @property
    def pages_start(self) -> int:
        return self.rows_start + self.bucket.rows * ROW_WIDTH

    @property
    def size(self) -> int:
        return self.pages_start + self.updates * len(PageColumn)


def sampling_columns(sampling: Sampling) -> np.ndarray:
    """i32[len(SamplingColumn)]."""
    floats = np.array([sampling.temperature, sampling.top_p, sampling.min_p], np.float32)
    words = [sampling.top_k, sampling.seed >> 32, sampling.seed & 0xFFFFFFFF, sampling.sample_index]
    return np.concatenate([floats.view(np.int32), np.array(words, np.uint32).view(np.int32)])


def page_updates(rows: list[Row]) -> np.ndarray:
    """i32[n, 3]: every page table entry that the rows bring."""
    entries = [(row.slot, index, page_id) for row in rows for index, page_id in row.new_pages]
    return np.array(entries, np.int32).reshape(-1, len(PageColumn))


# Both packers return a fresh array: on a CPU device the step may read this very memory after the call returns.


def pack_decode(plan: Plan, batch: int) -> np.ndarray:
    """i32[batch, 3]. Of a row's new pages it carries the first; more than one must have been written beforehand."""
    out = np.zeros((batch, len(DecodeColumn)), np.int32)
    out[: len(plan.rows)] = [(row.slot, *(row.new_pages[0] if row.new_pages else (0, 0))) for row in plan.rows]
    return out


def pack_extend(plan: Plan, layout: ExtendLayout, updates: np.ndarray) -> np.ndarray:
    """i32[layout.size]; at most `layout.updates` page updates."""
    out = np.zeros(layout.size, np.int32)
    rows = out[layout.rows_start : layout.pages_start].reshape(-1, ROW_WIDTH)
    columns, start, sampled = [], 0, 0
    for i, row in enumerate(plan.rows):
        position = -1 if row.tokens is None else row.start
        logits_row = sampled if row.sample else -1
        columns.append((row.slot, start, row.count, position, logits_row, row.sampling is not None))
        if row.sampling is not None:
            rows[i, len(RowColumn) :] = sampling_columns(row.sampling)
        if row.tokens is not None:
            out[start : start + row.count] = row.tokens
        start += row.count
        sampled += row.sample
    columns.extend([(0, start, 0, 0, -1, 0)] * (layout.bucket.rows - len(plan.rows)))
    rows[:, : len(RowColumn)] = columns
    out[layout.pages_start : layout.pages_start + updates.size] = updates.reshape(-1)
    return out
