"""POST /v1/completions, not streamed."""

import pytest

from jaxinfer.llm.types import Delta
from tests.server.fakes import FakeLLM
from tests.server.http import COMPLETIONS, error_of, events, post


def complete(llm, prompt, **fields):
    return post(llm, COMPLETIONS, {"prompt": prompt, **fields})


def echo(prompt_ids, params):
    """Each sample answers with its prompt and its own number, so that a mix-up shows."""
    for index in range(params.n):
        yield Delta(index, bytes(prompt_ids[-1:]).decode(), [1])
    for index in reversed(range(params.n)):
        yield Delta(index, str(index), [2, 3], "length")


def test_the_body_is_openais():
    response = post(FakeLLM(), COMPLETIONS, {"prompt": "abc", "max_tokens": 5}, x_request_id="r1")
    assert response.status_code == 200
    body = response.json()
    assert isinstance(body.pop("created"), int)
    assert body == {
        "id": "cmpl-r1",
        "object": "text_completion",
        "model": "tiny",
        "system_fingerprint": "jaxinfer-test",
        "choices": [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 5,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[256, 97, 98]]),
        (["ab", "c"], [[256, 97, 98], [256, 99]]),
        ([1, 2, 299], [[1, 2, 299]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ("   ", [[256, 32, 32, 32]]),
    ],
    ids=str,
)
def test_a_prompt_is_text_or_ids_one_or_several(prompt, ids):
    llm = FakeLLM()
    assert complete(llm, prompt).status_code == 200
    assert [call.prompt_ids for call in llm.calls] == ids
    assert not llm.calls[0].chat
    assert len({call.request_id for call in llm.calls}) == len(ids)


def test_special_tokens_can_be_left_out():
    llm = FakeLLM()
    complete(llm, "ab", add_special_tokens=False)
    assert llm.calls[0].prompt_ids == [97, 98]


def test_a_choices_index_is_its_prompts_position_times_n_plus_its_sample():
    body = complete(FakeLLM(echo), ["a", "b", "c"], n=2).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [choice["text"] for choice in body["choices"]] == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert body["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 18,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        (5, "prompt"),
        ({"a": 1}, "prompt"),
        (True, "prompt"),
        (["a", ""], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        (["a", [1]], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], []], "prompt[1]"),
        ([[]], "prompt[0]"),
        ([[[1]]], "prompt[0]"),
        ([1, "a"], "prompt"),
        ([1, True], "prompt"),
        ([True], "prompt"),
        ([None], "prompt"),
        ([1.0], "prompt"),
        ([-1], "prompt"),
        ([300], "prompt"),
        ([2**31], "prompt"),
        ([2**63], "prompt"),
        (["x"] * 100_000, "prompt"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_prompt_of_another_kind_is_refused_before_anything_is_tokenized(prompt, param):
    llm = FakeLLM()
    response = complete(llm, prompt)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert llm.encoded == [] and llm.calls == []


def test_a_missing_prompt_is_refused():
    assert error_of(post(FakeLLM(), COMPLETIONS, {}))["code"] == "missing_required_parameter"


@pytest.mark.parametrize(("name", "value"), [("suffix", "x"), ("lora_path", "x")])
def test_a_known_field_that_cannot_be_carried_out_is_refused_by_name(name, value):
    error = error_of(complete(FakeLLM(), "a", **{name: value}))
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize(("name", "value"), [("echo", False), ("suffix", ""), ("logprobs", None), ("best_of", 1)])
def test_a_field_that_asks_for_nothing_passes(name, value):
    assert complete(FakeLLM(), "a", **{name: value}).status_code == 200


def test_best_of_must_equal_n():
    assert complete(FakeLLM(), "a", best_of=3, n=3).status_code == 200
    for best_of in (0, 2, 10**18, "3", 3.0, True, -1):
        assert error_of(complete(FakeLLM(), "a", best_of=best_of, n=3))["param"] == "best_of"


def test_chats_own_fields_are_unknown_here():
    response = complete(FakeLLM(), "a", max_completion_tokens=5, messages=[])
    assert response.headers["x-jaxinfer-warnings"] == "ignored: max_completion_tokens, messages"


def test_prompts_that_the_queue_refuses_leave_nothing_running():
    llm = FakeLLM(max_running=3, stolen=1)
    response = complete(llm, ["a", "b", "c"])
    assert response.status_code == 429
    assert len(llm.calls) == 2
    assert not llm.running
    assert {call.request_id for call in llm.calls} <= set(llm.aborts)


def test_a_queue_without_room_for_all_prompts_refuses_before_anything_is_tokenized():
    llm = FakeLLM(max_running=5)
    assert complete(llm, ["a", "b", "c"], n=2).status_code == 429
    assert llm.encoded == [] and llm.calls == []
    assert complete(llm, ["a", "b"], n=2).status_code == 200


def test_one_prompt_that_fails_ends_the_others():
    def script(prompt_ids, params):
        yield Delta(0, "x", [1])
        if prompt_ids[-1] == ord("b"):
            yield Delta(0, "", [], "error", error="the row was not finite")
        yield 0.2
        yield Delta(0, "y", [2], "stop")

    llm = FakeLLM(script)
    response = complete(llm, ["a", "b", "c"])
    assert response.status_code == 500
    assert error_of(response)["message"] == "the row was not finite"
    assert not llm.running


def test_a_bug_is_a_500_that_tells_nothing_of_our_inside(caplog):
    llm = FakeLLM(lambda ids, params: [RuntimeError("secret detail in /home/x.py")])
    response = complete(llm, ["a", "b"])
    error = error_of(response)
    assert response.status_code == 500
    assert error["type"] == "internal_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"] in error["message"]
    assert "secret detail" in caplog.text
    assert not llm.running


def test_max_tokens_zero_needs_echo():
    assert error_of(complete(FakeLLM(), "a", max_tokens=0))["param"] == "max_tokens"
    assert error_of(complete(FakeLLM(), "a", max_tokens=-2, echo=True))["param"] == "max_tokens"
    for prompt, texts in ((["ab", "c"], ["ab", "c"]), ([[99], [97, 98]], ["c", "ab"])):
        response = complete(FakeLLM(), prompt, max_tokens=0, echo=True)
        found = [(choice["text"], choice["finish_reason"]) for choice in response.json()["choices"]]
        assert found == [(text, "length") for text in texts]
    assert response.json()["usage"]["completion_tokens"] == 0


def test_an_echo_comes_before_each_choice_and_once():
    body = complete(FakeLLM(), "ab", echo=True, n=2).json()
    assert [choice["text"] for choice in body["choices"]] == ["abHello", "abHello"]
    stream = events(complete(FakeLLM(), "ab", echo=True, stream=True).text)
    assert [frame["choices"][0]["text"] for frame in stream] == ["abHel", "lo"]


@pytest.mark.parametrize("value", [21, -1, 300, 2**31, 10**9, True, "5", 1.0])
def test_logprobs_beyond_the_servers_limit_are_refused(value):
    llm = FakeLLM()
    assert error_of(complete(llm, "a", logprobs=value))["param"] == "logprobs"
    assert llm.calls == []
    assert complete(llm, "a", logprobs=20).status_code == 200
