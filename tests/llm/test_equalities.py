"""The same requests under every way of scheduling them give the same tokens, over a real float32 engine."""

import random

import jax
import pytest

from jaxinfer.config import ExtendBucket
from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.runtime.buckets import Decode
from tests.support.engines import build
from tests.support.published import ONE_OF_EACH_FORM, write_published
from tests.support.tiny_runner import forget


def workload():
    """Prompts that share beginnings, greedy and drawn, short and long, one of them with several choices."""
    draw = random.Random(7)
    shared = [draw.randrange(320) for _ in range(70)]
    prompts, params = [], []
    for i in range(14):
        own = [draw.randrange(320) for _ in range(draw.randint(1, 60))]
        prompts.append(shared[: draw.choice([0, 20, 70])] + own)
        params.append(
            SamplingParams(
                temperature=draw.choice([0, 1]),
                top_p=draw.choice([1, 0.9]),
                top_k=draw.choice([0, 40]),
                seed=i,
                n=3 if i == 5 else 1,
                max_tokens=draw.randint(4, 60),
                ignore_eos=True,
            )
        )
    return prompts, params


def answers(llm, prompts, params):
    return [[choice.token_ids for choice in output.outputs] for output in llm.generate(prompts, params)]


@pytest.fixture(scope="module")
def alone(engine):
    """Each request by itself: nothing to be confused with."""
    llm = LLM.over(*engine)
    return [answers(llm, [prompt], [own])[0] for prompt, own in zip(*workload(), strict=True)]


WAYS = {
    "together": {},
    "in chunks of 16": {"max_num_batched_tokens": 16},
    "without the prefix cache": {"enable_prefix_caching": False},
    "read before the next step": {"run_ahead": 0},
    "only when empty": {"scheduling": "static"},
    "in decode steps by context": {"decode_contexts": (32, 100)},
    "on consecutive pages": {"kv_layout": "contiguous", "enable_prefix_caching": False},
    "in a pool that is too small": {"num_pages": 18},
}

LONG = ("in decode steps by context", "in a pool that is too small")  # which compile steps of their own


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow if way in LONG else ()) for way in WAYS])
def test_answers_do_not_depend_on_how_they_were_scheduled(folder, executables, alone, way):
    config, core = build(folder, executables, **WAYS[way])
    llm = LLM.over(config, core)
    try:
        for _ in range(2):  # the second time with whatever the first left in the cache
            assert answers(llm, *workload()) == alone
        stats = llm.stats()
        assert (stats.preemptions > 0) == (way == "in a pool that is too small")
        assert (stats.cached_tokens > 0) == core.limits.enable_prefix_caching
        assert stats.compiles_after_ready == 0
        core.engine.check()
    finally:
        llm.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH_FORM)
def test_answers_of_a_quantized_checkpoint_do_not_depend_on_it_either(name, executables, tmp_path):
    write_published(tmp_path, name)
    found, few = [], dict(decode_buckets=(1, 8), extend_buckets=(ExtendBucket(64, 8, 8),))
    for way in (None, "together", "in chunks of 16"):
        # in float32, for which it is promised: AWQ and GPTQ are published in float16
        config, core = build(tmp_path, executables, dtype="float32", **few, **WAYS.get(way, {}))
        llm = LLM.over(config, core)
        try:
            prompts, params = workload()
            each = [answers(llm, [prompt], [own])[0] for prompt, own in zip(prompts, params, strict=True)]
            found.append(each if way is None else answers(llm, prompts, params))
            assert llm.stats().compiles_after_ready == 0
        finally:
            llm.close()
    assert found == [found[0]] * 3


def test_a_compilation_after_ready_is_counted(folder, executables):
    config, core = build(folder, executables)
    llm = LLM.over(config, core)
    try:
        jax.block_until_ready(jax.jit(lambda x: x * 3 + 1)(jax.numpy.ones(17)))
        assert llm.stats().compiles_after_ready == 0, "the caller's own"
        forget(core.runner, Decode(1))
        llm.generate([[5]], SamplingParams(max_tokens=3, ignore_eos=True))
        assert llm.stats().compiles_after_ready == 1
    finally:
        llm.close()


@pytest.mark.slow
def test_a_thousand_requests_of_every_kind_compile_nothing(engine):
    """A34 with grammars."""
    draw = random.Random(3)
    llm = LLM.over(*engine)
    compiled = llm.stats().compiles_after_ready
    for _ in range(10):
        prompts = [[draw.randrange(320) for _ in range(draw.choice([1, 3, 15, 16, 17, 64, 130]))] for _ in range(100)]
        params = [
            SamplingParams(
                temperature=draw.choice([0, 0.7]),
                top_k=draw.choice([0, 5]),
                top_p=draw.choice([1, 0.5]),
                min_p=draw.choice([0, 0.1]),
                n=draw.choice([1, 1, 1, 2]),
                max_tokens=draw.randint(1, 12),
                stop=draw.choice([None, "a"]),
                frequency_penalty=draw.choice([None, None, None, 0.5]),
                logit_bias=draw.choice([None, None, None, {5: 2.0}]),
                bad_words=draw.choice([None, None, None, ["a b c", "q"]]),
                logprobs=draw.choice([None, None, None, 5]),
                prompt_logprobs=draw.choice([None, None, None, 2]),
                **draw.choice([{}, {}, {}, {"regex": "[a-z]{2,9}"}, {"json_schema": {"enum": ["a text", 7, None]}}]),
            )
            for _ in prompts
        ]
        assert len(llm.generate(prompts, params)) == 100
        next(stream := llm.stream(prompts[0], SamplingParams(max_tokens=100, ignore_eos=True)))
        stream.close()
    assert llm.stats().compiles_after_ready == compiled
