"""Regular expressions and schemas that strangers wrote, over HTTP: each is compiled or refused in time, in a process
that is not left over, and a stream beside it keeps its pace (A24, A25).

tests/text/grammar/test_trial.py has the trial itself.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from jaxinfer.text.grammar import trial
from jaxinfer.text.grammar.source import Constraint
from tests.server.crowd import ask_together
from tests.server.dry import PACE, PACED, Served, dry_server, gaps_of_a_stream, share_of_the_pace
from tests.server.http import COMPLETIONS, error_of
from tests.server.rest import canary, ends_at_rest
from tests.support.attempts import Stopwatch, assert_below
from tests.support.processes import family, footprint
from tests.text.grammar.test_trial import BAD, EITHER

LEAST = {"prompt": "x", "max_tokens": 1}
FIELDS = {"regex": "regex", "json_schema": "json", "grammar": "grammar"}
BAD_REGEXES = ("(a{1,300}){300}", "((a+)+)+$", "(?<=x)*", "ab|" * 33_000 + "c", "(" * 1000)
NUM_SCHEMAS = 5_000


def asking(constraint: Constraint) -> dict[str, Any]:
    """The body of a completion that is held to it."""
    strict = {"strict_schema": True} if constraint.strict else {}
    return LEAST | strict | {"structured_outputs": {FIELDS[constraint.kind]: constraint.value}}


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    """One that has tried a grammar, so that the process that tries them is there."""
    with dry_server(tmp_path_factory.mktemp("grammars") / "log", "demo", *PACED) as served:
        assert served.client.post(COMPLETIONS, json=LEAST | {"structured_outputs": {"regex": "a+"}}).status_code == 200
        yield served


def good(served: Served, number: int) -> None:
    """One that was not tried before, which starts the process again if it was killed."""
    form = {"structured_outputs": {"regex": f"again {number}"}}
    assert served.client.post(COMPLETIONS, json=LEAST | form).status_code == 200


@pytest.mark.parametrize("name", [*BAD, *EITHER])
def test_it_is_an_answer_or_a_400_in_time_and_no_process_is_left_over(served, name):
    with ends_at_rest(served.place, trial_may=True):
        watch = Stopwatch()
        response = served.client.post(COMPLETIONS, json=asking((BAD | EITHER)[name]))
        assert watch.seconds() < 3 * trial.TIMEOUT_S
        assert response.status_code == 400 or name in EITHER and response.status_code == 200
        if response.status_code == 400:
            assert error_of(response)["code"] in ("invalid_grammar", "invalid_value", "invalid_json")
        good(served, [*BAD, *EITHER].index(name))


@pytest.fixture
def control(tmp_path) -> Iterator[Served]:
    """A second server, which nobody asks for anything of the kind."""
    with dry_server(tmp_path / "log", "demo", *PACED) as control:
        yield control


@pytest.mark.slow
def test_thirty_two_expressions_at_once_hold_up_nobody(served, control):
    """A24"""
    number = count()

    def canary_s() -> float:
        begun_s = time.monotonic()
        canary(served.place)
        return time.monotonic() - begun_s

    def share() -> float:
        bodies = [LEAST | {"structured_outputs": {"regex": f"{next(number)}{bad}"}} for bad in BAD_REGEXES * 7][:32]
        streams = [pool.submit(gaps_of_a_stream, each.port) for each in (served, control)]
        answers, beside_s = pool.submit(ask_together, served.place.base, bodies, 32), [canary_s()]
        while not answers.done():
            beside_s.append(canary_s())
        assert {answer.status_code for answer in answers.result()} <= {200, 400, 429}
        assert 400 in {answer.status_code for answer in answers.result()}
        pace = share_of_the_pace(*(stream.result() for stream in streams))
        return max(pace, median(beside_s) / (2 * alone_s))

    with ends_at_rest(served.place, trial_may=True), ThreadPoolExecutor(3) as pool:
        alone_s = median(canary_s() for _ in range(5))
        assert_below(1, share, f"of twice what a canary takes alone, {PACE}")
        good(served, -1)


def schema(number: int) -> dict[str, Any]:
    """A small one; each fifth is none."""
    kind = "foo" if number % 5 == 4 else "integer"
    return {"type": "object", "properties": {f"name{number}": {"type": kind}}, "required": [f"name{number}"]}


def held(pid: int) -> tuple[int, int]:
    """KiB of memory of a process and those that it started, and what they have written to disks."""
    written = [Path(f"/proc/{each}/io").read_text().split("\nwrite_bytes: ")[1].split()[0] for each in family(pid)]
    return sum(footprint(each).kib for each in family(pid)), sum(map(int, written))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thousands_of_schemas_leave_nothing_behind_and_a_stream_keeps_its_pace(served, control):
    """A25: none of them twice, all small; the first so many fill what is kept."""
    bodies = [LEAST | {"structured_outputs": {"json": json.dumps(schema(number))}} for number in range(NUM_SCHEMAS)]

    def ask(some: list[dict[str, Any]]) -> list[int]:
        return [answer.status_code for answer in ask_together(served.place.base, some, 8)]

    def share() -> float:
        streams = pool.map(gaps_of_a_stream, (served.port, control.port))
        return share_of_the_pace(*streams)

    assert set(ask(bodies[: 2 * trial.MAX_KNOWN])) == {200, 400}
    with ends_at_rest(served.place), ThreadPoolExecutor(3) as pool:
        kib, written = held(served.pid)
        asked = pool.submit(ask, bodies[2 * trial.MAX_KNOWN :])
        assert_below(1, share, PACE)
        assert not asked.done(), "they were being asked meanwhile"
        statuses = asked.result()
        assert statuses == [400 if number % 5 == 4 else 200 for number in range(2 * trial.MAX_KNOWN, NUM_SCHEMAS)]
        now_kib, now_written = held(served.pid)
    assert now_kib - kib < 64 * 2**10 and now_written - written < 2**20
