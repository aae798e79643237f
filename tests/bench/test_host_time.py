"""benchmarks/host_time.py stands in for a device: it has all that the engine asks of one."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def host_time(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import host_time

    return host_time


def test_steps_without_a_device_go_on_in_every_way_of_sampling(host_time):
    for way in host_time.WAYS.values():
        engine = host_time.Engine(host_time.NoDevice(host_time.LIMITS), host_time.LIMITS)
        host_time.start(engine, 2, way)
        outputs = [output for _ in range(3) for output in engine.step()]
        assert {output.request_id for output in outputs} == {"0", "1"}
        assert not [output.error for output in outputs if output.error]
