"""Embeddings over a real float32 engine: the same however they are scheduled, through LLM and through AsyncLLM."""

import asyncio
import dataclasses
import math
import random

import numpy as np
import pytest

from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Add, Request
from jaxinfer.errors import DeviceLost, InvalidRequest
from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.runtime.plan import Pending, Plan, Runner
from jaxinfer.testing.faults import Fault, Faults, FaultyRunner
from tests.llm.conftest import settled
from tests.support.engines import build

CLOSE = 2e-5  # of the length: sums over other chunks come in another order, which moved them by 1e-6 at most


def workload() -> list[Request]:
    """Every other one an answer to go beside the embeddings; beginnings shared, prompts of up to 200 tokens."""
    draw = random.Random(3)
    shared = [draw.randrange(320) for _ in range(70)]
    requests = []
    for i in range(20):
        own = [draw.randrange(320) for _ in range(draw.choice((1, 16, 25, 130)))]
        prompt = tuple(shared[: draw.choice((0, 32, 70))] + own)
        if i % 2:
            requests.append(Request(f"{i}", prompt[:100], draw.randint(1, 40)))
        else:
            requests.append(Request(f"{i}", prompt, 1, pooling=draw.choice(("last", "mean"))))
    return requests


def serve(
    engine: Engine, requests: list[Request], begun: dict[str, list[int]] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, list[int]]]:
    """Embeddings and tokens by request. begun: the tokens so far of those that are under way."""
    for request in requests:
        engine.inbox.put(Add(request))
    vectors, tokens = {}, (begun or {}) | {request.id: [] for request in requests if request.pooling is None}
    while engine.has_work:
        for output in engine.step():
            assert output.finish_reason in (None, "stop", "length"), output
            if output.embedding is not None:
                vectors[output.request_id] = np.frombuffer(output.embedding, "<f4")
            else:
                tokens[output.request_id] += output.token_ids
        engine.check()
    return vectors, tokens


@pytest.fixture(scope="module")
def alone(engine) -> tuple[dict[str, np.ndarray], dict[str, list[int]]]:
    """Each request by itself."""
    vectors, tokens = {}, {}
    for request in workload():
        found = serve(engine[1].engine, [request])
        vectors |= found[0]
        tokens |= found[1]
    assert len(vectors) == len(tokens) == 10
    assert max(distance(a, b) for a in vectors.values() for b in vectors.values()) > 0.1
    return vectors, tokens


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def check_same(found, alone) -> None:
    assert found[1] == alone[1]
    assert found[0].keys() == alone[0].keys()
    assert max(distance(found[0][key], alone[0][key]) for key in alone[0]) < CLOSE


WAYS = {
    "together": {},
    "in chunks of 16": {"max_num_batched_tokens": 16},
    "without the prefix cache": {"enable_prefix_caching": False},
    "read before the next step": {"run_ahead": 0},
    "only when empty": {"scheduling": "static"},
    "on consecutive pages": {"kv_layout": "contiguous", "enable_prefix_caching": False},
    "in a pool that is too small": {"num_pages": 18},
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow if "too small" in way else ()) for way in WAYS]
)
def test_embeddings_beside_answers_do_not_depend_on_how_they_were_scheduled(folder, executables, alone, way):
    _, core = build(folder, executables, **WAYS[way])
    try:
        for _ in range(2):  # the second time with whatever the first left in the cache
            check_same(serve(core.engine, workload()), alone)
        stats = core.stats()
        assert stats.embeddings == 20
        assert (stats.preemptions > 0) == (way == "in a pool that is too small")
        assert stats.compiles_after_ready == 0
        assert stats.pages_free + stats.pages_cached == stats.pages_total
    finally:
        core.close()


class Watched(FaultyRunner):
    """Notes the steps that were planned."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner, Faults())
        self.plans: list[Plan] = []

    def run(self, plan: Plan) -> Pending:
        self.plans.append(plan)
        return super().run(plan)


def test_one_step_pools_embeddings_and_draws_the_next_tokens_of_answers(engine):
    """Two answers are under way when embeddings come, one of them longer than a step has room for."""
    runner = engine[1].runner
    draw = random.Random(5)
    prompts = {name: tuple(draw.randrange(320) for _ in range(n)) for name, n in {"last": 20, "mean": 150}.items()}
    answers = [Request(f"answer {i}", tuple(draw.randrange(320) for _ in range(9)), 40) for i in range(2)]
    pooled = [Request(pooling, prompt, 1, pooling=pooling) for pooling, prompt in prompts.items()]
    runner.reset()
    vectors, tokens = {}, {}
    for request in (*answers, *pooled):
        found = serve(Engine(runner, runner.limits), [request])
        vectors, tokens = vectors | found[0], tokens | found[1]
        runner.reset()
    watched = Watched(runner)
    beside = Engine(watched, runner.limits)
    drawn: dict[str, list[int]] = {request.id: [] for request in answers}
    for request in answers:
        beside.inbox.put(Add(request))
    while not any(plan.is_decode for plan in watched.plans):
        for output in beside.step():
            drawn[output.request_id] += output.token_ids
    num_before = len(watched.plans)
    found = serve(beside, pooled, drawn)
    mixed = [plan for plan in watched.plans[num_before:] if any(row.num_pooled for row in plan.rows)]
    assert len(mixed) >= 3, "a mean over several chunks"
    for plan in mixed:
        assert [row.sample for row in plan.rows if row.tokens is None] == [True, True], "no answer waits"
        assert not any(row.sample for row in plan.rows if row.num_pooled)
    assert any(len([row for row in plan.rows if row.num_pooled]) == 2 for plan in mixed), "both in one step"
    check_same(found, (vectors, tokens))


@pytest.mark.parametrize("kind", ["run", "wait", "exhausted"])
def test_a_step_that_fails_once_costs_no_embedding(engine, alone, kind):
    runner = engine[1].runner
    runner.reset()
    faulty = Engine(FaultyRunner(runner, Faults(Fault(kind, step=3))), runner.limits)
    check_same(serve(faulty, workload()), alone)
    assert faulty.stats().recoveries == 1


def test_what_a_lost_device_left_is_computed_by_the_next(engine, alone):
    runner, had = engine[1].runner, {}
    runner.reset()
    first = Engine(FaultyRunner(runner, Faults(Fault("poison", step=4))), runner.limits)
    requests = [request for request in workload() if request.pooling is not None]
    for request in requests:
        first.inbox.put(Add(request))
    with pytest.raises(DeviceLost):
        while first.has_work:
            had |= {output.request_id: np.frombuffer(output.embedding, "<f4") for output in first.step()}
    assert 0 < len(had) < len(requests)
    runner.reset()
    rest = [request for request in requests if request.id not in had]
    check_same((had | serve(Engine(runner, runner.limits), rest)[0], alone[1]), alone)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_numbers_that_are_not_finite_end_an_embedding_by_name(folder, executables, pooling):
    _, core = build(folder, executables)
    runner = core.runner
    runner._params = runner._params.replace(embed=runner._params.embed.at[6].set(np.nan))
    core.engine.inbox.put(Add(Request("spoilt", (5, 6, 7), 1, pooling=pooling)))
    core.engine.inbox.put(Add(Request("whole", (5, 8, 7), 1, pooling=pooling)))
    ends = {}
    while core.engine.has_work:
        ends |= {output.request_id: (output.code, output.embedding is None) for output in core.engine.step()}
    core.close()
    assert ends == {"spoilt": ("non_finite", True), "whole": (None, False)}


def test_the_last_token_s_uses_the_prefix_cache_and_the_mean_does_not(engine):
    core, prompt = engine[1], tuple(range(7, 71))

    def ask(pooling: str):
        core.engine.inbox.put(Add(Request("0", prompt, 1, pooling=pooling)))
        outputs = []
        while core.engine.has_work:
            outputs += core.engine.step()
        (output,) = outputs
        return output.cached_tokens, np.frombuffer(output.embedding, "<f4")

    (_, first), (cached, again) = ask("last"), ask("last")
    assert cached == 48  # three pages: of the fourth one token at least is computed
    assert distance(again, first) < CLOSE
    (none, mean), (none_again, mean_again) = ask("mean"), ask("mean")
    assert none == none_again == 0
    assert np.array_equal(mean, mean_again)
    assert distance(mean, first) > 0.01


@pytest.fixture
def llm(engine):
    return LLM.over(*engine)


def vectors(outputs) -> np.ndarray:
    return np.array([output.outputs.embedding for output in outputs], np.float32)


def test_every_form_of_a_prompt_has_the_same_embedding(llm, tokenizer):
    ids = tokenizer.encode("hello")
    outputs = llm.embed(["hello", ids, {"prompt": "hello"}, {"prompt_token_ids": ids}])
    assert len({tuple(output.outputs.embedding) for output in outputs}) == 1
    assert [output.prompt_token_ids for output in outputs] == [ids] * 4
    assert [output.prompt for output in outputs] == ["hello", None, "hello", None]
    assert vectors(llm.embed("hello")).shape == (1, llm.info.hidden_size)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_dimensions_cut_first_and_normalize_comes_after(llm, pooling):
    raw = vectors(llm.embed("hello there", pooling=pooling, normalize=False))[0]
    assert abs(np.linalg.norm(raw) - 1) > 0.01
    np.testing.assert_array_equal(
        vectors(llm.embed("hello there", pooling=pooling, normalize=False, dimensions=3))[0], raw[:3]
    )
    for dimensions in (None, 3, 1):
        wanted = raw[:dimensions] / np.linalg.norm(raw[:dimensions])
        found = vectors(llm.embed("hello there", pooling=pooling, dimensions=dimensions))[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_score_is_the_cosine_of_the_embeddings(llm):
    texts = ["hello", "the sun is high", "once upon a time"]
    one, *others = vectors(llm.embed(texts))
    found = [output.outputs.score for output in llm.score("hello", texts)]
    np.testing.assert_allclose(found, [1, *(one @ other for other in others)], atol=1e-6)
    pairs = llm.score(texts, texts[::-1], pooling="mean")
    assert [math.isclose(pair.outputs.score, 1, abs_tol=1e-6) for pair in pairs] == [False, True, False]
    assert pairs[0].outputs.score == pytest.approx(pairs[2].outputs.score)
    assert (
        llm.score("a", "b")[0].prompt_token_ids
        == llm.embed("a")[0].prompt_token_ids + llm.embed("b")[0].prompt_token_ids
    )


def test_what_cannot_be_embedded_is_refused_by_name(llm):
    for param, call in {
        "dimensions": lambda: llm.embed("a", dimensions=0),
        "pooling": lambda: llm.embed("a", pooling="max"),
        "input": lambda: llm.embed([[5], [5] * 257]),
        "first": lambda: llm.score(["a", "b"], ["c", "d", "e"]),
    }.items():
        with pytest.raises(InvalidRequest) as refusal:
            call()
        assert refusal.value.param == param
    with pytest.raises(InvalidRequest, match="dimensions must be an integer from 1 to"):
        llm.embed("a", dimensions=llm.info.hidden_size + 1)
    assert llm.embed([[5] * 256])[0].prompt_token_ids == [5] * 256  # it may fill the context
    assert llm.embed([]) == []


async def embed(llm, ids, pooling="last", request_id="r"):
    return [delta async for delta in await llm.embed(ids, pooling, request_id=request_id)]


def test_an_embedding_is_one_delta_the_same_through_both_transports(served, engine):
    expected = LLM.over(*engine).embed([[5, 6, 7], list(range(150))], pooling="mean", normalize=False)

    async def test(llm):
        answer = llm.generate([9, 8], SamplingParams(max_tokens=30, ignore_eos=True), request_id="beside")
        stream = await answer
        found = await asyncio.gather(*(embed(llm, output.prompt_token_ids, "mean") for output in expected))
        return found, [delta async for delta in stream]

    found, beside = served.run(test)
    assert sum(len(delta.token_ids) for delta in beside) == 30
    for output, (delta,) in zip(expected, found, strict=True):
        assert (delta.finish_reason, delta.text, delta.token_ids) == ("stop", "", [])
        assert delta.prompt_tokens == len(output.prompt_token_ids)
        assert distance(np.frombuffer(delta.embedding, "<f4"), np.array(output.outputs.embedding, np.float32)) < CLOSE
        assert delta.timings.last_s >= delta.timings.accepted_s > 0


def test_leaving_an_embedding_frees_its_pages_at_once(served):
    async def test(llm):
        for pooling in ("last", "mean"):
            stream = await llm.embed([5] * 250, pooling, request_id="r")
            await stream.aclose()
        streams = [await llm.embed([i] * 200, "mean", request_id="mine") for i in range(12)]
        await llm.abort("mine")
        ends = [delta.finish_reason for stream in streams for delta in [d async for d in stream]]
        await settled(llm)
        return ends

    ends = served.run(test)
    assert "abort" in ends and set(ends) <= {"abort", "stop"}


def test_its_times_are_counted_and_no_token_s(served):
    async def test(llm):
        counts = {name: sum(histogram.counts) for name, histogram in llm.latency.histograms.items()}
        await embed(llm, [5, 6, 7])
        return {name for name, histogram in llm.latency.histograms.items() if sum(histogram.counts) > counts[name]}

    times = {"whole", "prepare", "queue", "prefill", "inference"}
    assert served.run(test) == {*times, "prompt_tokens", "computed_prompt_tokens", "preemptions"}


def test_an_embedding_beyond_the_context_is_refused_before_the_stream(served):
    async def test(llm):
        with pytest.raises(InvalidRequest, match="maximum context length is 256 tokens") as refusal:
            await llm.embed([5] * 257, "last", request_id="r")
        assert (refusal.value.param, refusal.value.code) == ("input", "context_length_exceeded")
        return await embed(llm, [5] * 256)

    assert served.run(test)[0].embedding


def test_the_engine_refuses_what_no_embedding_has(engine):
    request = Request("0", (5,), 1, pooling="last")
    core = engine[1]
    for changes in ({"n": 2}, {"max_tokens": 3}):
        core.engine.inbox.put(Add(dataclasses.replace(request, **changes)))
        outputs = core.engine.step()
        assert {output.finish_reason for output in outputs} == {"error"}
        assert "must be 1 for an embedding" in outputs[0].error
