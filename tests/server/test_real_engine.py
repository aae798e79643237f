"""The server over the real engine: a tiny checkpoint with random weights, asked by the official openai client."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.thread import EngineThread
from jaxinfer.server.app import create_app
from tests.server.http import CHAT, EMBEDDINGS, MESSAGES, USER, live, raw_request, wait_until
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import build, built_before

GREEDY = {"model": "", "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def llm(tmp_path_factory, executables) -> AsyncLLM:
    config, core = build(write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny"), executables)
    return AsyncLLM(config, new_transport=partial(EngineThread, start_core=built_before(core)))


@pytest.fixture(scope="module")
def port(llm: AsyncLLM) -> Iterator[int]:
    with live(create_app(llm), llm.start, llm.close) as port:
        yield port


@pytest.fixture
def client(port: int) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def leaves_the_engine_idle(llm, port) -> Iterator[None]:
    yield
    wait_until(lambda: (llm.stats().running, llm.stats().waiting, llm.stats().pages_owned) == (0, 0, 0))
    stats = llm.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total


def test_a_stream_joins_to_the_answer_that_is_not_streamed(client):
    whole = client.chat.completions.create(messages=USER, **GREEDY)
    stream = client.chat.completions.create(
        messages=USER, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens > 0


def test_a_prompt_seen_before_is_found_in_the_cache(client):
    prompt = list(range(10, 90))
    cached = [
        client.completions.create(prompt=prompt, **GREEDY).usage.prompt_tokens_details.cached_tokens for _ in range(2)
    ]
    assert cached == [0, 64]


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_with_max_tokens_0_leaves_its_prompt_in_the_cache(port, stream):
    body = {"messages": [{"role": "user", "content": f"{'ab' if stream else 'cd'} one two three " * 6}]}
    first = httpx2.post(f"http://127.0.0.1:{port}{MESSAGES}", json=body | {"max_tokens": 0, "stream": stream})
    assert first.status_code == 200 and "content_block" not in first.text
    usage = httpx2.post(f"http://127.0.0.1:{port}{MESSAGES}", json=body | {"max_tokens": 1}).json()["usage"]
    size = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert usage["cache_read_input_tokens"] == (size - 1) // 16 * 16 > 64, "all whole pages before the last token"


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_instructions_behind_a_line_that_changes_with_every_request_are_found_in_the_cache(port, path):
    def ask(number: int) -> tuple[int, int]:
        """Tokens of the prompt, and how many of them were found."""
        lines = [f"x-anthropic-billing-header: cc_version=2.1; cch={path}{number};", "Be an agent and help. " * 4]
        system: Any = [{"type": "text", "text": line} for line in lines]
        body = {"max_tokens": 1, "messages": [{"role": "system", "content": system}, *USER]}
        if path == MESSAGES:
            body = {"max_tokens": 1, "messages": USER, "system": system}
        usage = httpx2.post(f"http://127.0.0.1:{port}{path}", json=body).json()["usage"]
        if path == CHAT:
            return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]

    ask(1)
    size, found = ask(2)
    assert found == (size - 1) // 16 * 16 > 64, "all whole pages before the last token"


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_s_next_turn_finds_the_one_before(client, stream):
    def turn(messages: list[dict[str, str]], **extra: object) -> tuple[str, object]:
        ask = GREEDY | {"messages": messages, "extra_body": {"ignore_eos": True, **extra}}
        if not stream:
            answer = client.chat.completions.create(**ask)
            return answer.choices[0].message.content, answer.usage
        *chunks, last = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask)
        return "".join(chunk.choices[0].delta.content for chunk in chunks), last.usage

    session = {"session_id": f"of-openai-{stream}"}
    messages = [{"role": "user", "content": "one two three four"}]
    text, first = turn(messages, **session)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "five"}]
    told = turn(messages, **session)
    assert told[1].prompt_tokens_details.cached_tokens >= first.prompt_tokens // 16 * 16
    assert told[0] == turn(messages, cache_salt="alone")[0]
    client.delete(f"/sessions/{session['session_id']}", cast_to=dict)
    text, _ = turn(messages[:1], **session)
    appended = turn(messages[2:], **session, session_append=True)
    assert text == messages[1]["content"] and appended[0] == told[0]
    shown = client.get("/sessions", cast_to=dict)["data"][0]
    assert (shown["id"], shown["turns"]) == (session["session_id"], 2)
    assert client.delete(f"/sessions/{session['session_id']}", cast_to=dict)["deleted"]


def test_a_seed_repeats_n_different_answers(client):
    def answers() -> list[str]:
        choices = client.completions.create(model="", prompt="once", n=3, seed=5, max_tokens=20, temperature=1)
        return [choice.text for choice in choices.choices]

    first = answers()
    assert first == answers()
    assert len(set(first)) == 3


def test_several_prompts_answer_as_each_alone(client):
    prompts = [[5, 6, 7], [8, 9], list(range(30))]
    together = client.completions.create(prompt=prompts, **GREEDY).choices
    alone = [client.completions.create(prompt=prompt, **GREEDY).choices[0].text for prompt in prompts]
    assert [choice.text for choice in together] == alone


def test_a_stop_string_ends_the_text_before_it(client):
    whole = client.completions.create(prompt=[5, 6, 7], **GREEDY).choices[0].text
    stop = whole[len(whole) // 2 :][:3]
    choice = client.completions.create(prompt=[5, 6, 7], stop=stop, **GREEDY).choices[0]
    assert choice.text == whole[: whole.index(stop)]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)


def test_a_prompt_that_does_not_fit_is_refused_in_the_words_that_clients_search_for(client):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 256 tokens") as caught:
        client.completions.create(model="", prompt=[1] * 256)
    assert caught.value.code == "context_length_exceeded"


def test_tokenize_and_detokenize_undo_each_other(client):
    ids = client.post("../tokenize", body={"prompt": "Hé 🙂"}, cast_to=dict)["tokens"]
    assert client.post("../detokenize", body={"tokens": ids}, cast_to=dict)["prompt"] == "Hé 🙂"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_pages(llm, port, stream):
    body = {"messages": USER, "stream": stream, "n": 2, "ignore_eos": True, "max_tokens": 220}
    with raw_request(port, CHAT, body):
        wait_until(lambda: llm.stats().pages_owned > 0)
    wait_until(lambda: llm.stats().pages_owned == 0)


def test_chat_logprobs_hold_the_bytes_of_the_text_streamed_or_not(client):
    ask = GREEDY | {"messages": USER, "logprobs": True, "top_logprobs": 3, "temperature": 1.5, "seed": 2}
    choice = client.chat.completions.create(**ask).choices[0]
    entries = choice.logprobs.content
    assert len(entries) == 12 and all(len(entry.top_logprobs) == 3 for entry in entries)
    assert b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace") == choice.message.content
    chunks = list(client.chat.completions.create(stream=True, **ask))
    streamed = [entry for chunk in chunks if (found := chunk.choices[0].logprobs) for entry in found.content]
    assert streamed == entries


def test_completion_logprobs_count_characters(client):
    ask = GREEDY | {"prompt": [5, 6, 7], "logprobs": 2}
    choice = client.completions.create(**ask).choices[0]
    found = choice.logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset) == 12
    assert found.text_offset[0] == 0 and found.text_offset == sorted(found.text_offset)
    assert all(2 <= len(top) <= 3 and token in top for token, top in zip(found.tokens, found.top_logprobs, strict=True))
    chunks = [chunk.choices[0].logprobs for chunk in client.completions.create(stream=True, **ask)]
    for name in ("tokens", "text_offset", "token_logprobs", "top_logprobs"):
        assert [item for chunk in chunks if chunk for item in getattr(chunk, name)] == getattr(found, name)


def test_embeddings_are_the_same_as_numbers_and_as_base64_beside_answers_and_alone(client):
    inputs = [[5, 6, 7], list(range(130)), [9]]

    def ask(given: list[list[int]], **fields: Any) -> np.ndarray:
        answer = client.embeddings.create(model="", input=given, **fields)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, given))
        return np.array([item.embedding for item in answer.data], np.float32)

    with ThreadPoolExecutor() as pool:
        beside = pool.submit(client.completions.create, prompt=[5, 6], **GREEDY | {"max_tokens": 100})
        packed = ask(inputs)  # the client asks for base64 unless told otherwise
        told = ask(inputs, encoding_format="float")
        assert beside.result().usage.completion_tokens == 100
    alone = np.concatenate([ask([given]) for given in inputs])
    assert packed.shape == (3, 64)
    np.testing.assert_allclose(told, packed, atol=1e-5)
    np.testing.assert_allclose(alone, packed, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(packed, axis=1), 1, rtol=1e-6)
    short = ask(inputs, dimensions=8)
    cut = packed[:, :8]
    np.testing.assert_allclose(short, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-5)


def test_a_score_tells_texts_apart_and_knows_the_same(client):
    body = {"text_1": "once upon", "text_2": ["once upon", "twice"], "pooling": "mean"}
    same, other = (item["score"] for item in client.post("../score", body=body, cast_to=dict)["data"])
    assert same == pytest.approx(1, abs=1e-6)
    assert -1 <= other < 0.999


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_client_that_leaves_its_embeddings_frees_their_pages(llm, port, pooling):
    asked = {"input": [[i] * 250 for i in range(40)], "pooling": pooling}
    with raw_request(port, EMBEDDINGS, asked):
        wait_until(lambda: llm.stats().pages_owned > 0)
    wait_until(lambda: llm.stats().pages_owned == 0)
    assert llm.stats().finished["abort"] > 0


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_an_echo_scores_the_whole_prompt_though_it_is_cached(client, max_tokens):
    prompt = list(range(10, 90))
    ask = GREEDY | {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    first, second = (client.completions.create(**ask) for _ in range(2))
    assert first.choices == second.choices
    choice, found = first.choices[0], first.choices[0].logprobs
    assert len(found.tokens) == 80 + max_tokens and found.token_logprobs[0] is None and found.top_logprobs[0] is None
    assert all(value < 0 for value in found.token_logprobs[1:])
    assert first.usage.completion_tokens == max_tokens and choice.finish_reason == "length"
    frames = list(client.completions.create(stream=True, **ask))
    assert "".join(frame.choices[0].text for frame in frames) == choice.text
    assert [token for frame in frames if frame.choices[0].logprobs for token in frame.choices[0].logprobs.tokens] == (
        found.tokens
    )


def test_a_prompt_that_fills_the_context_can_be_scored(client):
    whole, short = ([5 + i % 50 for i in range(length)] for length in (256, 255))
    ask = {"model": "", "echo": True, "logprobs": 0, "max_tokens": 0}
    scores = [client.completions.create(prompt=prompt, **ask).choices[0].logprobs for prompt in (whole, short)]
    assert [len(found.tokens) for found in scores] == [256, 255]
    assert scores[0].token_logprobs[1:255] == pytest.approx(scores[1].token_logprobs[1:], abs=1e-4)


def test_logprobs_come_with_the_tokens_that_a_stop_string_leaves(client):
    whole = client.completions.create(prompt=[5, 6, 7], **GREEDY).choices[0].text
    ask = GREEDY | {"prompt": [5, 6, 7], "stop": whole[len(whole) // 2 :][:3], "logprobs": 0}
    answer = client.completions.create(**ask)
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens < 12
    chunks = list(client.completions.create(stream=True, **ask))
    streamed = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.tokens]
    assert streamed == answer.choices[0].logprobs.tokens


def test_prompt_logprobs_are_listed_by_id_with_the_first_unknown(client):
    extra = {"extra_body": {"prompt_logprobs": 2}}
    listed = client.completions.create(model="", prompt=[5, 6, 7], max_tokens=1, **extra).choices[0].prompt_logprobs
    assert listed[0] is None and [("6" in listed[1]), ("7" in listed[2])] == [True, True]
    assert listed[1]["6"].keys() == {"logprob", "rank", "decoded_token"}
    chat = client.chat.completions.create(model="", messages=USER, max_tokens=1, **extra)
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


@pytest.mark.slow
def test_sixty_four_streams_with_leavers_all_end(llm, port):
    async def one(client: openai.AsyncOpenAI, number: int) -> int:
        stream = await client.completions.create(
            model="", prompt=[number + 1, 7], stream=True, max_tokens=40, extra_body={"ignore_eos": True}
        )
        received = 0
        async for _ in stream:
            received += 1
            if number % 3 == 0 and received == 5:
                await stream.close()
                break
        return received

    async def run() -> list[int]:
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120
        ) as client:
            return await asyncio.gather(*(one(client, number) for number in range(64)))

    asyncio.run(run())  # whatever a first round starts and keeps, such as pool threads, is there afterwards
    wait_until(lambda: llm.stats().pages_owned == 0)
    threads, descriptors, compiled = threading.active_count(), num_descriptors(), llm.stats().compiles_after_ready
    received = asyncio.run(run())
    assert all(count > 0 for count in received)
    wait_until(lambda: llm.stats().pages_owned == llm.stats().running == llm.stats().waiting == 0)
    stats = llm.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    assert stats.compiles_after_ready == compiled
    wait_until(lambda: num_descriptors() <= descriptors)
    assert threading.active_count() <= threads


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_the_times_of_an_answer_add_up(client):
    def answer(**fields):
        body = {**GREEDY, "extra_body": {"ignore_eos": True, "include_metrics": True}}
        return client.completions.create(prompt=list(range(40)), **body, **fields)

    whole = answer().metrics
    *_, last = answer(stream=True)
    for found in (whole, last.metrics):
        waits = [found[f"{name}_time_ms"] for name in ("prepare", "queue", "prefill")]
        assert all(ms >= 0 for ms in waits) and found["prefill_time_ms"] > 0
        assert sum(waits) <= found["time_to_first_token_ms"] < found["total_time_ms"] < 60_000
        assert found["generation_time_ms"] == pytest.approx(11 * found["mean_itl_ms"], abs=0.01)
        assert found["tokens_per_second"] == pytest.approx(12_000 / found["total_time_ms"], rel=0.01)
        assert found["preemptions"] == 0
