"""Sums of hidden states: cut into pieces, added up on the device, put together on the host."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.runtime import packing, step
from jaxinfer.runtime.pending import PendingStep
from jaxinfer.runtime.plan import Plan, Row
from jaxinfer.runtime.programs import PIECE_TOKENS, PIECES
from jaxinfer.runtime.runner import DeviceRunner
from tests.support.tiny_runner import LIMITS, TINY, Driven, dense_hidden

RANDOM = np.random.default_rng(0)


def pool(hidden: np.ndarray, pieces: list[tuple[int, int]], width: int = 8) -> np.ndarray:
    return np.asarray(step.pool(width, jnp.asarray(hidden), jnp.asarray(pieces, jnp.int32)))


def test_a_piece_is_the_sum_of_its_tokens_and_an_empty_one_is_zero() -> None:
    hidden = RANDOM.standard_normal((20, 6), np.float32)
    pieces = [(0, 8), (3, 1), (12, 8), (19, 1), (0, 0)]
    wanted = [hidden[start : start + count].sum(axis=0) for start, count in pieces]
    np.testing.assert_allclose(pool(hidden, pieces), wanted, atol=1e-5)


def test_a_piece_has_the_same_bits_wherever_it_stands_and_whatever_stands_beside_it() -> None:
    mine = RANDOM.standard_normal((7, 6), np.float32)
    found = []
    for start in range(13):
        hidden = np.full((20, 6), np.nan, np.float32)
        hidden[start : start + 7] = mine
        found.append(pool(hidden, [(start, 7)])[0])
    assert np.isfinite(found).all()
    assert len({vector.tobytes() for vector in found}) == 1


def test_bfloat16_is_added_up_in_float32() -> None:
    hidden = jnp.asarray([[1.0], [2**-9], [2**-9]], jnp.bfloat16)
    assert step.pool(4, hidden, jnp.asarray([[0, 3]], jnp.int32))[0, 0] == 1 + 2**-8


def test_long_rows_are_cut_into_pieces_from_the_first_token_that_is_pooled() -> None:
    rows = [
        Row(1, 0, 5, range(5), False),
        Row(2, 0, 20, range(20), False, num_pooled=20),
        Row(3, 40, 6, range(6), False, num_pooled=1),
    ]
    pieces, owners = packing.pieces(Plan(rows), 8)
    assert pieces.tolist() == [[5, 8], [13, 8], [21, 4], [30, 1]]
    assert owners == [1, 1, 1, 2]
    assert packing.pieces(Plan(rows[:1]), 8)[0].shape == (0, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_whose_sum_is_not_finite_is_not_finite_though_its_last_token_is(bad: float) -> None:
    sums = jnp.zeros((PIECES, 2)).at[1, 0].set(bad)
    result = PendingStep(jnp.asarray([3, 4], jnp.int32), 2, pooled=([0, 1, 1], [sums])).wait()
    assert result.finite.tolist() == [True, False]


@pytest.mark.slow
def test_a_step_pools_more_rows_than_one_call_takes(warm_runner: DeviceRunner) -> None:
    free = itertools.count(1)
    rows, prompts = [], [[i, 2 * i, 3 * i, 5][: 2 + i % 3] for i in range(1, 11)]
    for slot, prompt in enumerate(prompts, start=1):
        row = Driven(slot, prompt, free).row()
        row.sample, row.num_pooled = False, len(prompt) if slot % 2 else 1
        rows.append(row)
    assert PIECES < len(rows) == LIMITS.max_num_seqs and PIECE_TOKENS > 4
    result = warm_runner.run(Plan(rows)).wait()
    assert result.pooled.keys() == set(range(len(rows))) and result.finite.all()
    for i, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        wanted = dense_hidden(TINY, prompt)[-row.num_pooled :].sum(axis=0)
        np.testing.assert_allclose(result.pooled[i], wanted, rtol=1e-3, atol=1e-4)
