"""Pairs of fields and events in which most servers' bugs live, cell by cell, over the engine process of a dry run: real
scheduler, pages, text side and wire; a token is a hash of all tokens before it as the page table finds them, so a page
too many, too few or mixed up changes the text. Tools and thoughts, whose cells need a
model's words, are in test_tools.py; cells of speculation come with that.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.dry import dry_llm
from tests.server.http import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    USER,
    error_of,
    events,
    live,
    named_events,
    wait_until,
)
from tests.server.streams import ask_all, ask_alone

ROOM = 256  # max_model_len: sixteen pages, of which four sequences share thirty-nine
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
LONG = {"ignore_eos": True, "temperature": 1}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "x"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.fixture(scope="module")
def llm() -> AsyncLLM:
    return dry_llm(0.001, max_model_len=ROOM, max_num_seqs=4, max_num_batched_tokens=64, num_pages=40, page_size=16)


@pytest.fixture(scope="module")
def port(llm: AsyncLLM) -> Iterator[int]:
    with live(create_app(llm), llm.start, llm.close) as port:
        yield port


class Server:
    """The server as a client sees it, and its counters."""

    def __init__(self, llm: AsyncLLM, port: int, client: httpx2.Client) -> None:
        self.llm, self.port, self._client = llm, port, client

    def post(self, path: str, **body: Any) -> httpx2.Response:
        return self._client.post(path, json=body)

    def chat(self, **body: Any) -> dict[str, Any]:
        return self.ok(CHAT, {"messages": USER} | body)

    def complete(self, prompt: Any = "once", **body: Any) -> dict[str, Any]:
        return self.ok(COMPLETIONS, {"prompt": prompt} | body)

    def frames(self, path: str = COMPLETIONS, **body: Any) -> list[dict[str, Any]]:
        response = self.post(path, **USAGE | body)
        assert response.status_code == 200, response.text
        return events(response.text)

    def preemptions(self) -> int:
        return self.llm.stats().preemptions

    def ok(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@pytest.fixture
def server(llm: AsyncLLM, port: int) -> Iterator[Server]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield Server(llm, port, client)
    wait_until(lambda: (llm.stats().running, llm.stats().waiting, llm.stats().pages_owned) == (0, 0, 0))
    stats = llm.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total


def text_of(choice: dict[str, Any]) -> str:
    if "delta" in choice:
        return choice["delta"].get("content") or ""
    return choice["message"]["content"] if "message" in choice else choice["text"]


def joined(frames: list[dict[str, Any]]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in (choice for frame in frames for choice in frame["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + text_of(choice)
    return texts


def texts_of(answer: dict[str, Any]) -> dict[int, str]:
    return {choice["index"]: text_of(choice) for choice in answer["choices"]}


# ---- streams ----


def stream_and_n(server: Server) -> None:
    asked = LONG | {"n": 3, "seed": 4, "max_tokens": 30}
    frames = server.frames(CHAT, messages=USER, **asked)
    ends = Counter(
        choice["index"] for frame in frames for choice in frame["choices"] if choice["finish_reason"] is not None
    )
    roles = Counter(c["index"] for frame in frames for c in frame["choices"] if c["delta"].get("role"))
    assert ends == roles == {0: 1, 1: 1, 2: 1}
    assert [bool(frame.get("usage")) for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert frames[-1]["usage"]["completion_tokens"] == 90
    assert joined(frames) == texts_of(server.chat(**asked))


def stream_and_logprobs_and_stop(server: Server) -> None:
    whole = server.complete(**LONG, seed=4, max_tokens=40)["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:4]
    asked = LONG | {"seed": 4, "max_tokens": 40, "stop": stop, "logprobs": 1}
    answer = server.complete(**asked)
    assert answer["choices"][0]["text"] == whole[: whole.index(stop)]
    frames = server.frames(prompt="once", **asked)
    assert joined(frames) == texts_of(answer)
    found = [c["logprobs"] for frame in frames for c in frame["choices"] if c["logprobs"] is not None]
    tokens = [token for piece in found for token in piece["tokens"]]
    assert len(tokens) == frames[-1]["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"] < 40
    assert tokens == answer["choices"][0]["logprobs"]["tokens"]
    offsets = [offset for piece in found for offset in piece["text_offset"]]
    assert offsets == sorted(offsets) and offsets[0] == 0


# ---- echo ----


def echo_and_logprobs_and_prefix_cache(server: Server) -> None:
    prompt = [7 + i % 50 for i in range(100)]
    asked: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 3, "temperature": 0}
    first = server.complete(prompt, **asked)
    assert server.complete(prompt, max_tokens=3)["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    second = server.complete(prompt, **asked)
    assert second["choices"] == first["choices"]
    found = second["choices"][0]["logprobs"]
    assert {len(values) for values in found.values()} == {103}
    assert [value is None for value in found["token_logprobs"]] == [True] + [False] * 102


def echo_and_no_tokens(server: Server) -> None:
    for fields, expected in ({}, None), ({"logprobs": 0}, 4):
        answer = server.complete([5, 6, 7, 8], echo=True, max_tokens=0, **fields)
        (choice,) = answer["choices"]
        assert choice["text"] == server.post("/detokenize", tokens=[5, 6, 7, 8]).json()["prompt"]
        assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 0)
        assert (choice["logprobs"] and len(choice["logprobs"]["tokens"])) == expected


# ---- seeds ----


def seed_and_n(server: Server) -> None:
    asked = LONG | {"seed": 9, "n": 4, "max_tokens": 20}
    texts = texts_of(server.complete(**asked))
    assert len(set(texts.values())) == 4
    assert texts_of(server.complete(**asked)) == texts
    greedy = texts_of(server.complete(n=2, temperature=0, max_tokens=20))
    assert greedy[0] == greedy[1], "n without a temperature is the same answer n times"


CROWD = [{"prompt": f"number {i}", "seed": i, "max_tokens": 180, **LONG} for i in range(6)]


def seed_and_preemption(server: Server) -> None:
    alone = ask_alone(server.port, CROWD)
    before = server.preemptions()
    assert [answer.said for answer in ask_all(server.port, CROWD)] == [answer.said for answer in alone]
    assert server.preemptions() > before


def seed_and_chunked_prefill(server: Server) -> None:
    """150 tokens through steps of 64: alone, behind others' prompts, and with a prefix that is there already."""
    asked = {"prompt": [3 + i % 70 for i in range(150)], "seed": 5, "max_tokens": 30, **LONG}
    (alone,) = ask_alone(server.port, [asked])
    others = [{"prompt": [i] * 90, "max_tokens": 30, **LONG} for i in range(80, 83)]
    assert ask_all(server.port, [*others, asked])[3].said == alone.said
    assert ask_alone(server.port, [asked])[0].said == alone.said


def seed_and_restart(server: Server) -> None:
    goes_on_after_a_restart(server, {"prompt": "once", "seed": 6, **LONG})


def goes_on_after_a_restart(server: Server, fields: dict[str, Any]) -> None:
    asked = {"max_tokens": 200, **fields}
    (alone,) = ask_alone(server.port, [asked])
    restarts = server.llm.stats().restarts
    frames = 0

    def kill_at_the_tenth_frame() -> None:
        nonlocal frames
        frames += 1
        if frames == 10:
            os.kill(server.llm.replicas.transports[0].pid, signal.SIGKILL)

    (answer,) = ask_all(server.port, [asked], kill_at_the_tenth_frame)
    assert answer.said == alone.said
    assert server.llm.stats().restarts == restarts + 1


# ---- prompts ----


def continue_final_message(server: Server) -> None:
    messages = [*USER, {"role": "assistant", "content": "Once upon"}]
    fields = {"messages": messages, "continue_final_message": True}
    prompt = server.post("/apply-template", **fields).json()["prompt"]
    assert prompt.endswith("Once upon")
    sampling = LONG | {"seed": 3, "max_tokens": 12}
    text = text_of(server.chat(**fields, **sampling)["choices"][0])
    assert text == text_of(server.complete(prompt, add_special_tokens=False, **sampling)["choices"][0])
    assert not text.startswith("Once upon")


def at_the_end_of_the_context(server: Server) -> None:
    full = [5] * ROOM
    for body in ({"prompt": full}, {"prompt": full, "max_tokens": 1}, {"prompt": full[1:], "max_tokens": 2}):
        response = server.post(COMPLETIONS, **body)
        assert (response.status_code, error_of(response)["code"]) == (400, "context_length_exceeded")
        assert f"maximum context length is {ROOM} tokens" in error_of(response)["message"]
    for body in ({}, {"max_tokens": 1}):
        answer = server.complete(full[1:], ignore_eos=True, **body)
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (1, "length")
    for fields in ({}, {"logprobs": 0}, {"logprobs": 0, "n": 2}):
        answer = server.complete(full, echo=True, max_tokens=0, **fields)
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (ROOM, 0)
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
        for choice in answer["choices"]:
            assert bool(choice["logprobs"]) == ("logprobs" in fields)
            assert not choice["logprobs"] or len(choice["logprobs"]["tokens"]) == ROOM
    over = server.post(COMPLETIONS, prompt=[5] * (ROOM + 1), echo=True, max_tokens=0)
    assert (over.status_code, error_of(over)["code"]) == (400, "context_length_exceeded")
    assert f"length is {ROOM} tokens, prompt and answer together; your prompt has {ROOM + 1}. " in over.text


def odd_conversations(server: Server) -> None:
    system, said = {"role": "system", "content": "x"}, {"role": "assistant", "content": "x"}
    nothing, no_parts = ([{"role": "user", "content": content}] for content in ("", []))
    for messages in ([system], [said], nothing, no_parts, [*USER, said], [system, *nothing], USER * 2, [said] * 2):
        assert server.chat(messages=messages, max_tokens=2)["usage"]["completion_tokens"] >= 1
    for messages in ([], [{"role": "user"}]):
        response = server.post(CHAT, messages=messages)
        assert response.status_code == 400 and error_of(response)["param"].startswith("messages")


def ids_that_do_not_exist(server: Server) -> None:
    width = server.llm.info.vocab_size
    for token in (-1, width, 2**31, 2**64):
        for prompt in ([5, token], [[5], [token]]):
            response = server.post(COMPLETIONS, prompt=prompt)
            assert response.status_code == 400 and str(token) in error_of(response)["message"]
    assert server.complete([width - 1], max_tokens=1)


def truncate_prompt_tokens(server: Server) -> None:
    """Plain tokens of what the template wrote, from the side asked for; an echo shows what is left."""
    ids = server.post("/tokenize", messages=USER).json()["tokens"]
    sampling = LONG | {"seed": 3, "max_tokens": 12}
    for fields, left in (
        ({"truncate_prompt_tokens": 5}, ids[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, ids[:5]),
        ({"truncate_prompt_tokens": len(ids)}, ids),
    ):
        expected = server.complete(left, **sampling)
        answer = server.chat(**fields, **sampling)
        assert texts_of(answer) == texts_of(expected)
        assert answer["usage"]["prompt_tokens"] == len(left)
    long = [5 + i % 50 for i in range(3 * ROOM)]
    fitting = server.complete(long, truncate_prompt_tokens=-1, echo=True, **sampling)
    assert fitting["usage"]["prompt_tokens"] == ROOM - 12
    left = server.post("/detokenize", tokens=long[12 - ROOM :]).json()["prompt"]
    assert fitting["choices"][0]["text"].startswith(left)
    told = USER[0] | {"content": "hi " * 3 * ROOM}
    for answer in (
        server.complete(long, truncate_prompt_tokens=-1),
        server.chat(messages=[told], truncate_prompt_tokens=-1),
    ):
        assert answer["usage"]["prompt_tokens"] == ROOM - 16
        assert 1 <= answer["usage"]["completion_tokens"] <= 16
    too_much = server.post(COMPLETIONS, prompt=long, truncate_prompt_tokens=-1, max_tokens=ROOM)
    assert (too_much.status_code, error_of(too_much)["code"]) == (400, "context_length_exceeded")


# ---- pages ----


def prefix_cache_and_cache_salt(server: Server) -> None:
    prompt = [11 + i % 40 for i in range(64)]
    cached = []
    for salt in ("one", "two", "one", None, "two", None):
        answer = server.complete(prompt, max_tokens=1, cache_salt=salt)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 48, 0, 48, 48]


def abort_and_shared_prefix(server: Server) -> None:
    """Of two that share a prefix one is ended; the other notices nothing, and the prefix is found again."""
    prefix = [9 + i % 60 for i in range(96)]
    asked = {"prompt": [*prefix, 4], "seed": 8, "max_tokens": 100, **LONG}
    (alone,) = ask_alone(server.port, [asked])

    async def run() -> tuple[dict[str, Any], dict[str, Any]]:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
            leaving = asked | {"prompt": [*prefix, 3], "max_tokens": 150}
            ended = asyncio.create_task(client.post(COMPLETIONS, json=leaving, headers={"x-request-id": "leaving"}))
            stays = asyncio.create_task(client.post(COMPLETIONS, json=asked))
            while (await client.post("/abort_request", json={"request_id": "leaving"})).json()["aborted"] == 0:
                await asyncio.sleep(0.01)
            return (await ended).json(), (await stays).json()

    ended, stays = asyncio.run(run())
    assert ended["choices"][0]["finish_reason"] == "abort"
    assert texts_of(stays) == alone.texts
    again = server.complete([*prefix, 4], max_tokens=1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


def priority_and_preemption(server: Server) -> None:
    """The urgent ones come last and push others out, whose streams go on without a repeat or a gap."""
    bodies = [body | {"priority": -position} for position, body in enumerate(CROWD)]
    alone = ask_alone(server.port, bodies)
    before = server.preemptions()
    assert [answer.said for answer in ask_all(server.port, bodies)] == [answer.said for answer in alone]
    assert server.preemptions() > before


# ---- what is refused until it is there ----


def refused(name: str, path: str = CHAT, **fields: Any) -> Callable[[Server], None]:
    def check(server: Server) -> None:
        least: dict[str, Any] = {"messages": USER} if path == CHAT else {"prompt": "x"}
        for stream in (False, True):
            response = server.post(path, stream=stream, **least, **fields)
            assert response.status_code == 400
            assert (error_of(response)["param"], error_of(response)["code"]) == (name, "unsupported_parameter")

    return check


def message(answer: dict[str, Any]) -> tuple[str | None, str]:
    (choice,) = answer["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def schema_and_reasoning(server: Server) -> None:
    """The answer at once, thoughts alone, and thoughts that end: each has come."""
    seen = set()
    for number in range(16):
        most = {"thinking_token_budget": 9} if number % 2 else {}
        asked = {"reasoning_effort": "low", "temperature": 1, "seed": number // 2, "max_tokens": 60} | most
        (choice,) = server.chat(response_format=SCHEMA, **asked)["choices"]
        thoughts, content = choice["message"].get("reasoning"), choice["message"]["content"]
        seen.add((choice["finish_reason"], bool(thoughts)))
        if choice["finish_reason"] == "stop":
            assert content == '"x"'
        else:
            assert content is None and thoughts and not most
    assert seen == {("stop", False), ("stop", True), ("length", True)}


def schema_and_tools(server: Server) -> None:
    """The schema's answer, a call, and half a call: each has come."""
    seen = set()
    for seed in range(16):
        answer = server.chat(response_format=SCHEMA, tools=TOOLS, temperature=1, seed=seed, max_tokens=60)
        (choice,) = answer["choices"]
        seen.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert choice["message"]["content"] == '"x"'
        elif choice["finish_reason"] == "tool_calls":
            (call,) = choice["message"]["tool_calls"]
            assert call["function"]["name"] == "f" and isinstance(json.loads(call["function"]["arguments"]), dict)
            assert choice["message"]["content"] is None
        else:
            assert choice["message"]["content"].startswith('<tool_call>\n{"name": "f", "arguments": {')
    assert seen == {"stop", "tool_calls", "length"}


def grammar_and_min_tokens(server: Server) -> None:
    assert message(server.chat(structured_outputs={"regex": "ab"}, min_tokens=20)) == ("ab", "stop")


def grammar_and_allowed_ids(server: Server) -> None:
    response = server.post(CHAT, messages=USER, regex="ab", allowed_token_ids=[1])
    assert (response.status_code, error_of(response)["code"]) == (400, "no_token_left")
    assert message(server.chat(regex="ab")) == ("ab", "stop")


def schema_and_ignore_eos(server: Server) -> None:
    assert message(server.chat(response_format=SCHEMA, ignore_eos=True)) == ('"x"', "stop")


def grammar_and_restart(server: Server) -> None:
    goes_on_after_a_restart(server, {"prompt": "once", "regex": "[a-z ]{150,}", "temperature": 1, "seed": 3})


def calls_and_other_apis(server: Server) -> None:
    """Calls that must be are of their schemas over each API, streamed as whole, and come back in a session."""
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    flat = [{"type": "function", "name": name, "parameters": schema, "strict": True} for name in ("f", "g")]
    blocks = [{"name": name, "input_schema": schema, "strict": True} for name in ("f", "g")]
    most = {"temperature": 1, "close_within_max_tokens": True, "parallel_tool_calls": False}
    for seed, (choice, wanted) in enumerate((("required", "fg"), ({"type": "function", "name": "g"}, "g")) * 2):
        asked = {"input": "hi", "tools": flat, "tool_choice": choice, "seed": seed, "max_output_tokens": 40} | most
        (item,) = server.ok(RESPONSES, asked | {"session_id": f"calls-{seed}"})["output"]
        assert item["name"] in wanted and json.loads(item["arguments"])["n"] in (1, 2)
        last = named_events(server.post(RESPONSES, **asked, stream=True).text)[-1]["response"]
        assert [(made["name"], made["arguments"]) for made in last["output"]] == [(item["name"], item["arguments"])]
        result = {"type": "function_call_output", "call_id": item["call_id"], "output": "7"}
        sent = [{"role": "user", "content": "hi"}, item, result]
        turn = {**asked, "input": sent, "tool_choice": "auto", "max_output_tokens": 1, "session_id": f"calls-{seed}"}
        assert server.ok(RESPONSES, turn)["usage"]["input_tokens_details"]["cached_tokens"] >= 16
        kind: dict[str, Any] = {"type": "any"} if choice == "required" else {"type": "tool", "name": "g"}
        kind["disable_parallel_tool_use"] = True
        body = {"messages": USER, "tools": blocks, "tool_choice": kind, "seed": seed, "max_tokens": 40} | most
        del body["parallel_tool_calls"]
        whole = server.post(MESSAGES, **body)
        (call,) = whole.json()["content"]
        assert (call["type"], whole.json()["stop_reason"]) == ("tool_use", "tool_use")
        assert call["name"] in wanted and call["input"]["n"] in (1, 2)
        frames = named_events(server.post(MESSAGES, **body, stream=True).text)
        deltas = [frame["delta"] for frame in frames if frame["type"] == "content_block_delta"]
        arguments = "".join(delta["partial_json"] for delta in deltas)
        assert f'"input":{arguments}}}' in whole.text, "byte for byte"
        assert server._client.delete(f"/v1/sessions/calls-{seed}").status_code == 200


CELLS: dict[str, Callable[[Server], None]] = {
    "stream x n>1": stream_and_n,
    "stream x logprobs x stop": stream_and_logprobs_and_stop,
    "echo x logprobs x prefix cache": echo_and_logprobs_and_prefix_cache,
    "echo x max_tokens 0": echo_and_no_tokens,
    "json_schema x reasoning": schema_and_reasoning,
    "json_schema x tools auto": schema_and_tools,
    "tools required, by name x other APIs": calls_and_other_apis,
    "min_tokens x grammar complete": grammar_and_min_tokens,
    "allowed_token_ids x grammar": grammar_and_allowed_ids,
    "ignore_eos x json_schema": schema_and_ignore_eos,
    "grammar x restart": grammar_and_restart,
    "seed x n>1": seed_and_n,
    "seed x preemption": seed_and_preemption,
    "seed x chunked prefill": seed_and_chunked_prefill,
    "seed x restart": seed_and_restart,
    "continue_final_message": continue_final_message,
    "truncate_prompt_tokens x chat template": truncate_prompt_tokens,
    "prefix cache x cache_salt": prefix_cache_and_cache_salt,
    "LoRA x prefix cache x cache_salt": refused("lora_path", COMPLETIONS, cache_salt="x", lora_path="x"),
    "abort x shared prefix": abort_and_shared_prefix,
    "priority x preemption": priority_and_preemption,
    "max_model_len edge": at_the_end_of_the_context,
    "empty messages, empty content, only system, assistant last": odd_conversations,
    "huge ids": ids_that_do_not_exist,
}


# The other rows of the matrix: a test in another file, or "" where one of the two is not there yet
ELSEWHERE = {
    "stream x n>1: tools, reasoning": "test_tools.py test_each_choice_has_a_parser_of_its_own",
    "stop x tools": "test_tools.py test_half_a_call_is_no_call",
    "continue_final_message x reasoning model": "test_tools.py test_a_message_that_goes_on_is_read_from_where_it_stood",
    "close_within_max_tokens x each field": "test_closing.py test_beside_each_field_every_answer_is_of_the_form",
    "close_within_max_tokens x stop": "test_closing.py test_a_stop_string_may_end_the_answer_before_it_is_closed",
    "close_within_max_tokens x tools": "test_closing.py test_tool_calls_are_closed_like_answers",
    "close_within_max_tokens x reasoning": "test_closing.py test_thoughts_leave_room_for_the_shortest_answer",
    "close_within_max_tokens x prefix cache": "test_closing.py test_a_prefix_that_is_known_changes_no_word",
    "close_within_max_tokens x preemption": "test_closing.py test_a_crowd_that_is_preempted_closes_as_each_does_alone",
    "close_within_max_tokens x restart": "test_closing.py test_an_answer_goes_on_to_its_end_in_a_new_engine",
    "every two fields beside": "test_pairs.py test_every_two_features_go_together",
    "grammar x spec decode": "",
    "penalties, logit_bias, min_p x spec decode": "",
}


def test_every_other_row_of_the_matrix_is_a_test() -> None:
    for place in filter(None, ELSEWHERE.values()):
        file, name = place.split()
        assert f"def {name}(" in (Path(__file__).parent / file).read_text()


@pytest.mark.parametrize("check", CELLS.values(), ids=CELLS)
def test_cell(check: Callable[[Server], None], server: Server) -> None:
    check(server)
