"""POST /v1/chat/completions, not streamed."""

import pytest

from jaxinfer.llm.types import Delta
from jaxinfer.protocol.sampling import GenerationDefaults
from jaxinfer.server.settings import ServerSettings
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, MESSAGES, RESPONSES, USER, chat, error_of, post


def test_the_body_is_openais():
    response = post(FakeLLM(), CHAT, {"model": "tiny", "messages": USER}, x_request_id="abc")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] == "abc"
    assert "x-jaxinfer-warnings" not in response.headers
    body = response.json()
    assert isinstance(body.pop("created"), int)
    assert body == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "model": "tiny",
        "system_fingerprint": "jaxinfer-test",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 18,
            "completion_tokens": 5,
            "total_tokens": 23,
            "prompt_tokens_details": {"cached_tokens": 9},
        },
    }


def test_n_choices_count_the_prompt_once_and_their_tokens_together():
    body = chat(FakeLLM(), n=3).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == 18
    assert body["usage"]["completion_tokens"] == 15


def test_the_sampling_fields_reach_the_engine_as_they_were_written():
    llm = FakeLLM()
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 11, "n": 2, "stop": ["a", "b"]}
    response = chat(llm, **sampling, stop_token_ids=[5], ignore_eos=True, max_tokens=9, priority=-3)
    assert response.status_code == 200
    (call,) = llm.calls
    assert {name: getattr(call.params, name) for name in sampling} == sampling
    assert (call.params.stop_token_ids, call.params.ignore_eos, call.params.max_tokens) == ([5], True, 9)
    assert (call.priority, call.chat) == (-3, True)


def test_max_completion_tokens_wins_over_max_tokens():
    llm = FakeLLM()
    chat(llm, max_completion_tokens=7, max_tokens=100)
    assert llm.calls[0].params.max_tokens == 7
    assert error_of(chat(llm, max_completion_tokens=0))["param"] == "max_completion_tokens"


@pytest.mark.parametrize(
    ("path", "fields", "meant"),
    [
        (CHAT, {"messages": USER, "max_tokens": -1}, None),
        (CHAT, {"messages": USER, "max_completion_tokens": -1}, None),
        (CHAT, {"messages": USER, "max_completion_tokens": -1, "max_tokens": 9}, 9),
        (CHAT, {"messages": USER, "max_completion_tokens": 9, "max_tokens": -1}, 9),
        (COMPLETIONS, {"prompt": "a", "max_tokens": -1}, None),
        (COMPLETIONS, {"prompt": "a", "max_tokens": -1, "echo": True}, None),
        (RESPONSES, {"input": "a", "max_output_tokens": -1}, None),
    ],
)
def test_a_length_of_minus_1_is_one_that_is_left_out(path, fields, meant):
    llm = FakeLLM()
    assert post(llm, path, fields).status_code == 200
    assert llm.calls[0].params.max_tokens == meant


@pytest.mark.parametrize(
    ("path", "least"),
    [
        (CHAT, {"messages": USER}),
        (COMPLETIONS, {"prompt": "a"}),
        (RESPONSES, {"input": "a"}),
        (MESSAGES, {"messages": USER, "max_tokens": 9}),
    ],
)
def test_top_p_may_be_0(path, least):
    llm = FakeLLM()
    assert post(llm, path, least | {"top_p": 0}).status_code == 200
    assert llm.calls[0].params.top_p == 0


def test_a_stop_reason_is_the_string_or_the_id_that_ended_it():
    def script(prompt_ids, params):
        yield Delta(0, "a", [1], "stop", "END")
        yield Delta(1, "b", [1], "stop", 42)

    choices = chat(FakeLLM(script), n=2).json()["choices"]
    assert [choice["stop_reason"] for choice in choices] == ["END", 42]


@pytest.mark.parametrize(
    ("name", "served"), [("tiny", "tiny"), ("org/tiny-1B", "org/tiny-1B"), (None, "tiny"), ("", "tiny")]
)
def test_the_model_may_be_left_out_and_answers_under_the_name_it_was_asked_by(name, served):
    assert chat(FakeLLM(), model=name).json()["model"] == served


def test_an_unknown_model_is_a_404_that_lists_the_served_names():
    response = chat(FakeLLM(), model="gpt-4\n")
    error = error_of(response)
    assert response.status_code == 404
    assert (error["type"], error["param"], error["code"]) == ("not_found_error", "model", "model_not_found")
    assert r"'gpt-4\n' does not exist here; this server serves tiny, org/tiny-1B" in error["message"]


def test_content_may_be_text_parts_and_an_assistants_may_be_null():
    llm = FakeLLM()
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [], "refusal": None, "annotations": []},
        {"role": "assistant", "content": "", "reasoning": "hm"},
        {"role": "user", "content": ""},
    ]
    assert post(llm, CHAT, {"messages": messages}).status_code == 200
    assert llm.rendered[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb", "name": "Ann"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {"role": "user", "content": ""},
    ]


@pytest.mark.parametrize(
    "thoughts",
    [
        {"reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"reasoning": "hm", "reasoning_content": None},
        {"reasoning_content": None, "reasoning": "hm"},
        {"reasoning": None, "reasoning_content": "hm"},
        {"reasoning": "hm", "reasoning_content": "hm"},
    ],
)
def test_an_assistants_thoughts_are_read_under_either_name_whatever_the_other_s_null(thoughts):
    llm = FakeLLM()
    messages = [*USER, {"role": "assistant", "content": "a", **thoughts}, *USER]
    assert post(llm, CHAT, {"messages": messages}).status_code == 200
    assert llm.rendered[0]["messages"][1] == {"role": "assistant", "content": "a", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ({"role": "user"}, "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "function", "content": "x"}], "messages[0].name"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "tool_call_id": "a"}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        ([{"role": "user", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}], "messages[0].tool_calls[0].function.name"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": ["text"], "text": "x"}]}], "messages[0].content[0]"),
        (USER * 4097, "messages"),
    ],
)
def test_messages_that_cannot_be_rendered_are_refused_before_anything_is_tokenized(messages, param):
    llm = FakeLLM()
    response = post(llm, CHAT, {"messages": messages})
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert llm.rendered == [] and llm.calls == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", []),
        ("chat_template", "{{ x }}"),
        ("logprob_token_ids", [1]),
        ("use_beam_search", True),
        ("prompt_embeds", "x"),
        ("custom_logit_processor", "x"),
        ("kv_transfer_params", {}),
        ("modalities", ["text", "audio"]),
        ("request_id", "x"),
    ],
)
def test_a_known_field_that_cannot_be_carried_out_is_refused_by_name(name, value):
    llm = FakeLLM()
    error = error_of(response := chat(llm, **{name: value}))
    assert response.status_code == 400
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert error["message"].startswith(f"{name} is not supported by this version of jaxinfer; ")
    assert llm.calls == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "text"}),
        ("tool_choice", "none"),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("presence_penalty", 0),
        ("repetition_penalty", 1.0),
        ("logit_bias", {}),
        ("modalities", ["text"]),
        ("tools", None),
        ("stop", None),
        ("n", None),
        ("stream", None),
        ("stream_options", None),
        ("ignore_eos", None),
        ("user", "u1"),
        ("metadata", {"a": "b"}),
        ("store", True),
        ("service_tier", "auto"),
        ("prediction", {"type": "content", "content": "x"}),
    ],
)
def test_a_field_that_asks_for_nothing_passes_without_a_warning(name, value):
    response = chat(FakeLLM(), **{name: value})
    assert response.status_code == 200
    assert "x-jaxinfer-warnings" not in response.headers


def test_unknown_fields_are_named_in_a_header_that_no_name_can_break():
    messages = [{"role": "user", "content": "x", "mood": "good"}]
    response = post(FakeLLM(), CHAT, {"messages": messages, "foo": 1, "a\r\nset-cookie: x": 2, "été": 3})
    assert response.status_code == 200
    assert response.headers["x-jaxinfer-warnings"] == (r"ignored: foo, a\r\nset-cookie: x, \xe9t\xe9, messages[0].mood")
    assert "set-cookie" not in response.headers
    many = chat(FakeLLM(), **{f"f{number}": 1 for number in range(20)})
    assert many.headers["x-jaxinfer-warnings"].endswith("f15 and 4 more")


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/apply-template", "/detokenize", "/abort_request"])
def test_a_strict_server_refuses_unknown_fields_by_name(path):
    """A19"""
    bodies = {"/detokenize": {"tokens": [65]}, "/abort_request": {"request_id": "x"}}
    known, llm = bodies.get(path, {"messages": USER}), FakeLLM()
    strict = ServerSettings(strict=True)
    refused = post(llm, path, known | {"a\r\nset-cookie: x": 1, "foo": 2}, strict)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "unknown_parameter")
    assert error_of(refused)["param"] == r"a\r\nset-cookie: x" and "foo" in error_of(refused)["message"]
    assert not llm.calls and not llm.rendered
    assert post(llm, path, known, strict).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": 1}, "stream"),
        *(({"cache_salt": bad}, "cache_salt") for bad in ("", "a/b", "a@b", "\\", "\0", "x" * 129, 5)),
        *(({"truncate_prompt_tokens": bad}, "truncate_prompt_tokens") for bad in (0, -2, 1.5, True, "5")),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"stream": "true"}, "stream"),
        ({"model": 5}, "model"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 2**40}, "priority"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"add_generation_prompt": "no"}, "add_generation_prompt"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"temperature": "0.7"}, "temperature"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [300]}, "stop_token_ids"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(fields, param):
    llm = FakeLLM()
    response = chat(llm, **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert llm.calls == []


def test_the_thinking_switch_reaches_the_template():
    llm = FakeLLM()
    chat(llm, chat_template_kwargs={"enable_thinking": False})
    assert llm.rendered[0]["kwargs"] == {"enable_thinking": False}
    assert (llm.rendered[0]["add"], llm.rendered[0]["go_on"]) == (True, False)


def test_a_last_message_that_goes_on_needs_no_second_switch():
    llm = FakeLLM()
    messages = [*USER, {"role": "assistant", "content": "Once"}]
    assert post(llm, CHAT, {"messages": messages, "continue_final_message": True}).status_code == 200
    assert (llm.rendered[0]["add"], llm.rendered[0]["go_on"]) == (False, True)


def test_a_prompt_that_leaves_no_room_is_refused_in_the_words_that_clients_search_for():
    response = chat(FakeLLM(max_model_len=10))
    error = error_of(response)
    assert response.status_code == 400
    assert error["message"].startswith("This model's maximum context length is 10 tokens")
    assert "context_length_exceeded" in error["message"]
    assert error["code"] == "context_length_exceeded"
    assert error_of(chat(FakeLLM(), max_tokens=10**12))["code"] == "context_length_exceeded"


def test_a_model_without_a_template_sends_chat_to_completions():
    error = error_of(chat(FakeLLM(has_chat_template=False)))
    assert error["param"] == "messages"
    assert "send a prompt to /v1/completions" in error["message"]


def test_a_full_queue_is_a_429_that_says_when_to_come_back():
    response = chat(FakeLLM(max_running=0))
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert error_of(response)["code"] == "queue_full"


@pytest.mark.parametrize(
    "script",
    [
        lambda ids, params: [Delta(0, "x", [1]), Delta(0, "", [], "error", error="a NaN in step 7")],
        lambda ids, params: [Delta(0, "x", [1])],
        lambda ids, params: [Delta(0, "x", [1], "stop"), Delta(0, "y", [1], "stop")],
    ],
    ids=["failed", "unfinished", "finished twice"],
)
def test_an_answer_that_the_engine_could_not_finish_is_a_500(script):
    llm = FakeLLM(script)
    response = chat(llm)
    assert response.status_code == 500
    assert error_of(response)["code"] == "engine_error"
    assert not llm.running


def test_an_aborted_choice_says_so():
    choice = chat(FakeLLM(lambda ids, params: [Delta(0, "x", [1], "abort")])).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("x", "abort")


def test_the_demo_is_named_by_the_fingerprint_and_the_defaults_stay_the_models():
    llm = FakeLLM(fingerprint="jaxinfer-0.1.0-demo", defaults=GenerationDefaults(max_tokens=3), is_demo=True)
    assert chat(llm).json()["system_fingerprint"] == "jaxinfer-0.1.0-demo"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(({"logprobs": True, "top_logprobs": bad}, "top_logprobs") for bad in (21, -1, 300, 2**31, 10**9, True, "5")),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
    ids=str,
)
def test_logprobs_that_cannot_be_given_are_refused(fields, param):
    llm = FakeLLM()
    response = chat(llm, **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert llm.calls == []


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
    ids=str,
)
def test_chats_two_fields_of_logprobs_become_one(fields, wanted):
    llm = FakeLLM()
    assert chat(llm, **fields).status_code == 200
    assert llm.calls[0].params.logprobs == wanted
