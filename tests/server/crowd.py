"""Requests by the hundred: completions and chats of many kinds, and how to ask for them together."""

import asyncio
import random
from collections import Counter
from typing import Any

import httpx2

from tests.server.http import CHAT, COMPLETIONS, error_of, events


def ask_together(base: str, bodies: list[dict[str, Any]], at_once: int, **headers: str) -> list[httpx2.Response]:
    """The answers in the order of the bodies, at most `at_once` of them under way. What has messages is a chat."""

    async def ask() -> list[httpx2.Response]:
        room = asyncio.Semaphore(at_once)
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=base, timeout=60, limits=limits, headers=headers) as client:

            async def one(body: dict[str, Any]) -> httpx2.Response:
                async with room:
                    return await client.post(CHAT if "messages" in body else COMPLETIONS, json=body)

            return await asyncio.gather(*map(one, bodies))

    return asyncio.run(ask())


def body_of(number: int) -> dict[str, Any]:
    """One of many kinds, every third a chat, every fourth a mistake."""
    choose = random.Random(number)
    body: dict[str, Any] = {"prompt": f"number {number}", "max_tokens": choose.randint(1, 40), "seed": number}
    body |= choose.choice([{}, {"n": 2}, {"stop": ["a", "e"]}, {"ignore_eos": True}, {"prompt": ["a", "bb", "c"]}])
    body |= choose.choice([{}, {"logprobs": 0}, {"echo": True}, {"temperature": 1.0}])
    body |= {"temperature": 9} if number % 4 == 3 else {}
    return as_chat(body) if number % 3 == 1 else body


PARTS = {"age": {"enum": [7, 42]}, "is": {"enum": ["x", "héé🙂", None]}}
AGE = {"type": "object", "properties": PARTS, "required": ["age"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": AGE}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": AGE}}
FORMS: tuple[dict[str, Any], ...] = (
    {"response_format": SCHEMA, "n": 2},
    {"response_format": SCHEMA, "close_within_max_tokens": True, "max_tokens": 9},
    {"structured_outputs": {"regex": "[a-z ]+(yes|no)[a-z]*"}, "logprobs": 0},
    {"structured_outputs": {"grammar": 'start: ("red " | "blue" /[0-9]+/)+'}},
)
CHAT_FORMS: tuple[dict[str, Any], ...] = (
    {"tools": TOOLS, "tool_choice": "required", "close_within_max_tokens": True},
    {"tools": TOOLS},
    {"reasoning_effort": "low", "thinking_token_budget": 5, "max_tokens": 20},
    {"reasoning_effort": "low", "response_format": SCHEMA, "thinking_token_budget": 3, "n": 2},
    {
        "reasoning_effort": "low",
        "tools": TOOLS,
        "tool_choice": "required",
        "close_within_max_tokens": True,
        "max_tokens": 90,
    },
)


def stream_of(number: int) -> dict[str, Any]:
    """One of many kinds that all begin to stream: every third must be of a form, calls tools or thinks."""
    body = body_of(number // 3 * 4 + number % 3)
    if number % 3:
        return body
    base = {"seed": number, "temperature": number % 2, "max_tokens": 80}
    if number % 2:
        return base | {"prompt": f"number {number}"} | FORMS[number // 6 % len(FORMS)]
    said = [{"role": "user", "content": f"number {number}"}]
    return base | {"messages": said} | CHAT_FORMS[number // 6 % len(CHAT_FORMS)]


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in body.items() if name not in ("prompt", "echo", "logprobs")}
    text = " ".join(body["prompt"])
    logprobs = {"logprobs": True} if "logprobs" in body else {}
    return {"messages": [{"role": "user", "content": text}], **fields, **logprobs}


def num_choices(body: dict[str, Any]) -> int:
    return body.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1)


def parts_of(choice: dict[str, Any]) -> dict[str, str]:
    """The texts of a choice or a piece of one: what it answers, thinks and calls."""
    part: dict[str, Any] = choice.get("message") or choice.get("delta") or choice
    parts = {"text": part.get("content") or part.get("text") or "", "thoughts": part.get("reasoning") or ""}
    for place, call in enumerate(part.get("tool_calls") or ()):
        function = call["function"]
        parts[f"call {call.get('index', place)}"] = (function.get("name") or "") + function["arguments"]
    return {name: text for name, text in parts.items() if text}


def check_stream(body: dict[str, Any], stream: httpx2.Response, whole: httpx2.Response) -> str:
    """Assert that a stream of body_of's ended as it must, and says what its whole answer says as far as it goes.

    Returns the code of the error that ended it, "" if none did: an HTTP status before the first byte, an event later.
    """
    if body.get("temperature") == 9:
        for response in (stream, whole):
            assert (response.status_code, error_of(response)["param"]) == (400, "temperature")
        return ""
    assert whole.status_code == 200
    if stream.status_code != 200:
        return str(error_of(stream)["code"])
    *chunks, last = events(stream.text)
    texts: dict[int, dict[str, str]] = {index: {} for index in range(num_choices(body))}
    ends = Counter[int]()
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        assert not ends[choice["index"]], "nothing comes after the end"
        for name, text in parts_of(choice).items():
            texts[choice["index"]][name] = texts[choice["index"]].get(name, "") + text
        ends[choice["index"]] += choice["finish_reason"] is not None
    expected = {choice["index"]: parts_of(choice) for choice in whole.json()["choices"]}
    assert not any("error" in chunk or chunk.get("usage") for chunk in chunks)
    if "error" in last:
        assert all(
            expected[index].get(name, "").startswith(text) for index, own in texts.items() for name, text in own.items()
        )
        return str(last["error"]["code"])
    assert ends == dict.fromkeys(texts, 1)
    assert texts == expected
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole.json()["usage"]["completion_tokens"]
    return ""
