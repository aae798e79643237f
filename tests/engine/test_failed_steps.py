"""Steps that fail cost no answer; requests that make them fail cost their own; a lost device ends the engine (A42)."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from jaxinfer import children
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.failures import is_sticky
from jaxinfer.engine.isolation import Isolation
from jaxinfer.engine.sequence import Add, Request, Sequence, sequences_of
from jaxinfer.errors import DeviceLost, EngineError
from jaxinfer.testing.faults import EXHAUSTED, POISONED, Fault, Faults, FaultyRunner, JaxRuntimeError
from tests.engine.client import Client
from tests.engine.device import CURSED, FakeRunner, make_limits

ROOT = Path(__file__).resolve().parents[2]
RAISING = ("run", "wait", "exhausted")


def prompt(i: int) -> tuple[int, ...]:
    """8 + i tokens, none of them CURSED; no two requests share a page."""
    return tuple((i * 31 + k * 7) % CURSED for k in range(8 + i))


def eight(client: Client, cursed: int | None = None) -> None:
    """Ask for 8 answers of 20 tokens, sampled in half of the cases; the prompt of one may hold CURSED."""
    for i in range(8):
        end = (CURSED,) if i == cursed else ()
        client.add(Request(str(i), prompt(i) + end, 20, temperature=float(i % 2), seed=i))


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize("kind", RAISING)
def test_a_step_that_fails_once_costs_no_answer(kind, step, run_ahead):
    client = Client(make_limits(run_ahead=run_ahead), Faults(Fault(kind, step)))
    eight(client)
    client.finish()
    stats = client.engine.stats()
    assert (stats.failed_steps, stats.recoveries) == (1, 1)
    assert all(len(answer.tokens) == 20 for answer in client.answers.values())


@pytest.mark.parametrize("kind", RAISING)
@pytest.mark.parametrize("cursed", range(8))
def test_a_request_that_always_fails_is_found_and_fails_alone(kind, cursed):
    client = Client(make_limits(), Faults(Fault(kind, times=None, token=CURSED)))
    eight(client, cursed)
    client.finish()
    codes = {answer.request.id: answer.code for answer in client.answers.values()}
    assert codes == {str(i): "step_failed" if i == cursed else None for i in range(8)}
    assert client.engine.stats().failed_steps <= 5, "together, in a half, in a quarter, twice alone"
    assert client.engine.stats().finished == {"stop": 0, "length": 7, "abort": 0, "error": 1}


def test_all_choices_of_the_request_at_fault_end_and_say_why():
    client = Client(make_limits(), Faults(Fault("run", times=None, token=CURSED)))
    client.add(Request("good", prompt(1), 10))
    client.add(Request("bad", (*prompt(2), CURSED), 10, n=3))
    ends = []
    while client.engine.has_work:
        ends += [output for output in client.step() if output.finish_reason == "error"]
    assert [(end.request_id, end.index, end.code) for end in ends] == [("bad", i, "step_failed") for i in range(3)]
    assert "two with this request alone failed" in ends[0].error
    client.finish()


def test_two_requests_at_fault_are_both_found():
    client = Client(make_limits(max_num_seqs=16), Faults(Fault("wait", times=None, token=CURSED)))
    for i in range(16):
        client.add(Request(str(i), prompt(i) + ((CURSED,) if i in (3, 12) else ()), 10))
    client.finish()
    assert [key[0] for key, answer in client.answers.items() if answer.code] == ["3", "12"]


def test_the_request_at_fault_is_found_among_many_in_few_steps():
    limits = make_limits(max_num_seqs=64, max_num_batched_tokens=2048, num_pages=2000)
    client = Client(limits, Faults(Fault("run", times=None, token=CURSED)))
    for i in range(64):
        client.add(Request(str(i), prompt(i) + ((CURSED,) if i == 41 else ()), 10))
    client.finish()
    assert client.engine.stats().failed_steps == 1 + 6 + 1, "all, six times a half, once more alone"


def test_a_sequence_that_becomes_unable_to_go_on_keeps_what_it_had():
    client = Client(make_limits(), Faults(Fault("wait", step=9, times=None)))
    client.add(Request("one", prompt(1), 20))
    while client.answers["one", 0].reason is None and client.device.num_steps < 40:
        client.step()
    assert client.answers["one", 0].code == "step_failed"
    assert len(client.answers["one", 0].tokens) == 9


def test_what_was_asked_for_meanwhile_is_served_afterwards():
    client = Client(make_limits(), Faults(Fault("run", 5), Fault("run", times=None, token=CURSED)))
    eight(client, cursed=2)
    for i in range(10):
        client.add(Request(f"later {i}", prompt(20 + i), 5))
        client.step()
    client.finish()
    assert client.engine.stats().finished["length"] == 7 + 10


def test_suspects_may_be_aborted_at_any_moment():
    for moment in range(16):
        client = Client(make_limits(), Faults(Fault("run", times=None, token=CURSED)))
        eight(client, cursed=5)
        for _ in range(moment):
            client.step()
        for name in "0456":
            client.abort(name)
        client.finish()
        assert all(client.answers[name, 0].reason == "length" for name in "1237")


def test_pages_of_the_lost_state_are_not_found_again():
    client = Client(make_limits(), Faults(Fault("run", 20)))
    client.add(Request("first", prompt(9), 8))
    client.finish()
    while client.device.num_steps < 20:
        client.add(Request(str(client.device.num_steps), prompt(30), 1))
        client.finish()
    client.add(Request("hit", prompt(9), 1))
    client.finish()
    client.add(Request("again", prompt(9), 1))
    client.finish()
    assert client.engine.stats().recoveries == 1
    assert client.answers["again", 0].cached_tokens == 16, "what was computed after the failure is"


@pytest.mark.parametrize("kind", RAISING)
def test_a_device_that_carries_out_nothing_ends_the_engine(kind):
    faults = Faults(Fault(kind, step=6, times=None))
    engine = Engine(FaultyRunner(FakeRunner(make_limits()), faults), make_limits())
    for i in range(8):
        engine.inbox.put(Add(Request(str(i), prompt(i), 20)))
    with pytest.raises(EngineError, match="failed 5 in a row") as death:
        for _ in range(40):
            engine.step()
    assert not isinstance(death.value, DeviceLost)
    assert death.value.__cause__ is not None
    assert engine.stats().failed_steps == 5
    assert len(faults.struck) == 6 + (kind == "wait"), "five steps (and one behind the first), one token to be sure"
    engine.check()


def test_five_failures_in_a_row_on_a_device_that_works_again_cost_no_answer():
    client = Client(make_limits(), Faults(Fault("run", step=6, times=5)))
    eight(client)
    client.finish()
    assert client.engine.stats().failed_steps == 5
    assert len(client.counters) == 1, "and no engine"


def test_a_client_that_repeats_a_request_at_fault_takes_nothing_down():
    client = Client(make_limits(), Faults(Fault("run", times=None, token=CURSED)))
    for i in range(6):
        client.add(Request(str(i), (*prompt(1), CURSED), 10))
        client.finish()
    assert client.engine.stats().failed_steps == 12
    assert len(client.counters) == 1


def test_a_lost_device_ends_the_engine_at_once_and_another_goes_on():
    faults = Faults(Fault("poison", step=6))
    runner = FaultyRunner(FakeRunner(make_limits()), faults)
    engine = Engine(runner, make_limits())
    engine.inbox.put(Add(Request("one", prompt(1), 20)))
    with pytest.raises(DeviceLost, match="this process has lost it"):
        for _ in range(40):
            engine.step()
    assert (engine.stats().failed_steps, engine.stats().recoveries) == (1, 0)
    client = Client(make_limits(), Faults(Fault("poison", step=6)))
    eight(client)
    client.finish()
    assert len(client.counters) == 2, "a second engine"


def test_a_state_that_cannot_be_built_anew_ends_the_engine(monkeypatch):
    client = Client(make_limits(), Faults(Fault("run", 3)))
    engine = client.engine
    eight(client)
    fail_with(monkeypatch, client.device, "reset", JaxRuntimeError(EXHAUSTED))
    with pytest.raises(EngineError, match="could not be given a new state"):
        for _ in range(10):
            engine.step()
    engine.check()


def fail_with(monkeypatch, owner: object, name: str, error: BaseException) -> None:
    def fail(*args):
        raise error

    monkeypatch.setattr(owner, name, fail)


def test_requests_can_still_be_aborted_when_the_engine_has_failed():
    faults = Faults(Fault("run", times=None))
    engine = Engine(FaultyRunner(FakeRunner(make_limits()), faults), make_limits())
    client = Client(make_limits())
    client.engine = engine
    eight(client)
    with pytest.raises(EngineError):
        for _ in range(10):
            engine.step()
    for i in range(8):
        client.abort(str(i))
    outputs = [output for _ in range(2) for output in engine.step()]
    assert sorted(output.request_id for output in outputs if output.finish_reason == "abort") == list("01234567")
    assert not engine.has_work


def test_a_bug_of_the_host_is_no_failed_step(monkeypatch):
    client = Client(make_limits())
    eight(client)
    client.step()
    fail_with(monkeypatch, client.engine.scheduler, "commit", KeyError("a bug"))
    with pytest.raises(KeyError, match="a bug"):
        client.step()


@pytest.mark.parametrize("call", ["run", "read"])
def test_ctrl_c_costs_no_answer(call, monkeypatch):
    client = Client(make_limits())
    eight(client)
    for _ in range(5):
        client.step()
    with monkeypatch.context() as patch:
        fail_with(patch, client.device, call, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            client.engine.step()
    client.engine.check()
    client.finish()
    stats = client.engine.stats()
    assert (stats.failed_steps, stats.recoveries, stats.finished["length"]) == (0, 1, 8)


def test_each_failed_step_is_logged_once_with_its_cause(caplog):
    client = Client(make_limits(), Faults(Fault("exhausted", 4)))
    eight(client)
    with caplog.at_level(logging.INFO, "jaxinfer"):
        client.finish()
    (record,) = caplog.records
    assert record.getMessage() == "step 5 failed (1 in a row)"
    assert "RESOURCE_EXHAUSTED" in str(record.exc_info[1])


def sequences(count: int) -> list[Sequence]:
    return [sequences_of(Request(str(i), (1,), 1), (), i, make_limits())[0] for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 32])
def test_isolation_never_tries_one_culprit_three_times_in_a_row(count):
    for culprit in sequences(count):
        everyone = [culprit if s.rank == culprit.rank else s for s in sequences(count)]
        isolation, in_a_row, most = Isolation(), 1, 1
        found = isolation.blame(dict.fromkeys(everyone, 1))
        while found is None and (trial := isolation.trial()):
            if culprit in trial:
                found = isolation.blame(dict.fromkeys(trial, 1))
                in_a_row += 1
            else:
                assert isolation.clear(dict.fromkeys(trial, 1)) == trial
                in_a_row = 0
            most = max(most, in_a_row)
        assert found == culprit.request.id
        assert most <= 2 + (count < 3), "two in a row, but for those with nobody to try in between"


def test_a_suspect_is_cleared_when_it_has_come_as_far_as_before():
    one, two = sequences(2)
    isolation = Isolation()
    isolation.blame({one: 5, two: 9})
    assert isolation.trial() == [one]
    assert isolation.clear({one: 4}) == []
    assert isolation.clear({one: 5}) == [one]
    assert isolation.trial() == [two]
    assert isolation.clear({two: 12}) == [two]
    assert isolation.trial() == []
    assert not isolation.active


@pytest.mark.parametrize(
    ("error", "sticky"),
    [
        (JaxRuntimeError(POISONED), True),
        (JaxRuntimeError("INTERNAL: CUDA error: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"), True),
        (JaxRuntimeError(EXHAUSTED), False),
        (JaxRuntimeError("INVALID_ARGUMENT: shapes differ"), False),
        (RuntimeError(POISONED), False),
    ],
    ids=["illegal address", "launch failure", "out of memory", "another of JAX's", "not JAX's"],
)
def test_only_some_of_jaxs_errors_say_that_the_device_is_lost(error, sticky):
    assert is_sticky(error) == sticky


def said_after(fault: str, platform: str) -> str:
    """What lost_device.py prints: as a module, since its folder has names that Python's own modules have."""
    environment = children.environment() | {"JAX_PLATFORMS": platform}
    script = [sys.executable, "-m", "tests.engine.lost_device", fault]
    done = subprocess.run(script, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("fault", ["illegal_address", "launch_failed", "misaligned_address"])
def test_jax_says_that_a_gpu_is_lost_as_the_table_has_it(fault):
    said = said_after(fault, "cuda")
    assert said.count("sticky=True") == 2, said


def test_jax_says_that_memory_was_exhausted_and_goes_on():
    said = said_after("exhausted", "cpu")
    assert said.count("sticky=False") == 2 and "after it 524800" in said, said


def test_the_plans_after_a_failure_hold_suspects_alone_and_are_not_run_ahead():
    client = Client(make_limits(), Faults(Fault("wait", 6)))
    eight(client)
    sizes: list[tuple[int, int]] = []
    while client.engine.has_work:
        client.step()
        if client.engine.scheduler.isolation.active:
            sizes.append((len(client.plans[-1].rows), client.engine.scheduler.in_flight))
    assert {in_flight for _, in_flight in sizes} == {0}
    assert max(rows for rows, _ in sizes[1:]) <= 4, "half of the eight"
