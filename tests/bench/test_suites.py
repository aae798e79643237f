"""The suites over a small engine and a scripted server: both countings are what the times say, nothing comes from a
cache but what is meant to, and both sides of a toggle get the same requests.
"""

import dataclasses
import math

import pytest

from jaxinfer.bench.arrivals import drive
from jaxinfer.bench.http_client import Outcome
from jaxinfer.bench.load import Ask
from jaxinfer.bench.outcomes import duration_s, most_at_once, most_in_a_second
from jaxinfer.bench.padding import Padding
from jaxinfer.bench.program import ReadyServer, settings_of
from jaxinfer.bench.steps import COMPILING, StepLog, TimedEngine
from jaxinfer.bench.suites import mini_infer, paladin, served, toggles, vllm, zedinfer
from jaxinfer.bench.suites.job import Calls, SuiteJob
from jaxinfer.bench.suites.workloads import Workload, workloads
from jaxinfer.config import EngineConfig, config_from_sources
from jaxinfer.errors import EngineError
from jaxinfer.runtime.buckets import Decode
from tests.bench.conftest import LIMITS, rows_of
from tests.bench.test_serve import four_tokens, serving
from tests.server.fakes import FakeLLM


@pytest.fixture
def job(timed, work) -> SuiteJob:
    return SuiteJob(timed.config, work.vocab_size, work, LIMITS, lambda line: None, shrink=32, runs=2)


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
    assert list(rows) == [f"{batch} x {length}" for batch in (4, 8, 16, 32) for length in (4, 8, 16, 32)]
    assert rows["8 x 32"]["decode tok/s strict"] > 0
    assert rows["4 x 4"]["decode tok/s strict"] > rows["4 x 4"]["decode tok/s as ZedInfer counts"] > 0
    assert rows["16 x 4"]["step ms"] is None  # the engine has eight rows
    assert list(rows_of(plans)) == list(zedinfer.PLANS)


@pytest.mark.slow  # an engine is compiled for them
def test_a_batch_of_prompts_finds_its_common_beginning_and_says_what_that_is_of_a_miss(job, timed):
    few = dataclasses.replace(job, shrink=8)  # 32 tokens are two pages
    miss, hit = mini_infer.prefix_together(few, timed).as_dicts()
    assert (miss["prefix"], hit["prefix"]) == ("4 x 32 tokens, miss", "4 x 32 tokens, hit")
    assert (miss["cached tokens"], hit["cached tokens"]) == (0, 32)
    assert miss["of matmul %"] > 0 and hit["of matmul %"] is None
    for row in (miss, hit):
        first, whole = (row[name] / miss[name] for name in (mini_infer.PREFIX[1], mini_infer.PREFIX[3]))
        assert (row["first token, times the miss's"], row[mini_infer.PREFIX[-1]]) == pytest.approx((first, whole))


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
    found = workloads(job) | {"structured": toggles.structured(job).within(common.max_model_len)}
    for toggle in toggles.toggles(job, common):
        workload = found[toggle.workload]
        asked = [ask.output_tokens for ask in workload.asks]
        for left, right in toggles.in_turns(job, timed, common, toggle, workload):
            off, on = left.outcomes, right.outcomes
            told = [one.tokens for one in off]
            assert told == [one.tokens for one in on]
            assert told == asked if not workload.schema else max(told) <= max(asked)
            pieces = [[len(one.times_s) < one.tokens for one in side] for side in (off, on)]
            assert not any(pieces[0]) and any(pieces[1]) == (toggle.name == "fast-forward")
            cached = sum(one.cached_tokens for one in on)
            assert cached == 0 if toggle.name != "prefix cache" else cached > 0, toggle.name
            assert sum(one.cached_tokens for one in off) == 0
        least = toggles.least_s(job, toggle, workload)
        row = dict(zip(toggles.COLUMNS[2:], toggles.figures([(left, right)], *least), strict=True))
        assert (row["off padding %"], row["on padding %"]) == (left.padding.percent, right.padding.percent)
        assert 0 <= left.padding.percent < 100 and left.padding.wanted > 0
        for side, outcomes, seconds in zip(("off", "on"), (off, on), least, strict=True):
            share = None if seconds is None else pytest.approx(100 * seconds / duration_s(outcomes))
            assert row[f"{side} of the serial roof %"] == share
        assert (least[0] is None) == (toggle.workload != "paged attention")
        assert toggle.name != "requests together" or least[0] > least[1]
    assert timed.core.stats().compiles_after_ready == 0


@pytest.mark.slow  # an engine is compiled for them
def test_padding_is_what_the_runner_s_own_choice_of_sizes_carries(timed, monkeypatch):
    carried, dispatch = [], timed.core.runner._dispatch

    def seen(program, *arguments, **options):
        size = program.batch if isinstance(program, Decode) else getattr(program, "tokens", 0)
        carried.append(size)
        return dispatch(program, *arguments, **options)

    monkeypatch.setattr(timed.core.runner, "_dispatch", seen)
    engine = TimedEngine(timed.core, timed.core.limits, StepLog())
    engine.on_step = padding = Padding(timed.core.limits)
    drive(engine, [Ask(0.0, 30 + i, 4 + i) for i in range(5)], [[7 + i] * (30 + i) for i in range(5)])
    assert padding.carried == sum(carried) > padding.wanted == engine.scheduler.counters.computed_tokens
    assert padding.percent == pytest.approx(100 * (sum(carried) - padding.wanted) / sum(carried))


def test_what_processes_were_started_with_is_told_with_their_compiling():
    def told(rate: float, compiling: float, late: int) -> toggles.StartedProcess:
        speed = [{"batch x prompt": "1x128", "decode tok/s": rate, "of bandwidth %": rate / 10}]
        facts = {COMPILING: f"{compiling} s, of several", "compiles after ready": str(late)}
        return toggles.StartedProcess.of({"facts": facts, "tables": {"speed": speed}})

    rounds = [[told(100.0, 30.5, 0), told(150.0, 40.0, 0)], [told(110.0, 2.0, 1), told(220.0, 3.0, 0)]]
    (cells,) = toggles.device_rows("CUDA graphs", rounds)
    row = dict(zip(toggles.DEVICE_COLUMNS, cells, strict=True))
    assert (row["off tok/s"], row["on tok/s"], row["on / off"]) == (105, 185, 1.75)
    assert (row["off compiling s"], row["on compiling s"]) == (30.5, 40)
    assert (row["off compiles after ready"], row["on compiles after ready"]) == (1, 0)


@pytest.mark.slow  # an engine is compiled for them
def test_what_comes_later_waits_for_its_time(timed):
    engine = TimedEngine(timed.core, timed.core.limits, StepLog())
    asks = (Ask(0.0, 3, 5), Ask(0.2, 2, 3))
    first, second = drive(engine, asks, [[1, 2, 3], [4, 5]])
    assert second.sent_s - first.sent_s == pytest.approx(0.2)
    assert (first.tokens, second.tokens) == (5, 3)
    assert second.times_s[0] >= second.sent_s
    assert not engine.has_work


@pytest.mark.slow  # an engine is compiled for them
def test_what_an_engine_refuses_ends_the_suite(timed):
    engine = TimedEngine(timed.core, timed.core.limits, StepLog())
    with pytest.raises(EngineError, match="every request of a suite must be answered, one was not"):
        drive(engine, (Ask(0.0, 1, 10**6),), [[5] * 300])


def test_a_workload_is_sent_as_it_is_listed_and_its_answers_counted(job):
    llm = FakeLLM(four_tokens)
    few = dataclasses.replace(job, vocab_size=200, shrink=256)
    workload = workloads(few)["continuous batching"]
    with serving(llm) as url:
        good = paladin.outcomes_of(few, ReadyServer(url, 0.0), workload, ignore_eos=True)
    told = dict(zip(paladin.SERVED, paladin.row(few, workload, "x", good, ignore_eos=True), strict=True))
    assert (told["requests"], told["tokens of an answer"], told["ended early"]) == (2, 4, 0)
    assert told["of the serial roof %"] is None  # its requests come one after another
    assert told["first token p50 ms"] < told["whole request p50 s"] * 1e3


def answered(sent_s: float, *times_s: float) -> Outcome:
    return Outcome(sent_s, list(times_s), tokens=len(times_s), prompt_tokens=10, cached_tokens=0)


def test_times_of_a_workload_have_their_mean_and_their_percentiles():
    good = [answered(0.0, 0.1, 0.2), answered(0.0, 0.3, 0.8)]
    told = dict(zip(paladin.TIMES, paladin.times_row("x", good), strict=True))
    assert told["first token mean ms"] == pytest.approx(200) == told["first token p50 ms"]
    assert told["token gap mean ms"] == pytest.approx(300)
    assert told["whole request mean ms"] == pytest.approx(500)
    assert told["whole request p95 ms"] == pytest.approx(200 + 0.95 * 600)


def test_goodput_counts_who_kept_to_both_goals(job):
    paces = {"good": 0.03, "slow": 0.05}
    good = [
        answered(0.0, *(first + paces[pace] * i for i in range(3))) for first, pace in ((0.4, "good"), (0.5, "good"))
    ]
    good += [answered(1.0, 1.1, 1.1 + 2 * paces["slow"], 2.0)]
    told = dict(zip(vllm.SERVED[1:], vllm.rates(job, good, (3, 10, 3), 3), strict=True))
    assert (told["requests/s"], told["goodput requests/s"]) == (1.5, 0.5)
    assert told["within the goals %"] == pytest.approx(100 / 3)
    assert (told["most requests at once"], told["most output tokens in a second"]) == (2, 6)
    roof_s = job.work.offline_s(LIMITS, 3, 10, 3, 3)
    assert told["of the serial roof %"] == pytest.approx(100 * roof_s / 2)
    assert vllm.rates(job, good, (3, 10, 3), None)[vllm.SERVED.index("of the serial roof %") - 1] is None
    times = dict(zip(vllm.TIMES[1:], vllm.times_of(good), strict=True))
    assert times["TTFT mean ms"] == pytest.approx(1e3 * (0.4 + 0.5 + 0.1) / 3)
    assert times["TTFT std ms"] == pytest.approx(1e3 * math.sqrt(sum((x - 1 / 3) ** 2 for x in (0.4, 0.5, 0.1)) / 3))
    assert times["E2EL p50 ms"] == pytest.approx(560)


def test_tokens_of_a_second_are_spread_over_the_pieces_they_came_in():
    one = Outcome(5.0, [5.9, 6.1], tokens=4)
    assert most_in_a_second([one]) == 2
    assert most_in_a_second([one, answered(5.5, 6.0, 6.9)]) == 4
    assert most_at_once([answered(0.0, 1.0), answered(1.0, 2.0), answered(1.5, 1.7)]) == 2


@pytest.mark.slow
def test_a_server_is_measured_through_the_client_of_bench_serve(job):
    with serving(FakeLLM(four_tokens)) as url:
        program = ReadyServer(url, 0.0)
        few = dataclasses.replace(job, vocab_size=200, shrink=256, runs=1)
        workload, times = map(rows_of, paladin.serve(few, program, 10**6))
        assert len(workload) == 10 and list(times) == list(workload)
        assert workload["baseline, ignore_eos"]["tokens of an answer"] == 4
        assert workload["baseline, ignore_eos"]["of the serial roof %"] > 0
        assert workload["baseline, EOS ends"]["of the serial roof %"] is None
        clients = rows_of(mini_infer.clients(few, program))
        assert list(clients) == ["1", "2", "4", "8"] and all(row["of bandwidth %"] > 0 for row in clients.values())
        assert clients["1"]["times one client"] == 1
        assert clients["4"]["first token p50 ms"] < clients["4"]["its TTFT: whole answer p50 ms"]
        load, times = map(rows_of, vllm.serve(few, program, 10**6))
        assert list(load) == list(times) and len(load) == 3
        assert [row["of the serial roof %"] is None for row in load.values()] == [False, False, True]
        assert all(row["E2EL mean ms"] >= row["TTFT mean ms"] for row in times.values())
        calm = served.load_on(program, few, requests=3, concurrency=3, input_tokens=4, output_tokens=40)
        gap, median, first, rate = mini_infer.run_of(calm, 0, {"interrupt_tokens": 9, "interrupt_after_s": 0.02})
        assert min(gap, median, first, rate) > 0
        spike = dict(zip(mini_infer.SPIKE[1:], mini_infer.spike(few, program, 9), strict=True))
        per_step = job.work.decode_bytes(7, 4 + 32 / 2) / LIMITS.bytes_per_s
        assert spike["of bandwidth %"] * spike["their median gap ms"] == pytest.approx(1e5 * per_step)
        matmul_s = job.work.prefill_flops(1, 9) / LIMITS.flops
        assert spike["of matmul %"] * spike["first token of the long prompt ms"] == pytest.approx(1e5 * matmul_s)


def test_a_config_goes_to_a_program_as_variables_and_comes_back():
    config = EngineConfig(model="m", enable_prefix_caching=False, max_num_seqs=3, served_model_name=("a", "b"))
    variables = settings_of(config)
    assert config_from_sources(env=variables).config == config
    assert settings_of(EngineConfig()) == {}
