"""The bundled model over HTTP, asked by the official openai client: it calls a tool and passes on what came back."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.http import live

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather of a city.", "parameters": SCHEMA}
TOOLS: Any = [{"type": "function", "function": WEATHER}]
USER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    config = EngineConfig(device="cpu", max_model_len=1024, max_num_seqs=2, max_num_batched_tokens=256)
    llm = AsyncLLM(config)
    with (
        live(create_app(llm), llm.start, llm.close) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["none", "low"])
def test_it_calls_a_tool_and_tells_what_it_said(client, effort):
    ask = partial(client.chat.completions.create, model="", tools=TOOLS, max_tokens=200, temperature=0)
    whole = ask(messages=USER, reasoning_effort=effort).choices[0]
    (call,) = whole.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    assert ("reasoning_content" in whole.message.model_extra) == (effort == "low")
    with client.chat.completions.stream(
        model="", messages=USER, tools=TOOLS, max_tokens=200, temperature=0, reasoning_effort=effort
    ) as stream:
        (final,) = stream.get_final_completion().choices
    assert final.finish_reason == "tool_calls"
    (streamed,) = final.message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "sunny"}'}
    told = ask(messages=[*USER, whole.message.model_dump(exclude_none=True), result]).choices[0]
    assert "sunny" in told.message.content and not told.message.tool_calls


@pytest.mark.slow
def test_it_turns_a_sentence_into_json(client):
    messages: Any = [{"role": "user", "content": "Extract JSON: Anna has a red ball in Paris."}]
    answer = client.chat.completions.create(model="", messages=messages, max_tokens=100, temperature=0)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)
