"""A request that ends every engine is found and given up; nobody else is."""

import random

import pytest

from jaxinfer.llm.suspects import GUILTY, Suspects


def test_one_end_costs_nobody_anything():
    suspects = Suspects()
    assert suspects.engine_ended(["a", "b"]) == (["a", "b"], [])


def test_after_two_ends_suspects_are_tried_one_at_a_time():
    suspects = Suspects()
    suspects.engine_ended(["a", "b", "c"])
    assert suspects.engine_ended(["a", "b", "c"]) == (["a"], [])
    assert suspects.got_token("a") == ["b"]
    assert suspects.engine_ended(["a", "b", "new"]) == (["a", "new", "c"], ["b"])


def test_a_suspect_that_ends_meanwhile_is_passed_over():
    suspects = Suspects()
    suspects.engine_ended(["a", "b", "c"])
    suspects.engine_ended(["a", "b", "c"])
    assert suspects.got_token("b") == []  # aborted while it waited
    assert suspects.got_token("a") == ["c"]


def test_tokens_between_two_ends_absolve():
    suspects = Suspects()
    for _ in range(10):
        assert suspects.engine_ended(["a"]) == (["a"], [])
        suspects.got_token("a")


@pytest.mark.parametrize("seed", range(200))
def test_whoever_ends_every_engine_is_given_up_and_nobody_else(seed):
    rng = random.Random(seed)
    requests = [f"r{i}" for i in range(rng.randint(1, 8))]
    deadly = set(rng.sample(requests, rng.randint(0, min(2, len(requests)))))
    suspects, waiting, engine, guilty, ends = Suspects(), set(), list(requests), set(), 0
    done: set[str] = set()
    while set(requests) - done - guilty:
        if killers := [made for made in engine if made in deadly]:
            for made in engine:  # some of the others got a token in time
                if made not in killers and rng.random() < 0.3:
                    engine = [*engine, *suspects.got_token(made)]
            engine, given_up = suspects.engine_ended(engine)
            guilty |= set(given_up)
            waiting = set(requests) - done - guilty - set(engine)
            ends += 1
            assert ends <= GUILTY * len(deadly) + len(deadly)
            continue
        made = engine.pop(rng.randrange(len(engine)))
        done.add(made)
        followers = suspects.got_token(made)
        assert set(followers) <= waiting
        engine += followers
    assert guilty == deadly
