"""Grammars that begin after a token or a text of the answer: nothing is masked before it, everything after it.

Every answer is held against its request running alone, token by token (tests/engine/client.py)."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from jaxinfer.engine.sequence import Request, Structure
from jaxinfer.engine.structured import NoGrammar, Structured, _fill
from jaxinfer.errors import InvalidRequest
from jaxinfer.runtime.plan import Controls
from jaxinfer.testing.faults import Fault, Faults
from tests.engine.client import Client
from tests.engine.device import alone, make_limits
from tests.engine.grammars import OPENINGS, begins
from tests.engine.numbers import VOCAB

END, OPENING = 50, 7


def asked(**fields) -> list[Request]:
    """Some of them come to the token that opens, others do not."""
    structure = Structure(f"3:{END}", frozenset({END}), after=fields.pop("after", OPENING))
    request = Request("", tuple(range(9)), 60, temperature=1.0, structure=structure)
    return [dataclasses.replace(request, **{"id": str(i), "seed": i, **fields}) for i in range(8)]


def run(requests: list[Request], faults: Faults | None = None, **changes) -> Client:
    client = Client(make_limits(**changes), faults)
    for request in requests:
        client.add(request)
    client.finish()
    return client


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        pytest.param({}, {}, id="alone"),
        pytest.param({"n": 2}, {}, id="several choices"),
        pytest.param({"eos_token_ids": frozenset({END})}, {}, id="ends"),
        pytest.param({"controls": Controls(frequency_penalty=1.0, min_tokens=30)}, {}, id="penalties and min_tokens"),
        pytest.param({"controls": Controls(bad_words=((1, 2),))}, {}, id="bad words"),
        pytest.param({"logprobs": 1}, {}, id="logprobs"),
        pytest.param({"text_lag": True}, {}, id="stop strings"),
        pytest.param({}, {"page_size": 1}, id="pages of one token"),
        pytest.param({}, {"max_num_batched_tokens": 8}, id="small steps"),
        pytest.param({}, {"num_pages": 40}, id="preempted"),
        pytest.param({}, {"enable_fast_forward": False}, id="without fast-forward"),
    ],
)
def test_a_grammar_begins_after_its_token(fields, changes, run_ahead):
    client = run(asked(**fields), run_ahead=run_ahead, **changes)
    begun = [begins(answer.request.structure, answer.tokens) is not None for answer in client.answers.values()]
    assert any(begun) and not all(begun)
    assert sum(counters.masked_tokens for counters in client.counters) > 10


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("after", OPENINGS, ids=["anywhere", "at the beginning"])
@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        pytest.param({}, {}, id="alone"),
        pytest.param({"n": 2, "text_lag": True}, {}, id="choices and stop strings"),
        pytest.param({"controls": Controls(bad_words=((1, 2),))}, {"page_size": 1}, id="bad words"),
        pytest.param({}, {"num_pages": 40}, id="preempted"),
    ],
)
def test_a_grammar_begins_after_its_text_however_that_is_cut(fields, changes, after, run_ahead):
    client = run(asked(**fields, after=after), run_ahead=run_ahead, **changes)
    begun = [begins(answer.request.structure, answer.tokens) for answer in client.answers.values()]
    assert any(begun) and not all(begun)
    assert {len(found[1]) for found in begun if found} == {1, 2}, "with and without more letters in its last token"
    assert sum(counters.masked_tokens for counters in client.counters) > 10


def test_an_answer_that_does_not_begin_with_its_text_is_not_looked_at_any_more():
    client = Client(make_limits())
    client.begin(asked(after=OPENINGS[1]), 20)
    sequences = client.engine.scheduler.running
    begun = [begins(s.request.structure, s.tokens[s.num_prompt :]) is not None for s in sequences]
    assert any(begun) and not all(begun)
    assert [(s.is_held, s.opens) for s in sequences] == [(is_begun, ()) for is_begun in begun]
    client.finish()


def test_before_that_token_no_step_waits_for_a_mask():
    requests = [dataclasses.replace(one, structure=dataclasses.replace(one.structure, after=96)) for one in asked()]
    client = run(requests)
    assert not any(plan.is_masked for plan in client.plans)
    assert all(answer.reason == "length" for answer in client.answers.values())


def test_a_token_among_thoughts_begins_nothing():
    thoughts = {"open_id": 1, "close_id": 2}
    requests = [
        dataclasses.replace(one, structure=dataclasses.replace(one.structure, **which))
        for which in (thoughts, {"close_id": 2})
        for one in asked()
    ]
    requests = [dataclasses.replace(one, id=str(i)) for i, one in enumerate(requests)]
    client = run(requests, max_num_seqs=16)
    thinking = [answer for answer in client.answers.values() if OPENING in answer.tokens and 2 not in answer.tokens]
    assert any(answer.request.structure.open_id is None for answer in thinking)


def test_thoughts_may_begin_after_a_line_end():
    """As far into an answer as where their length is counted from there."""
    structure = dataclasses.replace(asked()[0].structure, open_id=1, close_id=96)
    for seed in range(4000):
        request = dataclasses.replace(asked()[0], seed=seed, max_tokens=30, structure=structure)
        tokens, _ = alone(request, 0, make_limits())
        if 1 in tokens[1:4] and OPENING in tokens[4:] and 96 not in tokens and OPENING not in tokens[:4]:
            client = run([request])
            assert sum(counters.masked_tokens for counters in client.counters) == 0
            return
    raise AssertionError("no seed was found")


@pytest.mark.parametrize("kind", ["run", "wait", "nan"])
def test_a_failed_step_may_come_between(kind):
    for step in range(2, 40, 3):
        assert run(asked(), Faults(Fault(kind, step))).faults.struck


@pytest.mark.parametrize("after", [OPENING, *OPENINGS], ids=["token", "anywhere", "at the beginning"])
def test_an_engine_that_dies_is_resumed_on_both_sides_of_it(after):
    for num_steps in range(4, 50, 5):
        client = Client(make_limits())
        client.begin(asked(after=after), num_steps)
        client.restart()
        client.finish()


@pytest.mark.parametrize("error", [InvalidRequest("it cannot be compiled"), OSError("the tokenizer is gone")], ids=str)
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_one_that_cannot_be_compiled_leaves_the_answer_as_it_is_unless_it_is_strict(error, strict):
    never = dataclasses.replace(asked()[0].structure, after=96, strict=strict)  # not drawn by this answer
    client = Client(make_limits())
    client.add(dataclasses.replace(asked()[0], structure=never))
    client.step()
    ((_, future),) = client.grammars.waiting
    client.grammars.waiting.clear()
    future.set_exception(error)
    while client.engine.has_work:
        client.step()
    answer = client.answers["0", 0]
    assert (answer.reason, answer.code) == (("error", "invalid_grammar") if strict else ("length", None))


class AllowAll:
    def fill(self, grammars, masks):
        masks[:] = -1


@pytest.mark.parametrize(("after", "strict"), [(OPENING, False), (None, False), (OPENING, True)])
def test_a_grammar_that_breaks_fails_only_who_asked_for_it(after, strict, caplog):
    structure = Structure("3", frozenset({END}), after=after, strict=strict)
    request = dataclasses.replace(asked()[0], structure=structure)
    structured = Structured(NoGrammar("too many items"), request, VOCAB, 40)
    masks = np.zeros((1, -(-VOCAB // 32)), np.int32)
    reasons = _fill(AllowAll(), [((0, SimpleNamespace(tokens=[1, 2, 3]), structured), masks[0])])
    assert structured.is_free == (after is not None and not strict)
    if after is None or strict:
        assert "too many items" in reasons[0]
    else:
        assert reasons == {0: ""} and "too many items" in caplog.text
        assert np.bitwise_count(masks.view(np.uint32)).sum() >= VOCAB - 1  # but for an end that is to be ignored
        assert not structured.may_forward
