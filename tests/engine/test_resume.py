"""A request that another engine began goes on as if it had never been interrupted."""

import pytest

from jaxinfer.engine.sequence import MAX_TEXT_LAG, Add, Request
from tests.engine.client import Client
from tests.engine.device import VOCAB, alone, make_limits
from tests.engine.test_engine import EXPECTED, requests, tokens


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("every", [1, 2, 3, 5, 11])
def test_answers_do_not_depend_on_engines_dying(every, run_ahead):
    client = Client(make_limits(run_ahead=run_ahead))
    for request in requests():
        client.add(request)
    for step in range(10_000):
        if not client.engine.has_work:
            break
        client.step()
        if step % (every + 2) == every + 1:  # an engine needs two steps to bring a token forth
            client.restart()
    client.finish()
    assert client.tokens() == EXPECTED
    assert len(client.counters) > 3


def test_outputs_of_a_resumed_request_hold_new_tokens_only():
    request = Request("one", tokens(9), 12, temperature=1.0, seed=3)
    answer = alone(request, 0, make_limits())[0]
    client = Client(make_limits())
    client.engine.inbox.put(Add(request, (tuple(answer[:5]),)))
    outputs = [output for _ in range(30) for output in client.engine.step()]
    assert [token for output in outputs for token in output.token_ids] == answer[5:]
    assert [output.finish_reason for output in outputs][-2:] == [None, "length"]


def test_choices_that_have_ended_are_not_computed_again():
    request = Request("one", tokens(9), 12, n=3, temperature=1.0, seed=3)
    answers = [alone(request, index, make_limits())[0] for index in range(3)]
    client = Client(make_limits())
    client.engine.inbox.put(Add(request, (None, tuple(answers[1][:5]), ())))
    outputs = [output for _ in range(40) for output in client.engine.step()]
    for index, expected in ((1, answers[1][5:]), (2, answers[2])):
        assert [t for output in outputs if output.index == index for t in output.token_ids] == expected
    assert {output.index for output in outputs} == {1, 2}
    assert client.engine.stats().finished["length"] == 2


def test_a_resumed_request_is_not_ahead_of_its_text():
    request = Request("one", tokens(9), 30, text_lag=True)
    answer = alone(request, 0, make_limits())[0]
    client = Client(make_limits())
    client.engine.inbox.put(Add(request, (tuple(answer[:5]),)))
    outputs = [output for _ in range(30) for output in client.engine.step()]
    drawn = [token for output in outputs for token in output.token_ids]
    assert drawn == answer[5 : 5 + MAX_TEXT_LAG], "so many tokens, then it waits"


def test_the_prompt_alone_counts_as_prompt():
    request = Request("one", tokens(9), 30)
    answer = alone(request, 0, make_limits())[0]
    client = Client(make_limits())
    for name in ("one", "two"):
        client.engine.inbox.put(Add(Request(name, tokens(9), 30), (tuple(answer[:20]),)))
        outputs = [output for _ in range(30) for output in client.engine.step()]
    assert outputs[-1].cached_tokens == 9, "29 tokens were found, 20 of them output"
    assert client.engine.stats().prompt_tokens == 18


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (((1,),), "one for each of the 2 choices, got 1"),
        ((None, None), "must leave a choice unfinished"),
        (((1, 2), (VOCAB,)), f"0 .. {VOCAB - 1}, output 1"),
        (((-1,), ()), "output 0"),
        (((), (1,) * 12), "output 1 has ended"),
        (((5, 1), ()), "output 0 has ended"),
    ],
)
def test_outputs_that_no_interrupted_request_can_have_are_refused(outputs, message):
    request = Request("one", tokens(9), 12, n=2, eos_token_ids=frozenset({5}))
    client = Client(make_limits())
    client.engine.inbox.put(Add(request, outputs))
    refusals = client.engine.step()
    assert {output.index for output in refusals} == {i for i in range(2) if i >= len(outputs) or outputs[i] is not None}
    assert all(output.finish_reason == "error" and message in output.error for output in refusals)
    assert not client.engine.has_work
