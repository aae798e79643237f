"""Thoughts that are as long as they may be are closed by a token that nobody drew; all others are the oracle's."""

import dataclasses
import random

import pytest

from jaxinfer.engine.sequence import Request, ThoughtLimit
from jaxinfer.runtime.plan import Controls
from tests.engine.client import Client
from tests.engine.device import VOCAB, alone, make_limits

OPEN, CLOSE = VOCAB - 3, VOCAB - 4


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("seed", range(8))
def test_only_the_closing_token_is_forced(run_ahead, seed):
    draw, limits = random.Random(seed), make_limits(run_ahead=run_ahead, num_pages=33)
    client = Client(limits)
    forced = 0
    for number in range(10):
        is_open = draw.random() < 0.6
        prompt = tuple(draw.randrange(VOCAB - 5) for _ in range(draw.randint(1, 20)))
        limit = ThoughtLimit(OPEN, CLOSE, draw.choice((0, draw.randint(1, 12))), is_open)
        request = Request(
            f"r{number}",
            prompt,
            draw.randint(1, 30),
            draw.randint(1, 2),
            1.0,
            stop_token_ids=frozenset({CLOSE} if draw.random() < 0.3 else ()),
            thoughts=limit,
            text_lag=draw.random() < 0.3,
            controls=Controls(frequency_penalty=1.0) if draw.random() < 0.3 else None,
        )
        client.add(request)
        forced += alone(request, 0, limits) != alone(dataclasses.replace(request, thoughts=None), 0, limits)
        for _ in range(draw.randint(0, 4)):
            if client.engine.has_work:
                client.step()
        if draw.random() < 0.1:
            client.restart()
    client.finish()
    client.check_answers()
    assert forced, "the seeds must hold a case"


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("budget", [0, 3])
def test_thoughts_that_begin_in_the_answer_are_counted_from_there(budget, run_ahead):
    limits = make_limits(run_ahead=run_ahead)
    for first in range(2000):
        request = Request("r", (first % 90, first // 90), 20, thoughts=ThoughtLimit(OPEN, CLOSE, budget, False))
        tokens, _ = alone(request, 0, limits)
        if OPEN in tokens[:4]:
            client = Client(limits)
            client.add(request)
            client.finish()
            client.check_answers()
            assert CLOSE in tokens[tokens.index(OPEN) :][: budget + 2]
            return
    raise AssertionError("no prompt was found")
