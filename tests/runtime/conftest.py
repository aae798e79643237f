"""One tiny runner for the whole room: its seven programs are compiled once."""

from collections.abc import Iterator

import pytest

from jaxinfer.runtime.runner import DeviceRunner
from tests.support.tiny_runner import make_runner


@pytest.fixture(scope="session")
def warm_runner() -> Iterator[DeviceRunner]:
    runner = make_runner()
    runner.warm_up(lambda name, done, total, seconds, cached: None)
    yield runner
    runner.close()


@pytest.fixture
def runner(warm_runner: DeviceRunner) -> DeviceRunner:
    """Warm, with every page and slot blank."""
    warm_runner.reset()
    return warm_runner
