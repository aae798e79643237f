"""Metric families for prometheus-client, made of plain values."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import Metric

from jaxinfer.llm.types import Histogram

Labels = dict[str, str]
Samples = Iterable[tuple[Labels, float]]


def gauge(name: str, text: str, samples: Samples) -> Metric:
    """What may rise and fall."""
    return _family(name, text, "gauge", name, samples)


def counter(name: str, text: str, samples: Samples) -> Metric:
    """What only rises; its samples end in _total."""
    return _family(name, text, "counter", f"{name}_total", samples)


def histogram(
    name: str, text: str, found: Iterable[tuple[Labels, Histogram]], bounds: Sequence[float] | None = None
) -> Metric:
    """bounds: those to show, of those that there are; all, if not given."""
    family = Metric(name, text, "histogram")
    for labels, values in found:
        *at_most, count = accumulate(values.counts)
        for bound, num_values in zip(values.bounds, at_most, strict=True):
            if bounds is None or bound in bounds:
                family.add_sample(f"{name}_bucket", {**labels, "le": str(float(bound))}, num_values)
        family.add_sample(f"{name}_bucket", {**labels, "le": "+Inf"}, count)
        family.add_sample(f"{name}_count", labels, count)
        family.add_sample(f"{name}_sum", labels, values.total)
    return family


def by_label(labels: Labels, name: str, values: Mapping[str, float]) -> Samples:
    """A sample for each value, under its key as the label `name`."""
    return [({**labels, name: key}, value) for key, value in values.items()]


def _family(name: str, text: str, kind: str, sample_name: str, samples: Samples) -> Metric:
    family = Metric(name, text, kind)
    for labels, value in samples:
        family.add_sample(sample_name, labels, value)
    return family
