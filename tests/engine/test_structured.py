"""Grammars in the engine, beside what the law of test_engine_law.py draws at random."""

import dataclasses

import pytest

from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Add, Request, Structure
from jaxinfer.errors import InvalidRequest
from jaxinfer.runtime.plan import Controls
from tests.engine.client import Client
from tests.engine.device import FakeRunner, make_limits
from tests.engine.grammars import HashGrammar

END = 50
HELD = Request("held", (1, 2, 3), 20, temperature=1.0, structure=Structure(f"3:{END}", frozenset({END})))


def test_a_request_waits_for_its_grammar_without_a_slot_while_others_run():
    client = Client(make_limits(max_num_seqs=1))
    client.add(HELD)
    client.add(Request("free", (4, 5), 6))
    for _ in range(20):
        client.step()
    stats = client.engine.stats()
    assert client.answers["free", 0].reason == "length"
    assert (stats.running, stats.waiting, stats.pages_owned) == (0, 1, 0)
    assert client.engine.awaits_grammar and not client.engine.has_work
    client.grammars.release()
    assert client.engine.has_work
    client.finish()
    assert not client.engine.awaits_grammar


def test_what_waits_for_its_grammar_can_be_aborted():
    client = Client(make_limits())
    client.add(dataclasses.replace(HELD, n=3))
    client.step()
    client.abort("held")
    client.step()
    assert {answer.reason for answer in client.answers.values()} == {"abort"}
    client.grammars.release()
    client.finish()


def test_a_grammar_is_compiled_once_for_all_choices_and_each_goes_its_own_way():
    client = Client(make_limits())
    client.add(dataclasses.replace(HELD, n=4))
    client.step()
    assert len(client.grammars.waiting) == 1
    client.finish()
    assert len({tuple(answer.tokens) for answer in client.answers.values()}) > 1


def test_a_request_with_nothing_left_to_draw_fails_alone():
    words = tuple((3, token) for token in sorted(HashGrammar(HELD.structure.text).allowed()))
    client = Client(make_limits())
    client.add(dataclasses.replace(HELD, controls=Controls(bad_words=words)))
    client.add(dataclasses.replace(HELD, id="other"))
    client.finish()
    failed = client.answers["held", 0]
    assert (failed.reason, failed.code, failed.tokens) == ("error", "no_token_left", [])
    assert client.answers["other", 0].tokens


@pytest.mark.parametrize("error", [InvalidRequest("it cannot be compiled"), OSError("the tokenizer is gone")], ids=str)
def test_a_grammar_that_cannot_be_compiled_fails_its_request_alone(error):
    client = Client(make_limits())
    client.add(HELD)
    client.add(Request("free", (4, 5), 6))
    client.step()
    ((_, future),) = client.grammars.waiting
    client.grammars.waiting.clear()
    future.set_exception(error)
    while client.engine.has_work:
        client.step()
    assert client.answers["held", 0].code == "invalid_grammar"
    assert client.answers["free", 0].reason == "length"


def test_an_engine_without_grammars_refuses_them():
    limits = make_limits()
    engine = Engine(FakeRunner(limits), limits)
    engine.inbox.put(Add(HELD))
    (output,) = engine.step()
    assert (output.finish_reason, output.code) == ("error", "no_grammars")


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_rows_without_a_grammar_are_not_masked(run_ahead):
    client = Client(make_limits(run_ahead=run_ahead))
    client.add(Request("free", (4, 5), 30, temperature=1.0))
    client.add(HELD)
    client.grammars.release()
    client.finish()
    free, held = client.answers["free", 0], client.answers["held", 0]
    assert held.tokens and free.reason == "length"
    masked = [sum(row.masked for row in plan.rows) for plan in client.plans]
    assert max(masked) == 1 and 0 in masked
