"""Ollama's API in bytes. The requests are those of Continue (commit 0108be5e, core/llm/llms/Ollama.ts) and Zed (commit
0138cb1c, crates/ollama/src/ollama.rs); the package's walk is in tests/clients/test_ollama.py.
"""

import datetime
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from jaxinfer.errors import ApiError
from jaxinfer.llm.prepare import room_for_answer
from jaxinfer.llm.types import CheckpointFacts, Delta
from jaxinfer.protocol.logprobs import TokenLogprob
from jaxinfer.protocol.ollama import OPTIONS_REFUSED, SAMPLING
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.server.settings import ServerSettings
from jaxinfer.text.tools.reader import CallDelta
from tests.server.fakes import FakeLLM, hello
from tests.server.http import USER, ask, error_of, post
from tests.server.test_tools import BAD_TOOLS

CHAT, GENERATE = "/api/chat", "/api/generate"
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
CONTINUE: dict[str, Any] = {"model": "tiny", "messages": USER, "keep_alive": 1800, "stream": False, "tools": [TOOL]}
CONTINUE |= {"options": {"temperature": 0.5, "num_predict": 4096, "num_ctx": 512, "num_thread": 8, "stop": ["x"]}}
ZED_HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "add"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
        "thinking": None,
    },
    {"role": "tool", "tool_name": "add", "content": "3"},
]
ZED: dict[str, Any] = {
    "model": "tiny:latest",
    "messages": ZED_HISTORY,
    "stream": True,
    "keep_alive": -1,
    "think": False,
}
ZED |= {"options": {"num_ctx": 512, "num_predict": None, "stop": None, "temperature": 1.0, "top_p": None}, "tools": []}


def lines(response: Any) -> list[dict[str, Any]]:
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def test_what_continue_sends_is_answered_whole():
    llm = FakeLLM()
    response = post(llm, CHAT, CONTINUE)
    assert response.headers["content-type"] == "application/json"
    assert response.json()["message"] == {"role": "assistant", "content": "Hello"}
    assert response.json()["done"] is True and response.json()["done_reason"] == "stop"
    assert response.headers["x-jaxinfer-warnings"] == "ignored: keep_alive, options.num_thread"
    assert llm.rendered[0]["tools"] == [TOOL]
    assert llm.calls[0].params.temperature == 0.5 and llm.calls[0].params.stop == ["x"]
    assert llm.calls[0].params.max_tokens == room_for_answer(len(llm.calls[0].prompt_ids), llm.info, llm.limits), (
        "a ceiling"
    )


def test_what_zed_sends_is_streamed():
    llm = FakeLLM()
    *pieces, last = lines(post(llm, CHAT, ZED))
    assert [piece["message"]["content"] for piece in pieces] == ["Hel", "lo"]
    assert not any(piece["done"] for piece in pieces)
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "stop", 5)
    assert {line["model"] for line in [*pieces, last]} == {"tiny:latest"}
    assert llm.rendered[0]["messages"][2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert llm.rendered[0]["messages"][3] == {"role": "tool", "content": "3", "name": "add"}
    assert llm.rendered[0]["kwargs"] == {"enable_thinking": False}


KINDS = ["", "application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", "application/xml"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": USER}),
        (GENERATE, {"prompt": "x"}),
        ("/api/embed", {"input": "x"}),
        ("/api/embeddings", {"prompt": "x"}),
        ("/api/show", {"model": "tiny"}),
    ],
)
def test_a_program_may_send_json_under_any_content_type_and_a_page_may_not(kind, path, body):
    assert post(FakeLLM(), path, body, content_type=kind).status_code == 200
    pages = {"origin": "http://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}
    for of_browser in pages:
        llm = FakeLLM()
        refused = post(llm, path, body, content_type=kind, **of_browser)
        assert refused.status_code == 415 and not llm.calls
        assert "the content-type must be application/json" in error_of(refused)["message"]


def test_what_is_no_json_or_in_another_charset_is_refused_under_any_content_type():
    assert post(FakeLLM(), CHAT, b"model=tiny", content_type=KINDS[1]).status_code == 400
    assert post(FakeLLM(), CHAT, {"messages": USER}, content_type="text/plain; charset=latin-1").status_code == 415
    assert post(FakeLLM(), "/v1/chat/completions", {"messages": USER}, content_type=KINDS[1]).status_code == 415


def test_a_stream_is_the_default_and_generate_says_response():
    *pieces, last = lines(post(FakeLLM(), GENERATE, {"prompt": "x", "system": "y"}))
    assert [piece["response"] for piece in pieces] == ["Hel", "lo"] and last["done"]


def test_raw_is_all_that_the_model_reads_and_goes_on_to_the_context_s_end():
    llm = FakeLLM()
    post(llm, GENERATE, {"prompt": "x", "raw": True, "stream": False})
    assert not llm.rendered and llm.encoded == ["x"]
    assert llm.calls[0].params.max_tokens == room_for_answer(len(llm.calls[0].prompt_ids), llm.info, llm.limits)


def scored(prompt_ids: list[int], params: SamplingParams) -> Iterable[Delta]:
    """hello, with logprobs where they are asked for."""
    for delta in hello(prompt_ids, params):
        if params.logprobs is not None:
            top = np.arange(params.logprobs, dtype=np.int32).tobytes(), -np.ones(params.logprobs, np.float32)
            raw = top[0], top[1].tobytes()
            delta.logprobs = [TokenLogprob(token, b"t", -0.5, 1, *raw, lambda _: b"o") for token in delta.token_ids]
        yield delta


@pytest.mark.parametrize("body", [{"messages": USER}, {"prompt": "x"}, {"prompt": "x", "raw": True}])
def test_logprobs_have_an_entry_for_each_token_streamed_or_whole(body):
    path, asked = CHAT if "messages" in body else GENERATE, {"logprobs": True, "top_logprobs": 2}
    llm = FakeLLM(scored)
    *pieces, last = lines(post(llm, path, body | asked))
    found = [entry for piece in pieces for entry in piece["logprobs"]]
    assert found and llm.calls[0].params.logprobs == 2 and "logprobs" not in last
    assert {
        (type(one["token"]), type(one["logprob"]), type(one["bytes"]), len(one["top_logprobs"])) for one in found
    } == {(str, float, list, 2)}
    assert post(llm, path, body | asked | {"stream": False}).json()["logprobs"] == found
    assert "logprobs" not in post(llm, path, body | {"stream": False}).json()
    assert error_of(post(llm, path, body | {"top_logprobs": 1}))["message"].startswith("top_logprobs must be 0 or come")


@pytest.mark.parametrize(("path", "body"), [(CHAT, {}), (CHAT, {"messages": []}), (GENERATE, {"keep_alive": 5})])
def test_without_a_prompt_the_model_is_loaded(path, body):
    llm = FakeLLM()
    answer = post(llm, path, body).json()
    assert (answer["done"], answer["done_reason"]) == (True, "load") and not llm.calls


@pytest.mark.parametrize("keep_alive", [0, 0.0, "0", "0s", "0m"])
@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": []}), (GENERATE, {})])
def test_a_request_to_unload_has_ollama_s_answer_and_a_warning(path, body, keep_alive):
    response = post(FakeLLM(), path, body | {"keep_alive": keep_alive})
    assert response.json()["done_reason"] == "unload"
    assert response.headers["x-jaxinfer-warnings"] == "ignored: keep_alive"


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("fields", [{}, {"content": None}, {"content": ""}])
def test_a_message_without_content_has_an_empty_one(role, fields):
    llm = FakeLLM()
    asked = {"messages": [*USER, {"role": role} | fields, *USER], "stream": False}
    assert post(llm, CHAT, asked).status_code == 200
    assert llm.rendered[0]["messages"][1] == {"role": role, "content": ""}


@pytest.mark.parametrize("num_predict", [0, -1, -2])
def test_num_predict_up_to_0_is_no_bound(num_predict):
    llm = FakeLLM()
    assert post(llm, CHAT, {"messages": USER, "options": {"num_predict": num_predict}}).status_code == 200
    assert llm.calls[0].params.max_tokens is None


def test_the_options_of_ollama_s_documented_example_are_taken():
    options = {"num_keep": 5, "seed": 42, "num_predict": 100, "top_k": 20, "top_p": 0.9, "min_p": 0.0}
    options |= {"typical_p": 0.7, "repeat_last_n": 33, "temperature": 0.8, "repeat_penalty": 1.2, "num_ctx": 256}
    response = post(FakeLLM(), GENERATE, {"prompt": "x", "options": options})
    assert response.status_code == 200
    ignored = "options.num_keep, options.typical_p, options.repeat_last_n"
    assert response.headers["x-jaxinfer-warnings"] == f"ignored: {ignored}"


PERSON: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
CLOSED = PERSON | {"additionalProperties": False}
REF = {"$ref": "#/$defs/P"}
OTHER: dict[str, Any] = {"type": "object", "properties": {"age": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (PERSON, CLOSED),
        ({"type": "array", "items": PERSON}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [PERSON, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"$defs": {"P": PERSON}, "allOf": [REF]}, {"$defs": {"P": CLOSED}, "allOf": [REF]}),
        *((kept, kept) for kept in (PERSON | {"additionalProperties": True}, {"type": "object"})),
        ({"allOf": [PERSON, OTHER]}, {"allOf": [PERSON, OTHER]}),
        *((kept, kept) for kept in (PERSON | {"patternProperties": {"x": {}}}, PERSON | {"anyOf": [OTHER, True]})),
    ],
    ids=str,
)
def test_a_format_allows_the_declared_names_alone_below_api(given, meant):
    llm = FakeLLM()
    asked: dict[str, Any] = {"messages": USER, "stream": False}
    post(llm, CHAT, asked | {"format": given})
    assert llm.calls[0].params.json_schema == meant
    ours = {"response_format": {"type": "json_schema", "json_schema": {"schema": given}}}
    post(llm, "/v1/chat/completions", asked | ours)
    assert llm.calls[1].params.json_schema == given


def test_calls_are_whole_with_their_arguments_as_an_object_and_thoughts_have_a_field():
    call = [CallDelta(0, "call-1", "add", '{"a": '), CallDelta(0, arguments="1}", is_whole=True)]
    script = [Delta(0, "", [1], reasoning="hm"), Delta(0, "", [2], calls=call[:1])]
    script.append(Delta(0, "", [3], "tool_calls", calls=call[1:]))
    thought, called, last = lines(post(FakeLLM(lambda *_: script), CHAT, {"messages": USER, "tools": [TOOL]}))
    assert thought["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    assert called["message"]["tool_calls"] == [{"id": "call-1", "function": {"name": "add", "arguments": {"a": 1}}}]
    assert last["done_reason"] == "stop"


def test_a_stream_that_fails_ends_with_a_line_that_says_so():
    script = [Delta(0, "a", [1]), ApiError("it broke", code="x")]
    *_, last = lines(post(FakeLLM(lambda *_: script), CHAT, {"messages": USER}))
    assert last == {"error": "it broke"}


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        (
            CHAT,
            {"options": {"num_ctx": 513}},
            "options.num_ctx must be an integer from 1 to 512 (max_model_len), got 513; lower it, or raise ",
        ),
        (
            CHAT,
            {"options": {"num_ctx": 0}},
            "options.num_ctx must be an integer from 1 to 512 (max_model_len), got 0; leave it out for 512",
        ),
        (CHAT, {"options": {"temperature": 9}}, "options.temperature must be"),
        (
            CHAT,
            {"options": {"num_predict": -3}},
            "options.num_predict must be a number of tokens, or -1 for no limit, got -3; leave it out",
        ),
        (CHAT, {"options": []}, "options must be an object, got an array; send an object"),
        (CHAT, {"format": "xml"}, "format must be json or a JSON schema, which is an object, got 'xml'; leave it out "),
        (CHAT, {"think": "hard"}, "think must be true, false, low, medium, high or max, got 'hard'; leave it out "),
        (CHAT, {"think": True}, "think needs a model that thinks"),
        (CHAT, {"truncate": True}, "truncate is not supported"),
        (CHAT, {"messages": [USER[0] | {"images": ["QUJD"]}]}, "messages[0].images is not supported"),
        (GENERATE, {"images": ["QUJD"]}, "images is not supported"),
        (GENERATE, {"suffix": "x"}, "suffix is not supported"),
        (GENERATE, {"template": "x"}, "template is not supported"),
        (GENERATE, {"context": [1]}, "context is not supported"),
        (GENERATE, {"raw": True, "system": "x"}, "system must be left out with raw"),
        *((CHAT, {"options": {name: 7}}, f"options.{name} is not supported") for name in OPTIONS_REFUSED),
    ],
)
def test_what_cannot_be_is_a_400_in_ollama_s_form(path, fields, said):
    response = post(FakeLLM(), path, {"messages": USER} | fields if path == CHAT else {"prompt": "x"} | fields)
    assert response.status_code == 400
    assert error_of(response)["message"].startswith(said)


@pytest.mark.parametrize(("tools", "place"), BAD_TOOLS)
def test_a_tool_that_is_none_is_refused_by_the_place_where_it_was_sent(tools, place):
    response = post(FakeLLM(), CHAT, {"messages": USER, "tools": tools})
    assert response.status_code == 400
    assert error_of(response)["message"].startswith(f"{place} ")


def test_a_schema_that_is_too_large_is_refused_by_the_place_where_it_was_sent():
    schema = {"type": "object", "description": "x" * 2**20}
    message = error_of(post(FakeLLM(), CHAT, {"messages": USER, "format": schema}))["message"]
    assert message.startswith("format must be at most 1048576 bytes")


@pytest.mark.parametrize(("name", "ours"), SAMPLING.items())
def test_an_option_means_our_field(name, ours):
    llm, value = FakeLLM(), ["x"] if name == "stop" else 1
    assert "x-jaxinfer-warnings" not in post(llm, CHAT, {"messages": USER, "options": {name: value}}).headers
    assert getattr(llm.calls[0].params, ours) == value


def test_embeddings_are_of_length_1_but_for_the_older_route_s():
    body = post(FakeLLM(), "/api/embed", {"model": "tiny:latest", "input": ["a", "b"]}).json()
    assert [round(sum(x * x for x in vector), 5) for vector in body["embeddings"]] == [1, 1]
    assert body["prompt_eval_count"] == 4 and body["total_duration"] > 0
    assert post(FakeLLM(), "/api/embeddings", {"prompt": "a"}).json() == {"embedding": [2.0, 256.0, -97.0, 0.5]}


def test_models_have_a_tag_and_are_known_without():
    names = [model["name"] for model in ask(FakeLLM(), "GET", "/api/tags").json()["models"]]
    assert names == ["tiny:latest", "org/tiny-1B:latest"]
    for name in [*names, "tiny"]:
        shown = post(FakeLLM(has_thinking=True), "/api/show", {"model": name}).json()
        assert shown["capabilities"] == ["completion", "embedding", "tools", "thinking"]
    assert "num_ctx                        512" in shown["parameters"].splitlines()
    assert post(FakeLLM(tool_format=None), "/api/show", {"name": "tiny"}).json()["capabilities"] == [
        "completion",
        "embedding",
    ]
    assert post(FakeLLM(), "/api/show", {"model": "huge"}).status_code == 404


@pytest.mark.parametrize("body", [{}, {"model": ""}, {"name": ""}, {"verbose": True}, {"model": None}])
def test_what_is_to_be_shown_must_be_named_as_ollama_says(body):
    refusal = post(FakeLLM(), "/api/show", body)
    assert (refusal.status_code, refusal.json()["error"]) == (400, "model is required")


@pytest.mark.parametrize("gpu_bytes", [0, 5_000_000])
def test_what_is_loaded_stays_and_says_how_much_of_it_is_on_a_gpu(gpu_bytes):
    facts = CheckpointFacts(weight_bytes=3_000_000)
    models = ask(FakeLLM(gpu_bytes=gpu_bytes, facts=facts), "GET", "/api/ps").json()["models"]
    assert [model["name"] for model in models] == ["tiny:latest", "org/tiny-1B:latest"]
    for model in models:
        assert (model["size_vram"], model["size"]) == (gpu_bytes, gpu_bytes or 3_000_000)
        left = datetime.datetime.fromisoformat(model["expires_at"]) - datetime.datetime.now(datetime.UTC)
        assert left.days > 100 * 366, "which Ollama's clients show as forever"


def test_what_nobody_reads_is_refused_where_the_server_is_strict():
    response = post(FakeLLM(), CHAT, {"messages": USER, "keep_alive": 5}, ServerSettings(strict=True))
    assert response.status_code == 400 and "keep_alive" in error_of(response)["message"]


def test_a_route_that_is_not_here_is_told_those_that_are():
    said = error_of(post(FakeLLM(), "/api/web_search", {"query": "x"}))["message"]
    routes = "/api/tags, /api/ps, /api/version, /api/show, /api/chat, /api/generate, /api/embed and /api/embeddings"
    assert said == f"there is no '/api/web_search' here; the routes of Ollama's API here are {routes}"
    said = error_of(ask(FakeLLM(), "GET", CHAT))["message"]
    assert said == "this route takes POST, got GET; ask it with that"


@pytest.mark.parametrize("path", ["pull", "push", "create", "copy", "delete", "blobs/sha256:1"])
def test_changes_of_models_are_refused_with_the_cure(path):
    response = post(FakeLLM(), f"/api/{path}", {"model": "x"})
    assert response.status_code == 404 and "jaxinfer " in error_of(response)["message"]


def test_a_pull_is_refused_with_the_verb_that_downloads():
    said = error_of(post(FakeLLM(), "/api/pull", {"model": "x"}))["message"]
    cure = "download it with `jaxinfer pull MODEL`, and start a server with `jaxinfer serve MODEL`"
    assert said == f"there are no downloads of models by request here; {cure}"
