"""Random schemas, regexes and grammars, streamed in crowds from the server's door to the engine: issue 7's counts."""

import asyncio
import random

import pytest
from msgspec.structs import replace

from jaxinfer.llm.llm import LLM
from tests.llm.test_async_llm import collect
from tests.llm.test_structured import DRAWN, FEW_TOKENS, KINDS, PROMPT, is_prefix

AT_ONCE = 16  # requests of four choices each


def streamed(served, engine, kind, count, **fields):
    """Each answer that stops is of its form, each that is cut off begins one; returns how many of each."""
    draw = random.Random(17)
    made = [KINDS[kind](draw) for _ in range(count)]
    params = [replace(DRAWN, **{kind: source}, n=4, seed=i, **fields) for i, (source, _) in enumerate(made)]

    async def ask(llm):
        room = asyncio.Semaphore(AT_ONCE)

        async def one(own):
            async with room:
                return await collect(llm, PROMPT, own)

        return await asyncio.gather(*map(one, params))

    reasons, judging = [], LLM.over(*engine)  # once: it starts a process, which tries the template
    for (source, judge), own, deltas in zip(made, params, served.run(ask), strict=True):
        for index in range(4):
            pieces = [delta for delta in deltas if delta.index == index]
            text, reason = "".join(delta.text for delta in pieces), pieces[-1].finish_reason
            assert [delta.finish_reason for delta in pieces[:-1]] == [None] * (len(pieces) - 1)
            if reason == "stop":
                assert judge(text), (source, text)
            else:
                tokens = [token for delta in pieces for token in delta.token_ids]
                assert reason == "length" and is_prefix(judging, own, tokens), (source, text)
            reasons.append(reason)
    return reasons.count("stop"), reasons.count("length")


def check(served, engine, kind, count):
    few = FEW_TOKENS[kind]
    stopped, cut_off = streamed(served, engine, kind, count, max_tokens=few)
    closed, _ = streamed(served, engine, kind, count, max_tokens=few, close_within_max_tokens=True)
    assert stopped + cut_off == 4 * count and closed >= max(stopped, 0.95 * 4 * count), (stopped, closed)
    return cut_off


def test_a_few_of_each_kind(served, engine):
    """A37"""
    assert sum(check(served, engine, kind, 5) for kind in KINDS) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "count"), [("json_schema", 90), ("regex", 150), ("grammar", 20)])
def test_many_of_each_kind(served, engine, kind, count):
    """A37"""
    assert check(served, engine, kind, count) > 0
