"""latency, throughput and profile over a small engine: the figures are what the engine did."""

from types import SimpleNamespace

import pytest

from jaxinfer.bench import latency, limits, profile, throughput
from jaxinfer.bench.latency import DECODED, BatchShape
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.steps import PHASES, StepLog, StepTime
from jaxinfer.errors import ConfigError
from tests.bench.conftest import LIMITS, rows_of


def quiet(line: str) -> None:
    assert line


def test_every_shape_is_a_row_and_nothing_came_from_the_prefix_cache(timed, work):
    shapes = [BatchShape(1, 16), BatchShape(4, 32)]
    speed, host, first, cached = latency.measure(timed, shapes, 20, 64, work, LIMITS, quiet)
    rows = rows_of(speed)
    assert list(rows) == ["1x16", "4x32"]
    for shape, row in zip(shapes, rows.values(), strict=True):
        assert row["cached_tokens"] == 0
        assert row["prefill tok/s"] == pytest.approx(shape.batch * shape.prompt / row["first token ms"] * 1e3)
        assert row["decode tok/s"] == pytest.approx(shape.batch / row["step ms"] * 1e3)
        share = work.decode_bytes(shape.batch, shape.prompt + DECODED / 2) / row["step ms"] * 1e3 / 2e10 * 100
        assert row["of bandwidth %"] == pytest.approx(share)
    assert list(rows_of(host)) == list(rows)
    (step,) = rows_of(first).values()
    assert step["steps"] == 19  # of 20 tokens the first is the prompt's
    assert step["slowest ms"] >= step["median ms"]
    assert rows_of(cached)["64+32"]["cached_tokens"] == 64


PROMPT_S, LATER_PROMPT_S, STEP_S, WAIT_S = 0.05, 0.005, 1.6e-3, 1.5e-3


def test_prompts_that_take_less_time_later_do_not_shorten_the_steps(monkeypatch, work):
    """The difference of two calls said 1.25 ms of steps that wait 1.5 ms for the device. The first step waits for the
    prompt, which is no step's own time.
    """
    log, answer = StepLog(), SimpleNamespace(metrics=SimpleNamespace(cached_tokens=0))

    def generate(llm, prompts, num_tokens):
        now, prompt_s = 0.0, PROMPT_S if num_tokens == 1 else LATER_PROMPT_S
        log.steps.append(StepTime(now, *[now] * 5, rows=len(prompts)))  # which the next step waits for
        for wait_s in (prompt_s, *[WAIT_S] * (num_tokens - 1)):
            ended = now + wait_s + STEP_S - WAIT_S
            places = dict(planned=now, dispatched=now, waiting=now, committing=now + wait_s, ended=ended)
            log.steps.append(StepTime(now, **places, rows=len(prompts), is_decode=True))
            now = ended
        return now, [answer] * len(prompts)

    monkeypatch.setattr(latency, "generate", generate)
    found = latency._measure(None, log, Prompts(100, 0), BatchShape(2, 8))
    (row,), (host,) = rows_of(latency._speed([found], work, LIMITS)).values(), rows_of(latency._host([found])).values()
    assert (row["step ms"], host["wait for the device us"]) == (pytest.approx(1.6), pytest.approx(1500))
    assert row["decode tok/s"] == pytest.approx(2 / STEP_S) and row["first token ms"] == pytest.approx(50.1)


def test_what_cannot_fit_is_refused_before_anything_is_timed(timed, work):
    with pytest.raises(ConfigError, match=r"at most 256 tokens together \(max_model_len\), got 329; shorten"):
        latency.measure(timed, [BatchShape(1, 200)], 0, 0, work, LIMITS, quiet)
    with pytest.raises(ConfigError, match="got 300; shorten"):
        throughput.measure(timed, (2, 200, 100), 1, work, LIMITS)


def test_an_offline_run_counts_all_tokens(timed, work):
    row = dict(zip(throughput.COLUMNS, throughput.measure(timed, (12, 16, 8), 2, work, LIMITS), strict=True))
    assert row["requests x (in, out)"] == "12x(16,8)"
    assert row["output tok/s"] * row["seconds"] == pytest.approx(12 * 8)
    assert row["total tok/s"] * row["seconds"] == pytest.approx(12 * 24)
    assert row["cached_tokens"] == 0
    assert row["steps"] >= 8


def test_a_load_is_sized_to_the_model(timed, work, monkeypatch):
    least = timed.core.limits.max_num_seqs
    short = [0.1, 0.1, 0.2]  # of an eighth, a quarter and half of the lengths
    seconds = iter([*short, 0.1, 0.9, 9.0, *short, 0.2])
    asked: list[tuple[int, int, int]] = []

    def generate(llm, prompts, num_tokens):
        asked.append((len(prompts), len(prompts[0]), num_tokens))
        return next(seconds), []

    with monkeypatch.context() as patch:
        patch.setattr(throughput, "generate", generate)
        patch.setattr(throughput, "LARGEST", ((512, 100, 50), (timed.core.limits.max_num_seqs, 200, 100)))
        loads = list(throughput.sized(timed, quiet))
    assert asked[:4] == [(least, 12, 6), (least, 25, 12), (least, 50, 25), (least, 100, 50)]
    assert asked[4:6] == [(4 * least, 100, 50), (16 * least, 100, 50)]
    (first, why), (second, _) = loads
    assert (first, second) == ((16 * least, 100, 50), (least, 100, 50))  # 200 + 100 is more than the model's 256
    assert why == f"{16 * least}x(100,50), as a call took 9.0 s, 2.5 s are enough"


def test_a_machine_without_time_measures_a_full_batch_of_short_requests_and_says_why(timed, monkeypatch):
    monkeypatch.setattr(throughput, "generate", lambda *_: (9.0, []))
    monkeypatch.setattr(throughput, "LARGEST", ((512, 100, 50),))
    least = timed.core.limits.max_num_seqs
    ((load, why),) = throughput.sized(timed, lambda _: None)
    assert load == (least, 12, 6) and why.endswith(
        f"; {least} requests, which max_num_seqs computes together, are the least"
    )


def test_an_offline_run_says_how_far_it_is(timed, work, monkeypatch):
    events = []
    monkeypatch.setattr(throughput, "EVERY_S", 0.0)
    throughput.measure(timed, (4, 16, 8), 1, work, LIMITS, events.append)
    assert {(event.kind, event.detail, event.total) for event in events} == {
        ("measure", "tokens: a warm-up, then 4 requests of 16 + 8", 4 * 18 + 4 * 24)
    }
    dones = [event.done for event in events]
    assert dones == sorted(dones) and dones[0] == 0 and 4 * 18 < dones[-1] < 4 * 18 + 4 * 24


def test_the_phases_of_a_step_are_all_of_its_time(timed):
    llm, log = timed.llm(prefix_caching=False)
    latency.generate(llm, Prompts(100, 0).many(3, 8), 12)
    found = log.since(0)
    assert log.num_decode == 11
    assert len(found.wall_s) == 10, "the first waits for the prompts"
    assert len(log.since(0, waits_for_prompts=True).wall_s) == 11
    for phases, wall_s in zip(found.phases, found.wall_s, strict=True):
        assert sum(phases) == pytest.approx(wall_s)
        assert min(phases) >= 0
    assert found.host_s == pytest.approx(sum(found.mean_s().values()) - found.mean_s()[PHASES[2]])
    assert sum(step.tokens for step in log.steps) == 3 * (8 + 11)


@pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")  # jax 0.11's own types
@pytest.mark.parametrize("prefill", [False, True])
def test_a_profile_names_the_operations_and_their_time(timed, work, tmp_path, prefill):
    wanted = profile.ProfileRequest(batch=2, prompt=16, steps=3, prefill=prefill)
    summary, *phases, device = profile.measure(timed, wanted, str(tmp_path), work, LIMITS, quiet)
    (row,) = rows_of(summary).values()
    kernels = rows_of(device)
    assert row["wall us"] > 0 and row["device busy us"] > 0
    assert sum(one["of device time %"] for one in kernels.values()) == pytest.approx(100)
    assert sum(one["count"] for one in kernels.values()) == pytest.approx(row["kernels"])
    assert any("fusion" in name for name in kernels)
    assert [table.title for table in phases] == ([] if prefill else ["host"])
    if phases:
        assert sum(one["of the step %"] for one in rows_of(phases[0]).values()) == pytest.approx(100)


@pytest.mark.parametrize(("seconds", "num_calls"), [(0.1, 6), (0.5, 4), (1.5, 2), (60.0, 2)])
def test_calls_that_take_long_are_repeated_less_often(seconds, num_calls):
    calls = iter(range(100))

    found = latency.repeated(lambda: (seconds, next(calls)), latency.TRIES_ALONE)
    assert [call for _, call in found] == [*range(num_calls)]


@pytest.mark.parametrize(("call_s", "num_calls"), [(0.001, 1 + 1 + 5 * 8), (0.02, 1 + 1 + 5 * 2), (0.2, 1 + 1 + 5)])
def test_a_limit_of_slow_calls_is_of_few(monkeypatch, call_s, num_calls):
    now_s = [0.0]
    monkeypatch.setattr(limits.time, "perf_counter", lambda: now_s[0])

    def run():
        now_s[0] += call_s
        calls.append(call_s)

    calls: list[float] = []
    assert limits.seconds(run) == pytest.approx(call_s)
    assert len(calls) == num_calls
