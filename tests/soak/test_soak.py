"""One minute of the hour that `make soak` runs, and the verdict itself on runs that were not good (A50)."""

import asyncio
import math

import pytest

from jaxinfer.bench.http_client import Reply
from tests.soak.__main__ import soak
from tests.soak.crowd import Request, Tally, end_of, form_fault
from tests.soak.program import program
from tests.soak.sample import Sample
from tests.soak.verdict import Slice, laws_of, struck_law
from tests.support.processes import Footprint


@pytest.mark.slow
def test_a_minute_of_load_and_faults_change_nothing(tmp_path):
    with program(tmp_path / "log") as served:
        _, laws = asyncio.run(soak(served, 60.0))
    broken = [law.text for law in laws if not law.holds and law.name != "pace"]  # others work on this machine too
    assert not broken, (broken, (tmp_path / "log").read_text()[-3000:])


def run_of(*, unseen: bool = False, **changes: object) -> list[Slice]:
    """A run of 60 minutes that nothing can be said against, but for the last ten minutes' changes."""
    slices = []
    for minute in range(60):
        changed = changes if minute >= 50 else {}
        footprint = Footprint(1, changed.get("kib", 2**17), changed.get("files", 20), changed.get("threads", 9))
        engine = Footprint(2, changed.get("engine_kib", 2**19), 5, 10)
        samples = [
            Sample(
                60 * minute + 5 * i, footprint, None if unseen else engine, changed.get("labels_bytes", 4000), 0.03, 1.0
            )
            for i in range(12)
        ]
        tally = Tally()
        tally.ends[changed.get("end", "whole")] += 1
        tally.seconds.append(changed.get("seconds", 0.1))
        slices.append(Slice(samples, tally, changed.get("fault", "")))
    return slices


def broken(**changes: object) -> list[str]:
    return [law.name for law in laws_of(run_of(**changes)) if not law.holds]


@pytest.mark.parametrize(
    ("law", "changes"),
    [
        ("memory", {"kib": 2**17 + 20 * 2**10}),
        ("memory", {"engine_kib": 2**19 + 20 * 2**10}),
        ("files", {"files": 23}),
        ("threads", {"threads": 12}),
        ("metrics", {"labels_bytes": 4001}),
        ("pace", {"seconds": 0.106}),
        ("pace", {"seconds": math.nan}),
        ("ends", {"end": "HTTP 500 step_failed"}),
        ("ends", {"end": "error non_finite"}),
        ("ends", {"end": "broken: no usage"}),
    ],
)
def test_each_law_is_broken_by_what_it_forbids(law, changes):
    assert broken(**changes) == [law]


def test_engines_that_nobody_saw_are_not_called_good():
    assert [law.name for law in laws_of(run_of(unseen=True)) if not law.holds] == ["engines"]


def test_what_the_laws_allow_is_no_fault():
    assert broken(kib=2**17 + 19 * 2**10, files=22, threads=11, seconds=0.104) == []
    assert broken(end="error non_finite", fault="nan") == []


@pytest.mark.parametrize(
    ("restarts", "recoveries", "holds"), [(1, 2, True), (1, 1, True), (0, 2, False), (1, 0, False)]
)
def test_faults_that_did_not_come_are_missed(restarts, recoveries, holds):
    slices = [Slice([], Tally(), fault) for fault in ("kill", "run", "", "wait", "nan", "hang")]
    assert struck_law(slices, restarts, recoveries).holds == holds


FRAME = b'data: {"choices": [{"index": 0, "finish_reason": %s}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"total_tokens": 1}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        (FRAME % b"null" + FRAME % b'"stop"' + USAGE + DONE, "whole"),
        (b": ping\n\n" + FRAME % b'"stop"' + USAGE + DONE, "whole"),
        (b'data: {"error": {"code": "non_finite"}}\n\n' + DONE, "error non_finite"),
        (FRAME % b'"stop"' + USAGE, "broken: a stream ends"),
        (FRAME % b'"stop"' + DONE, "broken: no usage"),
        (FRAME % b"null" + USAGE + DONE, "broken: of 1 choices these ended: []"),
        (FRAME % b'"stop"' * 2 + USAGE + DONE, "broken: of 1 choices these ended: [0, 0]"),
    ],
)
def test_how_a_stream_ended_is_seen(sent, end):
    reply = Reply(status=200, reads=[(0.0, sent)])
    assert end_of(reply, Request("", {"stream": True})).startswith(end)


@pytest.mark.parametrize(
    ("fields", "message", "ends", "fault"),
    [
        ({"structured_outputs": {}}, {"content": "some words"}, "stop", ""),
        ({"structured_outputs": {}}, {"content": "Some words"}, "stop", "no match"),
        ({"structured_outputs": {}}, {"content": "Some words"}, "length", ""),
        ({"response_format": {}}, {"content": '{"name": "x", "is_old": true}'}, "stop", ""),
        ({"response_format": {}}, {"content": '{"name": "x"}'}, "stop", "not of its schema"),
        ({"tool_choice": "required"}, {"content": "no call"}, "stop", "no call"),
        ({}, {"tool_calls": [{"function": {"arguments": '{"name": "x", "is_old": false}'}}]}, "tool_calls", ""),
        ({}, {"tool_calls": [{"function": {"arguments": '{"name": 7}'}}]}, "tool_calls", "the arguments"),
    ],
)
def test_an_answer_that_is_not_of_its_form_is_broken(fields, message, ends, fault):
    event = {"choices": [{"index": 0, "message": message, "finish_reason": ends}]}
    assert fault in form_fault([event], fields) and bool(fault) == bool(form_fault([event], fields))
