"""Tests of kernels that this machine has no compiler for are left out, and the header of the report says so."""

from jaxinfer_kernels import cpu

collect_ignore_glob = ["*/test_cpu*.py"] if cpu.best() is None else []


def pytest_report_header() -> str:
    isa = cpu.best()
    return f"kernels for CPUs: {'none, there is no compiler here' if isa is None else isa.name}"
