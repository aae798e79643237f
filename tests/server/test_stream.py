"""Streamed answers: the frames byte by byte, choices interleaved, usage, silence, failures early and late."""

import json
import re

import pytest

from jaxinfer.errors import ApiError, Unavailable
from jaxinfer.llm.types import Delta
from jaxinfer.server.settings import ServerSettings
from tests.server.fakes import FakeLLM, hello
from tests.server.http import CHAT, COMPLETIONS, USER, error_of, events, post

HEAD = '"created":0,"model":"tiny","system_fingerprint":"jaxinfer-test","choices":['
GOLDEN_CHAT = "".join(
    f'data: {{"id":"chatcmpl-1","object":"chat.completion.chunk",{HEAD}{rest}\n\n'
    for rest in (
        '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}',
        '{"index":0,"delta":{"content":"Hel"},"logprobs":null,"finish_reason":null}]}',
        '{"index":0,"delta":{"content":"lo"},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}',
        '],"usage":{"prompt_tokens":18,"completion_tokens":5,"total_tokens":23,"prompt_tokens_details":{"cached_tokens":9}}}',
    )
)
GOLDEN_COMPLETION = "".join(
    f'data: {{"id":"cmpl-1","object":"text_completion",{HEAD}{rest}\n\n'
    for rest in (
        '{"index":0,"text":"Hel","logprobs":null,"finish_reason":null}]}',
        '{"index":0,"text":"lo","logprobs":null,"finish_reason":"stop","stop_reason":null}]}',
    )
)
USAGE = {"include_usage": True}


def stream(llm, path=CHAT, settings=None, **fields):
    prompt = {"messages": USER} if path == CHAT else {"prompt": "ab"}
    return post(llm, path, {**prompt, "stream": True, **fields}, settings, x_request_id="1")


def timeless(text):
    return re.sub(r'"created":\d+', '"created":0', text)


def texts(chunks):
    """The joined text of each choice."""
    joined = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            joined[choice["index"]] = joined.get(choice["index"], "") + piece
    return joined


def test_a_chat_stream_is_the_golden_trace():
    response = stream(FakeLLM(), stream_options=USAGE)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"] == "1"
    assert timeless(response.text) == GOLDEN_CHAT + "data: [DONE]\n\n"


def test_a_completion_stream_is_the_golden_trace():
    assert timeless(stream(FakeLLM(), COMPLETIONS).text) == GOLDEN_COMPLETION + "data: [DONE]\n\n"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_pieces_of_each_choice_join_to_the_answer_that_is_not_streamed(path):
    chunks = events(stream(FakeLLM(), path, n=4).text)
    whole = post(FakeLLM(), path, {"messages": USER, "prompt": "ab", "n": 4}).json()["choices"]
    for choice in whole:
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert texts(chunks)[choice["index"]] == text == "Hello"


def test_n_choices_interleave_and_each_begins_and_ends_once():
    chunks = events(stream(FakeLLM(), n=3).text)
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert order != sorted(order)
    for index in range(3):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [choice["delta"].get("role") for choice in own] == ["assistant", None, None]
        assert [choice["finish_reason"] for choice in own] == [None, None, "stop"]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


def test_several_prompts_stream_at_once():
    chunks = events(stream(FakeLLM(), COMPLETIONS, prompt=["a", "b"], n=2, stream_options=USAGE).text)
    assert texts(chunks) == {index: "Hello" for index in range(4)}
    ends = [chunk["choices"][0] for chunk in chunks if chunk["choices"] and chunk["choices"][0]["finish_reason"]]
    assert sorted(choice["index"] for choice in ends) == [0, 1, 2, 3]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 20


def test_usage_comes_last_and_only_when_asked_for():
    assert all("usage" not in chunk for chunk in events(stream(FakeLLM()).text))
    assert all("usage" not in chunk for chunk in events(stream(FakeLLM(), stream_options={}).text))
    chunks = events(stream(FakeLLM(), n=2, stream_options=USAGE).text)
    assert [("usage" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["usage"]["prompt_tokens"] == 18
    assert chunks[-1]["usage"]["completion_tokens"] == 10


def test_continuous_usage_grows_to_the_final_one():
    chunks = events(stream(FakeLLM(), stream_options={**USAGE, "continuous_usage_stats": True}).text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == [2, 2, 5, 5]  # the role's chunk comes with the first text


def test_a_delta_whose_text_is_held_back_sends_no_chunk():
    def script(prompt_ids, params):
        yield Delta(0, "", [1])
        yield Delta(0, "", [2])
        yield Delta(0, "", [3], "length")

    pieces = [chunk["choices"][0]["delta"] for chunk in events(stream(FakeLLM(script)).text)]
    assert pieces == [{"role": "assistant", "content": ""}, {"content": ""}]


def test_text_of_any_kind_arrives_whole_and_never_cuts_a_frame():
    text = 'é🙂"\\\n\r\t\x00\x1f\u0085\u2028\u2029</script>data: [DONE]\n\n'
    response = stream(FakeLLM(lambda ids, params: [Delta(0, text, [1]), Delta(0, "", [2], "stop", text)]))
    assert all(line == "" or line.startswith("data: ") for line in response.text.splitlines())
    chunks = events(response.text)
    assert texts(chunks)[0] == text
    assert chunks[-1]["choices"][0]["stop_reason"] == text


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ([ApiError("broken", code="x")], 500),
        ([Unavailable("gone", code="draining")], 503),
        ([RuntimeError("bug")], 500),
        ([Delta(0, "", [], "error", error="not finite")], 500),
        ([], 500),
    ],
    ids=["engine", "drain", "bug", "row", "nothing"],
)
def test_a_failure_before_the_first_byte_is_a_plain_http_answer(steps, status):
    llm = FakeLLM(lambda ids, params: steps)
    response = stream(llm)
    assert response.status_code == status
    assert response.headers["x-request-id"] == "1"
    assert "text/event-stream" not in response.headers["content-type"]
    error_of(response)
    assert not llm.running


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Delta(0, "", [], "error", error="the row was not finite"), "the row was not finite"),
        (ApiError("the engine is gone"), "the engine is gone"),
        (RuntimeError("secret"), "the server failed on this request; its log names the cause under 1"),
    ],
    ids=["row", "engine", "bug"],
)
def test_a_failure_in_mid_stream_is_an_error_event_and_then_done(step, message):
    llm = FakeLLM(lambda ids, params: [Delta(0, "Hel", [1]), step, Delta(0, "lo", [2], "stop")])
    response = stream(llm, stream_options=USAGE)
    assert response.status_code == 200
    last = events(response.text)[-1]
    assert last["error"]["message"] == message
    assert last["error"].keys() == {"message", "type", "param", "code"}
    assert response.text.count("error") == response.text.split("\n\n")[-3].count("error")
    assert not llm.running


def test_what_is_refused_is_refused_before_the_first_byte():
    for fields, status in (({"n": 17}, 400), ({"model": "nope"}, 404), ({"max_tokens": 10**6}, 400)):
        assert stream(FakeLLM(), **fields).status_code == status
    assert stream(FakeLLM(max_running=0)).status_code == 429


def test_unknown_fields_are_named_on_a_stream_too():
    assert stream(FakeLLM(), foo=1).headers["x-jaxinfer-warnings"] == "ignored: foo"


def test_silence_is_broken_by_comments_before_the_first_token_and_between_tokens():
    def slow(prompt_ids, params):
        yield 0.25
        yield Delta(0, "a", [1])
        yield 0.25
        yield Delta(0, "b", [2], "stop")

    text = stream(FakeLLM(slow), settings=ServerSettings(ping_interval_s=0.1)).text
    before, between = text.split('"content":"a"')
    assert before.count(": ping\n\n") >= 1
    assert between.count(": ping\n\n") >= 1
    assert texts(events(text)) == {0: "ab"}


def test_a_stream_that_speaks_often_enough_has_no_comments():
    def steady(prompt_ids, params):
        for _ in range(12):
            yield 0.1
            yield Delta(0, "a", [1])
        yield Delta(0, "", [2], "stop")

    assert ": ping" not in stream(FakeLLM(steady), settings=ServerSettings(ping_interval_s=1.0)).text


def test_a_failure_after_a_comment_is_an_error_event():
    llm = FakeLLM(lambda ids, params: [0.1, ApiError("broken")])
    response = stream(llm, settings=ServerSettings(ping_interval_s=0.03))
    assert response.status_code == 200
    assert events(response.text) == [json.loads(response.text.split("data: ")[1])]
    assert events(response.text)[0]["error"]["message"] == "broken"


def test_a_finished_stream_aborts_nothing():
    llm = FakeLLM(hello)
    stream(llm)
    assert llm.aborts == [] and not llm.running
