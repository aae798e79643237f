"""Every field that clients of OpenAI, vLLM, SGLang and llama.cpp know, on each route that computes: carried out,
refused by name or accepted by design. A field stands in one of the tables below, or the first two tests fail.
"""

from typing import Any

import httpx2
import msgspec
import pytest
from openai.types import EmbeddingCreateParams
from openai.types import completion_create_params as params
from openai.types.chat import completion_create_params as chat_params

from jaxinfer.protocol.chat import CHAT_REFUSED, ChatWire
from jaxinfer.protocol.completions import COMPLETION_REFUSED, CompletionWire
from jaxinfer.protocol.embeddings import EMBEDDING_REFUSED, SCORE_REFUSED, EmbeddingWire, ScoreWire
from jaxinfer.protocol.fields import GENERATING, Ignored, Refusal
from tests.server.fakes import Call, FakeLLM
from tests.server.http import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, SCORE, USER, error_of, events, post

# The names that the reference of these APIs lists, in its order.
SHARED_FIELDS = """
model max_tokens n temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed stop
stop_token_ids include_stop_str_in_output ignore_eos min_tokens logprobs prompt_logprobs logprob_token_ids logit_bias
allowed_token_ids bad_words skip_special_tokens spaces_between_special_tokens response_format structured_outputs
guided_json guided_regex guided_choice guided_grammar regex ebnf json_schema grammar stream stream_options
stream_interval truncate_prompt_tokens truncation_side priority request_id session_id cache_salt return_token_ids
return_tokens_as_token_ids return_prompt_text user store metadata service_tier prediction safety_identifier
prompt_cache_key prompt_cache_options verbosity use_beam_search length_penalty repetition_detection kv_transfer_params
vllm_xargs
watermarking reasoning_effort include_reasoning thinking_token_budget add_special_tokens echo best_of
stop_regex no_stop_trim rid extra_key lora_path custom_labels custom_logit_processor session_params bootstrap_host
bootstrap_port bootstrap_room reasoning include_metrics
"""
CHAT_FIELDS = """
messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls functions function_call modalities
audio web_search_options moderation chat_template chat_template_kwargs documents
add_generation_prompt continue_final_message separate_reasoning stream_reasoning input_ids
"""
COMPLETION_FIELDS = "prompt suffix"
POOLED_FIELDS = """
model pooling add_special_tokens truncate_prompt_tokens truncation_side priority cache_salt request_id rid
use_activation session_id lora_path user store metadata service_tier prediction safety_identifier prompt_cache_key
prompt_cache_options verbosity
"""
EMBEDDING_FIELDS = "input encoding_format dimensions normalize messages embed_dtype endianness task prompt_embeds"
SCORE_FIELDS = "text_1 text_2 queries documents instruction"
# and what no reference names beside our own code
OURS = {"beam_width", "early_stopping", "detokenize", "prompt_embeds", "logits_processors", "prompt_cache_retention"}
OURS |= {"session_append", "session_history", "choice", "structural_tag", "strict_schema", "close_within_max_tokens"}
OURS |= {"guided_json_object"}
ELSEWHERE = {CHAT: {"session_append", "session_history"}}  # they need a turn before it: test_sessions.py

LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    COMPLETIONS: {"prompt": "ab"},
    EMBEDDINGS: {"input": "ab"},
    SCORE: {"text_1": "ab", "text_2": "cd"},
}
GENERATES = (CHAT, COMPLETIONS)
SAMPLING: dict[str, Any] = {
    "n": 2,
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "presence_penalty": 1.5,
    "frequency_penalty": -1.5,
    "repetition_penalty": 1.25,
    "seed": 11,
    "max_tokens": 9,
    "min_tokens": 3,
    "stop": ["a", "b"],
    "stop_token_ids": [5],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "logit_bias": {"5": -3.5},
    "allowed_token_ids": [5, 6],
    "bad_words": ["x"],
    "prompt_logprobs": 2,
}
TAGS = {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f>"]}
ANY_OBJECT = {"type": "object"}
# what an answer must be: the field as clients write it, the one of SamplingParams, and its value there
FORMS: dict[str, tuple[Any, str, Any]] = {
    "response_format": ({"type": "json_object"}, "json_schema", ANY_OBJECT),
    "structured_outputs": ({"json": {"type": "null"}}, "json_schema", {"type": "null"}),
    "guided_json": ({"type": "null"}, "json_schema", {"type": "null"}),
    "guided_json_object": (True, "json_schema", ANY_OBJECT),
    "guided_regex": ("a", "regex", "a"),
    "guided_choice": (["a"], "choice", ["a"]),
    "guided_grammar": ("root ::= a", "grammar", "root ::= a"),
    "ebnf": ("root ::= a", "grammar", "root ::= a"),
    "json_schema": ("{}", "json_schema", "{}"),
    "regex": ("a", "regex", "a"),
    "choice": (["a"], "choice", ["a"]),
    "grammar": ("start: a", "grammar", "start: a"),
    "structural_tag": (TAGS, "structural_tag", TAGS),
    "strict_schema": (True, "strict_schema", True),
    "close_within_max_tokens": (True, "close_within_max_tokens", True),
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
REFUSED: dict[str, Any] = {
    "logprob_token_ids": [1],
    "spaces_between_special_tokens": False,
    "stream_interval": 2,
    "request_id": "x",
    "rid": "x",
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "return_prompt_text": True,
    "use_beam_search": True,
    "beam_width": 2,
    "length_penalty": 2,
    "early_stopping": True,
    "repetition_detection": {},
    "kv_transfer_params": {},
    "vllm_xargs": {},
    "watermarking": {},
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "include_reasoning": False,
    "thinking_token_budget": 5,
    "detokenize": False,
    "stop_regex": "a",
    "no_stop_trim": True,
    "extra_key": "x",
    "lora_path": "x",
    "custom_labels": {},
    "custom_logit_processor": "x",
    "logits_processors": ["x"],
    "prompt_embeds": "x",
    "session_params": {},
    "bootstrap_host": "x",
    "bootstrap_port": 1,
    "bootstrap_room": 1,
}
ONLY_CHAT_REFUSED: dict[str, Any] = {
    "best_of": 2,
    "echo": True,
    "add_special_tokens": True,
    "functions": [TOOL],
    "function_call": "auto",
    "modalities": ["audio"],
    "audio": {},
    "web_search_options": {},
    "moderation": {},
    "chat_template": "x",
    "documents": [{}],
    "separate_reasoning": False,
    "stream_reasoning": False,
    "input_ids": [1],
}
ONLY_OF_CHATS = {"reasoning_effort", "thinking_token_budget", "include_reasoning"}
POOLED_REFUSED: dict[str, Any] = {"use_activation": False, "request_id": "x", "rid": "x", "lora_path": "x"}
POOLED_REFUSED |= {"session_id": "x"}
ONLY_EMBEDDINGS_REFUSED: dict[str, Any] = {
    "messages": USER,
    "embed_dtype": "float16",
    "endianness": "big",
    "task": "classify",
    "prompt_embeds": "x",
}
REFUSED_BY: dict[str, dict[str, Any]] = {
    CHAT: {name: value for name, value in REFUSED.items() if name not in ONLY_OF_CHATS} | ONLY_CHAT_REFUSED,
    COMPLETIONS: REFUSED | {"suffix": "x", "best_of": 3, "session_append": True, "session_history": True},
    EMBEDDINGS: POOLED_REFUSED | ONLY_EMBEDDINGS_REFUSED,
    SCORE: POOLED_REFUSED | {"queries": "x", "documents": ["x"], "instruction": "x"},
}
# They change nothing in the answer; test_words.py has what they may be.
ACCEPTED = {
    "user": "u1",
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "prediction": {"type": "content", "content": "x"},
    "safety_identifier": "x",
    "prompt_cache_key": "x",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
}
ACCEPTED_BY: dict[str, dict[str, Any]] = dict.fromkeys((CHAT, COMPLETIONS, EMBEDDINGS, SCORE), ACCEPTED)
WARNED = {"verbosity": "low"}  # a wish that no open model can be held to: the answer says that nobody read it


def carried(path: str) -> dict[str, Any]:
    """What each field of this route does, by an example that says so: body, then what is seen of it."""
    if path not in GENERATES:
        return COMMON | POOLED | (OF_EMBEDDINGS if path == EMBEDDINGS else OF_SCORE)
    seen = {
        name: ({name: value}, lambda llm, _, name=name: getattr(llm.calls[0].params, name), value)
        for name, value in SAMPLING.items()
    }
    seen |= {
        name: ({name: given}, lambda llm, _, field=field: getattr(llm.calls[0].params, field), value)
        for name, (given, field, value) in FORMS.items()
    }
    return seen | COMMON | SHARED | (OF_CHAT if path == CHAT else OF_COMPLETIONS)


def kept_of(call: Call) -> list[int]:
    return [*call.prompt_ids, 1, 2, 3, 4, 257]  # what fakes.hello draws


def usage_frames(response: httpx2.Response) -> list[bool]:
    return [bool(frame.get("usage")) for frame in events(response.text)]


STREAM = {"stream": True, "stream_options": {"include_usage": True}}
GOES_ON = {"messages": [*USER, {"role": "assistant", "content": "Once"}], "continue_final_message": True}
COMMON = {
    "model": ({"model": "org/tiny-1B"}, lambda llm, response: response.json()["model"], "org/tiny-1B"),
    "priority": ({"priority": -3}, lambda llm, _: llm.calls[0].priority, -3),
    "cache_salt": ({"cache_salt": "x"}, lambda llm, _: llm.calls[0].salt, "/x"),
    "truncate_prompt_tokens": ({"truncate_prompt_tokens": 2}, lambda llm, _: len(llm.calls[0].prompt_ids), 2),
    "truncation_side": (
        {"truncate_prompt_tokens": 1, "truncation_side": "right", "add_special_tokens": False},
        lambda llm, _: llm.calls[0].prompt in ("u", "a"),  # of user: and of ab
        True,
    ),
}
SHARED = {
    "session_id": ({"session_id": "x"}, lambda llm, _: list(llm.kept.values())[0][1] == kept_of(llm.calls[0]), True),
    "stream": ({"stream": True}, lambda _, response: response.headers["content-type"][:17], "text/event-stream"),
    "include_metrics": ({"include_metrics": True}, lambda _, response: "metrics" in response.json(), True),
    "stream_options": (STREAM, lambda _, response: usage_frames(response)[-2:], [False, True]),
}
OF_CHAT = {
    "messages": ({}, lambda llm, _: llm.rendered[0]["messages"], USER),
    "max_completion_tokens": ({"max_completion_tokens": 9}, lambda llm, _: llm.calls[0].params.max_tokens, 9),
    "logprobs": ({"logprobs": True}, lambda llm, _: llm.calls[0].params.logprobs, 0),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 4}, lambda llm, _: llm.calls[0].params.logprobs, 4),
    "add_generation_prompt": ({"add_generation_prompt": False}, lambda llm, _: llm.rendered[0]["add"], False),
    "continue_final_message": (GOES_ON, lambda llm, _: llm.rendered[0]["go_on"], True),
    "chat_template_kwargs": (
        {"chat_template_kwargs": {"enable_thinking": False}},
        lambda llm, _: llm.rendered[0]["kwargs"],
        {"enable_thinking": False},
    ),
    "thinking_token_budget": (
        {"thinking_token_budget": 5},
        lambda llm, _: llm.calls[0].params.thinking_token_budget,
        5,
    ),
    "reasoning_effort": (
        {"reasoning_effort": "none"},
        lambda llm, _: llm.rendered[0]["kwargs"],
        {"enable_thinking": False},
    ),
    "include_reasoning": (
        {"include_reasoning": False},
        lambda _, response: response.status_code,
        200,
    ),  # and test_thoughts
    "tools": ({"tools": [TOOL]}, lambda llm, _: llm.rendered[0]["tools"], [TOOL]),
    "tool_choice": ({"tools": [TOOL], "tool_choice": "required"}, lambda llm, _: llm.uses[0].due, True),
    "parallel_tool_calls": (
        {"tools": [TOOL], "parallel_tool_calls": False},
        lambda llm, _: llm.uses[0].parallel,
        False,
    ),
}
OF_COMPLETIONS = {
    "prompt": ({"prompt": [[1], [2]]}, lambda llm, _: [call.prompt_ids for call in llm.calls], [[1], [2]]),
    "logprobs": ({"logprobs": 4}, lambda llm, _: llm.calls[0].params.logprobs, 4),
    "add_special_tokens": ({"add_special_tokens": False}, lambda llm, _: llm.calls[0].prompt_ids, [97, 98]),
    "echo": ({"echo": True}, lambda _, response: response.json()["choices"][0]["text"], "abHello"),
    "best_of": ({"best_of": 2, "n": 2}, lambda _, response: len(response.json()["choices"]), 2),
}
POOLED = {
    "pooling": ({"pooling": "mean"}, lambda llm, _: {call.pooling for call in llm.calls}, {"mean"}),
    "add_special_tokens": ({"add_special_tokens": False}, lambda llm, _: llm.calls[0].prompt_ids, [97, 98]),
}


def embedding(response: httpx2.Response) -> Any:
    return response.json()["data"][0]["embedding"]


OF_EMBEDDINGS = {
    "input": ({"input": [[1], [2]]}, lambda llm, _: [call.prompt_ids for call in llm.calls], [[1], [2]]),
    "encoding_format": ({"encoding_format": "base64"}, lambda _, response: type(embedding(response)), str),
    "dimensions": ({"dimensions": 2}, lambda _, response: len(embedding(response)), 2),
    "normalize": ({"normalize": False}, lambda _, response: embedding(response), [3, 256, -98, 0.5]),
}
OF_SCORE = {
    "text_1": ({"text_1": [[1]]}, lambda llm, _: llm.calls[0].prompt_ids, [1]),
    "text_2": ({"text_2": ["a", "b"]}, lambda _, response: len(response.json()["data"]), 2),
}
ROUTES = tuple(LEAST)
NAMES = {
    CHAT: {*SHARED_FIELDS.split(), *CHAT_FIELDS.split(), *OURS},
    COMPLETIONS: {*SHARED_FIELDS.split(), *COMPLETION_FIELDS.split(), *OURS},
    EMBEDDINGS: {*POOLED_FIELDS.split(), *EMBEDDING_FIELDS.split(), "prompt_cache_retention"},
    SCORE: {*POOLED_FIELDS.split(), *SCORE_FIELDS.split(), "prompt_cache_retention"},
}
TYPES: dict[str, tuple[type[msgspec.Struct], dict[str, Refusal]]] = {
    CHAT: (ChatWire, CHAT_REFUSED),
    COMPLETIONS: (CompletionWire, COMPLETION_REFUSED),
    EMBEDDINGS: (EmbeddingWire, EMBEDDING_REFUSED),
    SCORE: (ScoreWire, SCORE_REFUSED),
}


def cases(tables: dict[str, dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(path, name, value, id=f"{path.split('/')[-1]} {name}")
        for path in ROUTES
        for name, value in tables[path].items()
    ]


@pytest.mark.parametrize("path", ROUTES)
def test_every_field_of_the_reference_is_in_a_table(path):
    known = carried(path).keys() | REFUSED_BY[path].keys() | ACCEPTED_BY[path].keys() | WARNED.keys()
    assert known | ELSEWHERE.get(path, set()) == NAMES[path]


@pytest.mark.parametrize(
    ("path", "params"),
    [
        (CHAT, (chat_params.CompletionCreateParamsBase, chat_params.CompletionCreateParamsStreaming)),
        (COMPLETIONS, (params.CompletionCreateParamsBase, params.CompletionCreateParamsStreaming)),
        (EMBEDDINGS, (EmbeddingCreateParams,)),
    ],
)
def test_every_field_of_openais_own_client_is_in_a_table(path, params):
    own = {name for kind in params for name in kind.__annotations__}
    assert {"model", "user"} <= own <= NAMES[path]


@pytest.mark.parametrize("path", ROUTES)
def test_every_field_that_the_server_knows_is_in_a_table(path):
    wire, refused = TYPES[path]
    own = {field.name for field in msgspec.structs.fields(wire)}
    known = carried(path).keys() | REFUSED_BY[path].keys() | ACCEPTED_BY[path].keys() | WARNED.keys()
    law = own | refused.keys() | {*Ignored.__struct_fields__} | (GENERATING if path in GENERATES else set())
    assert law == known | ELSEWHERE.get(path, set())


@pytest.mark.parametrize(("path", "name", "example"), cases({path: carried(path) for path in ROUTES}))
def test_it_is_carried_out(path, name, example):
    fields, seen, expected = example
    llm = FakeLLM()
    response = post(llm, path, LEAST[path] | fields)
    assert response.status_code == 200, response.text
    assert seen(llm, response) == expected
    assert "x-jaxinfer-warnings" not in response.headers


@pytest.mark.parametrize("path", [*ROUTES, RESPONSES, MESSAGES])
def test_the_header_of_vllm_counts_for_more_than_the_field_priority(path):
    llm = FakeLLM()
    body = LEAST.get(path, {"input": "ab"} if path == RESPONSES else {"messages": USER, "max_tokens": 5})
    assert post(llm, path, body | {"priority": 7}, x_vllm_priority="-5").status_code == 200
    assert {call.priority for call in llm.calls} == {-5}
    for header in ("", "1.5", "+1", "high", "1_0", "2147483648", "9" * 5000):
        response = post(llm, path, body, x_vllm_priority=header)
        assert response.status_code == 400 and "x-vllm-priority" in error_of(response)["message"]


@pytest.mark.parametrize(("path", "name", "value"), cases(REFUSED_BY))
def test_it_is_refused_by_name(path, name, value):
    llm = FakeLLM()
    response = post(llm, path, LEAST[path] | {name: value})
    assert (response.status_code, error_of(response)["param"]) == (400, name)
    assert name in error_of(response)["message"]
    assert not llm.calls and not llm.rendered and not llm.encoded


@pytest.mark.parametrize(("path", "name", "value"), cases(ACCEPTED_BY))
def test_it_is_accepted_without_effect(path, name, value):
    llm = FakeLLM()
    response = post(llm, path, LEAST[path] | {name: value})
    assert response.status_code == 200
    assert "x-jaxinfer-warnings" not in response.headers
    post(llm, path, LEAST[path])
    asked = [(call.prompt_ids, call.params) for call in llm.calls]
    assert asked[: len(asked) // 2] == asked[len(asked) // 2 :]


@pytest.mark.parametrize(("path", "name", "value"), cases(dict.fromkeys(ROUTES, WARNED)))
def test_it_is_not_read_and_the_answer_says_so(path, name, value):
    response = post(FakeLLM(), path, LEAST[path] | {name: value})
    assert response.headers["x-jaxinfer-warnings"] == f"ignored: {name}"


@pytest.mark.parametrize(("path", "name", "refusal"), cases({path: refused for path, (_, refused) in TYPES.items()}))
def test_a_null_and_what_asks_for_nothing_pass(path, name, refusal):
    for value in (None, *refusal.neutral):
        response = post(FakeLLM(), path, LEAST[path] | {name: value})
        assert response.status_code == 200
        assert "x-jaxinfer-warnings" not in response.headers
