"""Decode steps for bounded contexts: the tokens of those for any length, chosen by the longest row, without a loop."""

import dataclasses
import itertools
from collections.abc import Iterator

import jax
import pytest

from jaxinfer.config import ExtendBucket
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.plan import Plan, Row, Sampling
from jaxinfer.runtime.programs import Key
from jaxinfer.runtime.runner import DeviceRunner
from tests.support.tiny_runner import GREEDY, LIMITS, Driven, generate, make_runner, step

pytestmark = pytest.mark.slow

PROMPT = [(7 * i * i + 3 * i) % 97 for i in range(70)]
DRAWN = Sampling(temperature=1.0, seed=2**63 + 5)


class Recorded(dict[Key, jax.stages.Compiled]):
    """A runner's executables, and the decode steps among them that were run."""

    def __init__(self, executables: dict[Key, jax.stages.Compiled]) -> None:
        super().__init__(executables)
        self.run: list[Decode] = []

    def get(self, key: Key, default: object = None) -> object:
        if isinstance(key, Decode):
            self.run.append(key)
        return super().get(key, default)


@pytest.fixture
def recorded(by_context: DeviceRunner) -> Iterator[Recorded]:
    """What the runner with contexts runs from now on; its pages and slots are blank, and it must not compile."""
    by_context.reset()
    kept, compiled = by_context._executables, by_context.compiles_after_ready
    by_context._executables = Recorded(kept)
    yield by_context._executables
    assert by_context._executables.keys() == kept.keys()
    assert by_context.compiles_after_ready == compiled
    by_context._executables = kept


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_sequence_keeps_its_tokens_while_it_outgrows_the_contexts(
    runner: DeviceRunner, by_context: DeviceRunner, recorded: Recorded, sampling: Sampling
) -> None:
    expected = generate(runner, PROMPT[:25], 50, sampling)
    assert generate(by_context, PROMPT[:25], 50, sampling) == expected
    assert recorded.run == [Decode(1, 32)] * 7 + [Decode(1, 64)] * 32 + [Decode(1)] * 10  # lengths 26 .. 74


def test_the_longest_row_of_a_batch_chooses_for_all(
    runner: DeviceRunner, by_context: DeviceRunner, recorded: Recorded
) -> None:
    lengths = (1, 6, 3, 50)

    def crowd(on: DeviceRunner) -> list[list[int]]:
        free = itertools.count(1)
        rows = [Driven(i + 1, PROMPT[:n], free, DRAWN if i % 2 else GREEDY) for i, n in enumerate(lengths)]
        for _ in range(16):
            step(on, *rows)
        for _ in range(16):
            step(on, *rows[:3])  # the long one has ended
        return [row.tokens for row in rows]

    assert crowd(by_context) == crowd(runner)
    assert recorded.run == [Decode(4, 64)] * 14 + [Decode(4)] + [Decode(4, 32)] * 11 + [Decode(4, 64)] * 5


def test_steps_dispatched_ahead_of_their_results_cross_the_bounds_too(
    runner: DeviceRunner, by_context: DeviceRunner, recorded: Recorded
) -> None:
    expected = generate(runner, PROMPT[:28], 40)
    pages = [(i, i + 1) for i in range(5)]
    first = Row(1, 0, 28, PROMPT[:28], new_pages=pages, sampling=GREEDY)
    pending = [by_context.run(Plan([row])) for row in [first, *(Row(1, 28 + i, 1) for i in range(39))]]
    assert [int(step.wait().tokens[0]) for step in pending] == expected[28:]
    assert set(recorded.run) == {Decode(1, 32), Decode(1, 64), Decode(1)}


@pytest.mark.parametrize(("size", "loops"), [(Decode(4, 64), False), (Decode(4), True)], ids=str)
def test_only_the_step_for_any_length_has_a_loop(by_context: DeviceRunner, size: Decode, loops: bool) -> None:
    program = by_context._programs[size]
    assert ("stablehlo.while" in jax.jit(program.function).lower(*program.arguments).as_text()) == loops


def test_any_length_is_served_while_the_contexts_are_compiled() -> None:
    limits = dataclasses.replace(
        LIMITS, decode_buckets=(1, 10), extend_buckets=(ExtendBucket(64, 10, 10),), decode_contexts=(32,)
    )
    runner = make_runner(limits=limits)
    names, served = [], []

    def tell(name: str, done: int, total: int, seconds: float, cached: bool) -> None:
        names.append(name)
        if runner.is_serving and not served:
            ready = set(runner._executables)
            served.append(generate(runner, PROMPT[:25], 12))
            assert set(runner._executables) == ready, "compiled within a step"

    runner.warm_up(tell)
    assert {"decode 1", "decode 1 x 32", "decode 10", "decode 10 x 32"} <= set(names)
    runner.reset()
    assert [generate(runner, PROMPT[:25], 12)] == served
    runner.close()
