"""`include_metrics`: what an answer says of its own time, whole or streamed, and only when it is asked."""

import pytest

from jaxinfer.llm.timings import metrics_of
from jaxinfer.llm.types import Delta, Timings
from jaxinfer.protocol.answers import ANSWERS
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, USER, error_of, events, post

FIRST = Timings(10.0, 10.001, 10.5, 11.5, queue_s=0.1, prefill_s=0.3, num_tokens=11)
SECOND = Timings(10.0, 10.002, 10.75, 12.0, queue_s=0.2, prefill_s=0.4, num_tokens=6, preemptions=2)
METRICS = {
    "prepare_time_ms": 1.0,
    "queue_time_ms": 100.0,
    "prefill_time_ms": 300.0,
    "time_to_first_token_ms": 500.0,
    "generation_time_ms": 1500.0,
    "mean_itl_ms": 150.0,
    "total_time_ms": 2000.0,
    "tokens_per_second": 8.5,
    "preemptions": 2,
}


def timed(prompt_ids, params):
    yield Delta(0, "Hel", [1])
    yield Delta(0, "lo", [2, 257], "stop", timings=FIRST)
    if params.n == 2:
        yield Delta(1, "lo", [2, 257], "stop", timings=SECOND)


def test_the_times_of_several_choices_are_one_request_s():
    assert metrics_of([SECOND, FIRST]) == metrics_of([FIRST, SECOND]) == METRICS
    for name in ("ChatCompletion", "Completion"):
        assert ANSWERS[name]["properties"]["metrics"]["required"] == list(METRICS)
        assert "metrics" not in ANSWERS[name]["required"]


def test_what_was_not_measured_is_null():
    silent = Timings(10.0, 10.1)
    assert metrics_of([]) == metrics_of([silent]) == dict.fromkeys(METRICS)
    assert metrics_of([FIRST, silent]) == metrics_of([FIRST])
    one_token = metrics_of([Timings(10.0, 10.0, 10.5, 10.5, num_tokens=1)])
    assert (one_token["mean_itl_ms"], one_token["tokens_per_second"]) == (None, 2.0)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_answer_has_them_if_asked(path):
    body = {"messages": USER} if path == CHAT else {"prompt": "ab"}
    answer = post(FakeLLM(timed), path, {**body, "n": 2, "include_metrics": True}).json()
    assert answer["metrics"] == METRICS
    assert answer["usage"]["completion_tokens"] == 5
    for plain in (body, {**body, "include_metrics": False}):
        assert "metrics" not in post(FakeLLM(timed), path, plain).json()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_has_them_in_its_last_chunk_with_the_usage_if_that_is_wanted_too(path):
    body = {"messages": USER, "prompt": "ab", "n": 2, "stream": True, "include_metrics": True}
    body.pop("prompt" if path == CHAT else "messages")
    *chunks, last = events(post(FakeLLM(timed), path, body).text)
    assert (last["choices"], last["metrics"], "usage" in last) == ([], METRICS, False)
    assert all(chunk["choices"] and "metrics" not in chunk for chunk in chunks)
    both = events(post(FakeLLM(timed), path, {**body, "stream_options": {"include_usage": True}}).text)[-1]
    assert both["metrics"] == METRICS and both["usage"]["completion_tokens"] == 5


def test_anything_but_true_or_false_is_refused_by_name():
    response = post(FakeLLM(timed), CHAT, {"messages": USER, "include_metrics": "yes"})
    assert response.status_code == 400
    assert error_of(response)["param"] == "include_metrics"
