"""Starting: what is compiled when, what comes from the cache, and that nothing is compiled afterwards."""

import dataclasses
import itertools
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import pytest

from jaxinfer.models.registry import dense
from jaxinfer.runtime import programs, warmup
from jaxinfer.runtime import step as step_functions
from jaxinfer.runtime.backends import Backend, Backends, Launches
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.pending import PendingStep
from jaxinfer.runtime.plan import Controls, History, Plan, Sampler, Sampling
from jaxinfer.runtime.runner import DeviceRunner
from jaxinfer.runtime.warmup import CompileCounter
from jaxinfer_kernels.launch import ffi
from jaxinfer_kernels.sm90 import H200
from tests.support.attempts import assert_below
from tests.support.masks import new_masks
from tests.support.tiny_runner import FEW, LARGE, LIMITS, SMALL, TINY, Driven, forget, generate, make_runner, step

PROMPT = list(range(3, 40))
Seen = list[tuple[str, int, int, float, bool]]


@dataclasses.dataclass
class Start:
    """A started runner, and what it told."""

    runner: DeviceRunner
    seen: Seen
    serving_after: int
    seconds: float


def start(cache: ExecutableCache | None) -> Start:
    runner, seen, serving = make_runner(limits=FEW), [], []
    began = time.perf_counter()

    def tell(name: str, done: int, total: int, seconds: float, cached: bool) -> None:
        seen.append((name, done, total, seconds, cached))
        serving.append(runner.is_serving)

    runner.warm_up(tell, cache)
    return Start(runner, seen, serving.index(True), time.perf_counter() - began)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> ExecutableCache:
    return ExecutableCache(tmp_path_factory.mktemp("cache") / "executables")


@pytest.fixture(scope="module")
def cold(cache: ExecutableCache) -> Start:
    return start(cache)


@pytest.fixture(scope="module")
def warm(cold: Start, cache: ExecutableCache) -> Start:
    return start(cache)


def test_it_knows_beforehand_how_many_programs_there_are_and_with_how_many_it_serves(cold: Start) -> None:
    assert make_runner(limits=FEW).num_programs == len(cold.seen)
    assert cold.runner.num_serving == cold.serving_after + 1 < len(cold.seen)


def test_progress_names_every_program_once(cold: Start) -> None:
    names = [name for name, *_ in cold.seen]
    assert {"decode 1", "decode 10", "extend 20 x 3 x 3", "extend 64 x 10 x 10", "set_pages", "zero_pages"} <= set(
        names
    )
    assert len(set(names)) == len(names)
    total = len(names)
    assert [(done, of) for _, done, of, _, _ in cold.seen] == [(i + 1, total) for i in range(total)]
    assert not any(cached for *_, cached in cold.seen)


@pytest.mark.parametrize("is_gpu", [False, True])
def test_what_runs_once_all_is_compiled_is_told_before_it_runs(
    cache: ExecutableCache, cold: Start, *, is_gpu: bool
) -> None:
    """On a GPU each program, for its graph; elsewhere what runs already."""
    runner, told = make_runner(limits=FEW), list[tuple[str, int, int]]()

    def tell(name: str, done: int, total: int, *_: object) -> None:
        if is_gpu and done == total:
            runner._device = SimpleNamespace(platform="gpu")

    runner.warm_up(tell, cache, lambda *one: told.append(one))
    names = [program.name for program in runner._programs.values()]
    counted = [(name, done, len(names)) for done, name in enumerate([*names, ""])]
    assert told == (counted if is_gpu else [("what is compiled, on padding", 0, 0)])


def test_the_largest_steps_are_begun_first(cold: Start) -> None:
    keys = list(cold.runner._programs)
    first = set(keys[: keys.index(Decode(1))])
    assert {Decode(10), LARGE} <= first
    assert SMALL not in first


def test_a_runner_serves_any_plan_before_it_is_ready(cache: ExecutableCache, cold: Start) -> None:
    """Small plans are padded to the largest steps as long as theirs are not there."""
    expected = generate(cold.runner, PROMPT, 3)
    runner = make_runner(limits=FEW)
    drawn: list[list[int]] = []

    def tell(name: str, done: int, total: int, seconds: float, cached: bool) -> None:
        if runner.is_serving and not drawn:
            drawn.append(generate(runner, PROMPT, 3))

    runner.warm_up(tell, cache)
    assert drawn == [expected]


@pytest.mark.parametrize("masked", [False, True], ids=["logprobs", "masked"])
def test_rows_that_the_full_samplers_small_size_does_not_hold_are_carried_before_the_large_one_is_there(
    warm: Start, monkeypatch: pytest.MonkeyPatch, *, masked: bool
) -> None:
    runner, prompt = warm.runner, PROMPT[:9]
    late = {programs.Draw(10, Sampler.FULL), programs.Mask(10), programs.Tops(10)}
    expected = generate(runner, prompt, 1)[-1]
    runner.reset()
    there = {key: executable for key, executable in runner._executables.items() if key not in late}
    monkeypatch.setattr(runner, "_executables", there)
    for sizes in ("_draw_sizes", "_mask_sizes", "_top_sizes"):
        monkeypatch.setattr(runner, sizes, getattr(runner, sizes))  # as they are now, afterwards
    runner._read_draws()
    sampling, free = (
        Sampling(logprobs=True, masked=masked, controls=Controls(logit_bias=((3, 0.0),))),
        itertools.count(1),
    )
    rows = [Driven(slot, prompt, free, sampling).row() for slot in (1, 2)]
    for row in rows:
        row.logprobs, row.masked, row.history = True, masked, History(prompt, [])
    pending = runner.run(Plan(rows))
    if masked:
        pending.draw(new_masks(None, None, vocab_size=LIMITS.vocab_size))
    found = pending.wait()
    assert found.tokens.tolist() == [expected] * 2
    assert found.logprobs is not None and found.logprobs.ranks.tolist() == [1, 1]


def test_what_is_run_on_padding_waits_until_a_step_has_been_drawn_from(runner, monkeypatch) -> None:
    """Or the draw would look at the logits of padding, which other rows' steps leave in the same place."""
    hot = Sampling(temperature=1.0, seed=7)
    expected = generate(runner, PROMPT, 6, hot)
    runner.reset()
    draw, threads = runner._draw, []

    def late(*arguments: Any) -> None:
        thread = threading.Thread(target=runner._run_on_padding, args=(runner._programs[Decode(1)],))
        threads.append(thread)
        thread.start()
        thread.join(0.1)  # as slow as the thread of the steps may be
        draw(*arguments)

    monkeypatch.setattr(runner, "_draw", late)
    assert generate(runner, PROMPT, 6, hot) == expected
    for thread in threads:
        thread.join()


def test_what_is_run_on_padding_waits_for_masks_and_for_no_step_that_is_given_up(runner) -> None:
    def masked() -> tuple[PendingStep, threading.Thread]:
        row = Driven(1, list(PROMPT), itertools.count(1), Sampling(masked=True)).row()
        row.masked = True
        pending = runner.run(Plan([row]))
        thread = threading.Thread(target=runner._run_on_padding, args=(runner._programs[Decode(1)],))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        return pending, thread

    pending, thread = masked()
    pending.draw(new_masks(None, vocab_size=LIMITS.vocab_size))
    thread.join(30)
    assert not thread.is_alive()
    pending, thread = masked()
    del pending
    thread.join(30)
    assert not thread.is_alive()


def test_a_warm_start_takes_a_third_of_the_time(cold: Start, cache: ExecutableCache) -> None:
    assert_below(cold.seconds / 3, lambda: start(cache).seconds, "seconds of a warm start")


def test_a_warm_start_compiles_nothing_and_gives_the_same_tokens(cold: Start, warm: Start) -> None:
    assert all(cached for *_, cached in warm.seen)
    cold.runner.reset()
    warm.runner.reset()
    assert generate(warm.runner, PROMPT, 8) == generate(cold.runner, PROMPT, 8)


def test_a_runner_tells_where_its_programs_came_from_and_what_its_arrays_take(cold: Start, warm: Start) -> None:
    first, second = cold.runner.facts(), warm.runner.facts()
    assert (first.compiled, first.loaded) == (len(cold.seen), 0) and first.compile_s > 0
    assert second.compiled == 0 and second.loaded >= len(warm.seen)
    assert first.backends == {
        "decode_attention": "xla",
        "extend_attention": "xla",
        "decode_linear": "xla",
        "extend_linear": "xla",
        "masks": "xla",
        "sampling": "xla",
        "launches": "one by one",
        "weights": "float32",
    }
    state = cold.runner._state
    sizes = {"weights": cold.runner._params, "pages": state.store.pages}
    for kind, arrays in sizes.items():
        assert first.memory_bytes[kind] == sum(leaf.nbytes for leaf in jax.tree.leaves(arrays)) > 0
    assert first.memory_bytes.keys() == {"weights", "pages", "state", "temporaries"}
    assert first.memory_bytes["temporaries"] > 0


def test_what_serves_first_has_run_before_anything_else_is_loaded(
    warm: Start, cache: ExecutableCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, asked, load, before = make_runner(limits=FEW), [], warmup._load, None

    def loaded(program: programs.Program, *rest: object) -> warmup.Built | None:
        asked.append(program.key)
        return load(program, *rest)

    def tell(*progress: object) -> None:
        nonlocal before
        if runner.is_serving and before is None:
            before = list(asked)

    monkeypatch.setattr(warmup, "_load", loaded)
    runner.warm_up(tell, cache)
    assert sorted(asked, key=str) == sorted(runner._programs, key=str)
    serving = programs.waves(list(runner._programs.values()), FEW)[0]
    assert before is not None
    assert set(before) == {program.key for program in serving}


def test_a_decode_step_is_also_warmed_with_its_upload_on_the_device(warm: Start) -> None:
    """As most steps of one conversation have it; JAX takes 4 ms for the first call with another kind of array."""
    runner, given = warm.runner, []
    executable = runner._executables[Decode(10)]
    runner._executables[Decode(10)] = lambda *arguments: given.append(arguments[-1]) or executable(*arguments)
    runner._make_graph(runner._programs[Decode(10)])
    runner._executables[Decode(10)] = executable
    assert isinstance(given[-1], jax.Array)


def test_loaded_programs_still_update_the_state_in_place(warm: Start) -> None:
    before = warm.runner._state
    generate(warm.runner, PROMPT, 2)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))


def test_a_program_needed_before_warm_up_comes_to_it_is_loaded_from_the_cache(warm: Start) -> None:
    runner = warm.runner
    runner.reset()
    expected = generate(runner, PROMPT, 3)
    before = runner.compiles_after_ready
    for key in (Decode(1), SMALL, LARGE):
        del runner._executables[key]
    runner.reset()
    assert generate(runner, PROMPT, 3) == expected
    assert {Decode(1), LARGE} <= runner._executables.keys()
    assert runner.compiles_after_ready == before


def test_nothing_is_compiled_after_ready(cold: Start) -> None:
    """Every size, admission beyond the upload's room, zeroed pages, a reset: all of it is there already."""
    runner = cold.runner
    assert runner.compiles_after_ready == 0  # others start in the same process meanwhile
    runner.reset()
    free = itertools.count(1)
    crowd = [Driven(slot, PROMPT[:slot], free) for slot in range(1, 11)]
    for end in (1, 3, 10):
        for _ in range(2):
            step(runner, *crowd[:end])
    many = [(i, 100) for i in range(19)]
    rows = [msgspec.structs.replace(crowd[i].row(), new_pages=many) for i in range(3)]
    runner.run(Plan(rows)).wait()
    runner.zero_pages(range(1, 40))
    runner.reset()
    step(runner, Driven(1, list(PROMPT), itertools.count(1)))
    assert runner.compiles_after_ready == 0


@pytest.mark.slow
def test_a_program_that_warm_up_forgot_is_counted(cache: ExecutableCache, cold: Start) -> None:
    runner = make_runner(limits=FEW)
    runner.warm_up(lambda *progress: None, cache)
    forget(runner, Decode(1))
    generate(runner, PROMPT, 3)
    assert runner.compiles_after_ready == 1
    runner.close()


@pytest.mark.slow
def test_a_second_model_starts_cold_in_a_process_that_has_run_another(tmp_path: Path) -> None:
    """Their samplers are one program, which has run by then, and XLA for CPUs does not serialize such a one."""
    limits = dataclasses.replace(FEW, vocab_size=32_000)  # which is sorted in another way than few tokens
    for layers in (1, 2):
        model = dataclasses.replace(TINY, num_layers=layers, vocab_size=limits.vocab_size)
        runner = make_runner(model, limits)
        runner.warm_up(lambda *progress: None, ExecutableCache(tmp_path))
        assert runner.facts().compiled == len(runner._programs)
        assert generate(runner, PROMPT, 3, Sampling(temperature=1.0, seed=1))
        runner.close()


class Owner:
    def compile(self, factor: int) -> None:
        jax.jit(lambda x: x * factor)(jnp.zeros(12345))


def test_a_new_shape_after_ready_is_counted_for_its_owner_alone(caplog: pytest.LogCaptureFixture) -> None:
    owner, other = Owner(), Owner()
    counter = CompileCounter(owner)
    counter.start()
    jax.jit(lambda x: x * 3)(jnp.zeros(12345))
    other.compile(5)
    assert (counter.count, caplog.text) == (0, "")
    owner.compile(7)
    assert counter.count >= 1 and "compiled after ready" in caplog.text
    counter.close()
    seen = counter.count
    owner.compile(9)
    assert counter.count == seen


def test_a_counter_that_nobody_closed_does_not_keep_its_owner_alive() -> None:
    owner = Owner()
    counter = CompileCounter(owner)
    counter.start()
    seen = weakref.ref(owner)
    del owner
    assert seen() is None
    Owner().compile(11)
    counter.close()
    assert counter.count == 0


def test_a_payload_that_cannot_be_loaded_is_compiled_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ExecutableCache(tmp_path / "cache")
    limits = dataclasses.replace(LIMITS, decode_buckets=(10,), extend_buckets=(LARGE,))
    runner = make_runner(limits=limits)
    common = programs.fingerprint(runner._model, runner._device)
    program = runner._programs[programs.Helper.SET_PAGES]
    cache.store(program.digest(common), b"bytes of another jaxlib")
    cached = []
    only = {programs.Helper.SET_PAGES: program}
    runner._programs = only
    runner.warm_up(lambda name, done, total, seconds, hit: cached.append(hit), cache)
    assert cached == [False]
    assert "cannot be loaded" in caplog.text


START = """
import sys
from pathlib import Path
from jaxinfer.runtime.cache import ExecutableCache
from tests.support import tiny_runner
runner, seen = getattr(tiny_runner, sys.argv[2])(), []
runner.warm_up(lambda *progress: seen.append(progress[-1]), ExecutableCache(Path(sys.argv[1])))
print(sum(seen), len(seen))
"""


def started(cache: Path, make: str = "make_runner", **variables: str) -> tuple[int, int]:
    """In a process with these variables: how many programs came from our cache, of how many."""
    command = [sys.executable, "-c", START, str(cache), make]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    cached, total = done.stdout.split()
    return int(cached), int(total)


@pytest.mark.slow
def test_what_jax_s_own_cache_gave_is_not_kept_in_ours(tmp_path: Path) -> None:
    """Serialized once more, it would load at the next start and not run."""
    jax_s = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    jax_s["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    cached, total = started(tmp_path / "a", **jax_s)
    assert cached == 0
    for _ in range(2):
        assert started(tmp_path / "b", **jax_s) == (0, total), "each is JAX's"
    assert started(tmp_path / "a", **jax_s) == (total, total)


@pytest.mark.gpu
def test_another_process_loads_all_that_a_gpu_runs(tmp_path: Path) -> None:
    """Where nothing is lowered, nobody else imports what Mosaic's kernels call."""
    cached, total = started(tmp_path, "make_mosaic_runner")
    assert cached == 0
    assert started(tmp_path, "make_mosaic_runner") == (total, total)


def test_kernels_of_what_serves_first_are_compiled_before_there_are_weights(monkeypatch, tmp_path: Path) -> None:
    device, mosaic, cache = jax.devices("cpu")[0], Backend.MOSAIC, ExecutableCache(tmp_path / "cache")
    model = step_functions.Model(TINY, dense, Backends(*[mosaic] * 6, Launches.SEQUENCE, H200))
    listed = programs.without_arrays(model, FEW, TINY.dtype, jax.sharding.SingleDeviceSharding(device))
    common = programs.fingerprint(model, device)
    for program in listed:
        if program.is_chained:
            cache.store(program.digest(common), program.name.replace(" ", "_").encode() + programs._END + b"the rest")
    prepared: list[str] = []

    def prepare(text: str) -> None:
        prepared.append(text)
        raise RuntimeError("it cannot be compiled, as who loads the program says")

    monkeypatch.setattr(ffi, "prepare", prepare)
    warmup.prepare_kernels(model, FEW, TINY.dtype, device, cache)
    assert {program.key for program in listed if program.is_chained} == {Decode(1), Decode(10), LARGE}
    assert prepared == ["decode_10", "extend_64_x_10_x_10"]


@pytest.mark.slow
def test_one_thread_lowers_all_in_order_and_what_fails_there_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, seen, lower = make_runner(limits=FEW), [], programs.Program.lower

    def lowered(program: programs.Program) -> jax.stages.Lowered:
        seen.append((program.key, threading.current_thread().name))
        if len(seen) == 4:
            raise RuntimeError("not the fourth")
        return lower(program)

    monkeypatch.setattr(programs.Program, "lower", lowered)
    with pytest.raises(RuntimeError, match="not the fourth"):
        runner.warm_up(lambda *progress: None)
    assert [key for key, _ in seen] == list(runner._programs)[: len(seen)]
    assert len({thread for _, thread in seen}) == 1
