"""Twin tests of decode attention, and what it must not read."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer_kernels.attention.reference import decode_attention_reference
from jaxinfer_kernels.attention.xla_decode import XlaDecodeTuning, decode_attention
from tests.kernels.attention.pages import HEADS, LAYER, Heads, assert_close, make_pages, queries

LENGTHS = [[1], [16, 1, 17], [64, 63, 65]]
LONG = [300, 15, 128, 129, 1]
CASES = [
    *itertools.product([LONG], HEADS, ["float32"]),
    *itertools.product(LENGTHS, HEADS[:1], ["float32"]),
    (LONG, HEADS[0], "bfloat16"),
]


@pytest.mark.parametrize(("lengths", "heads", "dtype"), CASES, ids=str)
def test_decode_attention_matches_its_reference(lengths: list[int], heads: Heads, dtype: str) -> None:
    pages = make_pages(heads, lengths, 16, dtype)
    arguments = queries(len(lengths), heads, dtype), pages.of_layer, pages.rows
    out = decode_attention(*arguments)
    expected = decode_attention_reference(*arguments)
    assert_close(out, expected, dtype)


@pytest.mark.parametrize(("page_size", "block_tokens"), [(1, 8), (8, 8), (64, 16), (16, 100)])
def test_any_page_size_and_block_give_the_same(page_size: int, block_tokens: int) -> None:
    heads = Heads(4, 2, 16)
    pages = make_pages(heads, [70, 3, 64], page_size, "float32")
    arguments = queries(3, heads, "float32"), pages.of_layer, pages.rows
    tuning = XlaDecodeTuning(block_tokens)
    out = decode_attention(*arguments, tuning=tuning)
    expected = decode_attention_reference(*arguments)
    assert_close(out, expected, "float32")


@pytest.mark.parametrize("context", [None, 70])
@pytest.mark.parametrize("window", [10, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 64))])
def test_a_window_sees_the_last_tokens_and_nothing_before_it_matters(window: int, context: int | None) -> None:
    heads, lengths = Heads(4, 2, 16), [70, 3, 64]
    pages = make_pages(heads, lengths, 8, "float32")
    q = queries(3, heads, "float32")
    expected = decode_attention_reference(q, pages.of_layer, pages.rows, window)
    left = pages.with_nan_before([(length - window) // 8 for length in lengths])
    tuning = XlaDecodeTuning(16)
    out = decode_attention(q, left.of_layer, left.rows, window=window, context=context, tuning=tuning)
    assert_close(out, expected, "float32")


@pytest.mark.parametrize(
    ("context", "lengths", "heads", "dtype"),
    [
        *itertools.product([64], [[0, 1, 64], [63, 17, 0]], HEADS, ["float32"]),
        (50, [50, 1, 0, 49], HEADS[0], "float32"),  # rounded up to pages, 64 tokens
        (1, [1, 0], HEADS[0], "float32"),
        (300, LONG, HEADS[0], "bfloat16"),
    ],
    ids=str,
)
def test_attention_without_a_loop_matches_the_reference(
    context: int, lengths: list[int], heads: Heads, dtype: str
) -> None:
    pages = make_pages(heads, lengths, 16, dtype)
    arguments = queries(len(lengths), heads, dtype), pages.of_layer, pages.rows
    out = decode_attention(*arguments, context=context)
    expected = decode_attention_reference(*arguments)
    assert_close(out, jnp.where(pages.lengths[:, None, None] > 0, expected, 0), dtype)


@pytest.mark.parametrize(("context", "loops"), [(64, False), (None, True)])
def test_a_bounded_context_is_lowered_without_a_loop(context: int | None, loops: bool) -> None:
    heads = Heads(4, 2, 16)
    pages = make_pages(heads, [40, 5], 16, "float32")
    arguments = queries(2, heads, "float32"), pages.of_layer, pages.rows
    lowered = decode_attention.lower(*arguments, context=context)
    assert ("stablehlo.while" in lowered.as_text()) == loops


def test_rows_of_length_zero_come_out_as_zeros_and_disturb_nobody() -> None:
    heads = Heads(4, 2, 16)
    pages = make_pages(heads, [40, 5], 16, "float32")
    q = queries(2, heads, "float32")

    def run(lengths: jax.Array) -> jax.Array:
        return decode_attention(q, pages.of_layer, (pages.table, pages.slots, lengths))

    out = run(pages.lengths.at[0].set(0))
    np.testing.assert_array_equal(np.asarray(out[0]), 0)
    np.testing.assert_array_equal(np.asarray(out[1]), np.asarray(run(pages.lengths)[1]))


def test_a_row_has_the_same_bits_alone_and_in_a_batch_of_longer_rows() -> None:
    heads = Heads(4, 2, 32)
    pages = make_pages(heads, [33, 290, 7, 128], 16, "float32")
    q = queries(4, heads, "float32")

    def run(rows: slice) -> np.ndarray:
        selected = (pages.table, pages.slots[rows], pages.lengths[rows])
        return np.asarray(decode_attention(q[rows], pages.of_layer, selected))

    whole = run(slice(None))
    for row in range(4):
        np.testing.assert_array_equal(run(slice(row, row + 1)), whole[row : row + 1])


def test_a_nan_in_a_rows_own_pages_stays_in_that_row() -> None:
    heads = Heads(4, 2, 16)
    pages = make_pages(heads, [40, 40], 16, "float32")
    q = queries(2, heads, "float32")
    own = (LAYER, pages.table[pages.slots[0], 1])
    pages.v = pages.v.at[own].set(jnp.nan)
    out = decode_attention(q, pages.of_layer, pages.rows)
    assert np.isnan(np.asarray(out[0])).all()
    assert np.isfinite(np.asarray(out[1])).all()


def test_no_array_grows_with_the_page_table() -> None:
    """Twice the table's width: the same temporaries. The work follows the longest row, not max_model_len."""

    def temporaries(width: int) -> int:
        i32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
        kv = jax.ShapeDtypeStruct((2, 4096, 2, 16, 32), jnp.float32)
        q = jax.ShapeDtypeStruct((4, 4, 32), jnp.float32)
        arguments = (q, (kv, kv, i32(())), (i32((5, width)), i32((4,)), i32((4,))))
        return decode_attention.lower(*arguments).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(2048) == temporaries(64)
