"""What is measured of a request: by hand-made outputs at chosen moments."""

from jaxinfer.engine.histogram import Histogram
from jaxinfer.engine.sequence import Output, Times
from jaxinfer.llm.latency import Latency, up_to
from jaxinfer.llm.types import Delta, Timings


def told(latency: Latency) -> dict[str, tuple[int, float]]:
    """(how many, their sum) of the histograms that have something."""
    return {name: (sum(h.counts), round(h.total, 6)) for name, h in latency.histograms.items() if any(h.counts)}


def see(latency: Latency, timings: Timings, now_s: float, times: Times | None = None, end: str | None = None) -> None:
    """One token at `now_s`."""
    delta = Delta(0, "x", [5], end, prompt_tokens=7, cached_tokens=4)
    latency.saw([(timings, Output("r", 0, [5], times=times), delta)], now_s)


def test_a_choice_that_ends_well_is_in_every_histogram():
    latency, timings = Latency(100), Timings(10.0, 10.5)
    see(latency, timings, 12.0, Times(0.25, 1.0, 0))
    see(latency, timings, 12.5)
    see(latency, timings, 14.0, end="stop")
    latency.all_ended([timings, Timings(10.0, 10.5)], max_tokens=50)
    assert told(latency) == {
        "time_to_first_token": (1, 2.0),
        "between_tokens": (2, 2.0),
        "per_output_token": (1, 1.0),
        "whole": (1, 4.0),
        "prepare": (1, 0.5),
        "queue": (1, 0.25),
        "prefill": (1, 1.0),
        "decode": (1, 2.0),
        "inference": (1, 3.0),
        "prompt_tokens": (1, 7.0),
        "computed_prompt_tokens": (1, 3.0),
        "generation_tokens": (1, 3.0),
        "preemptions": (1, 0.0),
        "n": (1, 2.0),
        "max_tokens": (1, 50.0),
        "longest_generation": (1, 3.0),
    }


def test_each_choice_of_a_step_counts_from_its_own_last_token():
    latency, choices = Latency(100), [Timings(0.0, 0.0) for _ in range(3)]
    for now_s, indices in ((1.0, (0, 1)), (2.0, (0, 1, 2)), (5.0, (0, 2)), (6.0, (0, 1, 2))):
        latency.saw([(choices[i], Output("r", i, [5]), Delta(i, "x", [5])) for i in indices], now_s)
    assert told(latency) == {"time_to_first_token": (3, 4.0), "between_tokens": (7, 2 * 1.0 + 2 * 3.0 + 2 * 1.0 + 4.0)}


def test_another_engine_s_idea_of_the_wait_is_not_taken_and_preemptions_are():
    latency, timings = Latency(100), Timings(0.0, 0.0)
    see(latency, timings, 1.0, Times(0.1, 0.2, 0))
    see(latency, timings, 2.0, Times(0.1, 0.2, 3))
    see(latency, timings, 9.0, Times(5.0, 1.0, 0), end="length")
    assert (timings.queue_s, timings.prefill_s, timings.preemptions) == (0.1, 0.2, 3)
    assert told(latency)["between_tokens"] == (2, 8.0), "the silence while the engine was replaced is one"


def test_of_a_choice_that_is_aborted_only_its_tokens_are_seen():
    latency, timings = Latency(100), Timings(0.0, 0.0)
    see(latency, timings, 1.0, Times(0.1, 0.2, 0))
    latency.saw([(timings, Output("r", 0, [], "abort"), Delta(0, "", [], "abort"))], 2.0)
    assert told(latency).keys() == {"time_to_first_token"}


def test_a_token_is_in_the_first_bucket_whose_bound_it_does_not_exceed():
    found = Histogram((1, 2, 5))
    for value in (0, 1, 1.5, 2, 5, 6):
        found.add(value)
    assert (found.counts, found.total) == ([2, 2, 1, 1], 15.5)
    both = found.plus(Histogram((1, 2, 5), [1, 0, 0, 0], 0.5))
    assert (both.counts, both.total, found.counts) == ([3, 2, 1, 1], 16.0, [2, 2, 1, 1])


def test_lengths_go_up_to_the_longest():
    assert up_to(1) == (1,)
    assert up_to(100) == (1, 2, 5, 10, 20, 50, 100)
    assert up_to(4096)[-2:] == (1000, 2000)
