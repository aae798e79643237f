"""Tests of kernels that this machine has no compiler for are left out, and the header of the report says so."""

import pytest

from jaxinfer_kernels import cpu
from tests.support.interpreted import interpret_quickly

collect_ignore_glob = ["*/test_cpu*.py"] if cpu.best() is None else []


@pytest.fixture(autouse=True)
def quick_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret_quickly(monkeypatch)


def pytest_report_header() -> str:
    isa = cpu.best()
    return f"kernels for CPUs: {'none, there is no compiler here' if isa is None else isa.name}"
