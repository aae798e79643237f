"""Steps with prompts are short while somebody waits for their tokens."""

import pytest

from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.engine.pace import Pace
from jaxinfer.engine.sequence import Request
from tests.engine.client import Client
from tests.engine.device import VOCAB, make_limits

SIZES = (64, 256, 512, 1024, 1536, 2048, 4096, 8192)


def large(**changes: object) -> Limits:
    buckets = tuple(ExtendBucket(size, 8, 8) for size in SIZES)
    return make_limits(
        **dict(max_num_batched_tokens=8192, max_model_len=16384, num_pages=2048, page_size=64, extend_buckets=buckets)
        | changes
    )


def prompt(count: int, start: int = 0) -> tuple[int, ...]:
    return tuple((start * 31 + i * 7) % (VOCAB - 1) for i in range(count))


@pytest.mark.parametrize(
    ("steps", "tokens"),
    [
        ([], 2048),
        ([(8192, 0.205)], 1536),  # 8B on an H200: 25 us a token
        ([(8192, 0.036)], 8192),  # 1.5B
        ([(8192, 1.0)], 512),
        ([(100, 5.0)], 2048),  # says nothing about large steps
        ([(600, 0.018)], 2048),  # computed as 1,024: 18 us a token
        ([(8192, 0.205), (2048, 4.0), (2048, 0.05)], 1536),  # one hiccup
        ([(8192, 0.036)] + [(2048, 0.2)] * 4, 512),  # slower for good
    ],
)
def test_a_step_is_as_large_as_what_was_timed_lets_it_end_in_time(steps, tokens):
    pace = Pace(large())
    for num_tokens, seconds in steps:
        pace.add(num_tokens, 8, seconds)
    assert pace.num_tokens(8) == tokens


def test_a_step_of_many_rows_is_as_large_as_one_that_was_compiled_for_them():
    """Steps of 2,048 tokens with 64 rows ran as steps of 4,096, half of them padding."""
    buckets = [ExtendBucket(size, 8, 8) for size in SIZES] + [ExtendBucket(size, 256, 256) for size in (1024, 4096)]
    pace = Pace(large(extend_buckets=tuple(buckets)))
    pace.add(8192, 8, 0.205)
    assert pace.num_tokens(8) == 1536
    assert pace.num_tokens(9) == 1024
    for _ in range(4):
        pace.add(2048, 9, 0.09)  # computed as 4,096: 22 us a token
    assert pace.num_tokens(8) == 1536


def test_without_sizes_a_step_has_the_tokens_that_fit():
    pace = Pace(large(extend_buckets=()))
    pace.add(8192, 8, 0.22)
    assert pace.num_tokens(8) == 1489
    pace.add(8192, 8, 0.0)  # a dry run
    assert pace.num_tokens(8) == 8192


def play(limits: Limits, *prompts: Request, stream: bool) -> list[int]:
    """The tokens of each step from when the prompts come until all are computed, beside a running stream or alone."""
    client = Client(limits)
    pace = client.engine.scheduler.pace
    pace.add(8192, 8, 0.205)
    pace.add = lambda *timed: None  # the fake device takes no time
    if stream:
        client.add(Request("stream", prompt(4), 200))
        client.step()
        client.step()
    first = len(client.plans)
    for request in prompts:
        client.add(request)
    client.step()
    while client.engine.scheduler.waiting or any(not s.decoding for s in client.engine.scheduler.running):
        client.step()
    found = [plan.num_tokens for plan in client.plans[first:] if any(row.count > 1 for row in plan.rows)]
    client.finish()
    return found


def test_a_long_prompt_beside_a_stream_comes_in_short_steps():
    assert play(large(), Request("long", prompt(4000, 1), 1), stream=True) == [1536, 1536, 931]


def test_a_long_prompt_that_nobody_waits_behind_comes_whole():
    assert play(large(), Request("long", prompt(4000, 1), 1), stream=False) == [4000]


@pytest.mark.parametrize(
    ("tokens", "steps"),
    [
        (600, [600]),  # 1,024 are computed, as 512 and 512 would be
        (1100, [1100]),  # in 1,536, as 1,024 and 256 would be
        (2100, [2048, 52]),  # instead of 4,096
        (2900, [2048, 852]),
        (3600, [3600]),
    ],
)
def test_a_prompt_little_longer_than_a_compiled_step_leaves_the_rest_to_another(tokens, steps):
    assert play(large(), Request("long", prompt(tokens, 1), 1), stream=False) == steps
    assert play(large(), Request("long", prompt(tokens, 1), 1, bulk=True), stream=False) == steps


def test_prompts_that_come_together_answer_one_after_the_other():
    prompts = [Request(str(i), prompt(1000, i), 5) for i in range(4)]
    steps = play(large(), *prompts, stream=False)
    assert max(steps) == 1536
    assert sum(steps) >= 4000


def test_requests_that_nobody_reads_along_share_the_largest_steps():
    prompts = [Request(str(i), prompt(2000, i), 5, bulk=True) for i in range(4)]
    assert play(large(), *prompts, stream=False) == [8000]


def test_a_batch_holds_up_no_stream():
    prompts = [Request(str(i), prompt(2000, i), 1, bulk=True) for i in range(4)]
    assert max(play(large(), *prompts, stream=True)) == 1536


@pytest.mark.parametrize("change", [{"enable_chunked_prefill": False}, {"scheduling": "static"}])
def test_where_prompts_are_not_cut_steps_are_not_either(change):
    steps = play(large(**change), *[Request(str(i), prompt(4000, i), 1) for i in range(2)], stream=False)
    assert steps == [8000]


def test_an_ordinary_question_overtakes_long_prompts_also_beside_many_streams():
    client = Client(large(max_num_seqs=128, num_pages=4096))
    pace = client.engine.scheduler.pace
    pace.add(8192, 8, 0.205)
    pace.add = lambda *timed: None
    for i in range(100):
        client.add(Request(f"stream{i}", prompt(4, i), 60))
    for _ in range(4):
        client.step()
    for i in range(4):
        client.add(Request(f"long{i}", prompt(4000, 200 + i), 1))
    client.step()
    client.step()
    client.add(Request("question", prompt(450, 300), 1))
    for _ in range(4):
        client.step()
    assert client.answers["question", 0].reason == "length"
    assert not client.answers["long3", 0].reason, "it would be computed long before otherwise"
    client.finish()


def test_a_prompt_for_which_there_is_no_slot_makes_no_step_smaller():
    prompts = [Request(str(i), prompt(3000, i), 40, bulk=True) for i in range(2)]
    steps = play(large(max_num_seqs=2), *prompts, Request("waits", prompt(9, 7), 1), stream=False)
    assert steps[0] == 6000


def test_small_steps_stay_as_they_are():
    limits = large(max_num_batched_tokens=512, extend_buckets=(ExtendBucket(512, 8, 8),))
    assert max(play(limits, Request("long", prompt(2000, 1), 1), stream=True)) == 512
