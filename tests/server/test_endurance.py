"""What takes minutes: a thousand streams under faults, two thousand that are left, full queues and full pools.

A40, A44, A45, A46; the engine is a dry run's, all around it is real.
"""

import contextlib
import itertools
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

import httpx2
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import start_dry_run
from jaxinfer.llm.process import EngineProcess
from jaxinfer.llm.thread import EngineThread
from jaxinfer.server.app import create_app
from jaxinfer.testing.faults import Fault
from tests.server.crowd import ask_together, body_of, check_stream, parts_of, stream_of
from tests.server.http import CHAT, COMPLETIONS, error_of, live, raw_request, wait_until
from tests.server.rest import Place, ends_at_rest
from tests.support.faulty_child import Order, Orders, faultless

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def child() -> Iterator[tuple[str, ...]]:
    with faultless("dry run") as child:
        yield child


@pytest.fixture(scope="module")
def faulty(child) -> AsyncLLM:
    config = EngineConfig(model="demo", max_num_seqs=16, max_num_queued_seqs=112)
    return AsyncLLM(config, new_transport=partial(EngineProcess, child=child))


@pytest.fixture(scope="module")
def faulty_base(faulty: AsyncLLM) -> Iterator[str]:
    with live(create_app(faulty), faulty.start, faulty.close) as port:
        yield f"http://127.0.0.1:{port}"


def rests(llm: AsyncLLM) -> None:
    """Within 2 s of the last answer nothing runs, nothing is owned and no page is missing."""
    wait_until(lambda: (llm.stats().running, llm.stats().waiting, llm.stats().pages_owned) == (0, 0, 0), timeout_s=2)
    assert llm.stats().pages_free + llm.stats().pages_cached == llm.stats().pages_total
    assert not llm._open and not llm._names


@contextlib.contextmanager
def ends_as_it_began(llm: AsyncLLM, base: str, *, engine_may_restart: bool = False) -> Iterator[None]:
    with ends_at_rest(Place(base, os.getpid()), engine_may_restart=engine_may_restart):
        yield
    rests(llm)


KINDS = ("run", "nan", "wait", "hang", "exhausted", "kill", "nan", "poison")


def strike_until(done: threading.Event, path: str, struck: Counter[str]) -> None:
    """A fault of each kind in turn, four a second while there is an engine."""
    orders, kinds = Orders(path), itertools.cycle(KINDS)
    kind = next(kinds)
    while not done.wait(0.25):
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):  # between two engines
            orders.send(Order(add=Fault(kind, seconds=0.3)))
            struck[kind] += 1
            kind = next(kinds)
    orders.close()


def leave_until(done: threading.Event, port: int) -> int:
    """Clients that leave streams of every kind in the middle, one after the other. Returns how many."""
    for number in itertools.count():
        if done.is_set():
            return number
        body = stream_of(number) | {"stream": True, "max_tokens": 200, "ignore_eos": True}
        connection = raw_request(port, CHAT if "messages" in body else COMPLETIONS, body)
        connection.recv(16)
        reset(connection)
        time.sleep(0.02)
    raise AssertionError("there is no last number")


def test_a_thousand_streams_under_faults_end_once_and_say_what_they_would_have_said(faulty, faulty_base, child):
    """A40: a thousand that begin to stream, of every kind, beside clients that leave and requests that are refused."""
    bodies = [stream_of(number) for number in range(1000)] + [body_of(number) for number in range(3, 400, 4)]
    ask_together(faulty_base, bodies[:60], at_once=1)  # so that every grammar is known: few new ones may wait at once
    wholes = ask_together(faulty_base, bodies, at_once=24)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    done, struck = threading.Event(), Counter[str]()
    with ends_as_it_began(faulty, faulty_base, engine_may_restart=True), ThreadPoolExecutor(2) as pool:
        leavers = pool.submit(leave_until, done, int(faulty_base.rpartition(":")[2]))
        faults = pool.submit(strike_until, done, child[-1], struck)
        try:
            streams = ask_together(faulty_base, [body | options for body in bodies], at_once=24)
        finally:
            done.set()
        faults.result()
        assert leavers.result() > 50
    assert Counter(answer.status_code for answer in streams[1000:]) == {400: 100}
    assert [answer.status_code for answer in wholes[:1000]] == [200] * 1000
    said = [name for answer in wholes[:1000] for choice in answer.json()["choices"] for name in parts_of(choice)]
    assert min(Counter(said)[name] for name in ("text", "thoughts", "call 0")) > 10, Counter(said)
    codes = Counter(map(check_stream, bodies, streams, wholes))
    assert set(codes) <= {"", "non_finite"} and codes["non_finite"] <= struck["nan"]
    assert set(struck) == set(KINDS) and codes["non_finite"] > 0, (struck, codes)
    assert faulty.stats().restarts > 0 and faulty.stats().recoveries > 0


def test_half_a_minute_of_a_full_queue_raises_no_alarm(faulty, faulty_base):
    """A44"""
    ended_s, seen, statuses = time.monotonic() + 30, list[tuple[int, float, int]](), Counter[int]()

    def keep_asking() -> None:
        with httpx2.Client(base_url=faulty_base, timeout=60) as client:
            while time.monotonic() < ended_s:
                body = {"prompt": "x", "max_tokens": 100, "ignore_eos": True}
                answer = client.post(COMPLETIONS, json=body)
                assert answer.status_code == 200 or error_of(answer)["code"] == "queue_full"
                statuses[answer.status_code] += 1
                time.sleep(0 if answer.status_code == 200 else 0.5)

    with (
        ends_as_it_began(faulty, faulty_base),
        ThreadPoolExecutor(160) as pool,
        httpx2.Client(base_url=faulty_base) as client,
    ):
        askers = [pool.submit(keep_asking) for _ in range(160)]
        while time.monotonic() < ended_s:
            begun_s = time.monotonic()
            status = client.get("/health").status_code
            seen.append((status, time.monotonic() - begun_s, faulty.stats().waiting))
            time.sleep(0.05)
        for asker in askers:
            asker.result()
    assert {status for status, _, _ in seen} == {200}
    assert median(took_s for _, took_s, _ in seen) < 0.05, "160 clients share the processors: no tails"
    assert median(waiting for _, _, waiting in seen) > 100, "of 112 places"
    assert min(statuses[200], statuses[429]) > 100, "it was so full that others were refused"


# ---- clients that leave ----

STEP_S = 0.1


@pytest.fixture(scope="module")
def slow() -> AsyncLLM:
    """An engine whose steps are slow enough to be counted; in this process, so that they can be."""
    config = EngineConfig(model="demo", max_num_seqs=32, max_num_batched_tokens=512, max_num_queued_seqs=64)
    return AsyncLLM(config, new_transport=partial(EngineThread, start_core=partial(start_dry_run, step_s=STEP_S)))


@pytest.fixture(scope="module")
def slow_port(slow: AsyncLLM) -> Iterator[int]:
    with live(create_app(slow), slow.start, slow.close) as port:
        yield port


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def what_it_costs_to_be_left(slow: AsyncLLM, slow_port: int) -> Iterator[tuple[int, int]]:
    """Tokens and steps that come after 50 requests were reset together, forty times."""
    draw = random.Random(45)
    for _ in range(40):
        connections = []
        for number in range(50):
            prompt = [draw.randrange(1500) for _ in range(draw.choice((3, 60, 1500)))]
            body = {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, "stream": number % 2 == 0}
            connections.append(raw_request(slow_port, COMPLETIONS, body))
        wait_until(lambda: slow.stats().running + slow.stats().waiting == 50)
        time.sleep(draw.uniform(0, 5 * STEP_S))
        for connection in connections:
            reset(connection)
        before = slow.stats()
        rests(slow)
        yield slow.stats().generated_tokens - before.generated_tokens, slow.stats().steps - before.steps


def test_two_thousand_requests_that_are_left_cost_two_steps_each_at_most(slow, slow_port):
    """A45: fifty at a time; half are not streamed, 18 wait in the queue, prompts of up to 1,500 tokens."""
    with ends_as_it_began(slow, f"http://127.0.0.1:{slow_port}"):
        costs, steps = zip(*what_it_costs_to_be_left(slow, slow_port), strict=True)
    assert len(costs) == 40 and max(steps) <= 2, steps
    assert max(costs) <= 2 * 32, f"{costs}: those in the queue cost nothing"


# ---- full queues and pools ----


@pytest.fixture(scope="module")
def small() -> AsyncLLM:
    """A pool of 4,096 tokens, in which 16 sequences of 1,000 cannot all be."""
    config = EngineConfig(
        model="demo", max_num_seqs=16, max_num_queued_seqs=48, max_num_batched_tokens=256, page_size=16, num_pages=257
    )
    return AsyncLLM(config, new_transport=partial(EngineThread, start_core=partial(start_dry_run, step_s=0.004)))


@pytest.fixture(scope="module")
def small_base(small: AsyncLLM) -> Iterator[str]:
    with live(create_app(small), small.start, small.close) as port:
        yield f"http://127.0.0.1:{port}"


def test_ten_times_what_the_queue_holds_is_refused_at_once_and_no_more_are_held_than_may(small, small_base):
    """A46"""
    body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}
    held, took_s = [], []
    with (
        ends_as_it_began(small, small_base),
        ThreadPoolExecutor(1) as pool,
        httpx2.Client(base_url=small_base, timeout=60) as client,
    ):
        burst = pool.submit(ask_together, small_base, [body] * 640, 640)
        wait_until(lambda: small._num_active == 64, timeout_s=20)
        while small._num_active == 64:  # the burst is over, what was accepted has not ended
            begun_s = time.monotonic()
            answer = client.post(COMPLETIONS, json=body)
            took_s.append(time.monotonic() - begun_s)
            held.append(small.stats().running + small.stats().waiting)
            if answer.status_code == 429:
                assert error_of(answer)["code"] == "queue_full" and int(answer.headers["retry-after"]) >= 1
        answers = burst.result()
    assert max(held) <= 64 and len(took_s) > 5
    assert median(took_s) < 0.05, "the burst's own client shares the processors: no tails"
    accepted = [answer for answer in answers if answer.status_code == 200]
    assert len(accepted) >= 64 and all(answer.json()["usage"]["completion_tokens"] == 400 for answer in accepted)
    assert {answer.status_code for answer in answers} == {200, 429}


def test_a_pool_full_of_growers_moves_on_every_second_for_half_a_minute(small, small_base):
    """A46: nobody waits for ever, though all ask for more than there is."""
    ended_s, longest_s = time.monotonic() + 30, []

    def keep_asking(number: int) -> None:
        with httpx2.Client(base_url=small_base, timeout=120) as client:
            for turn in itertools.count():
                if time.monotonic() > ended_s:
                    return
                body: dict[str, Any] = {"prompt": [number, turn % 1000, 7], "max_tokens": 1000, "ignore_eos": True}
                begun_s = time.monotonic()
                answer = client.post(COMPLETIONS, json=body)
                longest_s.append(time.monotonic() - begun_s)
                assert answer.json()["usage"]["completion_tokens"] == 1000

    tokens, free, before = [], [], small.stats().preemptions
    with ends_as_it_began(small, small_base), ThreadPoolExecutor(32) as pool:
        askers = [pool.submit(keep_asking, number) for number in range(32)]
        while time.monotonic() < ended_s:
            tokens.append(small.stats().generated_tokens)
            free.append(small.stats().pages_free + small.stats().pages_cached)
            time.sleep(1)
        for asker in askers:
            asker.result()
    assert all(later > earlier for earlier, later in itertools.pairwise(tokens[1:])), tokens
    assert median(free) < 26 and small.stats().preemptions > before + 10, "it was full"
    assert max(longest_s) < 10 * median(longest_s), "the oldest wait is bounded"
