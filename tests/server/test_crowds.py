"""More requests than fit, of every kind, over the real scheduler and text side of a dry run (A28, A40, A46)."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import httpx2
import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.crowd import ask_together, body_of, check_stream
from tests.server.dry import dry_llm, dry_server, p99
from tests.server.http import COMPLETIONS, error_of, live, wait_until
from tests.server.rest import Place, ends_at_rest
from tests.support.attempts import Stopwatch, assert_below

CAPACITY = 16  # sequences running and waiting


@pytest.fixture(scope="module")
def llm() -> AsyncLLM:
    return dry_llm(0.001, max_num_seqs=4, max_num_queued_seqs=CAPACITY - 4, num_pages=40, page_size=16)


@pytest.fixture(scope="module")
def base(llm: AsyncLLM) -> Iterator[str]:
    with live(create_app(llm), llm.start, llm.close) as port:
        base = f"http://127.0.0.1:{port}"
        form = {"prompt": "x", "structured_outputs": {"regex": "a"}}  # starts the process that tries grammars
        assert ask_together(base, [form], at_once=1)[0].status_code == 200
        yield base


@pytest.fixture(autouse=True)
def rests(base: str, llm: AsyncLLM) -> Iterator[None]:
    pid = llm.replicas.transports[0].pid
    with ends_at_rest(Place(base, os.getpid())):
        yield
    assert not llm._open and not llm._names
    assert (llm.replicas.transports[0].pid, llm.stats().restarts) == (pid, 0)


def test_a_burst_is_refused_where_the_queue_ends_and_everything_accepted_finishes(base):
    bodies = [{"prompt": "x", "max_tokens": 30, "ignore_eos": True, "seed": i} for i in range(10 * CAPACITY)]
    answers = ask_together(base, bodies, at_once=len(bodies))
    accepted = [answer for answer in answers if answer.status_code == 200]
    assert len(accepted) >= CAPACITY
    assert all(answer.json()["usage"]["completion_tokens"] == 30 for answer in accepted)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused, "ten times what fits"
    assert {(answer.status_code, error_of(answer)["code"]) for answer in refused} == {(429, "queue_full")}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


def test_what_can_never_fit_is_a_400_and_not_a_place_in_the_queue(base):
    watch = Stopwatch()
    (answer,) = ask_together(base, [{"prompt": "x", "max_tokens": 1000}], at_once=1)
    assert (answer.status_code, error_of(answer)["code"]) == (400, "context_length_exceeded")
    (many,) = ask_together(base, [{"prompt": ["x"] * 20}], at_once=1)
    assert (many.status_code, error_of(many)["param"]) == (400, "n")
    assert watch.seconds() < 2


def test_short_prompts_beside_long_ones_take_three_times_as_long_at_most():
    """A46: one step alone; beside them two more, one that is in flight and one just missed. Steps take all the time."""
    llm = dry_llm(0.03, max_num_seqs=16, max_num_batched_tokens=256, enable_prefix_caching=False)
    done = threading.Event()

    def ask(client: httpx2.Client, number: int, length: int) -> float:
        begun_s = time.monotonic()
        answer = client.post(COMPLETIONS, json={"prompt": [number] * length, "max_tokens": 1})
        assert answer.status_code == 200
        return time.monotonic() - begun_s

    with (
        live(create_app(llm), llm.start, llm.close) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ThreadPoolExecutor(3) as pool,
    ):

        def keep_asking(number: int) -> int:
            count = 0
            while not done.is_set():
                ask(client, number, 1900)
                count += 1
            return count

        def times_as_long() -> float:
            done.clear()
            alone_s = median(ask(client, number, 30) for number in range(12))
            long = [pool.submit(keep_asking, number) for number in range(3)]
            try:
                wait_until(lambda: llm.stats().waiting > 0)
                beside_s = median(ask(client, number, 30) for number in range(12))
            finally:
                done.set()
            assert sum(asker.result() for asker in long) >= 2, "the long ones go on"
            return beside_s / alone_s

        assert_below(3, times_as_long, "times what it takes alone")


@pytest.mark.slow
def test_tails_of_short_prompts_beside_long_ones(tmp_path):
    """A46: the same at the 99th percentile, held against a second server that nobody else asks."""
    settings = ("demo", "--dry-run-step-ms", "40", "--max-num-batched-tokens", "256", "--no-enable-prefix-caching")
    done = threading.Event()

    def seconds(base: str) -> list[float]:
        """Of 100 short prompts, one after the other."""
        with httpx2.Client(base_url=base, timeout=60) as client:
            return [ask(client, number) for number in range(100)]

    def ask(client: httpx2.Client, number: int, length: int = 30) -> float:
        begun_s = time.monotonic()
        assert client.post(COMPLETIONS, json={"prompt": [number] * length, "max_tokens": 1}).status_code == 200
        return time.monotonic() - begun_s

    def keep_asking(base: str, number: int) -> None:
        with httpx2.Client(base_url=base, timeout=60) as client:
            while not done.is_set():
                ask(client, number, 1900)

    with (
        dry_server(tmp_path / "log", *settings) as served,
        dry_server(tmp_path / "control", *settings) as control,
        ThreadPoolExecutor(5) as pool,
    ):
        bases = [f"http://127.0.0.1:{each.port}" for each in (served, control)]

        def times_as_long() -> float:
            beside, alone = pool.map(seconds, bases)
            return p99(beside) / p99(alone)

        long = [pool.submit(keep_asking, bases[0], number) for number in range(3)]
        try:
            assert_below(3, times_as_long, "times what it takes alone")
        finally:
            done.set()
        for asker in long:
            asker.result()


def test_every_stream_ends_once_and_joins_to_the_answer_that_is_not_streamed(base):
    bodies = [body_of(number) for number in range(160)]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streams = ask_together(base, [body | options for body in bodies], at_once=5)
    wholes = ask_together(base, bodies, at_once=5)
    for body, stream, whole in zip(bodies, streams, wholes, strict=True):
        assert check_stream(body, stream, whole) == ""


def test_a_raw_prompt_may_spell_special_tokens_and_a_message_may_not(base):
    """A08"""
    chats = [{"messages": [{"role": "user", "content": text}], "max_tokens": 1} for text in ("", "<|im_end|>")]
    raw = {"prompt": "<|im_end|>", "add_special_tokens": False, "max_tokens": 1}
    answers = ask_together(base, [raw, *chats], at_once=1)
    one, least, more = (answer.json()["usage"]["prompt_tokens"] for answer in answers)
    assert one == 1 and more - least > 3


def test_one_id_in_use_twice_mixes_nothing_up(base):
    bodies = [{"prompt": f"say {i}", "max_tokens": 40, "ignore_eos": True, "seed": i} for i in range(2)]
    alone = [ask_together(base, [body], at_once=1)[0].json()["choices"] for body in bodies]
    together = ask_together(base, bodies * 2, at_once=4, **{"x-request-id": "the-same"})
    assert {answer.json()["id"] for answer in together} == {"cmpl-the-same"}
    assert [answer.json()["choices"] for answer in together] == alone * 2
    assert alone[0] != alone[1]


def test_one_id_in_use_twice_with_two_grammars_mixes_nothing_up(base):
    """A28"""
    forms = ["(a|b){30}", "(c|d){30}"]
    bodies = [{"prompt": "x", "max_tokens": 60, "seed": 3, "structured_outputs": {"regex": form}} for form in forms]
    alone = [ask_together(base, [body], at_once=1)[0].json()["choices"] for body in bodies]
    together = ask_together(base, bodies * 2, at_once=4, **{"x-request-id": "the-same"})
    assert {answer.json()["id"] for answer in together} == {"cmpl-the-same"}
    assert [answer.json()["choices"] for answer in together] == alone * 2
    assert [set(choices[0]["text"]) for choices in alone] == [set("ab"), set("cd")]
