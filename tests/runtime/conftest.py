"""Tiny runners for the whole room: their programs are compiled once."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.runner import DeviceRunner
from tests.support.tiny_runner import LIMITS, make_runner


@pytest.fixture(scope="session")
def warm_runner(executables: Path) -> Iterator[DeviceRunner]:
    runner = make_runner()
    runner.warm_up(lambda name, done, total, seconds, cached: None, ExecutableCache(executables))
    yield runner
    runner.close()


@pytest.fixture
def runner(warm_runner: DeviceRunner) -> DeviceRunner:
    """Warm, with every page and slot blank."""
    warm_runner.reset()
    return warm_runner


@pytest.fixture(scope="session")
def by_context(executables: Path) -> Iterator[DeviceRunner]:
    """Warm, with decode steps for rows of up to 32 and up to 64 tokens, as on a GPU where XLA attends."""
    runner = make_runner(limits=dataclasses.replace(LIMITS, decode_contexts=(32, 64)))
    runner.warm_up(lambda name, done, total, seconds, cached: None, ExecutableCache(executables))
    yield runner
    runner.close()
