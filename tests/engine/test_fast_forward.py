"""Fast-forward: what a grammar forces comes to the answer at once, and is what would have been drawn.

Every answer is held against its request running alone, token by token (tests/engine/client.py)."""

import dataclasses

import pytest

from jaxinfer.engine import engine, fast_forward, scheduler
from jaxinfer.engine.sequence import Request, Structure
from jaxinfer.runtime.plan import Controls
from jaxinfer.testing.faults import Fault, Faults
from tests.engine.client import Client
from tests.engine.device import make_limits
from tests.engine.grammars import HashGrammar
from tests.engine.numbers import CURSED
from tests.engine.test_engine_law import Workload

END = 50
PENALTIES = Controls(frequency_penalty=1.0)


def held(**fields) -> list[Request]:
    """One request for each of some grammars."""
    request = Request("", tuple(range(9)), 40, temperature=1.0, structure=Structure("", frozenset({END})))
    made = [
        dataclasses.replace(request, id=str(i), seed=i, structure=Structure(f"{i}:{END}", frozenset({END})))
        for i in range(5)
    ]
    return [dataclasses.replace(one, **fields) for one in made]


def run(requests: list[Request], faults: Faults | None = None, text_stop: int | None = None, **changes) -> Client:
    client = Client(make_limits(**changes), faults)
    for request in requests:
        client.add(request, text_stop)
    client.finish()
    return client


def forwarded(client: Client) -> int:
    return sum(counters.forwarded_tokens for counters in client.counters)


@pytest.mark.usefixtures("forward_always")
@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        pytest.param({"temperature": 0.0}, {}, id="greedy"),
        pytest.param({}, {}, id="seeded"),
        pytest.param({"n": 3}, {}, id="several choices"),
        pytest.param({"controls": PENALTIES}, {}, id="penalties"),
        pytest.param({"controls": dataclasses.replace(PENALTIES, min_tokens=15)}, {}, id="min_tokens"),
        pytest.param({"eos_token_ids": frozenset({0, 40, 80})}, {}, id="other ends"),
        pytest.param({"text_lag": True}, {}, id="stop strings"),
        pytest.param({}, {"max_num_batched_tokens": 8}, id="in small chunks"),
        pytest.param({"controls": PENALTIES}, {"max_num_batched_tokens": 8}, id="penalties in small chunks"),
        pytest.param({}, {"num_pages": 36, "max_num_batched_tokens": 16}, id="preempted"),
        pytest.param({"session": True}, {"page_size": 2, "num_host_pages": 50}, id="small pages"),
        pytest.param({}, {"enable_prefix_caching": False}, id="without the cache"),
        pytest.param({"bulk": True}, {"max_num_seqs": 2}, id="two slots"),
    ],
)
def test_the_tokens_are_the_same_in_fewer_steps(fields, changes, run_ahead):
    without = run(held(**fields), run_ahead=run_ahead, enable_fast_forward=False, **changes)
    client = run(held(**fields), run_ahead=run_ahead, **changes)
    assert client.tokens() == without.tokens()
    assert forwarded(without) == 0 and forwarded(client) >= 5
    assert client.engine.stats().generated_tokens >= without.engine.stats().generated_tokens
    if not changes:
        assert client.engine.stats().steps < without.engine.stats().steps


def longest(request: Request) -> tuple[HashGrammar, int]:
    """A grammar that forces many tokens from its beginning, and how many."""
    found = [(len(HashGrammar(f"{seed}:{END}").forced()), seed) for seed in range(400)]
    count, seed = max(found)
    return dataclasses.replace(request, structure=Structure(f"{seed}:{END}", frozenset({END}))), count


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_forced_tokens_are_one_row_and_take_no_step_each(run_ahead):
    request, count = longest(held()[0])
    assert count > 4
    request = dataclasses.replace(request, max_tokens=count + 1)
    client = run([request], run_ahead=run_ahead)
    assert len(client.answers["0", 0].tokens) == count + 1
    # the prompt, whose row draws the first of them; then all of them, after which the last is drawn
    assert [(row.start, row.count) for plan in client.plans for row in plan.rows] == [(0, 9), (9, count)]
    assert (client.engine.stats().steps, forwarded(client)) == (2, count - 1)
    assert client.engine.stats().masked_tokens == client.engine.stats().generated_tokens == count + 1


@pytest.mark.parametrize(("beside", "is_worth_it"), [(0, True), (1, False)])
def test_many_rows_take_no_longer_step_for_a_few_draws(beside, is_worth_it):
    request, count = longest(held()[0])
    rows = max(n for n in range(1, 100) if fast_forward.least_saved(1 + n) <= count - 1) + beside
    client = Client(make_limits(max_num_seqs=rows + 1, num_pages=400))
    for i in range(rows):
        client.add(Request(f"free{i}", (i + 1, 2, 3), 60))
    for _ in range(4):
        client.step()
    client.add(dataclasses.replace(request, max_tokens=count + 1))
    client.step()
    client.grammars.release()
    client.finish()
    assert bool(forwarded(client)) == is_worth_it
    assert len(client.answers["0", 0].tokens) == count + 1


def steps_to_the_first(request: Request, client: Client) -> int:
    """How many steps it takes until tokens of the request's, alone, have been forwarded."""
    client.add(request)
    client.step()
    client.grammars.release()
    while not forwarded(client) and not client.answers["0", 0].reason:
        client.step()
    return client.engine.stats().steps


@pytest.mark.usefixtures("forward_always")
def test_forced_tokens_do_not_wait_for_a_senior_prompt():
    requests = [dataclasses.replace(one, id="0", max_tokens=30) for one in held()]
    limits = make_limits(max_num_batched_tokens=16, max_model_len=2048, num_pages=600)
    request, steps = next((r, n) for r in requests if 5 < (n := steps_to_the_first(r, Client(limits))) < 20)
    client = Client(limits)
    client.add(request)
    client.step()
    client.grammars.release()
    while client.engine.stats().steps < steps - 3:
        client.step()
    client.add(Request("long", tuple(i % 90 for i in range(1200)), 5, priority=-1))
    for _ in range(40):
        client.step()
    assert forwarded(client) and client.answers["0", 0].reason
    long = next(s for s in client.engine.scheduler.running if s.request.id == "long")
    assert 0 < long.dispatched < long.num_prompt


@pytest.mark.usefixtures("forward_always")
def test_the_limit_of_length_may_fall_among_forced_tokens():
    request, count = longest(held()[0])
    for most in range(1, count + 2):
        client = run([dataclasses.replace(request, max_tokens=most)])
        assert client.answers["0", 0].reason == "length"
        assert forwarded(client) == (min(most - 1, count) - 1 if most > 2 else 0)


def test_a_stop_token_may_fall_among_forced_tokens():
    request, count = longest(held()[0])
    tokens = HashGrammar(request.structure.text).forced()
    for i in range(count):
        client = run([dataclasses.replace(request, stop_token_ids=frozenset({tokens[i]}))])
        answer = client.answers["0", 0]
        assert (answer.reason, answer.tokens) == ("stop", tokens[: tokens.index(tokens[i]) + 1])


def test_a_stop_string_may_fall_among_forced_tokens():
    request, count = longest(held(text_lag=True)[0])
    tokens = HashGrammar(request.structure.text).forced()
    client = run([request], text_stop=tokens[3])
    assert client.answers["0", 0].tokens == tokens[: tokens.index(tokens[3]) + 1]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"logprobs": 1}, id="logprobs"),
        pytest.param({"controls": Controls(bad_words=((1, 2), (3, 4)))}, id="bad words"),
    ],
)
def test_where_each_token_needs_its_draw_none_is_forwarded(fields):
    assert forwarded(run(held(**fields))) == 0


@pytest.mark.usefixtures("forward_always")
@pytest.mark.parametrize("kind", ["run", "wait", "nan"])
def test_what_was_forced_but_not_committed_is_forced_again_after_a_failed_step(kind):
    for step in range(1, 24, 2):
        faults = Faults(Fault(kind, step))
        client = run(held(), faults)
        assert faults.struck and forwarded(client) > 0


def test_an_answer_may_be_aborted_between_a_forced_draw_and_its_commit():
    for num_steps in range(2, 12):
        client = Client(make_limits())
        client.begin(held(), num_steps)
        on_their_way = [s.request.id for s in client.engine.scheduler.running if s.forced]
        for request_id in on_their_way:
            client.abort(request_id)
        client.finish()
        assert all(client.answers[request_id, 0].reason == "abort" for request_id in on_their_way)


def test_steps_without_grammars_are_looked_at_by_nobody(monkeypatch):
    def look_ahead(step, masks):
        raise AssertionError("a step without a mask was looked at")

    monkeypatch.setattr(engine, "look_ahead", look_ahead)
    client = run([Request(str(i), (i, CURSED - 1), 20, temperature=1.0) for i in range(8)])
    assert all(answer.reason == "length" for answer in client.answers.values())


@pytest.mark.parametrize("seed", range(2))
def test_the_laws_hold_where_every_token_takes_a_step(seed):
    workload = Workload(seed, enable_fast_forward=False)
    workload.run(300)
    assert not any(counters.forwarded_tokens for counters in workload.client.counters)


def _forget_what_penalties_count(patch):
    look = engine.look_ahead

    def look_and_forget(step, *rest):
        sent = [s.cache.num_sent for s in step.sequences]
        look(step, *rest)
        for s, num_pages in zip(step.sequences, sent, strict=True):
            s.cache.num_sent = num_pages

    patch(engine, "look_ahead", look_and_forget)


def _forward_what_ends_an_answer(patch):
    patch(fast_forward, "_forced", lambda s: s.structured.grammar.forced()[: s.max_length - 1 - len(s.tokens)])


def _forget_all_but_the_first_forced_token(patch):
    def append_one(s, output):
        s.forced = []
        return 0

    patch(scheduler, "append_forced", append_one)


@pytest.mark.usefixtures("forward_always")
@pytest.mark.parametrize(
    "fault",
    [_forget_what_penalties_count, _forward_what_ends_an_answer, _forget_all_but_the_first_forced_token],
    ids=lambda fault: fault.__name__.strip("_"),
)
def test_the_laws_catch_a_planted_fault(fault, monkeypatch):
    fault(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        for seed in range(10):
            Workload(seed).run(300)
