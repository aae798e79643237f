"""POST /tokenize, /apply-template and /detokenize."""

import asyncio

import pytest

from jaxinfer.server.app import create_app
from tests.server.fakes import FakeLLM
from tests.server.http import USER, error_of, live, post, raw_request, wait_until


def test_a_prompt_becomes_ids_with_the_models_special_tokens():
    body = post(FakeLLM(), "/tokenize", {"prompt": "ab"}).json()
    assert body == {"count": 3, "max_model_len": 512, "tokens": [256, 97, 98], "token_strs": None}


def test_special_tokens_can_be_left_out_and_the_pieces_shown():
    request = {"prompt": "ab", "add_special_tokens": False, "return_token_strs": True}
    body = post(FakeLLM(), "/tokenize", request).json()
    assert (body["tokens"], body["token_strs"]) == ([97, 98], ["a", "b"])
    assert post(FakeLLM(), "/tokenize", {"prompt": ""}).json()["tokens"] == [256]


def test_the_pieces_of_a_long_prompt_take_few_calls_and_are_all_there():
    sizes = []

    class Counting(FakeLLM):
        async def decode_each(self, ids):
            sizes.append(len(ids))
            return await super().decode_each(ids)

    strings = post(Counting(), "/tokenize", {"prompt": "abc" * 3000, "return_token_strs": True}).json()["token_strs"]
    assert strings == ["<bos>", *"abc" * 3000]
    assert sum(sizes) == 9001 and len(sizes) == 3


def test_a_client_that_leaves_ends_the_making_of_the_pieces():
    steps = []

    class Slow(FakeLLM):
        async def decode_each(self, ids):
            try:
                steps.append("begun")
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                steps.append("ended")
                raise

    with live(create_app(Slow())) as port:
        connection = raw_request(port, "/tokenize", {"prompt": "ab", "return_token_strs": True})
        wait_until(lambda: steps == ["begun"])
        connection.close()
        wait_until(lambda: steps == ["begun", "ended"])


def test_messages_are_rendered_first():
    llm = FakeLLM()
    body = post(llm, "/tokenize", {"messages": USER, "add_generation_prompt": False}).json()
    assert bytes(body["tokens"]) == b"user:hi\n"


def test_detokenize_gives_the_text_with_its_special_tokens():
    assert post(FakeLLM(), "/detokenize", {"tokens": [256, 97, 98]}).json() == {"prompt": "<bos>ab"}
    assert post(FakeLLM(), "/detokenize", {"tokens": []}).json() == {"prompt": ""}


def test_unknown_fields_are_named_a_sampling_field_too():
    response = post(FakeLLM(), "/tokenize", {"prompt": "a", "temperature": 1})
    assert response.headers["x-jaxinfer-warnings"] == "ignored: temperature"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"messages": USER, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": USER, "tools": [{}]}, "tools[0].type"),
        ("/tokenize", {"messages": USER, "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ("/tokenize", {"prompt": "a", "model": "nope"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "nope"}, "model"),
    ],
)
def test_what_cannot_be_tokenized_is_refused(path, body, param):
    response = post(FakeLLM(), path, body)
    assert response.status_code in (400, 404)
    assert error_of(response)["param"] == param


def test_a_template_s_text_can_be_seen():
    body = {"messages": [{"role": "user", "content": "hi"}], "strange": 1}
    answer = post(FakeLLM(), "/apply-template", body)
    assert answer.json() == {"prompt": "user:hi\nassistant:"}
    assert "strange" in answer.headers["x-jaxinfer-warnings"]
    goes_on = {"messages": [*USER, {"role": "assistant", "content": "An"}], "continue_final_message": True}
    assert post(FakeLLM(), "/apply-template", goes_on).json()["prompt"].endswith("assistant:An\n")
    for wrong in ({}, {"prompt": "x"}, {"messages": None}):
        assert error_of(post(FakeLLM(), "/apply-template", wrong))["param"] == "messages"


@pytest.mark.parametrize("path", ["/tokenize", "/apply-template"])
def test_tools_that_the_model_cannot_be_shown_are_refused_as_in_a_chat(path):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    response = post(FakeLLM(tool_format=None), path, {"messages": USER, "tools": tools})
    assert (response.status_code, error_of(response)["param"]) == (400, "tools")
