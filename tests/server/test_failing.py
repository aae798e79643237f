"""/health while the engine's last steps have all failed; the engine is a dry run's, in a process of its own."""

import time
from collections.abc import Iterator
from functools import partial

import httpx2
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.process import EngineProcess
from jaxinfer.server.app import create_app
from jaxinfer.testing.faults import Fault
from tests.server.fakes import FakeLLM
from tests.server.http import COMPLETIONS, ask, error_of, live, wait_until
from tests.support.faulty_child import Order, Orders, faultless

CHECKS = ("/health", "/healthz", "/ready", "/readyz", "/live", "/livez")
FAILING, WELL = [503, 503, 503, 503, 200, 200], [200] * 6


@pytest.fixture(scope="module")
def child() -> Iterator[tuple[str, ...]]:
    with faultless("dry run") as child:
        yield child


@pytest.fixture(scope="module")
def client(child) -> Iterator[httpx2.Client]:
    llm = AsyncLLM(EngineConfig(model="demo", max_num_seqs=4), new_transport=partial(EngineProcess, child=child))
    with (
        live(create_app(llm), llm.start, llm.close) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


@pytest.fixture
def orders(child) -> Iterator[Orders]:
    orders = Orders(child[-1])
    yield orders
    orders.close()


def generate(client: httpx2.Client) -> int:
    return client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 3, "ignore_eos": True}).status_code


def checked(client: httpx2.Client) -> list[int]:
    return [client.get(path).status_code for path in CHECKS]


def test_it_is_told_from_the_answer_on_that_failed_though_nobody_waits_and_ends_by_itself(client, orders):
    assert checked(client) == WELL
    orders.send(Order(add=Fault("run", times=2)))
    assert generate(client) == 500
    response = client.get("/health")
    assert (response.status_code, error_of(response)["code"]) == (503, "failing")
    assert checked(client) == FAILING
    wait_until(lambda: checked(client) == WELL, timeout_s=10)


def test_it_ends_with_the_answer_of_a_request_that_succeeds(client, orders):
    orders.send(Order(add=Fault("run", times=2)))
    assert generate(client) == 500
    assert checked(client) == FAILING
    assert generate(client) == 200
    assert checked(client) == WELL


def test_a_step_that_fails_once_is_none_of_it(client, orders):
    orders.send(Order(add=Fault("run", times=1)))
    assert generate(client) == 200
    assert checked(client) == WELL


@pytest.mark.slow
def test_it_lasts_as_long_as_no_step_succeeds(client, orders):
    """Nor does an engine that goes on failing without work look well, until another one has taken its place."""
    before = client.get("/metrics").text
    orders.send(Order(add=Fault("run", times=None)))
    assert generate(client) == 500
    until_s = time.monotonic() + 1.5
    while time.monotonic() < until_s:
        assert client.get("/health").status_code == 503
        time.sleep(0.05)
    wait_until(lambda: checked(client) == WELL, timeout_s=60)
    assert restarts(client.get("/metrics").text) == restarts(before) + 1
    assert generate(client) == 200


def restarts(page: str) -> int:
    return int(
        float(next(line.split()[-1] for line in page.splitlines() if line.startswith("jaxinfer:engine_restarts")))
    )


@pytest.mark.parametrize("status", ["starting", "failed", "draining", "serving"])
def test_what_else_is_wrong_is_told_first(status):
    response = ask(FakeLLM(status=status), "GET", "/health")
    assert response.status_code == (200 if status == "draining" else 503)
