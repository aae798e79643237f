"""The stopwatch of tests that hold something to a time, on a machine whose pressure is made up."""

import pytest

from tests.support import attempts
from tests.support.attempts import Stopwatch, processor_s, slowness


class Machine:
    """Its clock, and for how long some process has waited for a processor."""

    now_s = 100.0
    waited_s = 7.0

    def passes(self, seconds: float, waited_s: float) -> None:
        self.now_s += seconds
        self.waited_s += waited_s

    def read_text(self) -> str:
        return f"some avg10=1.00 avg60=1.00 avg300=1.00 total={self.waited_s * 1e6:.0f}\nfull avg10=0.00 total=0\n"


@pytest.fixture
def machine(monkeypatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(attempts, "PRESSURE", found)
    monkeypatch.setattr(attempts.time, "monotonic", lambda: found.now_s)
    return found


def test_a_stopwatch_stands_while_a_process_waits_for_a_processor(machine):
    watch = Stopwatch()
    machine.passes(3, waited_s=0)
    assert watch.seconds() == 3
    machine.passes(2, waited_s=1.5)
    assert watch.seconds() == pytest.approx(3.5)


def test_however_busy_the_machine_is_a_quarter_of_the_time_counts(machine):
    watch = Stopwatch()
    machine.passes(40, waited_s=40)
    assert watch.seconds() == pytest.approx(10)


def test_where_linux_counts_no_pressure_all_seconds_count(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(attempts, "PRESSURE", tmp_path / "none")
    watch = Stopwatch()
    machine.passes(2, waited_s=1.5)
    assert watch.seconds() == 2


def test_seconds_of_a_processor_are_those_of_a_machine_as_fast_as_the_laws_were_made_for(monkeypatch):
    now_s, pace = [0.0], [1.0]

    def work(seconds: float) -> None:
        now_s[0] += seconds * pace[0]

    monkeypatch.setattr(attempts, "slowness", lambda: pace[0])
    monkeypatch.setattr(attempts.time, "thread_time", lambda: now_s[0])
    assert processor_s(lambda: work(3), attempts.time.thread_time) == 3
    pace[0] = 2.5
    assert processor_s(lambda: work(3), attempts.time.thread_time) == pytest.approx(3)


def test_no_machine_is_held_to_less_than_the_laws_say():
    assert slowness() >= 1
