"""The scheduler's policy: who runs, in which step, at what cost."""

import pytest

from jaxinfer.engine.scheduler import Scheduler
from jaxinfer.engine.sequence import MAX_TEXT_LAG, Request, Sequence, State
from jaxinfer.errors import ConfigError, InvalidRequest
from tests.engine.client import Client
from tests.engine.device import VOCAB, make_limits


def tokens(count: int, start: int = 0) -> tuple[int, ...]:
    """A prompt; different starts share no page."""
    return tuple((start * 31 + i * 7) % (VOCAB - 1) for i in range(count))


def ids(sequences: list[Sequence]) -> list[str]:
    return [sequence.request.id for sequence in sequences]


def test_a_step_carries_decode_rows_and_prompt_chunks_together():
    client = Client(make_limits(max_num_batched_tokens=16))
    client.add(Request("decoding", tokens(4), 30))
    client.step()
    client.step()
    client.add(Request("long", tokens(60, 1), 1))
    for _ in range(5):
        client.step()
    mixed = [plan for plan in client.plans if len(plan.rows) == 2]
    assert [sorted(row.count for row in plan.rows) for plan in mixed[:4]] == [[1, 15]] * 4
    assert [row.sample for plan in mixed[:4] for row in plan.rows if row.count > 1] == [False, False, False, True]


@pytest.mark.parametrize(("chunked", "bound"), [(True, 1), (False, 2)])
def test_decode_never_starves_while_prompts_keep_coming(chunked, bound):
    client = Client(make_limits(max_num_batched_tokens=32, enable_chunked_prefill=chunked))
    client.add(Request("decoding", tokens(4), 60))
    for _ in range(3):
        client.step()
    slot = client.engine.scheduler.running[0].slot
    for i in range(40):
        client.add(Request(f"prompt{i}", tokens(32, i + 1), 1))
    first = len(client.plans)
    for _ in range(50):
        client.step()
    rows = [i for i, plan in enumerate(client.plans[first:]) if any(row.slot == slot for row in plan.rows)]
    assert max(b - a for a, b in zip(rows, rows[1:], strict=False)) <= bound
    assert client.engine.stats().finished["length"] > 15, "and the prompts are served too"
    client.finish()


def test_bulk_answers_pause_while_prompts_fill_steps():
    client = Client(make_limits(max_num_batched_tokens=32, max_num_seqs=4))
    client.add(Request("first", tokens(20), 30, bulk=True))
    for _ in range(3):
        client.step()
    for i in range(4):  # one of them finds no slot
        client.add(Request(f"prompt{i}", tokens(24, i + 1), 30, bulk=True))
    first = len(client.plans)
    for _ in range(6):
        client.step()
    steps = [(plan.num_tokens, sum(row.tokens is None for row in plan.rows)) for plan in client.plans[first:]]
    assert steps[:4] == [(32, 0), (32, 0), (11, 3), (4, 4)], "72 tokens of three prompts; 8 of them fill no step"
    client.finish()


def test_bulk_answers_go_on_beside_prompts_that_never_become_answers():
    client = Client(make_limits(max_num_batched_tokens=32, max_num_seqs=4))
    client.add(Request("answer", tokens(20), 30, bulk=True))
    for _ in range(3):
        client.step()
    for i in range(60):
        client.add(Request(f"one token {i}", tokens(24, i + 1), 1, bulk=True))
    first = len(client.plans)
    for _ in range(12):
        client.step()
    assert all(any(row.tokens is None for row in plan.rows) for plan in client.plans[first:])
    client.finish()


@pytest.mark.parametrize("change", [{"bulk": False}, {"scheduling": "static"}])
def test_nobody_else_pauses_for_prompts(change):
    limits = {key: value for key, value in change.items() if key == "scheduling"}
    client = Client(make_limits(max_num_batched_tokens=32, max_num_seqs=4, **limits))
    client.add(Request("first", tokens(20), 30, bulk=change.get("bulk", True)))
    for _ in range(3):
        client.step()
    for i in range(4):
        client.add(Request(f"prompt{i}", tokens(24, i + 1), 3, bulk=True))
    first = len(client.plans)
    for _ in range(6):
        client.step()
    assert all(plan.rows[0].tokens is None for plan in client.plans[first:])
    client.finish()


def test_without_chunked_prefill_every_prompt_is_computed_whole():
    client = Client(make_limits(enable_chunked_prefill=False))
    for i in range(12):
        client.add(Request(str(i), tokens(9 + i, i), 20))
    client.finish()
    chunks = [row.count for plan in client.plans for row in plan.rows if row.sampling]
    assert sorted(chunks) == list(range(9, 21))
    assert all(row.sample for plan in client.plans for row in plan.rows)


def test_requests_are_served_in_order_of_arrival_and_lower_priority_numbers_sooner():
    client = Client(make_limits(max_num_seqs=1))
    for name, priority in (("a", 0), ("b", 0), ("late", 5), ("soon", -1)):
        client.add(Request(name, tokens(4), 3, priority=priority))
    order = []
    while client.engine.has_work:
        order += [output.request_id for output in client.step() if output.finish_reason]
    assert order == ["soon", "a", "b", "late"]


@pytest.mark.parametrize(
    "changes", [{"max_num_seqs": 2}, {"num_pages": 26, "max_model_len": 64}], ids=["slots", "pages"]
)
def test_a_more_urgent_request_takes_the_place_of_the_last_of_a_lower_priority(changes):
    """It waits for the step in flight and is in the next; who yielded says the same as if it had not."""
    client = Client(make_limits(**changes))
    for name in ("first", "second"):
        client.add(Request(name, tokens(40, len(name)), 20, priority=9, bulk=True))
    for _ in range(4):
        client.step()
    assert ids(client.engine.scheduler.running) == ["first", "second"]
    client.add(Request("urgent", tokens(30, 3), 8))
    assert first_tokens(client, 4)["urgent"] <= 4
    assert ids(client.engine.scheduler.running) == ["urgent", "first"]
    client.add(Request("as urgent", tokens(40, 4), 2))
    client.finish()  # each as if it ran alone
    assert client.engine.stats().preemptions >= 1


def test_nobody_yields_to_an_equal_nor_a_stream_to_anyone_nor_where_batches_start_together():
    for changes, bulk, priority in (({}, True, 0), ({}, False, -1), ({"scheduling": "static"}, True, -1)):
        client = Client(make_limits(max_num_seqs=1, **changes))
        client.add(Request("running", tokens(4), 20, bulk=bulk))
        client.step()
        client.add(Request("later", tokens(4, 1), 2, priority=priority))
        client.finish()
        assert client.engine.stats().preemptions == 0


# ---- short prompts beside long ones ----


def first_tokens(client: Client, num_steps: int) -> dict[str, int]:
    """In which of the next steps each request's first token comes."""
    found: dict[str, int] = {}
    for step in range(1, num_steps + 1):
        for output in client.step():
            found.setdefault(output.request_id, step)
    return found


def test_a_long_prompt_of_which_nothing_is_cached_costs_the_key_of_one_page():
    """All keys of 260,000 tokens take 50 to 70 ms, in which every stream would wait."""
    scheduler = Scheduler(make_limits())
    scheduler.add(Request("long", tokens(120), 1))
    (sequence,) = scheduler.waiting
    assert not scheduler.prefix(sequence).length and len(sequence.cache.lookup) == 1


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_short_prompt_waits_for_two_steps_at_most_whatever_long_ones_are_before_it(enable_prefix_caching):
    """A46: alone it takes one step; here one is in flight, and one may be that which it just missed."""
    client = Client(make_limits(enable_prefix_caching=enable_prefix_caching))
    for i in range(6):
        client.add(Request(f"long{i}", tokens(120, i), 1))
    assert not first_tokens(client, 2)
    client.add(Request("short", tokens(8, 9), 3))
    came = first_tokens(client, 30)
    assert came["short"] <= 3 < came["long0"]
    client.finish()


def test_short_prompts_without_end_cost_a_long_one_a_third_of_its_time_at_most():
    times = []
    for num_short in (0, 20):
        client = Client(make_limits(max_num_batched_tokens=16, max_num_seqs=4))
        client.add(Request("long", tokens(120), 1))
        for i in range(num_short):
            client.add(Request(str(i), tokens(3, i + 1), 2))
        client.step()
        assert len(client.engine.scheduler.waiting) == max(num_short - 1, 0), "one fits beside a decode row"
        came = first_tokens(client, 40)
        times.append(came["long"])
        assert num_short == 0 or min(came[str(i)] for i in range(num_short)) < came["long"]
        client.finish()
    alone, beside = times
    assert alone < beside <= -(-4 * alone // 3) + 1


def test_short_prompts_keep_their_order():
    client = Client(make_limits(max_num_batched_tokens=24))
    client.add(Request("long", tokens(120), 1))
    for i in range(8):
        client.add(Request(str(i), tokens(4, i + 1), 1))
    order = []
    while client.engine.has_work:
        order += [output.request_id for output in client.step() if output.finish_reason]
    assert order.index("long") > 2
    assert [name for name in order if name != "long"] == [str(i) for i in range(8)]


def test_nothing_is_kept_from_a_long_prompt_where_no_short_one_waits():
    client = Client(make_limits())
    client.add(Request("long", tokens(120), 1))
    client.add(Request("other", tokens(120, 1), 1))
    client.finish()
    assert [sum(row.count for row in plan.rows) for plan in client.plans[:7]] == [32] * 7


@pytest.mark.parametrize(
    ("changes", "priorities", "overtakes"),
    [
        ({}, {}, True),
        ({}, {"long": -1}, False),
        ({}, {"short": 1}, False),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 128}, {}, False),
        ({"scheduling": "static"}, {}, False),
        ({"max_num_seqs": 2}, {}, False),
    ],
    ids=[
        "it does",
        "a more urgent one",
        "for a less urgent one",
        "not where prompts go whole",
        "nor in a batch",
        "slot",
    ],
)
def test_nobody_overtakes_a_more_urgent_prompt_or_takes_its_slot(changes, priorities, overtakes):
    client = Client(make_limits(**changes))
    for name in ("long", "next"):
        client.add(Request(name, tokens(120, len(name)), 1, priority=priorities.get("long", 0)))
    client.add(Request("short", tokens(4, 9), 1, priority=priorities.get("short", 0)))
    came = first_tokens(client, 30)
    assert (came["short"] < came["long"]) == overtakes
    assert overtakes or came["next"] <= came["short"]
    client.finish()


def test_admission_leaves_a_watermark_while_others_run():
    scheduler = Scheduler(make_limits(num_pages=202, max_num_batched_tokens=128, max_model_len=900))
    scheduler.add(Request("first", tokens(100), 500))
    scheduler.plan()
    filler: list[int] = []
    scheduler.cache.pool.grow(filler, 201 - 25 - 3)
    scheduler.add(Request("fits but for the watermark of 3", tokens(8, 1), 5))
    scheduler.plan()
    assert ids(scheduler.running) == ["first"]
    scheduler.cache.pool.release(filler)
    scheduler.plan()
    assert len(scheduler.running) == 2


def test_the_newest_is_preempted_when_pages_run_out():
    client = Client(make_limits(num_pages=13, max_model_len=48))
    for i in range(3):
        client.add(Request(str(i), tokens(12, i), 36))
    preempted = []
    while not preempted:
        client.step()
        preempted = [s for s in client.engine.scheduler.waiting if s.preemptions]
    assert ids(preempted) == ["2"]
    assert preempted[0].state is State.WAITING and len(preempted[0].tokens) > 12, "its committed tokens are kept"
    client.finish()


def test_a_preempted_sequence_finds_most_of_its_pages_again():
    def recomputed(caching: bool) -> int:
        client = Client(make_limits(num_pages=30, max_model_len=48, enable_prefix_caching=caching))
        for i in range(3):
            client.add(Request(str(i), tokens(12, i), 36))
        client.finish()
        assert client.engine.stats().preemptions >= 1
        return client.engine.stats().computed_tokens - 3 * 47

    assert recomputed(caching=True) < recomputed(caching=False) / 2


def test_eight_choices_cost_less_than_1_3_prefills_and_differ():
    client = Client(make_limits(max_num_batched_tokens=64))
    client.add(Request("one", tokens(101), 1, n=8, temperature=1.0, seed=3))
    client.finish()
    assert client.engine.stats().computed_tokens < 1.3 * 101
    client = Client(make_limits(max_num_batched_tokens=64))
    client.add(Request("one", tokens(101), 20, n=8, temperature=1.0, seed=3))
    client.finish()
    assert len({tuple(answer) for answer in client.tokens().values()}) == 8


def test_siblings_are_admitted_once_the_first_choices_prompt_is_published():
    client = Client(make_limits(max_num_batched_tokens=16))
    client.add(Request("one", tokens(40), 8, n=3))
    client.add(Request("other", tokens(5, 1), 8))
    client.finish()
    starts = [(row.start, row.count) for plan in client.plans for row in plan.rows if row.sampling]
    assert sorted(starts) == [(0, 5), (0, 16), (36, 4), (36, 4)]


def test_siblings_go_on_when_the_first_choice_is_ended_early():
    client = Client(make_limits(max_num_batched_tokens=16))
    client.add(Request("one", tokens(40), 8, n=3))
    client.step()
    client.engine.scheduler.end("one", 0)
    client.answers.pop(("one", 0))
    client.finish()
    assert client.engine.stats().finished == {"stop": 1, "length": 2, "abort": 0, "error": 0}


def test_an_end_by_eos_costs_one_surplus_row_and_an_end_by_length_none():
    def computed(run_ahead: int, **how) -> int:
        client = Client(make_limits(run_ahead=run_ahead))
        client.add(Request("one", tokens(4), **how))
        client.finish()
        return client.engine.stats().computed_tokens

    fifth = Client(make_limits())
    fifth.add(Request("one", tokens(4), 5))
    fifth.finish()
    eos = frozenset({fifth.tokens()["one", 0][-1]})
    assert computed(1, max_tokens=5) == computed(0, max_tokens=5) == 8
    assert computed(0, max_tokens=50, eos_token_ids=eos) == 8
    assert computed(1, max_tokens=50, eos_token_ids=eos) == 9


def test_a_sequence_with_stop_strings_waits_for_its_text():
    client = Client(make_limits())
    client.add(Request("slow reader", tokens(4), 50, text_lag=True))
    client.add(Request("other", tokens(4, 1), 20))
    for _ in range(30):
        client.step()
    answer = client.answers["slow reader", 0]
    assert len(answer.tokens) == MAX_TEXT_LAG
    assert client.answers["other", 0].reason == "length", "nobody else waits"
    assert not client.engine.has_work, "and the loop does not spin"
    client.finish()


def test_a_budget_smaller_than_the_slots_is_refused():
    with pytest.raises(ConfigError, match="max_num_batched_tokens must be at least max_num_seqs"):
        Scheduler(make_limits(max_num_seqs=64, max_num_batched_tokens=32))


@pytest.mark.parametrize(
    ("request_", "changes", "message"),
    [
        (Request("r", tokens(129), 1), {}, "maximum context length is 128 tokens"),
        (Request("r", tokens(128), 2), {}, "maximum context length is 128 tokens"),
        (Request("r", tokens(40), 1), {"enable_chunked_prefill": False}, "maximum context length is 32 tokens"),
        (Request("r", tokens(20), 100), {"num_pages": 11}, "maximum context length is 41 tokens"),
        (Request("r", (), 1), {}, "at least one token"),
        (Request("r", (1, VOCAB), 1), {}, "token ids must lie in"),
        (Request("r", (1, -1), 1), {}, "token ids must lie in"),
        (Request("r", (1, 2**32), 1), {}, "token ids must lie in"),
        (Request("r", (1,), 0), {}, "max_tokens must be at least 1"),
        (Request("r", (1,), 1, n=0), {}, "n must be at least 1"),
    ],
)
def test_a_request_that_can_never_be_computed_is_refused(request_, changes, message):
    scheduler = Scheduler(make_limits(**changes))
    with pytest.raises(InvalidRequest, match=message) as refusal:
        scheduler.add(request_)
    if "context" in message:
        assert refusal.value.code == "context_length_exceeded"
    assert scheduler.num_unfinished == 0


def test_the_largest_requests_that_fit_are_served():
    for changes, prompt, max_tokens in (({}, 127, 50), ({"num_pages": 11}, 20, 21), ({"num_pages": 33}, 1, 200)):
        client = Client(make_limits(**changes))
        client.add(Request("r", tokens(prompt), max_tokens))
        client.finish()
        assert client.answers["r", 0].reason == "length"


def test_a_prompt_that_would_end_with_all_of_a_step_leaves_a_short_one_its_part():
    client = Client(make_limits(max_num_batched_tokens=32, max_num_seqs=4))
    client.add(Request("long", tokens(62), 1))
    client.step()
    client.add(Request("short", tokens(6, 1), 1))
    first = len(client.plans)
    client.step()
    assert [row.count for row in client.plans[first].rows] == [26, 6], "30 of the long one's are left, 32 are there"
    client.finish()
