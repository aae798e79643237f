"""More requests than fit, of every kind, over the real scheduler and text side of a dry run (A28, A40, A46)."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx2
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from jaxinfer.server.app import create_app
from tests.server.http import COMPLETIONS, error_of, events, live, wait_until

CAPACITY = 16  # sequences running and waiting


@pytest.fixture(scope="module")
def llm() -> AsyncLLM:
    config = EngineConfig(model="demo", max_num_seqs=4, max_num_queued_seqs=CAPACITY - 4, num_pages=40, page_size=16)
    return AsyncLLM(config, new_transport=partial(EngineProcess, child=(MODULE, "0.001")))


@pytest.fixture(scope="module")
def base(llm: AsyncLLM) -> Iterator[str]:
    with live(create_app(llm), llm.start, llm.close) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def rests(base: str, llm: AsyncLLM) -> Iterator[None]:
    """Within 2 s of the last answer nothing runs, nothing is owned and no page is missing."""
    pid = llm._model.transport.pid
    yield
    wait_until(lambda: (llm.stats().running, llm.stats().waiting, llm.stats().pages_owned) == (0, 0, 0), timeout_s=2)
    stats = llm.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    assert not llm._open and not llm._names
    assert (llm._model.transport.pid, stats.restarts) == (pid, 0)


def ask_together(base: str, bodies: list[dict[str, Any]], at_once: int, **headers: str) -> list[httpx2.Response]:
    """The answers in the order of the bodies, at most `at_once` of them under way."""

    async def ask() -> list[httpx2.Response]:
        room = asyncio.Semaphore(at_once)
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=base, timeout=60, limits=limits, headers=headers) as client:

            async def one(body: dict[str, Any]) -> httpx2.Response:
                async with room:
                    return await client.post(COMPLETIONS, json=body)

            return await asyncio.gather(*map(one, bodies))

    return asyncio.run(ask())


def body_of(number: int) -> dict[str, Any]:
    """One of many kinds, every fourth a mistake."""
    choose = random.Random(number)
    body: dict[str, Any] = {"prompt": f"number {number}", "max_tokens": choose.randint(1, 40), "seed": number}
    body |= choose.choice([{}, {"n": 2}, {"stop": ["a", "e"]}, {"ignore_eos": True}, {"prompt": ["a", "bb", "c"]}])
    body |= choose.choice([{}, {"logprobs": 0}, {"echo": True}, {"temperature": 1.0}])
    return body | ({"temperature": 9} if number % 4 == 3 else {})


def num_choices(body: dict[str, Any]) -> int:
    return body.get("n", 1) * (len(body["prompt"]) if isinstance(body["prompt"], list) else 1)


def test_a_burst_is_refused_where_the_queue_ends_and_everything_accepted_finishes(base):
    bodies = [{"prompt": "x", "max_tokens": 30, "ignore_eos": True, "seed": i} for i in range(10 * CAPACITY)]
    answers = ask_together(base, bodies, at_once=len(bodies))
    accepted = [answer for answer in answers if answer.status_code == 200]
    assert len(accepted) >= CAPACITY
    assert all(answer.json()["usage"]["completion_tokens"] == 30 for answer in accepted)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused, "ten times what fits"
    assert {(answer.status_code, error_of(answer)["code"]) for answer in refused} == {(429, "queue_full")}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


def test_what_can_never_fit_is_a_400_and_not_a_place_in_the_queue(base):
    begun_s = time.monotonic()
    (answer,) = ask_together(base, [{"prompt": "x", "max_tokens": 1000}], at_once=1)
    assert (answer.status_code, error_of(answer)["code"]) == (400, "context_length_exceeded")
    (many,) = ask_together(base, [{"prompt": ["x"] * 20}], at_once=1)
    assert (many.status_code, error_of(many)["param"]) == (400, "n")
    assert time.monotonic() - begun_s < 2


def test_every_stream_ends_once_and_joins_to_the_answer_that_is_not_streamed(base):
    bodies = [body_of(number) for number in range(160)]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streams = ask_together(base, [body | options for body in bodies], at_once=5)
    wholes = ask_together(base, bodies, at_once=5)
    for body, stream, whole in zip(bodies, streams, wholes, strict=True):
        assert stream.status_code == whole.status_code
        if body.get("temperature") == 9:
            assert (stream.status_code, error_of(stream)["param"]) == (400, "temperature")
            continue
        *chunks, usage = events(stream.text)
        texts, ends = dict.fromkeys(range(num_choices(body)), ""), Counter()
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            assert not ends[choice["index"]], "nothing comes after the end"
            texts[choice["index"]] += choice["text"]
            ends[choice["index"]] += choice["finish_reason"] is not None
        assert ends == dict.fromkeys(texts, 1)
        assert texts == {choice["index"]: choice["text"] for choice in whole.json()["choices"]}
        assert usage["choices"] == [] and not any(chunk.get("usage") for chunk in chunks)
        assert usage["usage"]["completion_tokens"] == whole.json()["usage"]["completion_tokens"]


def test_one_id_in_use_twice_mixes_nothing_up(base):
    bodies = [{"prompt": f"say {i}", "max_tokens": 40, "ignore_eos": True, "seed": i} for i in range(2)]
    alone = [ask_together(base, [body], at_once=1)[0].json()["choices"] for body in bodies]
    together = ask_together(base, bodies * 2, at_once=4, **{"x-request-id": "the-same"})
    assert {answer.json()["id"] for answer in together} == {"cmpl-the-same"}
    assert [answer.json()["choices"] for answer in together] == alone * 2
    assert alone[0] != alone[1]
