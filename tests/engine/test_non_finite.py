"""A row that is not finite ends its request alone; what it wrote is zeroed before reuse and never found again (A43)."""

import pytest

from jaxinfer.engine.sequence import Request
from jaxinfer.testing.faults import Fault, Faults
from tests.engine.client import Client
from tests.engine.device import BAD, CURSED, VOCAB, alone, make_limits
from tests.engine.test_failed_steps import eight, prompt


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("row", range(8))
def test_a_row_that_is_not_finite_ends_its_request_and_no_other(row, run_ahead):
    client = Client(make_limits(max_num_batched_tokens=128, run_ahead=run_ahead), Faults(Fault("nan", 6, row=row)))
    eight(client)
    ends = []
    while client.engine.has_work:
        ends += [output for output in client.step() if output.finish_reason == "error"]
    client.finish()
    (end,) = ends
    assert (end.request_id, end.code) == (str(row), "non_finite")
    assert "hidden state must be finite" in end.error
    assert len(client.answers[str(row), 0].tokens) == 6
    stats = client.engine.stats()
    assert (stats.nonfinite_rows, stats.finished["length"], stats.recoveries) == (1, 7, 0)


def test_its_pages_are_zeroed_and_not_found_again():
    client = Client(make_limits(), Faults(Fault("nan", step=6)))
    client.add(Request("bad", prompt(2), 20))  # 10 tokens, so that step 6 computes position 15
    client.finish()
    published = client.answers["bad", 0].tokens
    assert len(client.runner.zeroed) == 2, "of positions 12 .. 15, and of the surplus row behind them"
    turn = prompt(2) + tuple(published) + prompt(30)
    client.add(Request("again", turn, 5))
    client.finish()
    assert client.answers["again", 0].cached_tokens == 12, "pages that were full before"


@pytest.mark.parametrize("how", ["abort", "stop string"])
def test_pages_of_a_request_that_ended_while_its_bad_row_was_in_flight_are_zeroed_before_reuse(how):
    """The pool holds one request, so that the next one gets the pages of the first."""
    bad = (*prompt(3), BAD)  # 12 tokens
    client = Client(make_limits(num_pages=5, max_model_len=16))
    client.add(Request("bad", bad, 4, text_lag=True))
    client.add(Request("next", prompt(4), 4))
    client.engine.step()
    scheduler = client.engine.scheduler
    pages = set(scheduler.running[0].cache.page_ids())
    if how == "abort":
        client.abort("bad")
    else:
        scheduler.end("bad", 0)
        client.answers["bad", 0].reason = "text"
    while client.engine.has_work:
        client.engine.step()
        client.engine.check()
        owned = {page for sequence in scheduler.running for page in sequence.cache.page_ids()}
        assert owned & pages <= set(client.runner.zeroed), "a page was reused before it was zeroed"
    assert set(client.runner.zeroed) == pages, "a page of an ended request was not zeroed"
    assert client.engine.stats().nonfinite_rows == 1
    assert not client.runner.spoilt


def test_the_surplus_row_of_an_end_by_eos_may_be_bad():
    """EOS is the token whose hidden state is not finite: the answer is good, the row behind it is not."""
    request = next(
        request for seed in range(1000) if alone(request := eos_request(seed), 0, make_limits())[1] == "stop"
    )
    client = Client(make_limits(num_pages=9, max_model_len=32))
    client.add(request)
    client.add(Request("next", prompt(9), 15))
    client.finish()
    assert client.answers["bad", 0].reason == "stop"
    assert client.answers["bad", 0].tokens[-1] == BAD
    assert len(client.runner.zeroed) == 1, "the page of the surplus row"


def eos_request(seed: int) -> Request:
    return Request("bad", prompt(1), 20, temperature=2.0, seed=seed, eos_token_ids=frozenset({BAD}))


def test_good_pages_of_an_ended_request_are_not_zeroed():
    client = Client(make_limits())
    client.add(Request("one", prompt(5), 20))
    for _ in range(4):
        client.step()
    client.abort("one")
    client.finish()
    assert client.runner.zeroed == []
    assert client.engine.stats().nonfinite_rows == 0


def test_what_the_neighbours_say_changes_no_token_though_all_free_pages_hold_nan():
    """A27 on the host's side: the fake device starts with NaN in every page, the null page too."""
    target = Request("target", prompt(7), 30, temperature=1.0, seed=5)
    expected = alone(target, 0, make_limits())[0]
    for trial in range(50):
        client = Client(make_limits(num_pages=60))
        assert client.runner.bad.all()
        for i in range(7):
            client.add(Request(str(i), tuple((trial * 13 + i * 31 + k) % CURSED for k in range(12)), 30, seed=trial))
        client.add(target)
        client.finish()
        assert client.answers["target", 0].tokens == expected


def test_an_answer_may_hold_the_bad_token_as_its_last():
    assert BAD == VOCAB - 1
    client = Client(make_limits())
    for seed in range(40):
        client.add(Request(str(seed), prompt(1), 60, temperature=2.0, seed=seed))
    client.finish()
    errors = [answer for answer in client.answers.values() if answer.code == "non_finite"]
    assert errors and all(answer.tokens[-1] == BAD for answer in errors)
