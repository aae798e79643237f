"""After ready nothing is compiled and no program is slow when it first serves, whatever is asked for.

On the GPU a thousand mixed requests through a four-layer model with every op in our kernels; on the CPU some dozens
through a tiny one, to know that the requests reach every kind of program and that a fault would be found.
"""

import collections
import dataclasses
import gc
import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.checkpoint.resolve import resolve
from jaxinfer.config import EngineConfig, ExtendBucket
from jaxinfer.engine.engine import Engine
from jaxinfer.llm.build import Core, model_info
from jaxinfer.llm.llm import LLM
from jaxinfer.models.registry import family_for
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.runtime.backends import XLA_ONLY, Backend, Backends
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.memory import plan_memory
from jaxinfer.runtime.plan import Pending, Plan
from jaxinfer.runtime.programs import Draw, Helper, Key, Tops, samplers
from jaxinfer.runtime.runner import DeviceRunner
from tests.support.checkpoints import PLAIN_VOCAB_SIZE, write_checkpoint
from tests.support.hopper import all_mosaic, gpu
from tests.support.tiny_runner import forget

FIRST_STEPS = 1000
SLACK_S = 0.002
ENOUGH = 5  # later runs of a program, to have a median


@dataclasses.dataclass(frozen=True)
class Run:
    """One program's run within a step."""

    step: int
    key: Key
    seconds: float


class RecordingRunner(DeviceRunner):
    """A DeviceRunner that waits for each program it dispatches, so that each one's time is its own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.runs: list[Run] = []
        self.num_steps = 0

    def run(self, plan: Plan) -> Pending:
        self.num_steps += 1
        return super().run(plan)

    def _dispatch(self, key: Key, upload: np.ndarray, *after: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = jax.block_until_ready(super()._dispatch(key, upload, *after, **options))
        self.runs.append(Run(self.num_steps, key, time.perf_counter() - began))
        return result


def slow_runs(runs: Sequence[Run], first_steps: int = FIRST_STEPS) -> list[str]:
    """The runs of the first steps that took more than twice their program's later median and the slack.

    A program that comes too seldom later is held against all its runs but the one in question.
    """
    by_key = collections.defaultdict(list)
    for run in runs:
        by_key[run.key].append(run)
    found = []
    for key, own in by_key.items():
        later = [run.seconds for run in own if run.step > first_steps]
        for i, run in enumerate(own):
            if run.step > first_steps:
                continue
            others = later if len(later) >= ENOUGH else [r.seconds for r in (*own[:i], *own[i + 1 :])]
            if not others:
                found.append(f"{key} ran once, in step {run.step}: nothing to hold it against")
            elif run.seconds > 2 * statistics.median(others) + SLACK_S:
                usual = 1e3 * statistics.median(others)
                found.append(f"{key} took {1e3 * run.seconds:.2f} ms in step {run.step}, later {usual:.2f} ms")
    return found


def mixed(count: int, longest: int, seed: int = 0) -> Iterator[tuple[list[int], SamplingParams]]:
    """Prompts of 1 .. `longest` tokens, some of which begin alike, and every way of drawing and of asking back."""
    draw = random.Random(seed)
    shared = [draw.randrange(PLAIN_VOCAB_SIZE) for _ in range(longest // 2)]
    for i in range(count):
        own = [draw.randrange(PLAIN_VOCAB_SIZE) for _ in range(round(longest ** draw.uniform(0, 1)))]
        prompt = (shared[: draw.choice([0, 0, longest // 8, longest // 2])] + own)[:longest]
        yield prompt, _sampling(draw, i)


def _sampling(draw: random.Random, seed: int) -> SamplingParams:
    """One of four requests has controls, one asks for logprobs, every other is drawn."""
    max_tokens = draw.choice([1, 8, 24, 40, 64])
    asked: dict[str, Any] = {}
    if draw.random() < 0.25:
        asked |= draw.choice(
            [
                {"presence_penalty": 0.5, "frequency_penalty": 0.5},
                {"repetition_penalty": 1.2},
                {"logit_bias": {5: 3.0, 6: -100.0}},
                {"allowed_token_ids": list(range(40, 90))},
                {"bad_words": ["the", "a b"]},
                {"min_tokens": min(4, max_tokens)},
            ]
        )
    if draw.random() < 0.25:
        asked["logprobs"] = draw.choice([0, 1, 5])
    if draw.random() < 0.05:
        asked["prompt_logprobs"] = draw.choice([0, 3])
    if draw.random() < 0.5:
        asked |= {"top_p": draw.choice([1.0, 0.9]), "top_k": draw.choice([0, 20]), "temperature": 0.8}
    else:
        asked["temperature"] = 0.0
    if draw.random() < 0.1:
        asked["stop"] = ["e"]
    n = draw.choice([1, 1, 1, 1, 2, 3])
    return SamplingParams(**asked, n=n, seed=seed, max_tokens=max_tokens, ignore_eos=draw.random() < 0.8)


def send(llm: LLM, count: int, longest: int, crowds: Sequence[int]) -> None:
    """`count` requests in crowds of these sizes over and over: each ends in ever smaller steps."""
    requests, sizes = mixed(count, longest), itertools.cycle(crowds)
    while crowd := list(itertools.islice(requests, next(sizes))):
        prompts, params = zip(*crowd, strict=True)
        for output, asked in zip(llm.generate(prompts, params), params, strict=True):
            assert len(output.outputs) == asked.n
            assert all(choice.finish_reason in ("stop", "length") for choice in output.outputs)


def send_alone(llm: LLM, lengths: Sequence[int], times: int) -> None:
    """Prompts that no other request shares a step with, so that the seldom sizes have runs to be held against."""
    draw = random.Random(1)
    for length in (*lengths,) * times:
        prompt = [draw.randrange(PLAIN_VOCAB_SIZE) for _ in range(length)]
        llm.generate([prompt], SamplingParams(max_tokens=2, ignore_eos=True))


def start(folder: Path, device: jax.Device, backends: Backends, cache: ExecutableCache, **settings: Any) -> LLM:
    """An LLM of random weights over a RecordingRunner, ready."""
    config = EngineConfig(model=str(folder), **settings)
    checkpoint = resolve(config.model)
    family = family_for(checkpoint.config)
    model = family.config_from_hf(checkpoint.config)
    limits = plan_memory(config, model, family, device, backends).limits
    params = dummy_params(family.parameters(model), model.dtype, config.seed, device)
    runner = RecordingRunner(model, family, params, limits, device, backends)
    runner.warm_up(lambda *progress: None, cache)
    runner.runs.clear()
    warming: Future[None] = Future()
    warming.set_result(None)
    info = dataclasses.replace(model_info(config, checkpoint, model), max_model_len=limits.max_model_len)
    return LLM.over(config, Core(Engine(runner, limits), runner, info, limits, folder, warming))


def recorded(llm: LLM) -> RecordingRunner:
    assert isinstance(llm._core.runner, RecordingRunner)
    return llm._core.runner


@pytest.fixture(scope="module")
def tiny_llm(folder: Path, executables: Path) -> Iterator[LLM]:
    cpu, cache = jax.devices("cpu")[0], ExecutableCache(executables)
    settings = dict(max_model_len=160, max_num_seqs=4, max_num_batched_tokens=32, num_pages=16)
    with start(folder, cpu, XLA_ONLY, cache, **settings) as llm:
        yield llm


@pytest.mark.slow
def test_mixed_requests_reach_every_kind_of_program_and_compile_none(tiny_llm):
    send(tiny_llm, 60, 90, (1, 2, 3, 6))
    runner = recorded(tiny_llm)
    kinds = {type(run.key) if not isinstance(run.key, Helper) else run.key for run in runner.runs}
    assert {Decode, ExtendBucket, Draw, Tops, Helper.SET_SLOT, Helper.SCORE} <= kinds
    assert {*samplers(Backend.XLA, "cpu")} == {run.key.sampler for run in runner.runs if isinstance(run.key, Draw)}
    assert {Decode(batch) for batch in runner.limits.decode_buckets} <= {run.key for run in runner.runs}
    assert tiny_llm.stats().preemptions > 0
    assert tiny_llm.stats().compiles_after_ready == 0
    jax.jit(lambda x: x * 17)(np.arange(23)).block_until_ready()
    assert tiny_llm.stats().compiles_after_ready == 0, "the caller's own program is no fault"
    forget(runner, Decode(1))
    tiny_llm.generate([[5]], SamplingParams(max_tokens=3, ignore_eos=True))
    assert tiny_llm.stats().compiles_after_ready == 1


def times(*seconds: float, key: Key = 4) -> list[Run]:
    return [Run(step, key, value) for step, value in enumerate(seconds, start=1)]


@pytest.mark.parametrize(
    ("runs", "slow"),
    [
        (times(0.004, *[0.001] * 20), 0),
        (times(0.0041, *[0.001] * 20), 1),
        (times(0.001, 0.0041, *[0.001] * 20), 1),
        (times(*[0.001] * 20, 0.1), 0),  # later than the first ten
        (times(*[0.1] * 10, *[0.001] * 10), 10),
        (times(0.0041, 0.001, 0.001), 1),
        (times(0.001), 1),
        (times(*[0.001] * 20) + times(*[0.1] * 20, key=8), 0),
    ],
)
def test_a_slow_first_run_is_found(runs, slow):
    assert len(slow_runs(runs, first_steps=10)) == slow


@pytest.mark.gpu
def test_a_thousand_mixed_requests_compile_nothing_and_meet_no_slow_first_step(tmp_path, executables):
    shape = dict(hidden_size=512, head_dim=128, num_attention_heads=12, num_key_value_heads=2, intermediate_size=1024)
    folder = write_checkpoint(
        tmp_path, weights_dtype="bfloat16", num_hidden_layers=4, max_position_embeddings=4096, **shape
    )
    device = gpu()
    checkpoint = resolve(str(folder))
    backends = all_mosaic(family_for(checkpoint.config).config_from_hf(checkpoint.config), 64, device)
    settings = dict(max_model_len=2048, max_num_seqs=32, max_num_batched_tokens=1024, page_size=64, num_pages=97)
    with start(folder, device, backends, ExecutableCache(executables), **settings) as llm:
        gc.freeze()  # as the engine's own process does (llm.child): a collection would look like a slow program
        send(llm, 1000, 1500, (1, 3, 7, 15, 40, 100))
        send_alone(llm, (50, 100, 200, 400, 700, 1000), ENOUGH)
        runner, stats = recorded(llm), llm.stats()
        assert stats.preemptions > 0
        assert stats.compiles_after_ready == 0
        assert runner.num_steps > 2 * FIRST_STEPS
        assert slow_runs(runner.runs) == []
