"""Prompts beyond the context are refused in each API's own words, and an answer of /v1/messages ends where it ends."""

import re
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest, TooLong
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.body import MAX_VALUES, parse_body
from jaxinfer.protocol.many_ids import TooManyValues, refused_as_prompts
from tests.server.fakes import FakeLLM
from tests.server.http import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    SCORE,
    USER,
    error_of,
    named_events,
    post,
)

COUNT = f"{MESSAGES}/count_tokens"
ROOM = 161 - len("user:hi\nassistant:")  # FakeLLM has pages for 160 tokens, and the last is never computed
LEAST = "; it was not counted and has at least so many"
WORDS = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")


def said(num_chars: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "x" * num_chars}]


@pytest.mark.parametrize("num_chars", [600, 512 - len("user:\nassistant:")])
def test_a_prompt_beyond_the_context_is_told_in_the_words_of_each_api(num_chars):
    num_tokens = num_chars + len("user:\nassistant:")
    body = {"messages": said(num_chars), "max_tokens": 64_000, "min_tokens": 500}
    error = error_of(post(FakeLLM(), MESSAGES, body))
    assert error["type"] == "invalid_request_error"
    words = WORDS.fullmatch(error["message"])
    assert words is not None and int(words[1]) == num_tokens and int(words[2]) == 511
    for path, body in ((CHAT, {"messages": said(num_chars)}), (RESPONSES, {"input": said(num_chars)})):
        error = error_of(post(FakeLLM(), path, body))
        assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")
        assert error["message"].startswith("This model's maximum context length is 512 tokens")


def test_max_tokens_of_a_message_is_a_ceiling_and_of_the_others_a_demand():
    llm = FakeLLM()
    for asked in (32_000, 64_000, 600, ROOM + 1, ROOM, 7):
        answer = post(llm, MESSAGES, {"messages": USER, "max_tokens": asked})
        assert answer.status_code == 200, answer.text
        assert llm.calls[-1].params.max_tokens == min(asked, ROOM)
    for path, body in (
        (CHAT, {"messages": USER, "max_tokens": 600}),
        (RESPONSES, {"input": USER} | {"max_output_tokens": 600}),
    ):
        assert error_of(post(llm, path, body))["code"] == "context_length_exceeded"


def test_a_ceiling_beyond_the_context_leaves_a_prompt_that_is_to_be_cut_all_of_it_but_a_token():
    llm = FakeLLM()
    body = {"messages": said(600), "max_tokens": 64_000, "truncate_prompt_tokens": -1}
    assert post(llm, MESSAGES, body).status_code == 200
    assert len(llm.calls[0].prompt_ids) == 511 and llm.calls[0].params.max_tokens == 1


@pytest.mark.parametrize(
    ("asked", "num_tokens", "reason"),
    [(64_000, ROOM, "model_context_window_exceeded"), (ROOM, ROOM, "max_tokens"), (5, 5, "max_tokens")],
)
def test_a_message_says_whether_the_context_or_its_ceiling_ended_it(asked, num_tokens, reason):
    script = [Delta(0, "x", [1] * (num_tokens - 1)), Delta(0, "y", [1], "length")]
    llm = FakeLLM(lambda *_: script)
    body = {"messages": USER, "max_tokens": asked}
    assert post(llm, MESSAGES, body).json()["stop_reason"] == reason
    (delta,) = [
        e for e in named_events(post(llm, MESSAGES, body | {"stream": True}).text) if e["type"] == "message_delta"
    ]
    assert delta["delta"]["stop_reason"] == reason


def test_an_answer_that_ends_by_itself_is_not_said_to_have_filled_the_context():
    assert post(FakeLLM(), MESSAGES, {"messages": USER, "max_tokens": 64_000}).json()["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (CHAT, "messages"),
        (MESSAGES, "messages"),
        (RESPONSES, "input"),
        (f"{RESPONSES}/input_tokens", "input"),
        (COUNT, "messages"),
        ("/tokenize", "messages"),
    ],
)
def test_more_messages_than_a_body_may_hold_are_a_prompt_that_is_too_long(path, field):
    body = {field: [{"role": "user", "content": "a"}] * (MAX_VALUES // 4), "max_tokens": 5}
    error = error_of(post(FakeLLM(), path, body))
    if path in (MESSAGES, COUNT):
        assert error["message"] == f"prompt is too long: {MAX_VALUES // 4} tokens > 511 maximum{LEAST}"
    else:
        assert (error["code"], error["param"]) == ("context_length_exceeded", field)


@pytest.mark.parametrize(
    ("path", "field", "rest"),
    [
        (COMPLETIONS, "prompt", {}),
        (EMBEDDINGS, "input", {}),
        ("/detokenize", "tokens", {}),
        (SCORE, "text_2", {"text_1": "x"}),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_more_token_ids_than_a_body_may_hold_are_a_prompt_that_is_too_long(path, field, rest, nested):
    ids = [7] * (MAX_VALUES + 1)
    error = error_of(post(FakeLLM(), path, {**rest, field: [[1, 2], ids] if nested else ids}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    assert str(len(ids)) in error["message"]


def test_values_that_are_no_prompt_stay_a_body_that_is_too_large():
    many = MAX_VALUES + 1
    for path, body in (
        (COMPLETIONS, {"prompt": "x", "allowed_token_ids": [1] * many}),
        (COMPLETIONS, {"prompt": [[1, 2, 3]] * 100_000}),
        (COMPLETIONS, {"prompt": ["x"] * many}),
        (COMPLETIONS, {"prompt": '{"prompt": [1, 2', "x": [[]] * many}),
        (CHAT, {"messages": [{}] * many}),
    ):
        assert error_of(post(FakeLLM(), path, body))["code"] == "invalid_json"


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=5), st.booleans(), st.integers(1, 12))
def test_the_longest_list_of_ids_decides(lists, nested, most):
    """As many values as are refused, here 80, come from another field."""
    prompt = lists if nested else lists[0]
    longest = max(map(len, lists if nested else lists[:1]))
    raw = f'{{"model": "m", "prompt" : {prompt}, "x": [{"[5]," * 80}1]}}'.encode()
    try:
        with patch("jaxinfer.protocol.body.MAX_VALUES", 80), refused_as_prompts(most):
            parse_body(raw)
    except TooLong as error:
        assert error.prompt_tokens == longest > most
    except TooManyValues as error:
        assert isinstance(error, InvalidRequest) and longest <= most
    else:
        raise AssertionError("so many values are refused")
