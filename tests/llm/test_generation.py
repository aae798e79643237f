"""One request of many prompts: begun as a whole or not at all, while others get their turns."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from jaxinfer.errors import Overloaded
from jaxinfer.llm.asked import encode_prompts
from jaxinfer.llm.generation import Generation, Job
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.sampling import SamplingParams
from tests.server.fakes import FakeLLM


def job(num_prompts: int) -> Job:
    return Job([[97]] * num_prompts, SamplingParams(), 0, chat=False, salt="", arrived_s=0.0)


async def turns_during(work: Awaitable[Any]) -> int:
    """How often another task gets its turn meanwhile."""
    num_turns = 0

    async def count() -> None:
        nonlocal num_turns
        while True:
            await asyncio.sleep(0)
            num_turns += 1

    other = asyncio.create_task(count())
    await work
    other.cancel()
    return num_turns


def test_others_get_their_turns_between_the_prompts_of_one_request():
    async def run() -> tuple[int, int]:
        llm = FakeLLM(max_running=300)
        return await turns_during(Generation.start(llm, job(300))), await turns_during(
            encode_prompts(llm, ["a"] * 300, special=False)
        )

    begun, encoded = asyncio.run(run())
    assert begun >= 290 and encoded >= 30


def test_usage_counts_what_the_first_choice_found_in_the_cache():
    def script(ids: list[int], params: SamplingParams) -> list[Delta]:
        return [Delta(i, "a", [1], "stop", prompt_tokens=100, cached_tokens=found) for i, found in ((0, 16), (1, 96))]

    async def run() -> int:
        one = replace(job(1), sampling=SamplingParams(n=2))
        generation = await Generation.start(FakeLLM(script), one)
        assert len([delta async for delta in generation.deltas()]) == 2
        return generation.usage.cached_tokens

    assert asyncio.run(run()) == 16


def test_a_client_that_leaves_while_its_prompts_are_begun_leaves_none_of_them_behind():
    async def run() -> FakeLLM:
        llm = FakeLLM()
        begin = asyncio.create_task(Generation.start(llm, job(20)))
        while len(llm.running) < 5:
            await asyncio.sleep(0)
        begin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begin
        return llm

    llm = asyncio.run(run())
    assert not llm.running and 5 <= len(llm.calls) < 20


def test_of_two_requests_that_have_room_for_one_together_one_is_begun_and_the_other_refused_as_a_whole():
    async def run() -> tuple[list[Any], FakeLLM]:
        llm = FakeLLM(max_running=30)
        begun = await asyncio.gather(*[Generation.start(llm, job(20)) for _ in "ab"], return_exceptions=True)
        return begun, llm

    begun, llm = asyncio.run(run())
    assert isinstance(begun[0], Generation) and isinstance(begun[1], Overloaded)
    assert len(llm.calls) == len(llm.running) == 20
