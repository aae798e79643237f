"""An engine that cannot be started again at once: another attempt follows, or everyone is told. So they are too when
there is a bug in what reads the answers of all.
"""

import asyncio
import errno
import itertools
import os
import signal
import subprocess
from functools import partial

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.errors import EngineError
from jaxinfer.llm import process, replicas
from jaxinfer.llm.async_llm import FAILED, AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from jaxinfer.protocol.sampling import SamplingParams
from tests.llm.conftest import Served

PARAMS = SamplingParams(max_tokens=200, seed=1, temperature=1, ignore_eos=True)
DRY_RUN = partial(EngineProcess, child=(MODULE, "0.001"))


@pytest.fixture
def refused(monkeypatch):
    """Let the system refuse so many processes from the second on."""
    monkeypatch.setattr(replicas, "PAUSE_S", 0.01)
    popen = subprocess.Popen

    def refuse(times: int) -> None:
        asked = itertools.count()

        def spawn(*arguments, **rest):
            if 0 < next(asked) <= times:
                raise OSError(errno.EMFILE, "Too many open files")
            return popen(*arguments, **rest)

        monkeypatch.setattr(process.subprocess, "Popen", spawn)

    return refuse


async def killed_under(llm):
    """What a stream says whose engine is killed once it has begun."""
    stream = await llm.generate([5, 6], PARAMS, request_id="r")
    first = await anext(stream)
    os.kill(llm.replicas.transports[0].pid, signal.SIGKILL)
    return [first, *[delta async for delta in stream]]


def test_a_start_that_the_system_refuses_is_tried_again_and_costs_no_token(refused):
    refused(2)
    served = Served(AsyncLLM(EngineConfig(model="demo"), new_transport=DRY_RUN))
    deltas = served.run(killed_under)
    assert sum(len(delta.token_ids) for delta in deltas) == 200 and deltas[-1].finish_reason == "length"
    assert served.llm.stats().restarts == 1
    served.close()


def test_a_start_that_the_system_always_refuses_ends_every_stream_with_an_error(refused):
    refused(100)

    async def test():
        llm = AsyncLLM(EngineConfig(model="demo"), new_transport=DRY_RUN)
        await llm.start()
        deltas = await killed_under(llm)
        with pytest.raises(EngineError, match="Too many open files"):
            await llm.until_failed()
        status = llm.status
        await llm.close()
        return deltas[-1], status

    last, status = asyncio.run(asyncio.wait_for(test(), 20))
    assert (last.finish_reason, last.error, status) == ("error", FAILED, "failed")


def test_a_listener_that_cannot_be_told_of_a_start_does_not_hold_it_up(caplog):
    def on_event(event):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")  # a checklist on a terminal that is gone

    served = Served(AsyncLLM(EngineConfig(model="demo"), on_event, DRY_RUN))
    deltas = served.run(killed_under)
    assert deltas[-1].finish_reason == "length" and "Broken pipe" in caplog.text
    served.close()


def test_a_bug_in_what_reads_all_answers_ends_them_with_an_error(caplog):
    served = Served(AsyncLLM(EngineConfig(model="demo"), new_transport=DRY_RUN))

    async def test(llm):
        streams = [await llm.generate([5, 6, i], PARAMS, request_id="r") for i in range(3)]
        for stream in streams:
            await anext(stream)

        def saw(came, now_s):
            raise RuntimeError("a bug")

        llm._model.latency.saw = saw
        lasts = [[delta async for delta in stream][-1] for stream in streams]
        with pytest.raises(EngineError, match="a bug"):
            await llm.until_failed()
        return lasts

    lasts = served.run(lambda llm: asyncio.wait_for(test(llm), 10))
    assert [(last.finish_reason, last.error) for last in lasts] == [("error", FAILED)] * 3
    assert served.llm.status == "failed" and "RuntimeError" in caplog.text
    served.close()
