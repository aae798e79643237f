"""The cost of preemption, over a dry run: a place is taken and given back, and each way back is the one it is named."""

import dataclasses

import pytest

from jaxinfer.bench.steps import Timed
from jaxinfer.bench.suites import preemption
from jaxinfer.bench.suites.job import SuiteJob
from jaxinfer.bench.suites.preemption import AFTER, WAYS, PreemptionTrial
from jaxinfer.bench.work import ModelWork
from jaxinfer.cache.spec import PagedKV, layout_of
from jaxinfer.config import EngineConfig
from jaxinfer.llm.dry_run import start_dry_run
from jaxinfer.llm.events import ignore
from tests.bench.conftest import LIMITS, rows_of
from tests.support.checkpoints import write_checkpoint

WORK = ModelWork(
    10**6, 10**5, 10**4, layout_of([PagedKV(1, 250, 250, "bfloat16")], 1), attention_flops=100, vocab_size=200
)


@pytest.fixture(scope="module")
def dry(tmp_path_factory) -> Timed:
    folder = write_checkpoint(tmp_path_factory.mktemp("bench") / "outline")
    config = EngineConfig(model=str(folder), page_size=16, max_model_len=256)
    return Timed(config, start_dry_run(config, ignore, step_s=0.001))


@pytest.fixture
def job(dry) -> SuiteJob:
    return SuiteJob(dry.config, WORK.vocab_size, WORK, LIMITS, lambda line: None, shrink=4, runs=3)


def test_a_place_is_taken_and_what_was_there_comes_back_as_it_is_said_to(job, dry):
    rows = rows_of(preemption.table(job, dry))
    assert list(rows) == [f"{tokens}, {way.name}" for tokens in (9, 64, 128) for way in WAYS]
    for tokens in (64, 128):
        computed, found, loaded = (rows[f"{tokens}, {way.name}"] for way in WAYS)
        assert tokens <= computed["tokens computed again"] <= tokens + 2  # what it had when its place was taken
        assert 0 < found["tokens computed again"] <= 16 and 0 < loaded["tokens computed again"] <= 16
        assert (computed["pages from host memory"], found["pages from host memory"]) == (0, 0)
        assert loaded["pages from host memory"] == tokens // 16
        assert computed["of matmul %"] > 0 and found["of matmul %"] is loaded["of matmul %"] is None
        for row in (computed, found, loaded):
            assert row["of which a step p50 ms"] > 0.5  # the dry run's steps take a ms
            cost = row["goes on after p50 ms"] - row["of which a step p50 ms"]
            assert row["cost p50 ms"] == pytest.approx(cost)


def test_figures_are_medians_and_rates_of_the_whole_time(job):
    tries = [
        PreemptionTrial(0.004, 0.001, 65, 0),
        PreemptionTrial(0.010, 0.002, 64, 3),
        PreemptionTrial(0.005, 0.003, 66, 4),
    ]
    told = dict(zip(preemption.COLUMNS[1:], preemption.figures(job, WAYS[0], 64, tries), strict=True))
    assert told["goes on after p50 ms"] == pytest.approx(5) and told["cost p50 ms"] == pytest.approx(3)
    assert (told["tokens computed again"], told["pages from host memory"]) == (65, 3)
    even = preemption.figures(job, WAYS[0], 64, tries[:2])
    assert str(even[3]) == "64"  # a count, of an even number too
    assert told["MB/s as mini-infer counts"] == pytest.approx(64 * 1000 / 0.005 / 1e6)
    assert told["of matmul %"] == pytest.approx(100 * WORK.prefill_flops(1, 64) / 0.005 / LIMITS.flops)


def test_what_does_not_fit_or_has_no_host_memory_is_left_out(dry):
    computed, found, host = WAYS
    limits = dry.core.limits
    assert preemption.limits_for(computed, limits, limits.max_model_len - AFTER + 1) is None
    assert preemption.limits_for(host, dataclasses.replace(limits, num_host_pages=0), 64) is None
    assert preemption.limits_for(found, dataclasses.replace(limits, num_host_pages=0), 64) is not None
