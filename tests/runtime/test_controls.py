"""The full sampler against a numpy oracle and by chi-square, and over real steps: each control changes the result."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.config import Limits
from jaxinfer.runtime import controls as full
from jaxinfer.runtime.mask_table import Masks
from jaxinfer.runtime.packing import (
    DRAW_WIDTH,
    IN_PROMPT,
    MOST_COUNTED,
    NO_ID,
    DrawColumn,
    pack_slot,
    sampling_columns,
    unpack_logprobs,
)
from jaxinfer.runtime.plan import MAX_LOGIT_BIAS, Controls, History, Plan, Row, Sampling
from jaxinfer.runtime.runner import DeviceRunner
from jaxinfer.runtime.state import init_controls
from tests.runtime.test_sampler import V, logits_of, oracle
from tests.support.masks import new_masks
from tests.support.tiny_runner import LIMITS, TINY, Driven, dense_logits, generate

TOP = 4
SMALL = dataclasses.replace(LIMITS, vocab_size=V, max_logprobs=TOP)
PROMPT, OUTPUT = [1, 2, 3, 3, 40, 49], [7, 7, 7, 3, 20, 49]
ENDS = frozenset({7, 11, 12})
CASES = [
    Controls(),
    Controls(presence_penalty=1.5),
    Controls(presence_penalty=-2.0, frequency_penalty=0.7),
    Controls(frequency_penalty=2.0),
    Controls(repetition_penalty=1.8),
    Controls(repetition_penalty=0.5, frequency_penalty=-1.0),
    Controls(logit_bias=((3, 4.0), (49, -100.0), (0, 100.0))),
    Controls(logit_bias=tuple((i % V, 0.25 * i) for i in range(V))),
    Controls(allowed_token_ids=(0, 3, 7, 31, 32, 49)),
    Controls(bad_words=((3,), (7,), (0,), (49,))),
    Controls(bad_words=((3, 20, 49, 5), (49, 6), (7, 8))),
    Controls(min_tokens=len(OUTPUT) + 1),
    Controls(min_tokens=len(OUTPUT)),
    Controls(
        presence_penalty=0.3,
        frequency_penalty=0.2,
        repetition_penalty=1.2,
        logit_bias=((11, 5.0), (20, 2.0), (31, 1.0)),
        allowed_token_ids=tuple(range(5, 45)),
        bad_words=((10,), (49, 13)),
        min_tokens=9,
    ),
]


def expected_logits(logits: np.ndarray, controls: Controls, prompt: list[int], output: list[int]) -> np.ndarray:
    """f64[V]: the documented order, one token at a time."""
    out = logits.astype(np.float64)
    for token, bias in controls.logit_bias:
        out[token] += bias
    for token in range(len(out)):
        words = [word for word in controls.bad_words if word[-1] == token]
        before = [*prompt, *output]
        if (
            (controls.allowed_token_ids is not None and token not in controls.allowed_token_ids)
            or (len(output) < controls.min_tokens and token in ENDS)
            or any(tuple(before[len(before) - len(word) + 1 :]) == word[:-1] for word in words)
        ):
            out[token] = -np.inf
        elif token in before:
            out[token] *= controls.repetition_penalty if out[token] <= 0 else 1 / controls.repetition_penalty
        out[token] -= controls.frequency_penalty * output.count(token) + controls.presence_penalty * (token in output)
    return out


class Slot:
    """One slot's state, and the step's parts that `draw_full` takes, for one sequence repeated over `rows`."""

    def __init__(self, sampling: Sampling, rows: int, limits: Limits = SMALL) -> None:
        row = Row(2, 0, 1, sampling=sampling, history=History(PROMPT, OUTPUT, ENDS))
        self.upload = pack_slot(row, limits.vocab_size)
        self.state = jax.jit(full.set_slot)(init_controls(limits), jnp.asarray(self.upload))
        self.columns = jnp.zeros((8, len(sampling_columns(sampling))), jnp.int32).at[2].set(sampling_columns(sampling))
        self.draws = np.full((rows, DRAW_WIDTH), NO_ID, np.int32)
        self.draws[:, DrawColumn.SLOT] = 2
        banned = sampling.controls.banned_after([*PROMPT, *OUTPUT]) if sampling.controls else []
        self.draws[:, len(DrawColumn) : len(DrawColumn) + len(banned)] = banned
        self.positions = jnp.full(rows, len(PROMPT) + len(OUTPUT), jnp.int32)


@pytest.mark.parametrize("controls", CASES, ids=str)
def test_the_logits_are_the_oracles(controls: Controls) -> None:
    rows = 16
    logits, slot = logits_of(rows), Slot(Sampling(controls=controls), rows)
    changed = jax.jit(full.controlled_logits)(
        jnp.asarray(logits),
        slot.state,
        jnp.full(rows, 2, jnp.int32),
        slot.columns[jnp.full(rows, 2)],
        slot.positions,
        jnp.asarray(slot.draws[:, len(DrawColumn) :]),
    )
    expected = np.stack([expected_logits(row, controls, PROMPT, OUTPUT) for row in logits])
    np.testing.assert_allclose(np.asarray(changed), expected, rtol=2e-6, atol=2e-6)
    assert (controls in (CASES[0], CASES[12])) == np.array_equal(np.asarray(changed), logits)  # each does something


draw = jax.jit(full.draw_full)


@pytest.mark.slow
@pytest.mark.parametrize("controls", [CASES[2], CASES[4], CASES[6], CASES[8], CASES[13]], ids=str)
def test_draws_follow_the_oracles_probabilities(controls: Controls) -> None:
    sampling = Sampling(temperature=0.8, top_k=30, top_p=0.95, min_p=0.001, seed=5, controls=controls)
    draws = 10_000
    logits, slot = logits_of(1, seed=3), Slot(sampling, draws)
    # one slot, many positions: a token is drawn at each, all from the same logits
    changed = jax.jit(full.controlled_logits)(
        jnp.asarray(logits), slot.state, jnp.full(1, 2), slot.columns[jnp.full(1, 2)], slot.positions[:1],
        jnp.asarray(slot.draws[:1, len(DrawColumn) :]),
    )  # fmt: skip
    tokens = full.draw(
        jnp.repeat(changed, draws, axis=0),
        jnp.repeat(slot.columns[jnp.full(1, 2)], draws, axis=0),
        jnp.arange(draws, dtype=jnp.int32),
    )
    counts = np.bincount(np.asarray(tokens), minlength=V)
    wanted = oracle(expected_logits(logits[0], controls, PROMPT, OUTPUT), sampling) * draws
    assert not counts[wanted == 0].any()
    likely = wanted >= 5
    observed = np.append(counts[likely], counts[~likely].sum())
    expected = np.append(wanted[likely], wanted[~likely].sum())
    distance = np.sum((observed - expected) ** 2 / np.maximum(expected, 1e-9))
    cells = int(likely.sum())
    assert distance < cells + 5 * (2 * max(cells, 1)) ** 0.5 + 5  # five standard deviations of chi-square


def test_a_drawn_token_is_counted_where_the_row_has_penalties_only() -> None:
    slot = Slot(Sampling(controls=Controls(presence_penalty=1.0, allowed_token_ids=(7,))), 1)
    last, state, out = draw(
        jnp.zeros(8, jnp.int32), slot.state, jnp.full(8, 12, jnp.int32), slot.columns,
        jnp.asarray(logits_of(1)), jnp.asarray(slot.draws),
    )  # fmt: skip
    assert int(out[0, 0]) == 7
    assert last.tolist() == [0, 0, 7, 0, 0, 0, 0, 0]
    assert int(state.counts[2, 7]) == OUTPUT.count(7) + 1
    assert int(state.counts[2, 3]) == IN_PROMPT + 1
    plain = Slot(Sampling(controls=Controls()), 1)
    last, state, out = draw(
        jnp.zeros(8, jnp.int32), plain.state, jnp.full(8, 12, jnp.int32), plain.columns,
        jnp.asarray(logits_of(1)), jnp.asarray(plain.draws),
    )  # fmt: skip
    assert int(out[0, 0]) == int(last[2]) == int(np.argmax(logits_of(1)[0]))
    np.testing.assert_array_equal(np.asarray(state.counts), np.asarray(plain.state.counts))


def test_a_count_at_its_most_stays_and_leaves_the_prompts_bit_alone() -> None:
    history = History([5], [6] * (MOST_COUNTED + 10))
    controls = Controls(frequency_penalty=1.0, allowed_token_ids=(6,))
    upload = pack_slot(Row(2, 0, 1, sampling=Sampling(controls=controls), history=history), V)
    state = full.set_slot(init_controls(SMALL), jnp.asarray(upload))
    slot = Slot(Sampling(controls=controls), 1)
    for _ in range(2):
        _, state, out = draw(
            jnp.zeros(8, jnp.int32), state, jnp.full(8, 12, jnp.int32), slot.columns, jnp.asarray(logits_of(1)),
            jnp.asarray(slot.draws),
        )  # fmt: skip
        assert int(out[0, 0]) == 6
    assert (int(state.counts[2, 5]), int(state.counts[2, 6])) == (IN_PROMPT, MOST_COUNTED)


def test_logprobs_are_those_of_the_raw_logits_with_rank_and_the_most_likely() -> None:
    logits, tokens = logits_of(12), np.arange(12, dtype=np.int32)
    found = unpack_logprobs(np.asarray(jax.jit(full.logprobs, static_argnums=2)(logits, tokens, TOP)))
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(found.values, exact[np.arange(12), tokens], rtol=1e-5)
    assert found.ranks.tolist() == [1 + int((row > row[token]).sum()) for row, token in zip(exact, tokens, strict=True)]
    np.testing.assert_array_equal(found.top_ids, np.argsort(-exact, axis=-1)[:, :TOP])
    np.testing.assert_allclose(found.top_values, -np.sort(-exact, axis=-1)[:, :TOP], rtol=1e-5)


@pytest.mark.parametrize(("width", "top"), [(3000, 20), (2561, 20), (1000, 5), (700, 20)])
def test_the_most_likely_are_those_that_sorting_all_would_find(width: int, top: int) -> None:
    rows = np.random.default_rng(width).integers(-40, 40, (30, width)).astype(np.float32)  # many are equal
    rows[0] = 1.0
    rows[1, -3:] = 90.0
    found, wanted = full.top_of(jnp.asarray(rows), top), jax.lax.top_k(jnp.asarray(rows), top)
    np.testing.assert_array_equal(np.asarray(found[0]), np.asarray(wanted[0]))
    np.testing.assert_array_equal(np.asarray(found[1]), np.asarray(wanted[1]))


def test_the_most_that_a_request_may_ask_for_fits_a_slot() -> None:
    vocab = 1000
    bias = tuple((i, float(i)) for i in range(MAX_LOGIT_BIAS))
    controls = Controls(logit_bias=bias[::-1], presence_penalty=1.0)
    row = Row(1, 0, 1, sampling=Sampling(controls=controls), history=History([vocab - 1], []))
    upload = pack_slot(row, vocab)
    state = full.set_slot(init_controls(dataclasses.replace(SMALL, vocab_size=vocab)), jnp.asarray(upload))
    assert state.bias[1, 0].tolist() == list(range(MAX_LOGIT_BIAS))
    assert int(state.counts[1, vocab - 1]) == IN_PROMPT


# ---- over real steps ----

TEXT = [int(token) for token in np.random.default_rng(1).integers(0, TINY.vocab_size, 21)]


def drive(
    runner: DeviceRunner,
    sampling: Sampling,
    steps: int,
    slot: int = 1,
    output: tuple[int, ...] = (),
    *,
    in_flight: bool = False,
):
    """Prompt and `output` in one chunk, then decode rows: the answer's tokens and their logprobs.

    in_flight: bans are made as if a decode row's last token were not known yet.
    """
    sequence = Driven(slot, [*TEXT, *output], itertools.count(1 + 20 * slot), sampling)
    found = []
    for _ in range(steps):
        row = sequence.row()
        row.logprobs = True
        if row.sampling is not None and sampling.controls is not None:
            row.history = History(TEXT, output, ENDS)
        tokens, length = sequence.tokens, row.start + row.count
        known = tokens[: length - 1] if row.tokens is None and in_flight else tokens
        row.bans = sampling.controls.bans_after(known, length) if sampling.controls else ()
        result = runner.run(Plan([row])).wait()
        sequence.take(result, 0)
        found.append((float(result.logprobs.values[0]), int(result.logprobs.ranks[0]), result.logprobs.top_ids[0]))
    return sequence.tokens[len(TEXT) :], found


def expected_greedy(controls: Controls, steps: int) -> list[int]:
    output: list[int] = []
    for _ in range(steps):
        known = [*TEXT, *output]
        logits = dense_logits(TINY, known + [0] * (32 - len(known)))[len(known) - 1]  # one length: compiled once
        output.append(int(np.argmax(expected_logits(logits, controls, TEXT, output))))
    return output


LIVELY = [
    Controls(frequency_penalty=1.5),
    Controls(repetition_penalty=1.5, min_tokens=6),
    Controls(allowed_token_ids=(2, 3, 5, 7, 11), presence_penalty=0.2),
]


@pytest.mark.parametrize("controls", LIVELY, ids=str)
def test_steps_draw_what_the_oracle_draws(runner: DeviceRunner, controls: Controls) -> None:
    tokens, _ = drive(runner, Sampling(controls=controls), 8)
    assert tokens == expected_greedy(controls, 8)
    runner.reset()
    assert tokens != generate(runner, TEXT, 8)[len(TEXT) :]


@pytest.mark.parametrize("in_flight", [False, True], ids=["known", "in flight"])
def test_a_multi_token_bad_word_is_never_completed(runner: DeviceRunner, *, in_flight: bool) -> None:
    free = generate(runner, TEXT, 8)[len(TEXT) :]
    runner.reset()
    controls = Controls(bad_words=((free[2], free[3]), (free[0], free[1], free[2])))
    tokens, _ = drive(runner, Sampling(controls=controls), 8, in_flight=in_flight)
    assert tokens == expected_greedy(controls, 8)
    pairs = set(itertools.pairwise([TEXT[-1], *tokens]))
    assert (free[2], free[3]) not in pairs and tokens[:2] == free[:2] and tokens[2] != free[2]


def test_a_sequence_computed_again_goes_on_with_the_same_tokens(runner: DeviceRunner) -> None:
    sampling = Sampling(temperature=1.0, seed=4, controls=Controls(frequency_penalty=1.0, repetition_penalty=1.3))
    whole, _ = drive(runner, sampling, 10)
    rest, _ = drive(runner, sampling, 5, slot=3, output=tuple(whole[:5]))
    assert rest == whole


def test_logprobs_change_no_token_and_are_the_models(runner: DeviceRunner) -> None:
    sampling = Sampling(temperature=1.0, seed=9)
    plain = generate(runner, TEXT, 6, sampling)
    runner.reset()
    tokens, found = drive(runner, dataclasses.replace(sampling, logprobs=True), 6)
    assert [*TEXT, *tokens] == plain
    exact = dense_logits(TINY, plain)[len(TEXT) - 1 : -1].astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    for row, token, (value, rank, top) in zip(exact, tokens, found, strict=True):
        assert abs(value - row[token]) < 1e-4
        assert rank == 1 + int((row > row[token]).sum())
        assert top.tolist() == np.argsort(-row)[: LIMITS.max_logprobs].tolist()


def test_targets_get_the_logprobs_of_a_prompt_in_any_chunks(runner: DeviceRunner) -> None:
    exact = dense_logits(TINY, TEXT).astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    neighbour = Driven(2, list(TEXT), itertools.count(40))
    sequence, values = Driven(1, list(TEXT), itertools.count(1)), []
    for count in (3, 10, 8):
        row = sequence.row(count)
        row.targets = TEXT[row.start + 1 : row.start + 1 + count]
        beside = neighbour.row()
        result = runner.run(Plan([beside, row])).wait()
        neighbour.take(result, 0)
        values += result.targets[1].values.tolist()
        assert len(result.targets[1].values) == len(row.targets)
    wanted = [exact[i, token] for i, token in enumerate(TEXT[1:])]
    np.testing.assert_allclose(values, wanted, atol=1e-4)


def test_a_plain_row_beside_a_full_one_keeps_its_tokens_and_nothing_is_compiled(runner: DeviceRunner) -> None:
    drawn = Sampling(temperature=1.0, seed=3)
    alone = generate(runner, TEXT, 9, drawn)
    runner.reset()
    compiled = runner.compiles_after_ready
    controls = Controls(presence_penalty=2.0, logit_bias=((5, 3.0),), min_tokens=4)
    plain = Driven(1, list(TEXT), itertools.count(1), drawn)
    other = Driven(2, list(TEXT), itertools.count(50), dataclasses.replace(drawn, controls=controls))
    for i in range(9):
        rows = [plain.row()]
        if 2 <= i < 7:  # plain, full, plain again
            rows.append(other.row())
            rows[1].history = History(TEXT, [], ENDS) if rows[1].sampling else None
        result = runner.run(Plan(rows)).wait()
        plain.take(result, 0)
        if len(rows) == 2:
            other.take(result, 1)
    assert plain.tokens == alone
    assert runner.compiles_after_ready == compiled


@pytest.mark.parametrize("count", [1, 8, 9, 16, 17, 100])
def test_masks_lie_where_they_were_written_however_many_are_new(runner: DeviceRunner, count: int) -> None:
    token_of = [9 + row % 80 for row in range(count)]
    new = new_masks(*({token} for token in token_of), vocab_size=TINY.vocab_size)
    for row in sorted({0, count // 2, count - 1}):
        first = Driven(1, [5, 6, 7], itertools.count(1), Sampling(masked=True))
        rows = [first.row()]
        rows[0].masked, rows[0].history = True, History([5, 6, 7], [])
        pending = runner.run(Plan(rows))
        news = new.news if row == 0 else new.news[:0]
        pending.draw(Masks(new.rows[row : row + 1], news, new.words[: len(news)]))
        assert pending.wait().tokens.tolist() == [token_of[row]]


@pytest.mark.parametrize("controls", [None, Controls(frequency_penalty=1.5)], ids=["plain", "full"])
def test_masks_say_what_may_be_drawn_of_their_slots_alone(runner: DeviceRunner, controls: Controls | None) -> None:
    masked = Sampling(temperature=1.0, seed=3, controls=controls, masked=True)
    first = Driven(1, [5, 6, 7], itertools.count(1), masked)
    plain = Driven(2, [5, 6, 7], itertools.count(20), Sampling(temperature=1.0, seed=3))
    rows = [first.row(), plain.row()]
    rows[0].masked, rows[0].history = True, History([5, 6, 7], [])
    for token in (9, 40, 96):
        pending = runner.run(Plan(rows))
        pending.draw(new_masks({token}, vocab_size=TINY.vocab_size))
        result = pending.wait()
        assert result.tokens[0] == token
        first.take(result, 0)
        plain.take(result, 1)
        rows = [first.row(), plain.row()]
        rows[0].masked = True
    alone = generate(runner, [5, 6, 7], 3, Sampling(temperature=1.0, seed=3), slot=3)
    assert plain.tokens == alone
