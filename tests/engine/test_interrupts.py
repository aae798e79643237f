"""A Ctrl-C wherever the host is in its step: it is heard, what was asked for is whole, and nothing is lost."""

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from jaxinfer.cache.manager import CacheManager
from jaxinfer.cache.pool import PagePool
from jaxinfer.engine.interrupts import interrupts_held
from jaxinfer.engine.scheduler import Scheduler
from jaxinfer.engine.sequence import Request
from tests.engine.client import Client
from tests.engine.device import make_limits


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """As in a notebook; a test runner's worker may ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize(
    ("owner", "place"),
    [
        (CacheManager, "publish"),
        (Scheduler, "_add_row"),
        (Scheduler, "_preempt"),
        (Scheduler, "_admit_siblings"),
        (PagePool, "release"),
    ],
    ids=["commit", "plan", "preemption", "an end", "pages"],
)
def test_ctrl_c_during_the_hosts_work_costs_no_answer(owner, place, run_ahead, monkeypatch):
    client = Client(make_limits(run_ahead=run_ahead, num_pages=24))
    for i in range(8):
        client.add(Request(str(i), tuple(range(i, 16 + i)), 20))
    for _ in range(3):
        client.step()
    with monkeypatch.context() as patch:
        patch.setattr(owner, place, interrupted(getattr(owner, place)))
        with pytest.raises(KeyboardInterrupt):
            for _ in range(100):
                client.step()
    client.engine.check()
    client.finish()
    stats = client.engine.stats()
    assert (stats.failed_steps, stats.recoveries, stats.finished["length"]) == (0, 0, 8)
    assert stats.preemptions


def interrupted(work: Callable) -> Callable:
    """The same, but a Ctrl-C comes when it is first called."""
    pending = [signal.SIGINT]

    def do(*args):
        if pending:
            signal.raise_signal(pending.pop())
        return work(*args)

    return do


def test_who_listens_hears_it_once_and_afterwards():
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    with interrupts_held():
        signal.raise_signal(signal.SIGINT)
        assert not heard
    assert heard == [signal.SIGINT]
    signal.raise_signal(signal.SIGINT)
    assert len(heard) == 2


def test_a_second_one_is_heard_at_once():
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    with interrupts_held():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT]
    assert heard == [signal.SIGINT]


def test_what_is_ignored_stays_ignored_and_other_threads_hold_nothing():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_held():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = []

    def hold() -> None:
        with interrupts_held():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
