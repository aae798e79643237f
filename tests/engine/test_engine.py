"""The engine's equalities (each kind of luck gives the same tokens) and its messages."""

import threading
from concurrent.futures import Future

import pytest

from jaxinfer.engine.sequence import Abort, Add, Call, Request, Times
from tests.engine.client import Client
from tests.engine.device import BAD, VOCAB, alone, make_limits
from tests.support.attempts import Stopwatch


def tokens(count: int, start: int = 0) -> tuple[int, ...]:
    return tuple((start * 31 + i * 7) % (VOCAB - 1) for i in range(count))


def requests() -> list[Request]:
    """Greedy and sampled, one and several choices, prompts that share 10 tokens in pairs."""
    return [
        Request(
            str(i),
            tokens(10, i // 2) + tokens(3 * i, i + 50),
            max_tokens=25,
            n=1 + i % 3,
            temperature=float(i % 2),
            seed=i,
            eos_token_ids=frozenset({5, 60}),
        )
        for i in range(9)
    ]


def answers(**changes) -> dict[tuple[str, int], list[int]]:
    """All requests together in one engine; the client has compared each with the oracle."""
    client = Client(make_limits(**changes))
    for request in requests():
        client.add(request)
    client.finish()
    return client.tokens()


EXPECTED = {
    (request.id, index): alone(request, index, make_limits())[0] for request in requests() for index in range(request.n)
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="as served"),
        pytest.param({"run_ahead": 0}, id="not run ahead"),
        pytest.param({"max_num_batched_tokens": 9}, id="in small chunks"),
        pytest.param({"enable_chunked_prefill": False, "max_num_batched_tokens": 40}, id="whole prompts"),
        pytest.param({"enable_prefix_caching": False}, id="no prefix cache"),
        pytest.param({"max_num_seqs": 1}, id="one at a time"),
        pytest.param({"num_pages": 18}, id="preempted"),
        pytest.param({"num_pages": 18, "enable_prefix_caching": False}, id="preempted without a cache"),
        pytest.param({"page_size": 1, "num_pages": 100}, id="pages of one token"),
        pytest.param({"page_size": 64, "num_pages": 9}, id="pages larger than most prompts"),
    ],
)
def test_the_tokens_do_not_depend_on(changes):
    assert answers(**changes) == EXPECTED


def one_by_one(client: Client, prompts: list[tuple[int, ...]]) -> list[int]:
    """Serve prompts one after another; the prompt tokens each found in the cache."""
    cached = []
    for i, prompt in enumerate(prompts, len(client.answers)):
        client.add(Request(str(i), prompt, 12))
        client.finish()
        cached.append(client.answers[str(i), 0].cached_tokens)
    return cached


def test_a_prefix_hit_gives_the_tokens_of_a_miss_and_covers_whole_pages_only():
    prompt = tokens(18)
    changed = prompt[:10] + tokens(8, 1)
    assert one_by_one(Client(make_limits()), [prompt, prompt, prompt[:16], prompt[:17], changed]) == [0, 16, 12, 16, 8]


def test_generated_tokens_are_found_again_by_the_next_turn():
    client = Client(make_limits())
    one_by_one(client, [tokens(10)])
    turn = tokens(10) + tuple(client.tokens()["0", 0]) + tokens(5, 1)
    assert one_by_one(client, [turn]) == [20]  # of 10 + 11 computed positions


def test_a_prefix_is_computed_again_after_its_eviction():
    client = Client(make_limits(num_pages=34))
    others = [tokens(100, i) for i in range(1, 4)]
    assert one_by_one(client, [tokens(18), *others, tokens(18), tokens(18)]) == [0, 0, 0, 0, 0, 16]


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_64_requests_with_a_shared_prefix_in_one_step_answer_as_alone(run_ahead):
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "num_pages": 2000, "run_ahead": run_ahead}
    client = Client(make_limits(**limits))
    for i in range(64):
        client.add(Request(str(i), tokens(21) + (i,) * (i % 5), 8, temperature=1.0, seed=i))
    client.step()
    assert len(client.plans[0].rows) == 64
    client.finish()
    for i in range(64):  # again, all from the cache
        client.add(Request(f"again {i}", tokens(21) + (i,) * (i % 5), 8, temperature=1.0, seed=i))
    client.finish()
    assert all(client.answers[f"again {i}", 0].cached_tokens >= 20 for i in range(64))


def test_tenants_do_not_find_each_others_prefixes():
    client = Client(make_limits())
    for name, salt in (("a", "a"), ("b", "b"), ("b again", "b")):
        client.add(Request(name, tokens(18), 4, salt=salt))
        client.finish()
    assert [client.answers[name, 0].cached_tokens for name in ("a", "b", "b again")] == [0, 0, 16]


@pytest.mark.parametrize("caching", [True, False])
def test_requests_that_are_all_preempted_twice_answer_as_on_a_big_pool(caching):
    client = Client(make_limits(num_pages=21, max_model_len=77, enable_prefix_caching=caching))
    for i in range(4):
        client.add(Request(str(i), tokens(6, i), 70, n=2, temperature=1.0, seed=i, priority=1))
    sequences = {}
    vips = 0
    while any(answer.reason is None for answer in client.answers.values()):
        if not any(s.request.priority == 0 for s in client.engine.scheduler.running) and len(client.plans) % 3 == 0:
            client.add(Request(f"vip {vips}", tokens(4, 100 + vips), 73))  # grows until it owns almost every page
            vips += 1
        client.step()
        sequences |= {(s.request.id, s.index): s for s in client.engine.scheduler.running if s.request.priority}
        if vips > 60:
            break
    client.finish()
    assert len(sequences) == 8
    assert min(sequence.preemptions for sequence in sequences.values()) >= 2
    assert client.engine.stats().preemptions >= 16
    assert all(len(client.answers[key].tokens) == 70 for key in sequences)


def test_the_next_step_is_dispatched_before_the_last_one_is_read():
    client = Client(make_limits())
    client.add(Request("one", tokens(4), 10))
    assert client.step() == []
    for expected in range(2, 8):
        (output,) = client.step()
        assert len(output.token_ids) == 1
        assert client.runner.plans == expected, "one step is under way when the one before it is handed out"


def test_each_step_is_read_at_once_at_depth_0():
    client = Client(make_limits(run_ahead=0))
    client.add(Request("one", tokens(4), 10))
    for expected in range(1, 8):
        assert len(client.step()) == 1
        assert client.runner.plans == expected


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_an_abort_at_any_moment_frees_the_pages_and_disturbs_nobody(run_ahead):
    for moment in range(20):
        client = Client(make_limits(max_num_batched_tokens=12, max_num_seqs=3, run_ahead=run_ahead))
        for i in range(3):
            client.add(Request(str(i), tokens(20, i), 10, n=2))
        for _ in range(moment):
            client.step()
        client.abort("1")
        (client.step() or client.step())
        aborted = [client.answers["1", index] for index in range(2)]
        assert all(answer.reason for answer in aborted)
        assert all(s.request.id != "1" for s in client.engine.scheduler.running)
        client.finish()


def test_a_row_that_is_not_finite_fails_its_request_alone_and_leaves_nothing_behind():
    client = Client(make_limits())
    bad = tokens(8) + (BAD,) + tokens(8, 1)
    client.add(Request("bad", bad, 10))
    client.add(Request("good", tokens(9), 10))
    client.finish()
    assert client.answers["bad", 0].reason == "error"
    assert client.answers["good", 0].reason == "length"
    assert len(client.runner.zeroed) == 5, "all of its pages"
    client.add(Request("again", bad[:8] + tokens(9, 2), 10))
    client.finish()
    assert client.answers["again", 0].cached_tokens == 8, "what the good request published"
    assert not client.runner.bad[client.runner.zeroed].any()


def test_pages_are_zeroed_before_anyone_can_own_them_again():
    client = Client(make_limits(num_pages=8, max_model_len=28))
    client.add(Request("bad", tokens(12) + (BAD,), 10))
    client.add(Request("next", tokens(20, 1), 8))
    owned_bad: list[bool] = []
    while client.engine.has_work:
        client.step()
        for s in client.engine.scheduler.running:
            if s.request.id == "next" and len(s.tokens) > 20:
                owned_bad.append(bool(client.runner.bad[s.cache.page_ids()[:5]].any()))
    assert client.runner.zeroed and not any(owned_bad)
    client.finish()


def test_a_failed_choice_fails_its_siblings():
    client = Client(make_limits())
    client.add(Request("bad", tokens(9) + (BAD,), 10, n=3))
    client.finish()
    assert [client.answers["bad", index].reason for index in range(3)] == ["error"] * 3


def test_a_refused_request_is_answered_with_its_error():
    client = Client(make_limits())
    client.engine.inbox.put(Add(Request("long", tokens(500), 10, n=2)))
    outputs = client.engine.step()
    assert [(output.index, output.finish_reason) for output in outputs] == [(0, "error"), (1, "error")]
    assert "maximum context length is 128" in outputs[0].error


def test_an_id_in_use_is_refused_and_one_that_ended_is_free_again():
    client = Client(make_limits())
    client.add(Request("one", tokens(4), 5))
    client.step()
    client.engine.inbox.put(Add(Request("one", tokens(4), 5)))
    (output,) = [output for output in client.engine.step() if output.finish_reason]
    assert "unique" in output.error


def test_an_ended_id_may_be_used_again():
    client = Client(make_limits())
    for _ in range(2):
        client.add(Request("one", tokens(4), 5))
        client.finish()


def test_messages_about_unknown_requests_are_ignored():
    client = Client(make_limits())
    client.engine.inbox.put(Abort("nobody"))
    assert client.step() == []
    assert not client.engine.has_work


def test_a_call_runs_on_the_owners_thread_and_its_error_goes_to_the_caller():
    client = Client(make_limits())
    thread, failed = Future(), Future()
    client.engine.inbox.put(Call(threading.get_ident, thread))
    client.engine.inbox.put(Call(lambda: 1 // 0, failed))
    client.step()
    assert thread.result() == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        failed.result()


def test_wait_returns_with_the_message_handled():
    client = Client(make_limits())
    sender = threading.Timer(0.05, client.add, [Request("one", tokens(4), 2)])
    sender.start()
    watch = Stopwatch()
    client.engine.wait(timeout_s=10)
    assert watch.seconds() < 5
    assert client.engine.has_work
    client.finish()
    client.engine.wait(timeout_s=0.01)


def test_stats_add_up():
    client = Client(make_limits())
    client.add(Request("one", tokens(10), 6))
    client.step()
    client.step()
    stats = client.engine.stats()
    assert (stats.running, stats.waiting, stats.pages_owned) == (1, 0, 3)
    client.finish()
    stats = client.engine.stats()
    assert (stats.prompt_tokens, stats.generated_tokens, stats.finished["length"]) == (10, 6, 1)
    assert stats.pages_free + stats.pages_cached + stats.pages_owned == stats.pages_total == 256


def test_times_come_with_a_choice_s_first_token_and_again_after_each_preemption():
    client = Client(make_limits(num_pages=18))
    for request in requests():
        client.add(request)
    told: dict[tuple[str, int], list[Times]] = {}
    while any(answer.reason is None for answer in client.answers.values()):
        for output in client.step():
            if output.times is not None:
                assert output.token_ids, "with a token, since an end may come without an output"
                told.setdefault((output.request_id, output.index), []).append(output.times)
    assert told.keys() == client.answers.keys()
    for times in told.values():
        counts = [each.preemptions for each in times]
        assert counts == sorted(set(counts))
        assert len({(each.queued_s, each.prefill_s) for each in times}) == 1 and min(times[0].queued_s, 0) == 0
    counters = client.engine.stats()
    assert 0 < sum(times[-1].preemptions for times in told.values()) <= counters.preemptions


def test_the_stats_hold_what_steps_were_made_of():
    client = Client(make_limits())
    for request in requests():
        client.add(request)
    client.finish()
    stats = client.engine.stats()
    kinds = [[row.tokens is None for row in plan.rows] for plan in client.plans]
    assert (stats.work.decode_rows, stats.work.prompt_rows) == (
        sum(map(sum, kinds)),
        sum(len(k) - sum(k) for k in kinds),
    )
    assert (sum(stats.work.rows.counts), stats.work.rows.total) == (stats.steps, sum(map(len, kinds)))
    assert (sum(stats.work.tokens.counts), stats.work.tokens.total) == (stats.steps, stats.computed_tokens)
    assert all(seconds > 0 for name, seconds in stats.work.phase_s.items() if name != "masks")
    assert stats.work.phase_s["masks"] == 0, "no grammar, no masks"
    assert stats.work.phase_s["wait"] <= stats.work.busy_s
    stats.work.rows.add(1)
    assert client.engine.stats().work.rows.total == stats.work.rows.total - 1, "what was told is a copy"
