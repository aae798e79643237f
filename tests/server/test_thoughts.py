"""Thoughts in /v1/responses and /v1/messages: apart from the answer, whole and in pieces, and sent back by clients."""

import itertools
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest

from jaxinfer.llm.answer import Answer
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.logprobs import TokenLogprob
from jaxinfer.server.app import create_app
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, MESSAGES, RESPONSES, USER, ask_app, error_of, post
from tests.server.http import events as chunks
from tests.server.http import named_events as events
from tests.server.scripted import ScriptedLLM

SAID = "<think>\nOne, two.\n</think>\n\nThree."
THOUGHTS, ANSWER = "One, two.", "Three."
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
PIECES = (1, 2, 3, 1000)


def respond(llm: FakeLLM, **fields: Any) -> Any:
    return post(llm, RESPONSES, {"input": "hi", "reasoning": {"effort": "low"}, **fields})


def message(llm: FakeLLM, **fields: Any) -> Any:
    body = {"messages": USER, "max_tokens": 99, "thinking": {"type": "enabled"}, **fields}
    return post(llm, MESSAGES, body)


@pytest.mark.parametrize("piece", PIECES)
def test_a_response_has_an_item_of_thoughts_before_its_message(piece):
    body = respond(ScriptedLLM(SAID, piece=piece)).json()
    thoughts, said = body["output"]
    assert thoughts["content"] == [{"type": "reasoning_text", "text": THOUGHTS}]
    assert (thoughts["type"], thoughts["status"], thoughts["summary"]) == ("reasoning", "completed", [])
    assert [part["text"] for part in said["content"]] == [ANSWER]
    assert body["reasoning"] == {"effort": "low", "summary": None}


@pytest.mark.parametrize("piece", PIECES)
def test_a_streamed_response_opens_and_closes_each_item_in_turn_and_ends_as_the_whole_one(piece):
    frames = events(respond(ScriptedLLM(SAID, piece=piece), stream=True).text)
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    kinds = [kind for kind, _ in itertools.groupby(frame["type"].removeprefix("response.") for frame in frames)]
    begin, end = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
    thoughts = [*begin, "reasoning_text.delta", "reasoning_text.done", *end]
    said = [*begin, "output_text.delta", "output_text.done", *end]
    assert kinds == ["created", "in_progress", *thoughts, *said, "completed"]
    for name, index, text in (("reasoning_text", 0, THOUGHTS), ("output_text", 1, ANSWER)):
        deltas = [frame for frame in frames if frame["type"] == f"response.{name}.delta"]
        assert "".join(frame["delta"] for frame in deltas) == text
        (done,) = [frame for frame in frames if frame["type"] == f"response.{name}.done"]
        assert done["text"] == text and {frame["output_index"] for frame in (*deltas, done)} == {index}
    items = [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]
    assert items == frames[-1]["response"]["output"]
    whole = respond(ScriptedLLM(SAID)).json()["output"]
    assert [item["content"] for item in items] == [item["content"] for item in whole]


@pytest.mark.parametrize("piece", PIECES)
def test_a_message_has_a_block_of_thoughts_before_its_text(piece):
    content = message(ScriptedLLM(SAID, piece=piece)).json()["content"]
    assert content == [{"type": "thinking", "thinking": THOUGHTS, "signature": ""}, {"type": "text", "text": ANSWER}]


@pytest.mark.parametrize("piece", PIECES)
def test_a_streamed_message_is_the_whole_one(piece):
    frames = [frame for frame in events(message(ScriptedLLM(SAID, piece=piece), stream=True).text)]
    blocks: list[dict[str, Any]] = []
    for frame in frames:
        if frame["type"] == "content_block_start":
            assert frame["index"] == len(blocks)
            blocks.append(dict(frame["content_block"]))
        elif frame["type"] == "content_block_delta":
            kind = frame["delta"]["type"].removesuffix("_delta")
            assert frame["index"] == len(blocks) - 1 and kind == blocks[-1]["type"]
            blocks[-1][kind] += frame["delta"][kind]
    assert blocks == message(ScriptedLLM(SAID)).json()["content"]
    kinds = [frame["type"] for frame in frames]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2
    assert kinds[-2:] == ["message_delta", "message_stop"]


def test_an_answer_that_ends_among_its_thoughts_has_nothing_else():
    cut = "<think>\nOne, two."
    for stream in (False, True):
        answer = respond(ScriptedLLM(cut, finish="length"), stream=stream)
        body = events(answer.text)[-1]["response"] if stream else answer.json()
        (item,) = body["output"]
        assert (item["type"], item["status"], body["status"]) == ("reasoning", "incomplete", "incomplete")
        answer = message(ScriptedLLM(cut, finish="length"), stream=stream, max_tokens=3)
        if not stream:
            (block,) = answer.json()["content"]
            assert (block["type"], answer.json()["stop_reason"]) == ("thinking", "max_tokens")
        else:
            assert [f["content_block"]["type"] for f in events(answer.text) if "content_block" in f] == ["thinking"]


def test_what_must_be_of_a_form_is_all_that_the_text_holds():
    said = '<think>\nFive.\n</think>\n\n{"sum": 5}'
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    body = respond(ScriptedLLM(said), text={"format": form}).json()
    assert body["output"][-1]["content"][0]["text"] == '{"sum": 5}'
    body = message(ScriptedLLM(said), response_format={"type": "json_object"}).json()
    assert body["content"][-1]["text"] == '{"sum": 5}'


def test_the_message_has_the_logprobs_of_all_tokens_those_of_thoughts_before_it_too():
    def said(ids: list[int], params: Any) -> list[Delta]:
        return [
            Delta(0, "", [1], logprobs=[entry("<think>")]),
            Delta(0, "", [2], logprobs=[entry("hm")], reasoning="hm"),
            Delta(0, "", [3], logprobs=[entry("</think>")]),
            Delta(0, "a", [4], logprobs=[entry("a")]),
            Delta(0, "b", [5], "stop", logprobs=[entry("b")]),
        ]

    fields = {"input": "hi", "include": ["message.output_text.logprobs"]}
    whole = post(FakeLLM(said), RESPONSES, fields).json()["output"]
    frames = events(post(FakeLLM(said), RESPONSES, fields | {"stream": True}).text)
    assert frames[-1]["response"]["output"] == [item | {"id": ANY} for item in whole]
    assert [e["token"] for e in whole[1]["content"][0]["logprobs"]] == ["<think>", "hm", "</think>", "a", "b"]
    deltas = [frame["logprobs"] for frame in frames if frame["type"] == "response.output_text.delta"]
    assert [len(logprobs) for logprobs in deltas] == [4, 1]


class WithLogprobs(ScriptedLLM):
    """Each of its tokens has a logprob."""

    async def _answer(self, answer: Answer, num_choices: int) -> AsyncIterator[Delta]:
        async for delta in super()._answer(answer, num_choices):
            spelt = [(token, await self.decode([token], skip_special_tokens=False)) for token in delta.token_ids]
            delta.logprobs = [msgspec.structs.replace(entry(text), token_id=token) for token, text in spelt]
            yield delta

    async def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return self.text.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("said", [SAID, "\n" + SAID, ANSWER])
def test_a_chat_may_leave_its_thoughts_out_with_their_logprobs(said, piece):
    fields = {"messages": USER, "logprobs": True, "reasoning_effort": "low", "n": 2}
    llm = WithLogprobs(said, piece=piece)
    shown, whole = (post(llm, CHAT, fields | {"include_reasoning": show}).json() for show in (True, False))
    assert whole["usage"] == shown["usage"]
    frames = chunks(post(llm, CHAT, fields | {"include_reasoning": False, "stream": True}).text)
    for index, (choice, other) in enumerate(zip(whole["choices"], shown["choices"], strict=True)):
        assert choice["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
        assert other["message"].get("reasoning", "") == (THOUGHTS if said != ANSWER else "")
        own, every = ([e["token"] for e in c["logprobs"]["content"]] for c in (choice, other))
        assert "".join(own).split("<|im_end|>")[0].strip() == ANSWER
        thoughts = every[every.index("<think>") : every.index("</think>") + 1] if said != ANSWER else []
        assert sorted(own + thoughts) == sorted(every)
        deltas = [frame["choices"][0] for frame in frames if frame["choices"][0]["index"] == index]
        assert not any("reasoning" in delta["delta"] for delta in deltas)
        assert "".join(delta["delta"].get("content", "") for delta in deltas) == ANSWER
        sent = [e["token"] for delta in deltas for e in (delta["logprobs"] or {"content": []})["content"]]
        assert sent == own and [delta["finish_reason"] for delta in deltas if delta["finish_reason"]] == ["stop"]


def entry(token: str) -> TokenLogprob:
    return TokenLogprob(1, token.encode(), -0.5, 1)


def test_thoughts_that_clients_send_back_are_the_answer_s_again():
    llm = ScriptedLLM("ok")
    sent = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    assert respond(llm, input=sent).status_code == 200
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "b"},
    ]
    sent = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "c"},
    ]
    assert message(llm, messages=sent).status_code == 200
    for rendered in llm.rendered:
        assert rendered["messages"][1] == {"role": "assistant", "content": "b", "reasoning_content": "hm"}


def test_a_next_response_goes_on_from_the_answer_with_its_thoughts():
    llm = ScriptedLLM(SAID)
    app = create_app(llm)
    first = ask_app(app, "POST", RESPONSES, json={"input": "hi", "reasoning": {"effort": "low"}}).json()
    ask_app(app, "POST", RESPONSES, json={"input": "more", "previous_response_id": first["id"]})
    assert llm.rendered[-1]["messages"][1] == {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHTS}


@pytest.mark.parametrize(
    ("ask", "switch", "expected"),
    [
        (respond, {"reasoning": {"effort": "none"}}, {"enable_thinking": False}),
        (respond, {"reasoning": {"effort": "high", "summary": "auto"}}, {"enable_thinking": True}),
        (respond, {"reasoning": None}, {}),
        (message, {"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        (message, {"thinking": {"type": "enabled", "budget_tokens": 7}}, {"enable_thinking": True}),
        (message, {"thinking": {"type": "adaptive"}}, {}),
        (message, {"thinking": None}, {}),
    ],
)
def test_thinking_is_switched_in_the_api_s_own_words(ask, switch, expected):
    llm = ScriptedLLM("ok")
    response = ask(llm, **switch)
    assert response.status_code == 200, response.text
    assert llm.rendered[0]["kwargs"] == expected


@pytest.mark.parametrize(
    ("ask", "fields", "word"),
    [(respond, {}, "reasoning.effort"), (message, {}, "thinking")],
)
def test_a_model_that_does_not_think_says_so(ask, fields, word):
    response = ask(FakeLLM(), **fields)
    assert response.status_code == 400
    assert error_of(response)["message"].startswith(f"{word} needs a model that thinks")
