"""The mock's tokens are made up, but as a model's they depend on prompt and sampling alone."""

import random
import time
from array import array

import pytest

from jaxinfer.engine.engine import Engine
from jaxinfer.engine.mock import END_EVERY, MockRunner
from jaxinfer.engine.sequence import Add, Output, Request, Structure
from jaxinfer.runtime.plan import Controls
from jaxinfer.testing.faults import Fault, Faults, FaultyRunner
from tests.engine.device import VOCAB, make_limits
from tests.engine.grammars import HashGrammar, HashGrammars
from tests.support.attempts import assert_below

WORDS, EOS = range(10, 90), 3


def serve(*requests: Request, faults: Faults | None = None, **changes: object) -> dict[tuple[str, int], list[Output]]:
    """Each choice's outputs, every invariant checked after every step."""
    limits = make_limits(**changes)
    runner = MockRunner(limits, WORDS, [EOS])
    engine = Engine(runner if faults is None else FaultyRunner(runner, faults), limits)
    outputs: dict[tuple[str, int], list[Output]] = {}
    for request in requests:
        engine.inbox.put(Add(request))
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault((output.request_id, output.index), []).append(output)
        engine.check()
    return outputs


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def workload() -> list[Request]:
    draw = random.Random(5)
    shared = [draw.randrange(VOCAB) for _ in range(30)]
    return [
        Request(
            str(i),
            (*shared[: draw.choice([0, 9, 30])], *(draw.randrange(VOCAB) for _ in range(draw.randint(1, 30)))),
            20,
            temperature=float(i % 2),
            seed=i,
            n=1 + (i == 3),
            controls=Controls(min_tokens=5, bad_words=((11, 12), (13,))) if i % 5 == 2 else None,
        )
        for i in range(12)
    ]


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], list[int]]:
    return {key: tokens(found) for request in workload() for key, found in serve(request).items()}


WAYS = {
    "together": {},
    "in small chunks": {"max_num_batched_tokens": 9},
    "in a pool that is too small": {"num_pages": 24},
    "without the prefix cache": {"enable_prefix_caching": False},
    "read before the next step": {"run_ahead": 0},
}


@pytest.mark.parametrize("way", WAYS)
def test_answers_do_not_depend_on_how_they_were_scheduled(alone, way):
    assert {key: tokens(found) for key, found in serve(*workload(), **WAYS[way]).items()} == alone


def test_answers_do_not_depend_on_failed_steps(alone):
    faults = Faults(Fault("run", step=4), Fault("wait", step=11))
    assert {key: tokens(found) for key, found in serve(*workload(), faults=faults).items()} == alone


def test_prompt_seed_and_choice_all_matter(alone):
    assert len(set(map(tuple, alone.values()))) == 13


def test_answers_are_words_and_end_by_themselves_now_and_then():
    ends = frozenset({EOS})
    requests = [Request(str(i), (i, i), 100, eos_token_ids=ends) for i in range(80)]
    answers = list(serve(*requests).values())
    drawn = [token for answer in answers for token in tokens(answer)]
    stopped = [answer for answer in answers if answer[-1].finish_reason == "stop"]
    assert set(drawn) <= {*WORDS, EOS} and len(set(drawn)) > 70
    assert all(tokens(answer)[-1] == EOS for answer in stopped)
    assert 0.5 < len(stopped) / len(answers) < 0.95, f"one in {END_EVERY} tokens, 100 tokens at most"


def test_what_controls_forbid_is_not_said():
    controls = Controls(allowed_token_ids=(20, 21, 22, EOS), bad_words=((20,), (21, 21)), min_tokens=30)
    answer = tokens(serve(Request("0", (1,), 30, eos_token_ids=frozenset({EOS}), controls=controls))["0", 0])
    assert len(answer) == 30 and set(answer) == {21, 22}
    assert (21, 21) not in set(zip(answer, answer[1:], strict=False))


def test_a_request_whose_grammar_and_controls_leave_no_token_fails_alone():
    limits, grammars, structure = make_limits(), HashGrammars(), Structure("3:50", frozenset({50}))
    engine = Engine(MockRunner(limits, WORDS), limits, grammars)
    forbidden = Controls(allowed_token_ids=tuple(set(range(VOCAB)) - HashGrammar(structure.text).allowed()))
    engine.inbox.put(Add(Request("stuck", (1,), 5, structure=structure, controls=forbidden)))
    engine.inbox.put(Add(Request("other", (2,), 5, structure=structure)))
    engine.step()
    grammars.release()
    ends = {}
    while engine.has_work:
        ends |= {output.request_id: output.code for output in engine.step() if output.finish_reason}
        engine.check()
    assert ends == {"stuck": "no_token_left", "other": None}
    assert engine.stats().failed_steps == 0


def test_logprobs_come_where_they_are_asked_for():
    outputs = serve(Request("0", (5, 6, 7), 3, logprobs=2, prompt_logprobs=1))["0", 0]
    assert [one.token_id for one in outputs[0].prompt_logprobs] == [6, 7]
    for output in outputs:
        (one,) = output.logprobs
        ids, values = array("i", one.raw_ids), array("f", one.raw_logprobs)
        assert one.token_id == ids[0] == output.token_ids[0]
        assert len(ids) == 2 and values[0] > values[1]


def test_a_step_takes_its_time_and_steps_follow_each_other():
    limits = make_limits()
    engine = Engine(MockRunner(limits, WORDS, step_s=0.01), limits)

    def ten_steps_s() -> float:
        engine.inbox.put(Add(Request("0", (1,), 10)))
        began_s = time.monotonic()
        while engine.has_work:
            engine.step()
        assert time.monotonic() - began_s >= 0.1
        return time.monotonic() - began_s

    assert_below(0.5, ten_steps_s, "seconds of ten steps of 10 ms")
