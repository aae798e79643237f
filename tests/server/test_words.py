"""Fields whose words OpenAI's own client lists: each word is taken, and what is none is refused by its place."""

import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
import typing_extensions
from openai.types import EmbeddingCreateParams
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams

from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, USER, error_of, post

PARAMS: dict[str, Any] = {
    CHAT: (ChatParams, {"messages": USER}),
    COMPLETIONS: (CompletionParams, {"prompt": "ab"}),
    EMBEDDINGS: (EmbeddingCreateParams, {"input": "ab"}),
    RESPONSES: (ResponseParams, {"input": "x"}),
}
NOT_THESE = ("messages", "input", "tools", "functions", "model", "prompt")  # their words are those of what they hold
NONSENSE = ("x", "", "LOW", 7, ["auto"], {"type": "auto"})
ANY_TEXT = ("service_tier", "prompt_cache_options.ttl")  # hosts have words of their own
# what a field with words must have beside it before it is looked at
BESIDE: dict[str, Any] = {"prediction": {"content": "x"}}


def kinds_of(hint: Any) -> list[Any]:
    """The types that a field may have, one by one."""
    origin = get_origin(hint)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return kinds_of(get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return [kind for one in get_args(hint) for kind in kinds_of(one)]
    return [hint]


def fields_with_words(params: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each field that takes some words alone, by its place, with each of these words."""
    for name, hint in typing.get_type_hints(params).items():
        kinds = [kind for kind in kinds_of(hint) if kind is not type(None)]
        if before or name not in NOT_THESE:
            if kinds and all(get_origin(kind) is Literal for kind in kinds):
                yield from (((*before, name), word) for kind in kinds for word in get_args(kind))
            for kind in filter(typing_extensions.is_typeddict, kinds):
                yield from fields_with_words(kind, (*before, name))


WORDS = [(path, place, word) for path, (params, _) in PARAMS.items() for place, word in fields_with_words(params)]


def asked(path: str, place: tuple[str, ...], value: Any) -> Any:
    for step in reversed(place):
        value = {step: value}
    for name, beside in BESIDE.items():
        if name in value:
            value[name] = {**beside, **value[name]} if len(place) > 1 else value[name]
    return post(FakeLLM(), path, PARAMS[path][1] | value)


def test_there_are_fields_with_words_on_every_level():
    found = {(path, ".".join(place)) for path, place, _ in WORDS}
    named = {"verbosity", "service_tier", "prompt_cache_retention", "reasoning_effort", "prediction.type"}
    assert {(CHAT, name) for name in named} <= found
    named = {"text.verbosity", "service_tier", "truncation", "reasoning.effort", "prompt_cache_options.mode"}
    assert {(RESPONSES, name) for name in named} <= found
    assert (EMBEDDINGS, "encoding_format") in found


@pytest.mark.parametrize(("path", "place"), dict.fromkeys((path, place) for path, place, _ in WORDS))
@pytest.mark.parametrize("value", NONSENSE, ids=repr)
def test_what_is_none_of_the_words_is_refused_by_its_place(path, place, value):
    answer, name = asked(path, place, value), ".".join(place)
    if name in ANY_TEXT and isinstance(value, str):
        assert answer.status_code == 200
        return
    assert answer.status_code == 400
    error = error_of(answer)
    assert f"{name}.".startswith(f"{error['param']}."), error
    assert error["message"].startswith(error["param"])


@pytest.mark.parametrize(("path", "place", "word"), WORDS)
def test_each_word_is_taken_or_refused_for_what_it_asks(path, place, word):
    """No word of the client's is called none."""
    answer = asked(path, place, word)
    assert answer.status_code == 200 or "must be one of" not in error_of(answer)["message"], answer.text


@pytest.mark.parametrize("path", PARAMS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", "yes"),
        ("metadata", "x"),
        ("user", 7),
        ("safety_identifier", ["x"]),
        ("prompt_cache_key", {}),
        ("prompt_cache_options", "x"),
        ("prediction", {"type": "content"}),
        ("prediction", {"type": "content", "content": 7}),
    ],
)
def test_a_field_without_effect_has_its_type(path, field, value):
    error = error_of(post(FakeLLM(), path, PARAMS[path][1] | {field: value}))
    assert (error["param"] or "").split(".")[0] == field


def test_a_refusal_names_the_words():
    error = error_of(post(FakeLLM(), RESPONSES, {"input": "x", "text": {"verbosity": "x"}}))
    assert error["message"] == "text.verbosity must be one of high, low, medium, got 'x'; take one of them"
    error = error_of(post(FakeLLM(), RESPONSES, {"input": "x", "include": ["x"]}))
    assert "must be one of code_interpreter_call.outputs, " in error["message"]
