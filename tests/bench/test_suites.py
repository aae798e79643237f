"""The suites over a small engine and a scripted server: both countings are what the times say, nothing comes from a
cache but what is meant to, and both sides of a toggle get the same requests.
"""

import dataclasses

import pytest

from jaxinfer.bench.arrivals import drive
from jaxinfer.bench.load import Ask
from jaxinfer.bench.program import Program, settings_of
from jaxinfer.bench.steps import StepLog, TimedEngine
from jaxinfer.bench.suites import mini_infer, paladin, served, toggles, vllm, zedinfer
from jaxinfer.bench.suites.job import Calls, Job
from jaxinfer.bench.suites.workloads import Workload, workloads
from jaxinfer.config import EngineConfig, config_from_sources
from jaxinfer.errors import EngineError
from tests.bench.conftest import LIMITS, rows_of
from tests.bench.test_serve import four_tokens, serving
from tests.server.fakes import FakeLLM


@pytest.fixture
def job(timed, work) -> Job:
    return Job(timed.config, work.vocab_size, work, LIMITS, lambda line: None, shrink=32, runs=2)


def test_a_rate_is_counted_as_its_authors_count_and_strictly():
    alone = Calls(1, 100, 11, first_s=(1.0, 3.0), whole_s=(3.0, 5.0), cached_tokens=0)
    assert zedinfer.counted(alone) == pytest.approx(11 / 2)
    assert alone.strict_rate == pytest.approx(10 / 2)
    together = dataclasses.replace(alone, batch=4)
    assert zedinfer.counted(together) == pytest.approx(4 * 11 / 4)
    assert together.strict_rate == pytest.approx(4 * 10 / 2)
    assert zedinfer.times(together, alone) == pytest.approx((2.0, 4.0))
    assert alone.spread == pytest.approx(0.5)


def test_shares_are_of_what_the_machine_was_measured_to_do(job):
    calls = Calls(2, 100, 11, first_s=(0.5,), whole_s=(2.5,), cached_tokens=0)
    assert calls.matmul_share(job) * 0.5 * LIMITS.flops == pytest.approx(job.work.prefill_flops(2, 100))
    assert calls.bandwidth_share(job) * 0.2 * LIMITS.bytes_per_s == pytest.approx(job.work.decode_bytes(2, 105.5))


def test_a_workload_takes_at_least_its_steps_and_its_sums_unless_arrivals_decide(job):
    one_by_one = Workload("x", (Ask(0.0, 10, 4), Ask(0.0, 20, 8)), concurrency=1)
    together = dataclasses.replace(one_by_one, concurrency=0)
    apart_s, together_s = paladin.roof_s(job, one_by_one), paladin.roof_s(job, together)
    assert apart_s - together_s == pytest.approx((12 - 8) * job.work.read_bytes / LIMITS.bytes_per_s)
    alone = Workload("x", (Ask(0.0, 10, 4),), concurrency=1)
    assert paladin.roof_s(job, alone) == pytest.approx(job.work.offline_s(LIMITS, 1, 10, 4, 1))
    assert paladin.roof_s(job, Workload("x", (Ask(0.0, 10, 4), Ask(0.1, 10, 4)))) is None


@pytest.mark.slow  # an engine is compiled for them
def test_zedinfer_s_tables_have_every_shape_and_leave_out_what_does_not_fit(job, timed):
    single, together, plans = zedinfer.measure(job, timed).tables
    assert list(rows_of(single)) == ["4", "8", "16", "32"]
    for length, row in rows_of(single).items():
        counted, strict = row["decode tok/s as ZedInfer counts"], row["decode tok/s strict"]
        assert counted / strict == pytest.approx(int(length) / (int(length) - 1))
        assert strict == pytest.approx(1e3 / row["step ms"])
        assert row["cached"] == 0
    rows = rows_of(together)
    assert rows["4 x 4"]["decode tok/s strict"] > rows["4 x 4"]["decode tok/s as ZedInfer counts"] > 0
    assert rows["16 x 4"]["step ms"] is None  # the engine has eight rows
    assert list(rows_of(plans)) == list(zedinfer.PLANS)


@pytest.mark.slow  # an engine is compiled for them
def test_generations_are_counted_twice_and_their_steps_told(job, timed):
    rows = rows_of(paladin.measure(job, timed))
    assert list(rows) == list(paladin.SHAPES)
    row = rows["medium, greedy"]
    assert row["decode tok/s as paladin counts"] / row["decode tok/s strict"] == pytest.approx(8 / 7)
    assert row["least ms"] <= row["p50 ms"] <= row["p99 ms"] <= row["most ms"]


def test_the_workloads_are_those_of_the_paper_and_the_same_each_time(job):
    full = dataclasses.replace(job, shrink=1)
    found = workloads(full)
    assert {name: len(one.asks) for name, one in found.items()} == {
        "baseline": 10,
        "continuous batching": 32,
        "paged attention": 48,
        "chunked prefill": 48,
        "prefix caching": 48,
    }
    assert found == workloads(full)
    asks = found["chunked prefill"].asks
    assert sum(ask.input_tokens >= 1024 for ask in asks) == 36
    assert asks[-1].after_s == pytest.approx(47 / 6, rel=0.5)
    assert [ask.after_s for ask in found["continuous batching"].asks[:3]] == [0.0, 0.25, 0.5]
    assert {ask.shared_tokens for ask in found["prefix caching"].asks} == {1024}
    cut = found["prefix caching"].within(300)
    assert cut.longest <= 300 and all(ask.shared_tokens < ask.input_tokens for ask in cut.asks)


@pytest.mark.slow  # an engine is compiled for them
def test_both_sides_of_every_toggle_answer_all_of_the_same_requests(job, timed):
    common = dataclasses.replace(timed.core.limits, enable_prefix_caching=False)
    for toggle in toggles.toggles(job, common):
        workload = workloads(job)[toggle.workload]
        for off, on in toggles.in_turns(job, timed, common, toggle, workload):
            assert [one.tokens for one in off] == [one.tokens for one in on] == [a.output_tokens for a in workload.asks]
            cached = sum(one.cached_tokens for one in on)
            assert cached == 0 if toggle.name != "prefix cache" else cached > 0, toggle.name
            assert sum(one.cached_tokens for one in off) == 0
        assert len(toggles.figures([(off, on)])) == len(toggles.COLUMNS) - 2
    assert timed.core.stats().compiles_after_ready == 0


@pytest.mark.slow  # an engine is compiled for them
def test_what_comes_later_waits_for_its_time(timed):
    engine = TimedEngine(timed.core.runner, timed.core.limits, StepLog())
    asks = (Ask(0.0, 3, 5), Ask(0.2, 2, 3))
    first, second = drive(engine, asks, [[1, 2, 3], [4, 5]])
    assert second.sent_s - first.sent_s == pytest.approx(0.2)
    assert (first.tokens, second.tokens) == (5, 3)
    assert second.times_s[0] >= second.sent_s
    assert not engine.has_work


@pytest.mark.slow  # an engine is compiled for them
def test_what_an_engine_refuses_ends_the_suite(timed):
    engine = TimedEngine(timed.core.runner, timed.core.limits, StepLog())
    with pytest.raises(EngineError, match="every request of a suite must be answered, one was not"):
        drive(engine, (Ask(0.0, 1, 10**6),), [[5] * 300])


def test_a_workload_is_sent_as_it_is_listed_and_its_answers_counted(job):
    llm = FakeLLM(four_tokens)
    few = dataclasses.replace(job, vocab_size=200, shrink=256)
    workload = workloads(few)["continuous batching"]
    with serving(llm) as url:
        row = paladin.row(few, Program(url, 0.0), workload, "x", ignore_eos=True)
    told = dict(zip(paladin.SERVED, row, strict=True))
    assert (told["requests"], told["tokens of an answer"], told["ended early"]) == (2, 4, 0)
    assert told["of the serial roof %"] is None  # its requests come one after another
    assert told["first token p50 ms"] < told["whole request p50 s"] * 1e3


@pytest.mark.slow
def test_a_server_is_measured_through_the_client_of_bench_serve(job):
    with serving(FakeLLM(four_tokens)) as url:
        program = Program(url, 0.0)
        few = dataclasses.replace(job, vocab_size=200, shrink=256, runs=1)
        workload = rows_of(paladin.serve(few, program, 10**6))
        assert len(workload) == 10
        assert workload["baseline, ignore_eos"]["tokens of an answer"] == 4
        assert workload["baseline, ignore_eos"]["of the serial roof %"] > 0
        assert workload["baseline, EOS ends"]["of the serial roof %"] is None
        clients = rows_of(mini_infer.clients(few, program))
        assert list(clients) == ["1", "2", "4", "8"] and all(row["of bandwidth %"] > 0 for row in clients.values())
        assert clients["1"]["times one client"] == 1
        assert clients["4"]["first token p50 ms"] < clients["4"]["its TTFT: whole answer p50 ms"]
        load = rows_of(vllm.serve(few, program, 10**6))
        assert all(row["E2EL mean ms"] >= row["TTFT mean ms"] for row in load.values())
        calm = served.load_on(program, few, requests=3, concurrency=3, input_tokens=4, output_tokens=40)
        gap, median, first, rate = mini_infer.run_of(calm, 0, {"interrupt_tokens": 9, "interrupt_after_s": 0.02})
        assert gap >= median > 0 and first > 0 and rate > 0


def test_a_config_goes_to_a_program_as_variables_and_comes_back():
    config = EngineConfig(model="m", enable_prefix_caching=False, max_num_seqs=3, served_model_name=("a", "b"))
    variables = settings_of(config)
    assert config_from_sources(env=variables).config == config
    assert settings_of(EngineConfig()) == {}
