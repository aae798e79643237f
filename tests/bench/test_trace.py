"""Sums over a trace's events."""

import pytest

from jaxinfer.bench.trace import EventSum, TraceEvent, busy_ns, device_events, plain_name, sums
from jaxinfer.errors import EngineError


def test_instances_of_a_kernel_are_one_row_the_longest_first():
    events = [TraceEvent("gemm.1", 0, 10), TraceEvent("copy", 10, 25), TraceEvent("gemm_12.3", 40, 30)]
    assert sums(events) == [EventSum("gemm", 2, 40), EventSum("copy", 1, 25)]


@pytest.mark.parametrize(("name", "plain"), [("a_fusion_3", "a_fusion"), ("f16", "f16"), ("x.1.2", "x"), (".1", ".1")])
def test_only_numbers_at_the_end_are_dropped(name, plain):
    assert plain_name(name) == plain


def test_what_overlaps_is_busy_once():
    events = [TraceEvent("a", 0, 10), TraceEvent("b", 5, 3), TraceEvent("c", 8, 4), TraceEvent("d", 20, 1)]
    assert busy_ns(events) == 13
    assert busy_ns([]) == 0


def test_a_folder_without_a_trace_is_an_error(tmp_path):
    with pytest.raises(EngineError, match="must write a trace"):
        device_events(str(tmp_path))
