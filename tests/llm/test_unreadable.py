"""What cannot be read. A message: the engine process says so and ends, and another one goes on. An answer: it ends
alone, and the texts of others are read on.
"""

import logging
import struct
from array import array

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from jaxinfer.config import EngineConfig
from jaxinfer.engine.sequence import Output, Request
from jaxinfer.llm.answer import UNDECODABLE, UNREADABLE, Answer
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from jaxinfer.llm.wire import ToEngine
from jaxinfer.protocol.sampling import GenerationDefaults, SamplingParams, resolve_sampling
from jaxinfer.text.message import MessageText
from jaxinfer.text.reading import Reading
from jaxinfer.text.rust import LibraryPanic
from jaxinfer.text.tokenizer import Tokenizer
from tests.llm.conftest import Served

GARBAGE = struct.pack("<I", 3) + b"\xff\xff\xff"
FRAMES = {"garbage": (GARBAGE, "a message cannot be read"), "nothing": (None, "an engine is started once")}


@pytest.fixture(scope="module")
def served():
    def process(config, on_event):
        return EngineProcess(config, on_event, child=(MODULE, "0.01"))

    served = Served(AsyncLLM(EngineConfig(model="demo"), new_transport=process))
    yield served
    served.close()


@pytest.mark.parametrize(("frame", "reason"), FRAMES.values(), ids=FRAMES)
def test_a_message_that_the_engine_cannot_read_costs_a_restart_and_no_token(served, frame, reason, caplog):
    caplog.set_level(logging.WARNING, "jaxinfer")

    async def test(llm):
        async def ask():
            params = SamplingParams(max_tokens=40, seed=1, temperature=1, ignore_eos=True)
            return await llm.generate([5, 6], params, request_id="r")

        alone = "".join([delta.text async for delta in await ask()])
        restarts = llm.stats().restarts
        stream = await ask()
        text = (await anext(stream)).text
        channel = llm.replicas.transports[0]._channel
        if frame is None:
            channel.send(ToEngine())
        else:
            channel._socket.sendall(frame)
        text += "".join([delta.text async for delta in stream])
        return text == alone, llm.stats().restarts - restarts

    assert served.run(test) == (True, 1)
    assert reason in caplog.text and "starting it again" in caplog.text


class Bug(MessageText):
    """A text that cannot be read from its third piece on."""

    def __init__(self, *arguments, **rest):
        super().__init__(*arguments, **rest)
        self.left = 2

    def feed(self, ids):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("a bug")
        return super().feed(ids)

    def finish(self):
        raise RuntimeError("another bug")


class BugReading(Reading):
    def new_text(self, tokenizer, *, stop, include_stop, start_after, skip, verbatim, whole):
        return Bug(tokenizer, stop=stop, include_stop=include_stop, start_after=start_after, skip_special_tokens=skip)


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_bug_in_reading_an_answer_ends_that_answer_alone(served, caplog, is_aborted):
    params = SamplingParams(max_tokens=40, seed=1, temperature=1, ignore_eos=True)

    async def test(llm):
        neighbour = await llm.generate([7, 8], params, request_id="neighbour")
        broken = await llm.generate([5, 6], params, request_id="broken", reading=BugReading())
        if is_aborted:
            await llm.abort("broken")
        return [[delta async for delta in stream] for stream in (broken, neighbour)]

    broken, neighbour = served.run(test)
    assert (broken[-1].finish_reason, broken[-1].error, broken[-1].code) == ("error", UNREADABLE, "internal")
    assert sum(len(delta.token_ids) for delta in neighbour) == 40 and neighbour[-1].finish_reason == "length"
    assert "a bug" in caplog.text or "another bug" in caplog.text


def test_a_decoder_that_panics_ends_an_answer_with_one_line_in_the_log(caplog, capfd):
    backend = Backend(models.BPE({"a": 0, " ": 1}, []))
    backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)])
    told: list[object] = []
    sampling = resolve_sampling(SamplingParams(logprobs=1), GenerationDefaults(), random_seed=0)
    answer = Answer(Request("r", array("I", [0]), 1), sampling, Tokenizer(backend.to_str().encode()), told.append)
    deltas = [answer.feed(Output("r", 0, [token_id])) for token_id in (1, 1, 0)]
    assert [(delta.finish_reason, delta.error, delta.code) for delta in deltas[:1]] == [
        ("error", UNDECODABLE, "internal")
    ]
    assert deltas[1:] == [None, None] and len(told) == len(caplog.records) == 1
    assert caplog.records[0].exc_info is None and "cannot be decoded" in caplog.text
    assert capfd.readouterr().err.count("panicked") == 1
    with pytest.raises(LibraryPanic):
        answer._bytes_of(1)
