"""Whether the last steps have all failed: what health checks tell, and how an engine gets well that nobody asks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.engine import engine as engine_module
from jaxinfer.engine.engine import FAILING_FROM, MAX_FAILED_IN_A_ROW, PROBE, PROBE_AFTER_S, Engine
from jaxinfer.engine.sequence import Request
from jaxinfer.errors import EngineError
from jaxinfer.runtime.plan import Pending, Plan
from jaxinfer.testing.faults import Fault, Faults
from tests.engine.client import Client
from tests.engine.device import CURSED, make_limits


class Clock:
    """time, for the engine's module."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engine_module, "time", clock)
    return clock


def is_failing(engine: Engine) -> bool:
    assert engine.stats().is_failing == engine.is_failing
    return engine.is_failing


@settings(max_examples=25)
@given(st.sets(st.integers(0, 30), max_size=20), st.sampled_from(["run", "wait"]))
def test_it_is_failing_from_the_second_failure_in_a_row_until_a_step_succeeds(failing, kind):
    client = Client(make_limits(run_ahead=0), Faults(*(Fault(kind, step) for step in failing)))
    for i in range(3):
        client.add(Request(str(i), (i + 1, 2, 3), 8))
    in_a_row = 0
    while client.engine.has_work:
        before, num_failed = client.device.num_steps, client.engine.stats().failed_steps
        client.step()
        if client.device.num_steps == before:
            continue
        probed = client.device.num_steps - before == 2  # after MAX_FAILED_IN_A_ROW
        failed = client.engine.stats().failed_steps > num_failed
        in_a_row = in_a_row + 1 if failed and not probed else 0
        assert is_failing(client.engine) == (in_a_row >= FAILING_FROM)


def failed_alone(times: int | None = FAILING_FROM) -> Client:
    """An engine without work whose last steps failed, so many of them."""
    client = Client(make_limits(), Faults(Fault("run", times=times)))
    client.add(Request("one", (1, 2, CURSED), 8))
    while client.engine.has_work:
        client.step()
    assert client.answers["one", 0].code == "step_failed"
    return client


def watched(client: Client) -> list[Plan]:
    """What the device is given from now on."""
    ran: list[Plan] = []
    run = client.device.run

    def note(plan: Plan) -> Pending:
        ran.append(plan)
        return run(plan)

    client.device.run = note
    return ran


def test_it_stays_failing_without_work_and_tries_a_step_of_nobody_s_a_second_later(clock):
    client = failed_alone()
    ran, num_steps = watched(client), client.device.num_steps
    for _ in range(3):
        client.step()
        assert is_failing(client.engine) and client.device.num_steps == num_steps
    clock.now_s += PROBE_AFTER_S
    client.step()
    assert not is_failing(client.engine) and client.device.num_steps == num_steps + 1
    assert ran == [PROBE]
    clock.now_s += 10 * PROBE_AFTER_S
    client.step()
    assert client.device.num_steps == num_steps + 1, "a well one tries nothing"
    client.add(Request("two", (1, 2, 3), 8))
    client.finish()


def test_a_request_that_succeeds_ends_it_before_that(clock):
    client = failed_alone()
    client.add(Request("two", (1, 2, 3), 8))
    client.finish()
    assert not is_failing(client.engine)


def test_nothing_of_nobody_s_is_computed_while_somebody_waits(clock):
    client = failed_alone()
    ran = watched(client)
    clock.now_s += PROBE_AFTER_S
    client.add(Request("two", (1, 2, 3), 8))
    client.finish()
    assert ran and PROBE not in ran


def test_a_device_that_carries_out_nothing_is_found_out_without_work(clock):
    client = failed_alone(times=None)
    num_tried = 0
    with pytest.raises(EngineError, match="failed 5 in a row"):
        while num_tried < 10:
            clock.now_s += PROBE_AFTER_S
            client.engine.step()
            num_tried += 1
            assert is_failing(client.engine)
    assert num_tried == MAX_FAILED_IN_A_ROW - FAILING_FROM - 1


def test_a_request_at_fault_makes_it_failing_for_a_second_at_most(clock):
    client = Client(make_limits(), Faults(Fault("run", times=None, token=CURSED)))
    client.add(Request("bad", (1, 2, CURSED), 8))
    client.finish()
    assert is_failing(client.engine)
    clock.now_s += PROBE_AFTER_S
    client.step()
    assert not is_failing(client.engine)
