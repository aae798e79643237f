"""The bundled model over HTTP, asked by the official openai client: it calls a tool and passes on what came back."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import openai
import pydantic
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.http import live
from tests.support.engines import DEMO

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather of a city.", "parameters": SCHEMA}
TOOLS: Any = [{"type": "function", "function": WEATHER}]
USER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def client(executables) -> Iterator[openai.OpenAI]:
    llm = AsyncLLM(EngineConfig(**DEMO, compile_cache_dir=str(executables)))
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


class Sentence(pydantic.BaseModel):
    """What the demo knows to extract, in an order of its own."""

    name: str
    color: Literal["red", "blue", "green", "yellow"]
    object: str


@pytest.mark.slow
def test_it_fills_in_a_model_of_the_client(client):
    messages: Any = [{"role": "user", "content": "Extract JSON: Anna has a red ball in the garden."}]
    ask = partial(client.chat.completions.parse, model="", messages=messages, response_format=Sentence, max_tokens=200)
    choice = ask(temperature=0).choices[0]
    assert (choice.finish_reason, choice.message.parsed.color) == ("stop", "red")
    for choice in ask(temperature=1, n=2, seed=1, reasoning_effort="low").choices:
        assert isinstance(choice.message.parsed, Sentence)
    with client.chat.completions.stream(
        model="", messages=messages, response_format=Sentence, max_tokens=200, temperature=0
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed.color == "red"
    response = client.responses.parse(model="", input=messages, text_format=Sentence, temperature=0)
    assert response.output_parsed.color == "red"


ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}}}


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["none", "low"])
def test_it_calls_what_it_must(client, effort):
    tools: Any = [*TOOLS, {"type": "function", "function": {**ADD, "strict": True}}]
    named: Any = {"type": "function", "function": {"name": "add"}}
    hello: Any = [{"role": "user", "content": "Hello!"}]
    ask = partial(client.chat.completions.create, model="", messages=hello, tools=tools, max_tokens=300, temperature=0)
    required = ask(tool_choice="required", reasoning_effort=effort).choices[0]
    assert required.finish_reason == "tool_calls" and required.message.tool_calls
    assert {call.function.name for call in required.message.tool_calls} <= {"get_weather", "add"}
    one = ask(tool_choice=named, reasoning_effort=effort).choices[0]
    (call,) = one.message.tool_calls
    assert (one.finish_reason, call.function.name) == ("stop", "add")
    assert isinstance(json.loads(call.function.arguments), dict)
    pieces = [
        delta.function.arguments
        for chunk in ask(tool_choice=named, reasoning_effort=effort, stream=True)
        for choice in chunk.choices
        for delta in choice.delta.tool_calls or ()
    ]
    assert "".join(pieces) == call.function.arguments
