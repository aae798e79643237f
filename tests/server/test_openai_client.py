"""The official openai client against the server, over a loopback port."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from jaxinfer.llm.types import Delta
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM
from tests.server.http import USER, live, wait_until


def script(prompt_ids, params):
    if params.seed == 13:
        yield Delta(0, "Hel", [1])
        yield Delta(0, "", [], "error", error="the row was not finite")
    if params.seed == 99:
        while True:
            yield Delta(0, "x", [1])
            yield 0.005
    for index in range(params.n):
        yield Delta(index, "Hél", [1, 2])
        yield Delta(index, "lo 🙂", [3, 257], "stop")


@pytest.fixture(scope="module")
def llm() -> FakeLLM:
    return FakeLLM(script, max_running=4)


@pytest.fixture(scope="module")
def url(llm: FakeLLM) -> Iterator[str]:
    with live(create_app(llm)) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["tiny", "org/tiny-1B"]
    assert client.models.retrieve("org/tiny-1B").id == "org/tiny-1B"


def test_a_chat_is_answered(client):
    answer = client.chat.completions.create(model="tiny", messages=USER, n=2, temperature=0.5, max_completion_tokens=9)
    assert [choice.message.content for choice in answer.choices] == ["Héllo 🙂"] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details.cached_tokens == 9
    assert answer._request_id == answer.id.removeprefix("chatcmpl-")


def test_a_chat_is_streamed(client):
    stream = client.chat.completions.create(
        model="tiny", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks[:-1]) == "Héllo 🙂"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 22


def test_the_clients_own_accumulator_reads_the_stream(client):
    with client.chat.completions.stream(model="tiny", messages=USER) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Héllo 🙂"


def test_completions_are_answered_and_streamed(client):
    answer = client.completions.create(model="tiny", prompt=[[1, 2], [3]], max_tokens=5)
    assert [choice.text for choice in answer.choices] == ["Héllo 🙂"] * 2
    chunks = list(client.completions.create(model="tiny", prompt="a", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Héllo 🙂"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_refusals_arrive_as_the_clients_own_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=USER, temperature=3)
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=USER)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="tiny", prompt=["x"] * 5)


def test_an_error_in_mid_stream_is_raised(client):
    pieces = []
    with pytest.raises(openai.APIError, match="the row was not finite"):
        for chunk in client.chat.completions.create(model="tiny", messages=USER, stream=True, seed=13):
            pieces.append(chunk.choices[0].delta.content)
    assert "".join(pieces) == "Hel"


def test_closing_a_stream_early_frees_it(client, llm):
    stream = client.chat.completions.create(model="tiny", messages=USER, stream=True, seed=99)
    next(iter(stream))
    assert len(llm.running) == 1
    stream.close()
    wait_until(lambda: not llm.running)


def test_the_async_client_streams_several_at_once(url):
    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="tiny", messages=USER, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(4)))

    assert asyncio.run(run()) == ["Héllo 🙂"] * 4


def test_keys_and_their_quota_arrive_as_the_clients_own_errors():
    key = ApiKey("a", "sk-0123456789")
    settings = ServerSettings(api_keys=(key,), max_requests_per_minute_per_key=1)
    with live(create_app(FakeLLM(script), settings)) as port:
        base = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=base, api_key="sk-9876543210", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError) as refused:
                stranger.models.list()
            assert refused.value.code == "invalid_api_key"
        with openai.OpenAI(base_url=base, api_key=key.secret, max_retries=0) as client:
            assert client.chat.completions.create(model="tiny", messages=USER).choices[0].message.content == "Héllo 🙂"
            with pytest.raises(openai.RateLimitError) as too_many:
                client.chat.completions.create(model="tiny", messages=USER)
            assert too_many.value.code == "rate_limit_exceeded"
