"""The device's equalities: chunked is whole, batched is alone, decode is extend, whatever the bucket."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from jaxinfer.config import ExtendBucket
from jaxinfer.layers.store import Store
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.packing import extend_layout, page_updates
from jaxinfer.runtime.plan import Plan, Row, Sampling
from jaxinfer.runtime.programs import Key
from jaxinfer.runtime.runner import DeviceRunner
from tests.support.tiny_runner import GREEDY, LIMITS, TINY, Driven, dense_logits, generate, make_runner, step

PROMPT = [int(token) for token in np.random.default_rng(1).integers(0, TINY.vocab_size, 61)]
DRAWN = Sampling(temperature=1.0, seed=2**63 + 5)


def test_greedy_tokens_are_those_of_the_dense_forward_pass(runner: DeviceRunner) -> None:
    tokens = generate(runner, PROMPT, 30)
    logits = dense_logits(TINY, tokens)
    assert tokens[len(PROMPT) :] == np.argmax(logits, axis=-1)[len(PROMPT) - 1 : -1].tolist()
    assert len(set(tokens[len(PROMPT) :])) > 3  # a model that repeats one token would prove nothing


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("chunks", [(61,), (16, 45), (1, 1, 59), (60, 1), (20, 20, 20, 1)], ids=str)
def test_a_chunked_prompt_gives_the_tokens_of_a_whole_one(
    runner: DeviceRunner, chunks: tuple[int, ...], sampling: Sampling
) -> None:
    expected = generate(runner, PROMPT, 6, sampling)
    runner.reset()
    sequence = Driven(2, list(PROMPT), itertools.count(40), sampling)
    for count in chunks[:-1]:
        runner.run(Plan([sequence.row(count)]))
    for _ in range(6):
        step(runner, sequence)
    assert sequence.tokens == expected


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_batch_gives_each_sequence_the_tokens_it_has_alone(runner: DeviceRunner, sampling: Sampling) -> None:
    prompts = [PROMPT[:n] for n in (3, 16, 17, 9, 1, 12, 6)]
    seeds = [dataclasses.replace(sampling, seed=sampling.seed + i) for i in range(7)]
    alone = []
    for prompt, one in zip(prompts, seeds, strict=True):
        alone.append(generate(runner, prompt, 10, one))
        runner.reset()
    free = itertools.count(1)
    crowd = [Driven(i + 1, list(prompts[i]), free, seeds[i]) for i in range(7)]
    for _ in range(10):
        step(runner, *crowd)
    assert [sequence.tokens for sequence in crowd] == alone


def test_a_decode_row_beside_a_prompt_chunk_gives_the_tokens_it_has_alone(runner: DeviceRunner) -> None:
    expected = generate(runner, PROMPT[:20], 8, DRAWN)
    runner.reset()
    free = itertools.count(1)
    decoding, other = Driven(3, PROMPT[:20], free, DRAWN), Driven(1, list(PROMPT), free)
    step(runner, decoding)
    for count in (5, 1, 30, 2):  # chunks of the other that do not end its prompt
        result = runner.run(Plan([other.row(count), decoding.row()])).wait()
        decoding.take(result, 1)
    for _ in range(3):
        step(runner, other, decoding)
    assert decoding.tokens == expected
    assert other.tokens[len(PROMPT) :] == generate(runner, PROMPT, 3, slot=5)[len(PROMPT) :]


def test_steps_dispatched_ahead_of_their_results_give_the_same_tokens(runner: DeviceRunner) -> None:
    expected = generate(runner, PROMPT, 12)
    runner.reset()
    pages = [(i, i + 1) for i in range(5)]
    first = Row(1, 0, len(PROMPT), PROMPT, new_pages=pages, sampling=GREEDY)
    rows = [first, *(Row(1, len(PROMPT) + i, 1) for i in range(11))]
    pending = [runner.run(Plan([row])) for row in rows]
    assert [int(step.wait().tokens[0]) for step in pending] == expected[len(PROMPT) :]


@pytest.mark.parametrize(
    "buckets",
    [
        pytest.param({"decode_buckets": (10,), "extend_buckets": (ExtendBucket(64, 10, 10),)}, marks=pytest.mark.slow),
        {"decode_buckets": (2, 10), "extend_buckets": (ExtendBucket(33, 1, 1), ExtendBucket(64, 10, 10))},
    ],
    ids=str,
)
def test_float32_bits_on_a_cpu_do_not_depend_on_the_bucket(runner: DeviceRunner, buckets: dict[str, object]) -> None:
    expected = generate(runner, PROMPT[:33], 5)
    pages = read_pages(runner, range(1, 4))
    other = make_runner(limits=dataclasses.replace(LIMITS, **buckets))
    assert generate(other, PROMPT[:33], 5) == expected
    for mine, theirs in zip(pages, read_pages(other, range(1, 4)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def read_pages(runner: DeviceRunner, page_ids: range) -> list[np.ndarray]:
    state = jax.device_get(runner._state)
    return [np.asarray(x[:, list(page_ids)]) for x in state.store.pages]


def test_a_slot_reused_while_steps_are_in_flight_belongs_to_its_new_owner(runner: DeviceRunner) -> None:
    expected = generate(runner, PROMPT[:30], 6, DRAWN, slot=4)
    runner.reset()
    old = Driven(4, list(PROMPT), itertools.count(1))
    step(runner, old)
    runner.run(Plan([old.row()]))  # nobody waits for this one
    new = Driven(4, PROMPT[:30], itertools.count(1), DRAWN)  # the same slot and the same pages
    for _ in range(6):
        step(runner, new)
    assert new.tokens == expected


def test_a_prefix_left_in_the_pages_is_used_without_being_computed_again(runner: DeviceRunner) -> None:
    expected = generate(runner, PROMPT, 5, DRAWN, slot=1)[len(PROMPT) :]
    shared = [(0, 1), (1, 2), (2, 3), (3, 50), (4, 51)]  # three full pages of slot 1, then its own
    row = Row(6, 48, len(PROMPT) - 48, PROMPT[48:], new_pages=shared, sampling=DRAWN, sampler=DRAWN.sampler)
    drawn = [int(runner.run(Plan([row])).wait().tokens[0])]
    drawn += [
        int(runner.run(Plan([Row(6, len(PROMPT) + i, 1, sampler=DRAWN.sampler)])).wait().tokens[0]) for i in range(4)
    ]
    assert drawn == expected


def test_more_new_pages_than_a_step_carries_arrive_beforehand(runner: DeviceRunner) -> None:
    expected = generate(runner, PROMPT, 3, slot=1)
    rows = []
    for slot in range(2, 11):  # 9 x 19 entries
        pages = [(0, 1), (1, 2), (2, 3), (3, 40 + slot), *((i, 60 + i) for i in range(4, 19))]
        rows.append(Row(slot, 48, 6, PROMPT[48:54], sample=False, new_pages=pages, sampling=GREEDY))
    assert len(page_updates(rows)) > extend_layout(LIMITS.extend_buckets[-1], LIMITS.page_size).shapes["pages"][0]
    runner.run(Plan(rows))
    rest = Row(3, 54, 7, PROMPT[54:])
    assert int(runner.run(Plan([rest])).wait().tokens[0]) == expected[len(PROMPT)]


def test_a_decode_row_may_bring_several_pages(runner: DeviceRunner) -> None:
    expected = generate(runner, PROMPT, 3, slot=1)
    pages = [(i, 30 + i) for i in range(4)]
    runner.run(Plan([Row(2, 0, len(PROMPT), PROMPT, new_pages=pages, sampling=GREEDY)]))
    drawn = runner.run(Plan([Row(2, len(PROMPT), 1, new_pages=[(4, 60), (5, 61)])])).wait()
    assert int(drawn.tokens[0]) == expected[len(PROMPT) + 1]


def test_a_decode_step_uploads_only_what_the_one_before_did_not(
    runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = generate(runner, PROMPT, 24)
    runner.reset()
    brought, dispatch = [], runner._dispatch

    def note(key: Key, upload: np.ndarray | jax.Array, *rest: object, **options: object) -> object:
        if isinstance(key, Decode):
            brought.append(upload)
        return dispatch(key, upload, *rest, **options)

    monkeypatch.setattr(runner, "_dispatch", note)
    assert generate(runner, PROMPT, 24) == expected
    opens_page = [len(PROMPT) + i for i in range(23) if (len(PROMPT) + i) % LIMITS.page_size == 0]
    assert len(opens_page) == 2
    # On the host: the first, each that opens a page, and the one after it, which brings none. Then one array stays.
    on_host = [isinstance(upload, np.ndarray) for upload in brought]
    assert len(on_host) == 23
    assert sum(on_host) == 1 + 2 * len(opens_page)
    runs = [
        list(run) for is_host, run in itertools.groupby(brought, lambda x: isinstance(x, np.ndarray)) if not is_host
    ]
    assert [len({id(upload) for upload in run}) for run in runs] == [1] * len(runs)


def test_a_chunk_of_one_token_that_ends_a_prompt_is_no_decode_row(runner: DeviceRunner) -> None:
    expected = generate(runner, PROMPT[:17], 2, slot=1)
    row = Row(2, 16, 1, PROMPT[16:17], new_pages=[(0, 1), (1, 40)], sampling=GREEDY)
    assert int(runner.run(Plan([row])).wait().tokens[0]) == expected[17]


class TestNonFinite:
    def poisoned(self, runner: DeviceRunner) -> tuple[Driven, Driven]:
        """Two running sequences, the first with a NaN among its values."""
        free = itertools.count(1)
        sick, well = Driven(1, PROMPT[:20], free), Driven(2, PROMPT[:25], free)
        step(runner, sick, well)
        keys, values = runner._state.store.pages
        runner._state = runner._state.replace(store=Store((keys, values.at[0, sick.pages[0]].set(np.nan))))
        return sick, well

    @pytest.mark.parametrize("kind", ["decode", "extend"])
    def test_a_row_with_a_nan_is_flagged_and_its_neighbour_is_not(self, runner: DeviceRunner, kind: str) -> None:
        expected = generate(runner, PROMPT[:25], 2)
        runner.reset()
        sick, well = self.poisoned(runner)
        rows = [sick.row(), well.row()]
        if kind == "extend":
            rows.append(Driven(3, PROMPT[:5], itertools.count(80)).row())
        result = runner.run(Plan(rows)).wait()
        assert result.finite.tolist() == [False, True, True][: len(rows)]
        assert int(result.tokens[1]) == expected[-1]

    def test_a_chunk_that_does_not_sample_is_flagged_too(self, runner: DeviceRunner) -> None:
        sick, _ = self.poisoned(runner)
        row = Row(sick.slot, 21, 4, PROMPT[21:25], sample=False)
        assert not runner.run(Plan([row])).wait().finite[0]

    def test_zeroed_pages_carry_no_nan_to_their_next_owner(self, runner: DeviceRunner) -> None:
        expected = generate(runner, PROMPT[:30], 4)
        runner.reset()
        sick, _ = self.poisoned(runner)
        runner.zero_pages([*sick.pages, *range(60, 80)])
        for pages in read_pages(runner, range(1, 3)):
            np.testing.assert_array_equal(pages, 0)
        assert generate(runner, PROMPT[:30], 4, slot=5) == expected


def test_padding_leaves_no_trace_in_any_slot_or_page_of_others(runner: DeviceRunner) -> None:
    generate(runner, PROMPT[:5], 3, slot=1)
    before = jax.device_get(runner._state)
    for key, program in runner._programs.items():
        if key != "zero_pages":
            runner._run_on_padding(program)
    after = jax.device_get(runner._state)
    for now, then in zip(after.store.pages, before.store.pages, strict=True):
        np.testing.assert_array_equal(now[:, 1:], then[:, 1:])
    for name in ("page_table", "last_token", "next_pos", "sampling"):
        np.testing.assert_array_equal(getattr(after, name)[1:], getattr(before, name)[1:])
        np.testing.assert_array_equal(getattr(after, name)[0], 0)


def test_reset_blanks_everything_and_recovers_a_lost_state(runner: DeviceRunner) -> None:
    expected = generate(runner, PROMPT, 3)
    runner._state.store.pages[0].delete()  # as a failed dispatch leaves donated buffers
    runner.reset()
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(runner._state))
    assert generate(runner, PROMPT, 3) == expected


def test_a_closed_runner_that_somebody_holds_has_nothing_on_the_device() -> None:
    """Weights stay behind otherwise, and in a pool full of holes the next model's pages find no room."""
    before = jax.live_arrays()
    closed = make_runner(limits=dataclasses.replace(LIMITS, num_host_pages=4))
    step(closed, Driven(1, list(PROMPT), itertools.count(1)))
    closed.close()
    known = set(map(id, before))
    assert [array.shape for array in jax.live_arrays() if id(array) not in known] == []
