"""Decode attention by our kernel for CPUs against its reference, by each set of instructions that this machine has."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer_kernels import cpu
from jaxinfer_kernels.attention.cpu import decode_attention, supported
from jaxinfer_kernels.attention.reference import decode_attention_reference
from jaxinfer_kernels.cpu import Isa
from tests.kernels.attention.pages import LAYER, Heads, assert_close, make_pages, queries

ISAS = [isa for isa in (Isa.PLAIN, Isa.AVX2, Isa.AVX512) if isa <= cpu.best()]
HEADS = [Heads(4, 2, 64), Heads(4, 4, 128), Heads(16, 1, 64), Heads(2, 1, 256)]


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("window", [None, 10])
def test_it_matches_its_reference(heads: Heads, window: int | None, isa: Isa) -> None:
    lengths = [70, 3, 0, 64, 1]
    pages = make_pages(heads, lengths, 16, "bfloat16")
    q = queries(5, heads, "bfloat16")
    expected = decode_attention_reference(q, pages.of_layer, pages.rows, window)
    left = pages.with_nan_before([(length - (window or 999)) // 16 for length in lengths])
    out = decode_attention(q, left.of_layer, left.rows, window=window, isa=isa)
    assert_close(out, expected, "bfloat16")


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(isa: Isa) -> None:
    heads = Heads(8, 2, 64)
    pages = make_pages(heads, [70, 3, 200], 8, "bfloat16")
    q = queries(3, heads, "bfloat16")
    together = np.asarray(decode_attention(q, pages.of_layer, pages.rows, isa=isa), np.float32)
    for row in range(3):
        one = slice(row, row + 1)
        rows = pages.table, pages.slots[one], pages.lengths[one]
        alone = np.asarray(decode_attention(q[one], pages.of_layer, rows, isa=isa), np.float32)
        np.testing.assert_array_equal(alone, together[one])


def test_large_scores_and_small_ones_are_weighed_right() -> None:
    """Scores from -2,000 to 2,000: weights of exp without overflow, and of what underflows none."""
    heads = Heads(2, 2, 64)
    pages = make_pages(heads, [90], 16, "bfloat16")
    q = queries(1, heads, "bfloat16") * 300
    arguments = q, pages.of_layer, pages.rows
    assert_close(decode_attention(*arguments), decode_attention_reference(*arguments), "bfloat16")


def test_a_nan_in_a_rows_own_pages_stays_in_that_row() -> None:
    heads = Heads(4, 2, 64)
    pages = make_pages(heads, [20, 20], 16, "bfloat16")
    page = pages.table[pages.slots[0], 0]
    pages.k = pages.k.at[LAYER, page, :, 3].set(jnp.nan)
    q = queries(2, heads, "bfloat16")
    out = np.asarray(decode_attention(q, pages.of_layer, pages.rows), np.float32)
    assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()


def test_it_says_what_it_takes() -> None:
    assert supported(16, 8, 128, 16, jnp.bfloat16)
    for wrong in ((16, 8, 96, 16), (64, 1, 128, 16), (16, 8, 128, 256)):
        assert not supported(*wrong, jnp.bfloat16)
    assert not supported(16, 8, 128, 16, jnp.float32)
