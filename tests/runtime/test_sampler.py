"""The sampler against a numpy oracle and by chi-square; each parameter has a test in which it changes the result."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.protocol.sampling import LEAST_TOP_P
from jaxinfer.runtime import sampler
from jaxinfer.runtime.packing import sampling_columns
from jaxinfer.runtime.plan import Sampler, Sampling
from jaxinfer.runtime.sampler import gumbel_noise, kept

sample = jax.jit(sampler.draw)
V = 50
ON = Sampling(temperature=1.0, seed=11)
CASES = [
    ON,
    dataclasses.replace(ON, temperature=0.6),
    dataclasses.replace(ON, top_k=5),
    dataclasses.replace(ON, top_k=1),
    dataclasses.replace(ON, top_k=1000),
    dataclasses.replace(ON, top_p=0.7),
    dataclasses.replace(ON, top_p=1e-6),
    dataclasses.replace(ON, top_p=LEAST_TOP_P),
    dataclasses.replace(ON, min_p=0.1),
    dataclasses.replace(ON, min_p=1.0),
    dataclasses.replace(ON, temperature=1.7, top_k=20, top_p=0.9, min_p=0.02),
]


def logits_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=2.5, size=(rows, V)).astype(np.float32)


def columns_of(*samplings: Sampling) -> jax.Array:
    return jnp.asarray(np.stack([sampling_columns(sampling) for sampling in samplings]))


def oracle(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The probabilities f64[V] that are left, by sorting, in the documented order: temperature, k, p, min_p."""
    scaled = logits.astype(np.float64) / sampling.temperature
    probabilities = np.exp(scaled - scaled.max())
    if sampling.top_k:
        probabilities[probabilities < np.sort(probabilities)[-min(sampling.top_k, len(logits))]] = 0
    if sampling.top_p < 1:
        order = np.argsort(-probabilities)
        cumulative = np.cumsum(probabilities[order]) / probabilities.sum()
        probabilities[order[np.searchsorted(cumulative, sampling.top_p) + 1 :]] = 0
    probabilities[probabilities < sampling.min_p * probabilities.max()] = 0
    return probabilities / probabilities.sum()


@pytest.mark.parametrize("sampling", CASES, ids=str)
def test_what_is_left_to_draw_from_is_what_the_oracle_leaves(sampling: Sampling) -> None:
    logits = logits_of(64)
    scaled = (logits - logits.max(axis=-1, keepdims=True)) / np.float32(sampling.temperature)
    left = np.asarray(kept(jnp.asarray(scaled), columns_of(*[sampling] * 64), jnp.ones(64, bool)))
    expected = np.stack([oracle(row, sampling) > 0 for row in logits])
    np.testing.assert_array_equal(left, expected)


def test_the_least_top_p_leaves_the_likeliest_token_of_many_that_are_almost_as_likely() -> None:
    logits = np.random.default_rng(0).normal(scale=0.01, size=(2, 2**18)).astype(np.float32)
    columns = columns_of(*[dataclasses.replace(ON, top_p=LEAST_TOP_P)] * 2)
    tokens = sample(jnp.asarray(logits), columns, jnp.arange(2, dtype=jnp.int32))
    np.testing.assert_array_equal(tokens, logits.argmax(axis=-1))


@pytest.mark.parametrize("sampling", CASES, ids=str)
def test_draws_follow_the_oracles_probabilities(sampling: Sampling) -> None:
    logits, draws = logits_of(1, seed=3), 4000
    columns = jnp.repeat(columns_of(sampling), draws, axis=0)
    tokens = sample(jnp.repeat(jnp.asarray(logits), draws, axis=0), columns, jnp.arange(draws, dtype=jnp.int32))
    counts = np.bincount(np.asarray(tokens), minlength=V)
    expected = oracle(logits[0], sampling) * draws
    assert not counts[expected == 0].any()
    likely = expected >= 5
    observed = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum())
    distance = np.sum((observed - wanted) ** 2 / np.maximum(wanted, 1e-9))
    cells = int(likely.sum())
    assert distance < cells + 5 * (2 * max(cells, 1)) ** 0.5 + 5  # five standard deviations of chi-square


def test_greedy_takes_the_largest_and_the_lowest_id_among_equals() -> None:
    logits = jnp.asarray([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [-5.0, -jnp.inf, -4.0, -4.0]])
    tokens = sample(logits, columns_of(*[Sampling()] * 3), jnp.arange(3, dtype=jnp.int32))
    assert tokens.tolist() == [1, 0, 2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_nan_still_gives_an_id_that_exists(temperature: float) -> None:
    logits = jnp.full((1, V), jnp.nan)
    token = sample(logits, columns_of(Sampling(temperature=temperature)), jnp.zeros(1, jnp.int32))
    assert 0 <= int(token[0]) < V


@pytest.mark.parametrize("temperature", [1e-6, 1e-30])
def test_the_smallest_temperatures_are_greedy(temperature: float) -> None:
    logits = logits_of(20)
    columns = columns_of(*[Sampling(temperature=temperature, seed=i) for i in range(20)])
    tokens = sample(jnp.asarray(logits), columns, jnp.arange(20, dtype=jnp.int32))
    np.testing.assert_array_equal(np.asarray(tokens), logits.argmax(axis=-1))


def test_greedy_rows_stay_greedy_beside_rows_that_draw() -> None:
    logits = jnp.asarray(logits_of(4))
    mixed = columns_of(Sampling(), dataclasses.replace(ON, top_k=3), Sampling(top_k=7, top_p=0.1), ON)
    tokens = sample(logits, mixed, jnp.arange(4, dtype=jnp.int32))
    expected = jnp.argmax(logits, axis=-1)
    assert tokens[0] == expected[0]
    assert tokens[2] == expected[2]


def test_a_rows_token_depends_on_nothing_but_the_row() -> None:
    logits, positions = jnp.asarray(logits_of(len(CASES))), jnp.arange(len(CASES), dtype=jnp.int32)
    columns = columns_of(*CASES)
    together = sample(logits, columns, positions)
    for i in range(len(CASES)):
        alone = sample(logits[i : i + 1], columns[i : i + 1], positions[i : i + 1])
        assert alone[0] == together[i]


def test_a_greedy_row_beside_one_that_draws_keeps_the_steps_token() -> None:
    logits, slots = jnp.asarray(logits_of(3)), 5
    sampling = jnp.zeros((slots, len(columns_of(ON)[0])), jnp.int32).at[2].set(columns_of(ON)[0])
    next_pos, upload = jnp.arange(slots, dtype=jnp.int32), jnp.asarray([[3], [2]])
    last, tokens = jax.jit(sampler.draw_rows, static_argnums=0)(
        Sampler.PLAIN, jnp.full(slots, 40), next_pos, sampling, logits, upload
    )
    greedy, drawn = int(jnp.argmax(logits[0])), int(sample(logits[1:2], columns_of(ON), next_pos[2:3])[0])
    assert tokens[:, 0].tolist() == [greedy, drawn]
    assert last.tolist() == [40, 40, drawn, greedy, 40]


@pytest.mark.parametrize("width", [300, 9000], ids=["four bits a pass", "two"])
def test_a_bound_by_digits_is_the_bound_by_halves(width: int) -> None:
    numbers = np.random.default_rng(5).integers(0, 2**32, (20, width), dtype=np.uint32)
    given = jnp.asarray(numbers), jnp.ones(numbers.shape, jnp.int32), jnp.arange(1, 21), jnp.zeros(20, jnp.uint32)
    by_digits, by_halves = sampler._by_digits(*given), sampler._by_halves(*given)
    np.testing.assert_array_equal(np.asarray(by_digits), np.asarray(by_halves))
    np.testing.assert_array_equal(np.asarray(by_digits), -np.sort(-numbers.astype(np.int64))[range(20), range(20)])


def test_rows_without_bounds_are_drawn_alike_by_both() -> None:
    logits = jnp.asarray(logits_of(32))
    columns = columns_of(*[dataclasses.replace(ON, seed=i, min_p=0.01 * (i % 3)) for i in range(32)])
    positions = jnp.arange(32, dtype=jnp.int32)
    drawn = [sampler.draw(logits, columns, positions, one).tolist() for one in (Sampler.PLAIN, Sampler.WIDE)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("width", [8192, 9000])
def test_small_bounds_are_found_among_few_as_among_all(width: int) -> None:
    """And beside rows whose bounds are not small, where the row comes in fewer parts than it takes and in more."""
    scaled = np.random.default_rng(width).normal(size=(24, width)).astype(np.float32) * 3
    scaled -= scaled.max(axis=-1, keepdims=True)
    bounds = [(20, 0.8), (1, 1.0), (64, 0.999), (0, 1.0), (65, 1.0), (0, 0.9)]
    cases = [dataclasses.replace(ON, top_k=k, top_p=p) for k, p in bounds * 4]
    expected = np.stack([oracle(row, case) > 0 for row, case in zip(scaled, cases, strict=True)])
    columns = columns_of(*cases)
    wide = np.asarray(kept(jnp.asarray(scaled), columns, jnp.ones(24, bool), Sampler.WIDE))
    np.testing.assert_array_equal(wide, expected)
    few = [i for i, case in enumerate(cases) if case.sampler <= Sampler.BOUNDED]
    assert len(few) == 16
    bounded = kept(jnp.asarray(scaled[few]), columns[jnp.asarray(few)], jnp.ones(16, bool), Sampler.BOUNDED)
    np.testing.assert_array_equal(np.asarray(bounded), expected[few])


def test_both_zeros_are_equal() -> None:
    left = kept(jnp.asarray([[-1.0, -0.0, 0.0, -2.0]]), columns_of(dataclasses.replace(ON, top_k=1)), jnp.ones(1, bool))
    assert left.tolist() == [[False, True, True, False]]


def test_equal_logits_at_the_kth_place_are_all_kept() -> None:
    scaled = jnp.asarray([[0.0, -1.0, -1.0, -1.0, -2.0]])
    left = kept(scaled, columns_of(dataclasses.replace(ON, top_k=2)), jnp.ones(1, bool))
    assert left.tolist() == [[True, True, True, True, False]]


class TestNoise:
    def noise(self, position: int = 5, **changes: int) -> np.ndarray:
        columns = columns_of(dataclasses.replace(ON, **changes))
        return np.asarray(gumbel_noise(columns, jnp.full(1, position, jnp.int32), 1000))[0]

    def test_the_same_request_and_position_give_the_same_noise(self) -> None:
        np.testing.assert_array_equal(self.noise(), self.noise())

    @pytest.mark.parametrize(
        "changes",
        [{"position": 6}, {"sample_index": 1}, {"seed": 12}, {"seed": 11 + 2**32}, {"seed": 11 + 2**63}],
        ids=str,
    )
    def test_seed_sample_index_and_position_each_give_independent_noise(self, changes: dict[str, int]) -> None:
        correlation = np.corrcoef(self.noise(), self.noise(**changes))[0, 1]
        assert abs(correlation) < 0.15  # 1000 pairs: a standard deviation of 0.03

    def test_the_key_is_the_documented_chain_of_folds(self) -> None:
        key = jax.random.wrap_key_data(jnp.asarray([1, 7], jnp.uint32), impl="threefry2x32")  # seed 2**32 + 7
        for data in (3, 5, 0):  # sample index, position, purpose DRAW
            key = jax.random.fold_in(key, data)
        expected = jax.random.gumbel(key, (1000,), jnp.float32)
        np.testing.assert_array_equal(self.noise(seed=2**32 + 7, sample_index=3), np.asarray(expected))
