"""AsyncLLM over a real engine: streams, aborts, limits and ends."""

import asyncio
import random

import pytest

from jaxinfer.errors import EngineError, InvalidRequest, Overloaded
from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams
from tests.llm.conftest import settled

LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


async def collect(llm, ids, params, **options):
    return [delta async for delta in await llm.generate(ids, params, request_id="r", **options)]


def test_a_stream_equals_the_blocking_call(served, engine):
    params = SamplingParams(temperature=1, seed=4, max_tokens=30, n=2)
    expected = LLM.over(*engine).generate([[5, 6, 7]], params)[0]

    async def test(llm):
        return await collect(llm, [5, 6, 7], params)

    deltas = served.run(test)
    for choice in expected.outputs:
        own = [delta for delta in deltas if delta.index == choice.index]
        assert [token for delta in own for token in delta.token_ids] == choice.token_ids
        assert "".join(delta.text for delta in own) == choice.text
        assert [delta.finish_reason for delta in own].count(None) == len(own) - 1


def test_two_requests_under_one_label_are_two_requests(served):
    async def test(llm):
        return await asyncio.gather(*(collect(llm, [i, 7], SamplingParams(max_tokens=4)) for i in (1, 2)))

    first, second = served.run(test)
    assert sum(delta.finish_reason is not None for delta in first) == 1
    assert sum(delta.finish_reason is not None for delta in second) == 1


@pytest.mark.parametrize("started", [False, True])
def test_closing_a_stream_frees_its_pages_at_once(served, started):
    async def test(llm):
        stream = await llm.generate([5, 6, 7], LONG, request_id="r")
        if started:
            await anext(stream)
        await stream.aclose()
        await settled(llm)

    served.run(test)


def test_dropping_a_stream_that_nobody_read_aborts_it(served):
    async def test(llm):
        await llm.generate([5, 6, 7], LONG, request_id="r")
        await settled(llm)

    served.run(test)


def test_abort_by_label_ends_every_choice(served):
    async def test(llm):
        params = SamplingParams(temperature=1, seed=1, max_tokens=200, ignore_eos=True, n=3)
        stream = await llm.generate([5, 6, 7], params, request_id="mine")
        await anext(stream)
        await llm.abort("mine")
        await llm.abort("unknown")
        return [delta async for delta in stream]

    ends = [delta.finish_reason for delta in served.run(test) if delta.finish_reason]
    assert ends == ["abort"] * 3


def test_refusals_come_before_the_stream(served):
    async def test(llm):
        with pytest.raises(InvalidRequest, match="maximum context length is"):
            await llm.generate([5] * 300, LONG, request_id="r")
        with pytest.raises(InvalidRequest, match="temperature"):
            await llm.generate([5], SamplingParams(temperature=float("nan")), request_id="r")
        with pytest.raises(InvalidRequest):
            await llm.generate([10**9], LONG, request_id="r")

    served.run(test)


def test_a_full_queue_refuses_and_recovers(served):
    async def test(llm):
        limits = llm._model.limits
        room = limits.max_num_seqs + limits.max_num_queued_seqs
        streams = [await llm.generate([5, 6], LONG, request_id=str(i)) for i in range(room)]
        with pytest.raises(Overloaded) as refused:
            await llm.generate([5, 6], LONG, request_id="one too many")
        assert refused.value.retry_after_s
        for stream in streams:
            await stream.aclose()
        await settled(llm)
        assert await collect(llm, [5, 6], SamplingParams(max_tokens=2))

    served.run(test)


def test_64_streams_with_random_aborts_leave_nothing_behind(served):
    draw = random.Random(0)

    async def one(llm, i):
        params = SamplingParams(temperature=1, seed=i, max_tokens=draw.randint(1, 60), n=draw.choice([1, 1, 2]))
        prompt = [draw.randrange(300) for _ in range(draw.randint(1, 120))]
        stream = await llm.generate(prompt, params, request_id=str(i))
        patience = draw.choice([0, 1, 5, 1000])
        ends = 0
        async for delta in stream:
            ends += delta.finish_reason is not None
            patience -= 1
            if patience < 0:
                await stream.aclose()
                return None
        return ends == params.n

    async def test(llm):
        results = await asyncio.gather(*(one(llm, i) for i in range(64)))
        await settled(llm)
        return results

    results = served.run(test)
    assert all(result in (None, True) for result in results)
    assert None in results


def test_rendering_and_tokenizing_round_trip(served):
    async def test(llm):
        ids = await llm.encode("hello world")
        assert await llm.decode(ids) == "".join(await llm.decode_each(ids)) == "hello world"
        chat = await llm.render([{"role": "user", "content": "hi <|im_end|>"}])
        control = await llm.encode("<|im_end|>")
        assert chat.count(control[0]) == 1  # the turn's own; the one in the content is plain text

    served.run(test)


def test_a_trace_of_the_device_is_written_and_a_stray_end_costs_nothing(served, tmp_path):
    async def answer(llm) -> str:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        stream = await llm.generate([5, 6, 7], params, request_id="r")
        return "".join([delta.text async for delta in stream])

    async def test(llm):
        await llm.profile(str(tmp_path / "trace"))
        with pytest.raises(EngineError):
            await llm.profile(str(tmp_path / "second"))
        traced = await answer(llm)
        await llm.profile(None)
        with pytest.raises(EngineError):
            await llm.profile(None)
        return traced, await answer(llm)

    traced, after = served.run(test)
    assert traced == after
    (file,) = (tmp_path / "trace").rglob("*.xplane.pb")
    assert file.stat().st_size > 1000
