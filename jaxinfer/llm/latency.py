"""How long requests take: of each choice its times, of all that ended well histograms, which outlive any engine."""

import time
from collections.abc import Iterable

from jaxinfer.engine.histogram import Histogram
from jaxinfer.engine.sequence import Output, Times
from jaxinfer.llm.types import Delta, Timings

# as vLLM has them; and finer ones below, where those show nothing of us
FIRST_TOKEN: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
FIRST_TOKEN += (10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
BETWEEN: tuple[float, ...] = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
BETWEEN += (20.0, 40.0, 80.0)
WHOLE: tuple[float, ...] = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0)
WHOLE += (240.0, 480.0, 960.0, 1920.0, 7680.0)
FINE_BETWEEN = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, *BETWEEN)
FINE_WHOLE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, *WHOLE)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (0, 1, 2, 5, 10, 20)


def up_to(most: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `most`."""
    steps = (digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5))
    return tuple(step for step in steps if step <= most)


class Latency:
    """Histograms by name, each written by one thread. Of choices that were aborted or failed nothing is in them but the
    times of their tokens.
    """

    def __init__(self, max_model_len: int) -> None:
        lengths = up_to(max_model_len)
        self.histograms = {
            "time_to_first_token": Histogram(FIRST_TOKEN),
            "between_tokens": Histogram(FINE_BETWEEN),
            "per_output_token": Histogram(FINE_BETWEEN),
            **{name: Histogram(FINE_WHOLE) for name in ("whole", "prepare", "queue", "inference", "prefill", "decode")},
            **{name: Histogram(lengths) for name in ("prompt_tokens", "computed_prompt_tokens", "generation_tokens")},
            **{name: Histogram(lengths) for name in ("max_tokens", "longest_generation")},
            "n": Histogram(CHOICES),
            "preemptions": Histogram(PREEMPTIONS),
        }
        self._first = self.histograms["time_to_first_token"]
        self._between = self.histograms["between_tokens"]

    def saw(self, came: Iterable[tuple[Timings, Output, Delta]], now_s: float) -> None:
        """Note what a step put out and has come at `now_s`: of each output its choice's times and the delta it made."""
        latest: dict[float, int] = {}  # when choices had their latest token: most of them with the step before
        for timings, output, delta in came:
            if output.times is not None:
                _waited(timings, output.times)
            if output.token_ids:
                last_s, timings.last_s = timings.last_s, now_s
                if timings.num_tokens:
                    latest[last_s] = latest.get(last_s, 0) + 1
                else:
                    timings.first_s = now_s
                    self._first.add(now_s - timings.arrived_s)
                timings.num_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                if output.embedding is not None:
                    timings.last_s = now_s
                self._ended(timings, delta)
        for last_s, number in latest.items():
            self._between.add(now_s - last_s, number)

    def _ended(self, timings: Timings, delta: Delta) -> None:
        if delta.finish_reason not in ("stop", "length", "tool_calls"):
            return  # of the others only the times of their tokens are told
        decode_s = timings.last_s - timings.first_s if timings.num_tokens else 0.0
        values: dict[str, float] = {
            "whole": timings.last_s - timings.arrived_s,
            "prepare": timings.accepted_s - timings.arrived_s,
            "queue": timings.queue_s,
            "prefill": timings.prefill_s,
            "inference": timings.prefill_s + decode_s,
            "prompt_tokens": delta.prompt_tokens,
            "computed_prompt_tokens": delta.prompt_tokens - delta.cached_tokens,
            "preemptions": timings.preemptions,
        }
        if timings.num_tokens:  # an embedding has none
            values |= {
                "decode": decode_s,
                "generation_tokens": timings.num_tokens,
                "per_output_token": decode_s / max(1, timings.num_tokens - 1),  # 0 of a single token, as vLLM has it
            }
        for name, value in values.items():
            self.histograms[name].add(value)

    def all_ended(self, choices: list[Timings], max_tokens: int) -> None:
        """Note a request that has ended, however."""
        self.histograms["n"].add(len(choices))
        self.histograms["max_tokens"].add(max_tokens)
        self.histograms["longest_generation"].add(max(timings.num_tokens for timings in choices))


def _waited(timings: Timings, times: Times) -> None:
    if not timings.num_tokens:  # an engine that goes on where another ended has its own idea of these
        timings.queue_s, timings.prefill_s = times.queued_s, times.prefill_s
    timings.preemptions = max(timings.preemptions, times.preemptions)


def timings_of(num_choices: int, arrived_s: float | None) -> list[Timings]:
    """Of a request that is being accepted. arrived_s: by time.monotonic(); None is now."""
    now_s = time.monotonic()
    return [Timings(now_s if arrived_s is None else arrived_s, now_s) for _ in range(num_choices)]
