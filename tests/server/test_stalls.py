"""A hung step is told by the health checks, and nothing else is taken for one (A44); the engine is a dry run's."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import httpx2
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.process import EngineProcess
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.testing.faults import Fault
from tests.server.dry import p99
from tests.server.fakes import FakeLLM
from tests.server.http import COMPLETIONS, ask, error_of, live
from tests.server.rest import Place, ends_at_rest
from tests.support.attempts import assert_below
from tests.support.faulty_child import Order, Orders, faultless

LIMIT_S, HANG_S = 0.8, 1.8
CHECKS = ("/health", "/ready", "/live", "/healthz", "/readyz", "/livez")


@pytest.fixture(scope="module")
def child() -> Iterator[tuple[str, ...]]:
    with faultless("dry run") as child:
        yield child


@pytest.fixture(scope="module")
def port(child) -> Iterator[int]:
    config = EngineConfig(model="demo", max_num_seqs=4, max_num_queued_seqs=60)
    llm = AsyncLLM(config, new_transport=partial(EngineProcess, child=child))
    with live(create_app(llm, ServerSettings(stall_timeout_s=LIMIT_S)), llm.start, llm.close) as port:
        yield port


def generate(port: int, max_tokens: int) -> int:
    body = {"prompt": "a", "max_tokens": max_tokens, "ignore_eos": True}
    return httpx2.post(f"http://127.0.0.1:{port}{COMPLETIONS}", json=body, timeout=60).status_code


def watch(port: int, is_done: Callable[[], bool]) -> list[tuple[float, int, float]]:
    """(when, status, seconds it took) of /health, again and again."""
    begun_s, seen = time.monotonic(), []
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        while not is_done():
            asked_s = time.monotonic()
            status = client.get("/health").status_code
            seen.append((asked_s - begun_s, status, time.monotonic() - asked_s))
            time.sleep(0.02)
    return seen


def test_a_hung_step_is_told_and_its_end_too(port, child):
    orders = Orders(child[-1])
    place = Place(f"http://127.0.0.1:{port}", os.getpid())

    def share_of_what_is_allowed() -> float:
        orders.send(Order(add=Fault("hang", seconds=HANG_S)))
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(generate, port, 20)
            seen = watch(port, answer.done)
            assert answer.result() == 200, "the request only waited"
        told = [(asked_s, asked_s + took_s) for asked_s, status, took_s in seen if status == 503]
        assert told[0][1] > LIMIT_S - 0.1, "told too early"
        ill = [asked_s for asked_s, _ in told]
        late_s = max(ill[0] - LIMIT_S, abs(ill[-1] - HANG_S))
        return max(late_s / 0.9, median(took_s for _, _, took_s in seen) / 0.05)

    with ends_at_rest(place):
        assert_below(1, share_of_what_is_allowed, "of 0.9 s between what is told and what was, of 50 ms a check")
    orders.close()
    assert [httpx2.get(f"http://127.0.0.1:{port}{path}").status_code for path in CHECKS] == [200] * 6


def test_an_idle_engine_is_well(port):
    begun_s = time.monotonic()
    assert {status for _, status, _ in watch(port, lambda: time.monotonic() > begun_s + 1.5 * LIMIT_S)} == {200}
    with ThreadPoolExecutor(1) as pool:  # what it did before the work came counts not
        answer = pool.submit(generate, port, 50)
        assert {status for _, status, _ in watch(port, answer.done)} == {200}


def test_a_full_queue_is_no_hang(port):
    ended_s = time.monotonic() + 1.5 * LIMIT_S  # long enough for a false alarm

    def keep_asking() -> set[int]:
        statuses = {generate(port, 20)}
        while time.monotonic() < ended_s:
            statuses.add(generate(port, 20))
        return statuses

    with ends_at_rest(Place(f"http://127.0.0.1:{port}", os.getpid())), ThreadPoolExecutor(64) as pool:
        askers = [pool.submit(keep_asking) for _ in range(64)]
        seen = watch(port, lambda: all(asker.done() for asker in askers))
    assert [asker.result() for asker in askers] == [{200}] * 64
    assert {status for _, status, _ in seen} == {200}


@pytest.mark.slow
def test_a_hang_is_told_with_the_limit_that_is_the_default_whatever_the_clock_says(child, monkeypatch):
    """A44 to its letter; the clock on the wall jumps by a day, back while it hangs and on while it is idle."""
    limit_s, clock = ServerSettings().stall_timeout_s, time.time
    llm = AsyncLLM(EngineConfig(model="demo"), new_transport=partial(EngineProcess, child=child))
    orders = Orders(child[-1])

    def share_of_what_is_allowed() -> float:
        orders.send(Order(add=Fault("hang", seconds=limit_s + 3)))
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(generate, port, 20)
            monkeypatch.setattr(time, "time", lambda: clock() - 86400)
            seen = watch(port, answer.done)
            assert answer.result() == 200, "the request only waited"
        first_s, told_s = next((when_s, when_s + took_s) for when_s, status, took_s in seen if status == 503)
        assert told_s > limit_s - 0.2, "told too early"
        assert {status for when_s, status, _ in seen if when_s > first_s and when_s < limit_s + 2} == {503}
        return max((first_s - limit_s) / 0.9, p99([took_s for _, _, took_s in seen]) / 0.05)

    with (
        live(create_app(llm), llm.start, llm.close) as port,
        ends_at_rest(Place(f"http://127.0.0.1:{port}", os.getpid())),
    ):
        assert_below(1, share_of_what_is_allowed, "of 0.9 s beyond the limit, of 50 ms a check at the 99th percentile")
        begun_s = time.monotonic()
        monkeypatch.setattr(time, "time", lambda: clock() + 86400)
        seen = watch(port, lambda: time.monotonic() > begun_s + 1.5 * limit_s)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(generate, port, 50)
            seen += watch(port, answer.done)
        assert {status for _, status, _ in seen} == {200} and llm.stats().restarts == 0
    orders.close()


@pytest.mark.parametrize("path", CHECKS)
def test_every_check_says_what_is_wrong_and_answers_go_on(path):
    llm = FakeLLM()
    llm.stalled_s = 12.34
    response = ask(llm, "GET", path)
    assert (response.status_code, error_of(response)["code"]) == (503, "stalled")
    assert "--stall-timeout-s" in error_of(response)["message"]
    assert response.headers["retry-after"]
    assert 'jaxinfer:stalled_seconds{model_name="tiny"} 12.34' in ask(llm, "GET", "/metrics").text
    llm.stalled_s = 9.9
    assert ask(llm, "GET", path).status_code == 200
