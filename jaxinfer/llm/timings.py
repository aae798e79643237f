"""What `include_metrics` is answered with: how long parts of one request took, under vLLM's names where it has one."""

from collections.abc import Sequence

from jaxinfer.llm.types import Timings
from jaxinfer.protocol.forms import Metrics


def metrics_of(choices: Sequence[Timings]) -> Metrics:
    """Of all choices that got a token; null where there was nothing to measure.

    Waiting is told of the choice whose token came first; in between tokens counts every choice.
    """
    spoken, first = [choice for choice in choices if choice.num_tokens], spoke_first(choices)
    names = ("prepare_time_ms", "queue_time_ms", "prefill_time_ms", "time_to_first_token_ms")
    if first is None:
        later = ("generation_time_ms", "mean_itl_ms", "total_time_ms", "tokens_per_second", "preemptions")
        return dict.fromkeys((*names, *later))
    last_s = max(choice.last_s for choice in spoken)
    num_tokens = sum(choice.num_tokens for choice in spoken)
    num_gaps = num_tokens - len(spoken)
    total_s = last_s - first.arrived_s
    waits = (first.accepted_s - first.arrived_s, first.queue_s, first.prefill_s, first.first_s - first.arrived_s)
    return {
        **{name: _ms(seconds) for name, seconds in zip(names, waits, strict=True)},
        "generation_time_ms": _ms(last_s - first.first_s),
        "mean_itl_ms": _ms(sum(choice.last_s - choice.first_s for choice in spoken) / num_gaps) if num_gaps else None,
        "total_time_ms": _ms(total_s),
        "tokens_per_second": round(num_tokens / total_s, 3) if total_s else None,
        "preemptions": sum(choice.preemptions for choice in spoken),
    }


def spoke_first(choices: Sequence[Timings]) -> Timings | None:
    """The choice whose token came first."""
    return min((choice for choice in choices if choice.num_tokens), key=lambda choice: choice.first_s, default=None)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
