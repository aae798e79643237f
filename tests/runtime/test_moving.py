"""Pages that went to host memory come back bit by bit, in the order of the calls, and few are under way at a time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.layers.store import Store
from jaxinfer.runtime import moving
from jaxinfer.runtime.moving import PAGES_MOVED, STAGED_BYTES, Staging, staged_bytes
from jaxinfer.runtime.plan import Plan, Row
from jaxinfer.runtime.programs import Helper
from jaxinfer.runtime.runner import DeviceRunner
from tests.support.tiny_runner import GREEDY, LIMITS, TINY, forget, generate, make_runner

PROMPT = [(7 * i) % 97 for i in range(60)]


def content(runner: DeviceRunner, pages: range) -> bytes:
    state, ids = runner._state, list(pages)
    return b"".join(np.asarray(array[:, ids]).tobytes() for array in state.store.pages)


def fill(runner: DeviceRunner) -> None:
    """Other bits in each place, NaN among them where the dtype has one."""
    state = runner._state
    like = state.store.pages[0]
    bits = jax.random.bits(jax.random.key(1), (2, *like.shape), f"uint{8 * like.dtype.itemsize}")
    k, v = jax.lax.bitcast_convert_type(bits, like.dtype)
    runner._state = state.replace(store=Store((k, v)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pages_come_back_bit_by_bit_to_other_places(dtype: str) -> None:
    runner = make_runner(dataclasses.replace(TINY, dtype=dtype))
    fill(runner)
    before, rest = content(runner, range(1, 21)), content(runner, range(41, 120))
    saved = runner.save_pages(range(1, 21))
    runner.zero_pages(range(1, 21))  # after what was saved, though nobody waited for it
    assert not np.frombuffer(content(runner, range(1, 21)), np.uint8).any()
    runner.load_pages(range(21, 41), saved)
    assert content(runner, range(21, 41)) == before
    assert content(runner, range(41, 120)) == rest
    runner.load_pages(range(20, 0, -1), saved[::-1])
    assert content(runner, range(1, 21)) == before
    runner.close()


def test_they_lie_in_host_memory_each_by_itself(runner: DeviceRunner) -> None:
    saved = runner.save_pages([3, 4, 5])
    assert len(saved) == 3
    assert {array.sharding.memory_kind for array in jax.tree.leaves(saved)} == {"pinned_host"}
    layers, _, heads, size, width = runner._state.store.pages[0].shape
    assert [array.shape for array in saved[0]] == [(layers, heads, size, width)] * 2


def test_a_sequence_goes_on_over_pages_that_were_away(runner: DeviceRunner) -> None:
    expected = generate(runner, PROMPT, 1)[-1]
    places = [(0, 1), (1, 2), (2, 3)]
    runner.run(Plan([Row(2, 0, 48, PROMPT[:48], sample=False, new_pages=places, sampling=GREEDY)])).wait()
    saved = runner.save_pages([1, 2, 3])
    runner.reset()
    runner.load_pages([7, 9, 8], saved)
    places = [(0, 7), (1, 9), (2, 8), (3, 4)]
    result = runner.run(Plan([Row(5, 48, 12, PROMPT[48:], new_pages=places, sampling=GREEDY)])).wait()
    assert int(result.tokens[0]) == expected


def test_moving_compiles_nothing_after_warm_up(warm_runner: DeviceRunner) -> None:
    before = warm_runner.compiles_after_ready
    for count in (1, PAGES_MOVED, PAGES_MOVED + 1, 40):
        warm_runner.load_pages(range(1, count + 1), warm_runner.save_pages(range(1, count + 1)))
    assert warm_runner.compiles_after_ready == before
    forget(warm_runner, Helper.SAVE_PAGES)
    warm_runner.save_pages([1])
    assert warm_runner.compiles_after_ready == before + 1, "what is compiled is counted"


def test_without_host_pages_nothing_of_it_is_compiled() -> None:
    runner = make_runner(limits=dataclasses.replace(LIMITS, num_host_pages=0))
    assert runner._programs.keys().isdisjoint({Helper.SAVE_PAGES, Helper.LOAD_PAGES})


def test_no_more_is_under_way_than_memory_was_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(moving.jax, "block_until_ready", waited.append)
    staging = Staging(STAGED_BYTES // PAGES_MOVED // 3)
    arrays = [jnp.zeros(1) for _ in range(5)]
    for array in arrays:
        staging.make_room()
        staging.append(array)
    assert waited == arrays[:2], "the oldest first"
    for page_bytes in (1, 1000, 10**6, STAGED_BYTES // PAGES_MOVED):
        assert staged_bytes(page_bytes) <= 2 * STAGED_BYTES
    assert staged_bytes(STAGED_BYTES) == 2 * PAGES_MOVED * STAGED_BYTES
