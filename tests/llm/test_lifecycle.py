"""How an AsyncLLM starts, drains, fails, recovers and ends."""

import asyncio
import os
import signal
import threading
import time

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.errors import CheckpointError, EngineError, Unavailable
from jaxinfer.llm.async_llm import FAILED, MAX_FAILURES, AsyncLLM
from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams
from tests.llm.conftest import Served, in_thread

LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


@pytest.fixture
def llm(engine):
    """An AsyncLLM of this test's own over the shared engine; its threads must be gone afterwards."""
    before = set(threading.enumerate())
    served = Served(in_thread(engine))
    yield served
    served.close()
    assert set(threading.enumerate()) <= before


def test_draining_finishes_what_runs_and_refuses_what_comes(llm):
    async def test(llm):
        stream = await llm.generate([5, 6], SamplingParams(max_tokens=20, ignore_eos=True), request_id="r")
        drained = asyncio.create_task(llm.drain(10))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as refused:
            await llm.generate([5], LONG, request_id="late")
        assert (refused.value.code, refused.value.retry_after_s) == ("draining", 1.0)
        deltas = [delta async for delta in stream]
        await drained
        assert deltas[-1].finish_reason == "length"

    llm.run(test)


def test_draining_aborts_what_does_not_finish_in_time(llm):
    async def test(llm):
        streams = [await llm.generate([5, 6, i], LONG, request_id="r") for i in range(20)]
        await llm.drain(0.05)
        return [[delta async for delta in stream][-1].finish_reason for stream in streams]

    assert "abort" in llm.run(test)


def test_before_the_start_every_call_says_that_it_is_starting(engine):
    async def test():
        llm = in_thread(engine)
        with pytest.raises(Unavailable, match="being loaded"):
            await llm.encode("hello")
        with pytest.raises(Unavailable, match="being loaded"):
            llm.admit()
        await llm.close()

    asyncio.run(test())


def test_an_engine_process_that_cannot_start_says_why(tmp_path):
    async def test():
        llm = AsyncLLM(EngineConfig(model=str(tmp_path / "nowhere"), device="cpu"))
        with pytest.raises(CheckpointError, match="nowhere"):
            await llm.start()
        assert llm.status == "failed"
        await llm.close()

    asyncio.run(test())


@pytest.fixture
def own_process(process_config):
    """An engine process that a test may kill."""
    served = Served(AsyncLLM(process_config))
    yield served
    served.close()


def test_killing_the_engine_process_costs_no_stream_a_token(own_process, engine):
    prompts = [[5, 6, i] for i in range(16)]
    params = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=120, ignore_eos=True, n=1 + i % 3 // 2) for i in range(16)
    ]
    expected = LLM.over(*engine).generate(prompts, params)

    async def test(llm):
        streams = [await llm.generate(prompt, own, request_id="r") for prompt, own in zip(prompts, params, strict=True)]
        firsts = [[await anext(stream)] for stream in streams]
        os.kill(llm._model.transport.pid, signal.SIGKILL)
        return [[*first, *[delta async for delta in stream]] for first, stream in zip(firsts, streams, strict=True)]

    for deltas, output in zip(own_process.run(test), expected, strict=True):
        for choice in output.outputs:
            own = [delta for delta in deltas if delta.index == choice.index]
            assert [token for delta in own for token in delta.token_ids] == choice.token_ids
            assert "".join(delta.text for delta in own) == choice.text
            assert own[-1].finish_reason == choice.finish_reason


def test_a_request_that_comes_during_a_restart_is_served_after_it(own_process):
    async def test(llm):
        os.kill(llm._model.transport.pid, signal.SIGKILL)
        await asyncio.sleep(0.2)
        stream = await llm.generate([5, 6], SamplingParams(max_tokens=4, ignore_eos=True), request_id="r")
        return [delta async for delta in stream]

    assert own_process.run(test)[-1].finish_reason == "length"


def test_an_engine_that_keeps_dying_ends_in_a_clear_refusal(process_config, monkeypatch):
    async def test():
        llm = AsyncLLM(process_config)
        await llm.start()
        stream = await llm.generate([5, 6], LONG, request_id="r")
        monkeypatch.setattr("jaxinfer.llm.process.CHILD", ["-c", "raise SystemExit(7)"])
        began = time.monotonic()
        os.kill(llm._model.transport.pid, signal.SIGKILL)
        deltas = [delta async for delta in stream]
        assert deltas[-1].finish_reason == "error"
        assert deltas[-1].error == FAILED
        with pytest.raises(EngineError, match="exit code 7"):
            await llm.until_failed()
        assert time.monotonic() - began < 5 * MAX_FAILURES
        with pytest.raises(Unavailable, match="the engine has failed") as refused:
            await llm.generate([5], LONG, request_id="late")
        assert refused.value.code == "failed"
        await llm.close()

    asyncio.run(test())
