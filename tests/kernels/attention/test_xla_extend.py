"""Twin tests of extend attention over ragged rows."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer_kernels.attention.reference import extend_attention_reference
from jaxinfer_kernels.attention.xla_extend import XlaExtendTuning, extend_attention
from tests.kernels.attention.pages import HEADS, LAYER, Heads, Pages, assert_close, make_pages, queries

# (tokens in the pages, how many of them are queries) by row: whole prompts, chunks behind a prefix, decode rows
RAGGED = [
    [(1, 1)],
    [(70, 70)],
    [(200, 65), (33, 1), (64, 64), (129, 2)],
    [(17, 16), (17, 1), (300, 3), (128, 128), (5, 1)],
]
CASES = [
    (RAGGED[-1], HEADS[0], "float32"),
    (RAGGED[-1], HEADS[0], "bfloat16"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            *itertools.product(RAGGED[-1:], HEADS[1:], ["float32"]),
            *itertools.product(RAGGED[:-1], HEADS[:1], ["float32"]),
        )
    ),
]
TUNINGS = [
    pytest.param(XlaExtendTuning(64, 128), marks=pytest.mark.slow),
    XlaExtendTuning(16, 32),
    XlaExtendTuning(5, 16),
]


def run(
    pages: Pages,
    counts: list[int],
    q: jax.Array,
    tuning: XlaExtendTuning | None = None,
    padding: int = 2,
    window: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Out and reference, with `padding` rows of no tokens at the end as the step has them."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    fill = [0] * padding
    rows = (
        pages.table,
        jnp.asarray([*pages.slots.tolist(), *fill], jnp.int32),
        jnp.asarray([*starts[:-1], *[starts[-1]] * padding], jnp.int32),
        jnp.asarray([*counts, *fill], jnp.int32),
        jnp.asarray([*pages.lengths.tolist(), *fill], jnp.int32),
    )
    extra = {"window": window} | ({} if tuning is None else {"tuning": tuning})
    out = extend_attention(q, pages.of_layer, rows, **extra)
    return out, extend_attention_reference(q, pages.of_layer, rows, window)


@pytest.mark.parametrize(("rows", "heads", "dtype"), CASES, ids=str)
def test_extend_attention_matches_its_reference(rows: list[tuple[int, int]], heads: Heads, dtype: str) -> None:
    lengths, counts = (list(column) for column in zip(*rows, strict=True))
    pages = make_pages(heads, lengths, 16, dtype)
    q = queries(sum(counts) + 9, heads, dtype)  # the last nine belong to no row
    out, expected = run(pages, counts, q)
    assert_close(out, expected, dtype)
    np.testing.assert_array_equal(np.asarray(out[sum(counts) :], np.float32), 0)


@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
def test_any_tile_and_block_give_the_same(tuning: XlaExtendTuning) -> None:
    lengths, counts = [90, 40, 64], [71, 40, 1]
    heads = Heads(4, 2, 16)
    pages = make_pages(heads, lengths, 8, "float32")
    out, expected = run(pages, counts, queries(sum(counts), heads, "float32"), tuning)
    assert_close(out, expected, "float32")


@pytest.mark.parametrize("window", [10, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 64))])
def test_a_window_sees_the_last_tokens_and_nothing_before_it_matters(window: int) -> None:
    heads, lengths, counts = Heads(4, 2, 16), [90, 40, 64], [21, 40, 1]
    pages = make_pages(heads, lengths, 8, "float32")
    q = queries(sum(counts), heads, "float32")
    _, expected = run(pages, counts, q, window=window)
    ends = [(length - count + 1 - window) // 8 for length, count in zip(lengths, counts, strict=True)]
    out, _ = run(pages.with_nan_before(ends), counts, q, XlaExtendTuning(16, 16), window=window)
    assert_close(out, expected, "float32")


@pytest.mark.slow
def test_a_query_in_a_chunk_has_the_same_bits_wherever_the_chunk_began() -> None:
    heads = Heads(4, 2, 32)
    pages = make_pages(heads, [100], 16, "float32")
    q = queries(100, heads, "float32")
    whole, _ = run(pages, [100], q)
    tail, _ = run(pages, [40], q[60:])
    np.testing.assert_array_equal(np.asarray(tail), np.asarray(whole[60:]))


def test_a_nan_among_one_rows_keys_stays_in_that_row() -> None:
    heads = Heads(4, 2, 16)
    pages = make_pages(heads, [40, 50], 16, "float32")
    pages.v = pages.v.at[LAYER, pages.table[pages.slots[0], 0]].set(jnp.nan)
    out, _ = run(pages, [30, 50], queries(80, heads, "float32"))
    assert np.isnan(np.asarray(out[:30])).all()
    assert np.isfinite(np.asarray(out[30:])).all()
