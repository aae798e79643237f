"""What jax.profiler wrote, as events and as sums by name."""

import contextlib
import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxinfer.errors import EngineError
from jaxinfer.runtime.trace import trace

_NUMBER = re.compile(r"([._]\d+)+$")
_AROUND_OTHERS = ("while", "conditional", "call")  # XLA's operations that only hold others


@dataclasses.dataclass(frozen=True, slots=True)
class TraceEvent:
    """One kernel, or one XLA operation on a CPU, in nanoseconds."""

    name: str
    start_ns: float
    duration_ns: float


@dataclasses.dataclass(frozen=True, slots=True)
class EventSum:
    """All events of one name."""

    name: str
    count: int
    total_ns: float


@contextlib.contextmanager
def trace_into(folder: str) -> Iterator[None]:
    """Trace the device, not Python's calls: those would slow the host down."""
    trace(folder)
    try:
        yield
    finally:
        trace(None)


def device_events(folder: str) -> list[TraceEvent]:
    """The kernels of every stream of a trace; on a CPU, XLA's operations. Raises EngineError when there is no trace."""
    traces = sorted(Path(folder).rglob("*.xplane.pb"))
    if not traces:
        raise EngineError(f"jax.profiler must write a trace, {folder} has none; look above for what it said")
    planes = list(jax.profiler.ProfileData.from_file(str(traces[-1])).planes)
    gpus = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    lines = [line for plane in gpus for line in plane.lines if "Stream" in line.name]
    if gpus:
        return [_event(event) for line in lines for event in line.events]
    events = (event for plane in planes for line in plane.lines for event in line.events)
    found = [_event(event) for event in events if any(name == "hlo_op" for name, _ in event.stats)]
    return [event for event in found if not event.name.startswith(_AROUND_OTHERS)]


def _event(event: Any) -> TraceEvent:
    return TraceEvent(event.name, event.start_ns, event.duration_ns)


def plain_name(name: str) -> str:
    """Without the numbers that tell instances of one kernel apart."""
    return _NUMBER.sub("", name) or name


def sums(events: Sequence[TraceEvent]) -> list[EventSum]:
    """By plain name, the longest first."""
    durations: dict[str, list[float]] = defaultdict(list)
    for event in events:
        durations[plain_name(event.name)].append(event.duration_ns)
    found = [EventSum(name, len(each), sum(each)) for name, each in durations.items()]
    return sorted(found, key=lambda one: -one.total_ns)


def busy_ns(events: Sequence[TraceEvent]) -> float:
    """For how long at least one event was under way."""
    total, end = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: event.start_ns):
        last = event.start_ns + event.duration_ns
        total += max(0.0, last - max(end, event.start_ns))
        end = max(end, last)
    return total
