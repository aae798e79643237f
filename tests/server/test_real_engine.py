"""The server over the real engine: a tiny checkpoint with random weights, asked by the official openai client."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.thread import EngineThread
from jaxinfer.server.app import create_app
from tests.server.http import CHAT, USER, live, raw_request, wait_until
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import build

GREEDY = {"model": "", "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> AsyncLLM:
    config, core = build(
        write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny"), tmp_path_factory.mktemp("executables")
    )
    return AsyncLLM(config, new_transport=lambda _, on_event: EngineThread.over(config, core, on_event))


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

    received = asyncio.run(run())
    assert all(count > 0 for count in received)
