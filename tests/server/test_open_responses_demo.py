"""Open Responses' cases of texts and functions, asked of the bundled model, whole and streamed."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.http import RESPONSES, live
from tests.server.open_responses import WEATHER, check_call_events, check_response, valid_events
from tests.support.engines import DEMO


def said(role: str, content: str, **more: str) -> dict[str, str]:
    return {"type": "message", "role": role, "content": content, **more}


SUM, PARIS = said("user", "What is 7 plus 5?"), said("user", "What is the weather in Paris?")
CASES: dict[str, tuple[list[dict[str, str]], dict[str, Any], list[str]]] = {  # items, fields, and the kinds of output
    "basic": ([SUM], {}, ["message"]),
    "system prompt": ([said("system", "You are a pirate."), SUM], {}, ["message"]),
    "multi-turn": ([said("user", "My name is Ann."), said("assistant", "Hello Ann!"), SUM], {}, ["message"]),
    "assistant phase": ([SUM, said("assistant", "12", phase="final_answer"), SUM], {}, ["message"]),
    "tool calling": ([PARIS], {"tools": [WEATHER]}, ["function_call"]),
    "thoughts": ([SUM], {"reasoning": {"effort": "low"}}, ["reasoning", "message"]),
    "thoughts and tools": (
        [PARIS],
        {"tools": [WEATHER], "reasoning": {"effort": "low"}},
        ["reasoning", "function_call"],
    ),
}


@pytest.fixture(scope="module")
def client(executables) -> Iterator[httpx2.Client]:
    llm = AsyncLLM(EngineConfig(**DEMO, compile_cache_dir=str(executables)))
    with (
        live(create_app(llm), llm.start, llm.close) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("turns", [100, 2000])  # some times the context, and more than is counted
def test_a_conversation_that_is_too_long_is_cut_by_its_oldest_turns(client, turns):
    chat = [
        each for _ in range(turns) for each in (said("user", "Tell me more. " * 8), said("assistant", "Well. " * 40))
    ]
    asked = {"input": [*chat, SUM], "temperature": 0, "max_output_tokens": 40, "reasoning": {"effort": "none"}}
    assert client.post(RESPONSES, json=asked).json()["error"]["code"] == "context_length_exceeded"
    answer = client.post(RESPONSES, json=asked | {"truncation": "auto"})
    assert answer.status_code == 200, answer.text
    assert "messages are left out" in answer.headers["x-jaxinfer-warnings"]
    body = answer.json()
    check_response(body)
    assert 1000 < body["usage"]["input_tokens"] <= 2008


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_bundled_model_answers_the_cases_of_open_responses(client, case):
    items, fields, kinds = CASES[case]
    asked = {"input": items, "temperature": 0, "max_output_tokens": 200, "reasoning": {"effort": "none"}} | fields
    whole = client.post(RESPONSES, json=asked).json()
    check_response(whole)
    found = valid_events(client.post(RESPONSES, json=asked | {"stream": True}).text)
    last = found[-1]["response"]
    assert (found[-1]["type"], last["status"], whole["status"]) == ("response.completed", "completed", "completed")
    assert [item["type"] for item in whole["output"]] == [item["type"] for item in last["output"]] == kinds
    if kinds[-1] == "message":
        texts = [response["output"][-1]["content"][0]["text"] for response in (whole, last)]
        assert texts[0] == texts[1] and texts[0].strip()
    else:
        check_call_events(found)
        calls = [response["output"][-1] for response in (whole, last)]
        assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
            ("get_weather", {"city": "Paris"})
        ] * 2
