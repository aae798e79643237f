"""Which sampler a sequence's rows ask for: the least that can still change what is drawn."""

import pytest

from jaxinfer.engine.sequence import Request, sequences_of
from jaxinfer.runtime.plan import Controls, Sampler
from tests.engine.client import Client
from tests.engine.device import VOCAB, make_limits

ENDS = frozenset(range(0, VOCAB, 2))  # half of what is drawn ends an answer
IN_FLIGHT = 2  # rows that may be planned before the last token that is held back is known


def samplers(request: Request) -> tuple[list[Sampler], int]:
    """Of each row that draws, in order, and how many tokens came, which Client holds against an oracle's."""
    client = Client(make_limits())
    client.add(request)
    client.finish()
    found = [row.sampler for plan in client.plans for row in plan.rows if row.sample]
    return found, len(client.answers[request.id, 0].tokens)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_min_tokens_with_no_end_to_hold_back_is_no_control(temperature):
    bare, _ = samplers(Request("0", (5, 6, 7), 12, temperature=temperature))
    found, count = samplers(Request("0", (5, 6, 7), 12, temperature=temperature, controls=Controls(min_tokens=9)))
    assert found == bare and Sampler.FULL not in found and count == 12


@pytest.mark.parametrize("min_tokens", [1, 5, 9])
def test_rows_after_min_tokens_ask_for_what_they_ask_for_without_controls(min_tokens):
    controls, ends = Controls(min_tokens=min_tokens), frozenset({VOCAB - 1})
    found, _ = samplers(Request("0", (5, 6, 7), 20, temperature=0.7, eos_token_ids=ends, controls=controls))
    assert found[:min_tokens] == [Sampler.FULL] * min_tokens
    assert set(found[min_tokens + IN_FLIGHT :]) == {Sampler.PLAIN}


@pytest.mark.parametrize(("num_had", "sampler"), [(0, Sampler.FULL), (4, Sampler.FULL), (5, Sampler.LARGEST)])
def test_an_answer_that_goes_on_in_another_engine_counts_what_it_has_had(num_had, sampler):
    request = Request("0", (5, 6, 7), 20, eos_token_ids=ENDS, controls=Controls(min_tokens=5))
    (sequence,) = sequences_of(request, ((1,) * num_had,), 0, make_limits())
    assert sequence.sampler is sequence.sampling.sampler is sampler
    assert sequence.is_plain == (sampler is Sampler.LARGEST)


@pytest.mark.parametrize("min_tokens", [0, 1, 5, 9])
def test_an_end_is_held_back_for_just_as_long_as_min_tokens_says(min_tokens):
    prompt, controls = (5, 6, 7), Controls(min_tokens=min_tokens)
    found, count = samplers(Request("0", prompt, 40, temperature=0.7, eos_token_ids=ENDS, controls=controls))
    assert count >= max(1, min_tokens) and found.count(Sampler.FULL) <= min_tokens + IN_FLIGHT


def test_other_controls_go_on_when_min_tokens_has_been_reached():
    controls = Controls(frequency_penalty=1.0, min_tokens=3)
    found, _ = samplers(Request("0", (5, 6, 7), 12, eos_token_ids=ENDS, controls=controls))
    assert set(found) == {Sampler.FULL}
