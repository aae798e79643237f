"""A small engine for what measures engines: compiled once a session, with limits that were not measured."""

import pytest

from jaxinfer.bench.machine import MachineLimits
from jaxinfer.bench.steps import Timed
from jaxinfer.bench.work import ModelWork, work_of
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import build

LIMITS = MachineLimits("cpu", "cpu", copy_bytes_per_s=1e10, read_bytes_per_s=2e10, flops=1e11)


@pytest.fixture(scope="session")
def timed(tmp_path_factory, executables) -> Timed:
    folder = write_checkpoint(tmp_path_factory.mktemp("bench") / "tiny")
    return Timed(*build(folder, executables))


@pytest.fixture(scope="session")
def work(timed) -> ModelWork:
    return work_of(timed.config)


def rows_of(table) -> dict[object, dict[str, object]]:
    return {row[table.columns[0]]: row for row in table.as_dicts()}
