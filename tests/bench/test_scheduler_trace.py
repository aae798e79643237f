"""mini-infer's scheduler trace: its own requests, every policy answers all of them and the same, and what it counts."""

import pytest

from jaxinfer.bench.suites import scheduler_trace
from jaxinfer.bench.suites.scheduler_trace import (
    NORMAL,
    PAGES,
    POLICIES,
    PUBLISHED,
    Arrival,
    Followed,
    Policy,
    Seen,
    follow,
)
from tests.bench.conftest import rows_of


def test_the_trace_is_mini_infer_s_own():
    arrivals = scheduler_trace.trace()
    assert arrivals == scheduler_trace.trace() and len(arrivals) == 50
    uncounted = sum(one.output for one in arrivals) - 50  # it leaves each answer's first token out
    for answered, steps, rate, *_ in PUBLISHED.values():
        assert answered < 50 or steps * rate == pytest.approx(uncounted, abs=0.005 * steps)
    gaps = [late.step - early.step for early, late in zip(arrivals, arrivals[1:], strict=False)]
    assert set(gaps) == {0, 1, 2}


@pytest.fixture(scope="module")
def followed() -> dict[str, Followed]:
    arrivals = scheduler_trace.trace()
    return {policy.name: follow(arrivals, policy) for policy in POLICIES}


def test_every_policy_gives_every_request_all_of_the_same_tokens(followed):
    arrivals = scheduler_trace.trace()
    answers = [[one.tokens for one in found.seen] for found in followed.values()]
    assert [len(tokens) for tokens in answers[0]] == [one.output for one in arrivals]
    assert all(others == answers[0] for others in answers)
    assert followed["as they come"].preemptions  # so that the pool was too small for all of them
    assert max(found.most_pages for found in followed.values()) == PAGES
    for found in followed.values():
        assert all(1 <= first <= whole for first, whole in zip(found.first_steps(), found.whole_steps(), strict=True))


def test_policies_do_what_they_are_called(followed):
    rows = rows_of(scheduler_trace.table())
    assert (
        rows["contiguous, longest reserved"]["steps"] > rows["static batches"]["steps"] > rows["as they come"]["steps"]
    )
    assert rows["contiguous, longest reserved"]["preemptions"] == 0
    assert followed["at most 32 tokens a step"].largest_step == 32 < followed["as they come"].largest_step
    urgent = [rows[name]["of the urgent p95 steps"] for name in ("as they come", "by priority")]
    assert urgent[0] > 2 * urgent[1]
    assert rows["by priority, normal ones yield"]["of the urgent p95 steps"] < urgent[1]
    assert followed["no prefix cache"].computed_tokens > followed["as they come"].computed_tokens


def test_a_row_has_both_countings_and_those_that_were_published_stand_below(followed):
    rows = rows_of(scheduler_trace.table())
    row = rows["as they come"]
    assert row["tokens a step, all"] * row["steps"] == pytest.approx(663)
    assert row["tokens a step, as mini-infer counts"] * row["steps"] == pytest.approx(613)
    assert list(rows)[len(POLICIES) :] == [f"mini-infer's {name}" for name in PUBLISHED]
    assert rows["mini-infer's baseline"]["answered"] == 41
    assert rows["mini-infer's slo_aware"]["first token p95 steps"] == 17


def test_steps_are_counted_from_the_one_that_a_request_comes_before():
    """Alone, the first token comes in its first step and the last of three two steps later, whenever it comes."""
    found = follow([Arrival(0, 5, 3, NORMAL), Arrival(9, 5, 3, NORMAL)], Policy("x"))
    assert found.first_steps() == [1, 1] and found.whole_steps() == [3, 3]
    assert found.first_computed() == [5, 5] and found.largest_step == 5
    late = Seen((4, 70), first=(6, 95), ended=8)
    assert Followed([late], 9, 0, 0, 0, 0).first_computed() == [25]
