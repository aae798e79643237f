"""How an AsyncLLM starts, drains, fails, recovers and ends."""

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from jaxinfer.checkpoint.resolve import DEMO_FOLDER
from jaxinfer.config import EngineConfig
from jaxinfer.errors import CheckpointError, DeviceLost, EngineError, Unavailable
from jaxinfer.llm import async_llm
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.build import start_core
from jaxinfer.llm.dry_run import start_dry_run
from jaxinfer.llm.events import ignore
from jaxinfer.llm.llm import LLM
from jaxinfer.llm.text_side import load_text
from jaxinfer.llm.thread import EngineThread
from jaxinfer.protocol.sampling import SamplingParams
from tests.llm.conftest import Served, in_thread
from tests.support.attempts import Stopwatch
from tests.support.engines import built_before, small_config
from tests.support.processes import family

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


def test_a_drain_accepts_what_arrived_before_it_until_no_more_of_that_can_come(llm):
    async def test(llm):
        few, arrived_s, gate = SamplingParams(max_tokens=2, ignore_eos=True), time.monotonic(), asyncio.Event()
        drained = asyncio.create_task(llm.drain(10, gate.wait()))
        await asyncio.sleep(0.01)
        with pytest.raises(Unavailable):
            await llm.generate([5], few, request_id="late", arrived_s=time.monotonic())
        stream = await llm.generate([5, 6], few, request_id="r", arrived_s=arrived_s)
        assert [delta async for delta in stream][-1].finish_reason == "length"
        assert not drained.done()
        gate.set()
        await drained
        with pytest.raises(Unavailable):
            await llm.generate([5], few, request_id="r", arrived_s=arrived_s)

    llm.run(test)


def test_draining_aborts_what_does_not_finish_in_time(llm):
    async def test(llm):
        streams = [await llm.generate([5, 6, i], LONG, request_id="r") for i in range(20)]
        await llm.drain(0.05)
        return [[delta async for delta in stream][-1].finish_reason for stream in streams]

    assert "abort" in llm.run(test)


def test_who_comes_just_as_the_engine_fails_for_good_is_told(engine):
    """It fails between the look at the status and the posting, which nothing would answer."""

    async def test():
        llm = in_thread(engine)
        await llm.start()
        posting, here = llm._posting, threading.get_ident()

        class Late:
            failed = False

            def __enter__(self) -> None:
                if threading.get_ident() == here and not self.failed:
                    self.failed = True
                    llm._end_all(EngineError("gone"))
                    told = threading.Event()
                    llm._outputs.put(lambda: told.set() or [])
                    assert told.wait(10), "the text thread has told all that were open"
                posting.acquire()

            def __exit__(self, *_: object) -> None:
                posting.release()

        llm._posting = Late()
        with pytest.raises(Unavailable):
            await llm.generate([5, 6], LONG, request_id="r")
        await llm.close()

    asyncio.run(test())


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


def test_an_engine_process_that_crashes_costs_no_stream_a_token(own_process, engine):
    prompts = [[5, 6, i] for i in range(16)]
    params = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=120, ignore_eos=True, n=1 + i % 3 // 2) for i in range(16)
    ]
    expected = LLM.over(*engine).generate(prompts, params)

    async def test(llm):
        streams = [await llm.generate(prompt, own, request_id="r") for prompt, own in zip(prompts, params, strict=True)]
        firsts = [[await anext(stream)] for stream in streams]
        os.kill(llm.replicas.transports[0].pid, signal.SIGABRT)  # as a driver does whose context is poisoned
        return [[*first, *[delta async for delta in stream]] for first, stream in zip(firsts, streams, strict=True)]

    for deltas, output in zip(own_process.run(test), expected, strict=True):
        for choice in output.outputs:
            own = [delta for delta in deltas if delta.index == choice.index]
            assert [token for delta in own for token in delta.token_ids] == choice.token_ids
            assert "".join(delta.text for delta in own) == choice.text
            assert own[-1].finish_reason == choice.finish_reason


def test_a_request_that_comes_while_an_engine_that_never_ran_a_step_is_replaced_is_served(own_process):
    async def test(llm):
        os.kill(llm.replicas.transports[0].pid, signal.SIGSEGV)
        await asyncio.sleep(0.2)
        stream = await llm.generate([5, 6], SamplingParams(max_tokens=4, ignore_eos=True), request_id="r")
        return [delta async for delta in stream]

    assert own_process.run(test)[-1].finish_reason == "length"


class DiesEarly(EngineThread):
    """Says that it has died before its start has returned, the first time."""

    restartable = True
    deaths = 0

    def start(self, on_outputs, on_failure, **rest):
        handshake = super().start(on_outputs, on_failure, **rest)
        if not DiesEarly.deaths:
            DiesEarly.deaths += 1
            self.close()
            on_failure(DeviceLost("signal 11 ended it"))
        return handshake


def test_an_engine_that_dies_before_all_else_is_loaded_is_replaced(engine):
    config, core = engine
    served = Served(AsyncLLM(config, new_transport=partial(DiesEarly, start_core=built_before(core))))

    async def test(llm):
        assert llm.status == "ready"
        stream = await llm.generate([5, 6], SamplingParams(max_tokens=4, ignore_eos=True), request_id="r")
        return [delta async for delta in stream], llm.stats().restarts

    deltas, restarts = served.run(test)
    assert (deltas[-1].finish_reason, restarts) == ("length", 1)
    served.close()


def test_a_folder_s_tokenizer_is_read_while_the_engine_starts(engine, monkeypatch):
    config, core = engine
    read = threading.Event()

    def reading(*given):
        read.set()
        return load_text(*given)

    class StartsAfterIt(EngineThread):
        def start(self, *given, **named):
            assert read.wait(30), "the engine's start is not waited for"
            return super().start(*given, **named)

    monkeypatch.setattr(async_llm, "load_text", reading)
    served = Served(AsyncLLM(config, new_transport=partial(StartsAfterIt, start_core=built_before(core))))
    served.close()


def test_an_interrupted_start_ends_the_engine_process_at_once():
    async def test():
        llm = AsyncLLM(EngineConfig(model="demo", device="cpu", compile_cache_dir=""))
        starting = asyncio.create_task(llm.start())
        while not llm.replicas.transports or llm.replicas.transports[0]._child is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        child = llm.replicas.transports[0]._child
        watch = Stopwatch()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert child.poll() is not None
        assert watch.seconds() < 5, "a whole start takes longer, also on a machine that others use"
        await llm.close()

    asyncio.run(test())


def test_an_interrupted_start_in_this_process_ends_at_its_next_event():
    def interrupted(event):
        raise EngineError("the start was interrupted")

    async def test():
        llm = AsyncLLM(EngineConfig(model="demo"), interrupted, partial(EngineThread, start_core=start_dry_run))
        with pytest.raises(EngineError, match="interrupted"):
            await llm.start()
        await llm.close()

    asyncio.run(test())


def test_the_collector_passes_over_what_a_start_has_made(folder, executables):
    """Until the engine is closed: to look through it takes as long as many steps do."""
    gc.unfreeze()
    core = start_core(small_config(folder, executables), ignore)
    try:
        core.warming.result()
        assert gc.get_freeze_count() > 10_000
    finally:
        core.close()
    assert gc.get_freeze_count() == 0


@pytest.fixture
def slow_config(tmp_path):
    """Of a model whose tokenizer encodes in processes."""
    folder = tmp_path / "slow"
    shutil.copytree(DEMO_FOLDER, folder)
    file = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": r"\s+$"}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps(file | {"pre_tokenizer": split}))
    return EngineConfig(model=str(folder))


def encoders() -> set[int]:
    """Processes of ours that encode texts."""
    found = set()
    for pid in family(os.getpid())[1:]:
        with contextlib.suppress(OSError):  # it has just ended
            if b"jaxinfer.text.encoder" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def test_closing_an_llm_ends_what_encodes_its_texts(slow_config):
    before = encoders()
    with LLM.over(slow_config, start_dry_run(slow_config, ignore)) as llm:
        llm.generate("a b", SamplingParams(max_tokens=1))
        assert len(encoders() - before) == 2, "the process and its worker"
    assert encoders() <= before
    with pytest.raises(EngineError, match="open"):
        llm.generate("a b")
    assert encoders() <= before


def test_closing_an_async_llm_ends_what_encodes_its_texts(slow_config):
    before = encoders()

    async def test():
        llm = AsyncLLM(slow_config, new_transport=partial(EngineThread, start_core=start_dry_run))
        await llm.start()
        assert await llm.encode("a b")
        assert len(encoders() - before) == 2
        await llm.close()
        assert encoders() <= before

    asyncio.run(test())


def test_a_start_that_fails_leaves_nothing_that_encodes_texts(slow_config):
    before = encoders()

    class Fails(EngineThread):
        def start(self, *given, **named):
            raise DeviceLost("no device")

    async def test():
        llm = AsyncLLM(slow_config, new_transport=partial(Fails, start_core=start_dry_run))
        with pytest.raises(DeviceLost) as failure:
            await llm.start()
        assert encoders() <= before, f"while somebody holds {failure}, which holds all that was made"

    asyncio.run(test())
