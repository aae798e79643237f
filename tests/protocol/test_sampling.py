"""Where a sampling value comes from: the request, then generation_config.json, then OpenAI's defaults."""

import math

import pytest

from jaxinfer.errors import CheckpointError, InvalidRequest
from jaxinfer.protocol.sampling import (
    LEAST_TOP_P,
    GenerationDefaults,
    SamplingParams,
    resolve_max_tokens,
    resolve_min_tokens,
    resolve_sampling,
)

QWEN3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2], "pad_token_id": 0}


def resolve(defaults=None, random_seed=7, **fields):
    return resolve_sampling(SamplingParams(**fields), defaults or GenerationDefaults(), random_seed=random_seed)


def max_tokens(defaults=None, *, prompt=10, limit=100, chat=True, **fields):
    defaults = defaults or GenerationDefaults()
    params = SamplingParams(**fields)
    return resolve_max_tokens(params, defaults, num_prompt_tokens=prompt, max_model_len=limit, chat=chat)


def test_without_a_file_the_defaults_are_openais():
    resolved = resolve()
    assert (resolved.n, resolved.temperature, resolved.top_p, resolved.top_k, resolved.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert resolved.stop == () and resolved.stop_token_ids == frozenset()


def test_the_file_wins_over_the_defaults_and_the_request_over_the_file():
    defaults = GenerationDefaults.from_generation_config(QWEN3)
    resolved = resolve(defaults, temperature=0, top_k=5)
    assert (resolved.temperature, resolved.top_k, resolved.top_p, resolved.min_p) == (0.0, 5, 0.95, 0.0)
    assert set(defaults.from_file) == {"temperature", "top_k", "top_p"}


def test_a_zero_in_the_request_is_not_taken_for_unset():
    defaults = GenerationDefaults.from_generation_config({**QWEN3, "min_p": 0.1})
    resolved = resolve(defaults, top_k=0, min_p=0, temperature=0.0)
    assert (resolved.top_k, resolved.min_p, resolved.temperature) == (0, 0.0, 0.0)


def test_a_file_that_does_not_sample_means_greedy():
    assert GenerationDefaults.from_generation_config({"do_sample": False, "temperature": 0.7}).temperature == 0.0
    assert GenerationDefaults.from_generation_config({}).temperature == 1.0


def test_what_the_file_asks_for_and_we_cannot_do_is_named():
    defaults = GenerationDefaults.from_generation_config({"typical_p": 0.9, "num_beams": 1, "top_k": -1})
    assert defaults.unsupported == ("typical_p=0.9",)
    assert defaults.top_k == 0
    assert "not applied: typical_p=0.9" in defaults.describe()


def test_a_files_repetition_penalty_and_shortest_answer_are_applied():
    defaults = GenerationDefaults.from_generation_config({"repetition_penalty": 1.1, "min_new_tokens": 5})
    assert defaults.unsupported == ()
    assert "repetition_penalty 1.1 (generation_config.json), min_tokens 5 (gen" in defaults.describe()
    assert resolve(defaults).repetition_penalty == 1.1
    assert resolve(defaults, repetition_penalty=1).repetition_penalty == 1.0
    assert [min_tokens(defaults, most) for most in (10, 3)] == [5, 3]
    assert min_tokens(defaults, 10, min_tokens=0) == 0


def min_tokens(defaults, max_tokens, prompt=60, **fields):
    lengths = {"num_prompt_tokens": prompt, "max_model_len": 100}
    return resolve_min_tokens(SamplingParams(**fields), defaults, max_tokens=max_tokens, **lengths)


def test_min_tokens_of_a_request_is_refused_rather_than_cut():
    with pytest.raises(
        InvalidRequest, match="must be at most max_tokens, 16 unless it is set, got 17; set max_tokens to"
    ):
        min_tokens(GenerationDefaults(), 16, min_tokens=17)
    for most in (16, 40):
        law = "must be at most 40, what a prompt of 60 tokens leaves of the 100 .max_model_len., got 41"
        with pytest.raises(InvalidRequest, match=law):
            min_tokens(GenerationDefaults(), most, min_tokens=41)
    with pytest.raises(InvalidRequest, match="what a prompt of 1 token leaves"):
        min_tokens(GenerationDefaults(), 16, prompt=1, min_tokens=100)


def test_describe_says_where_each_value_comes_from():
    text = GenerationDefaults.from_generation_config({"temperature": 0.6, "max_new_tokens": 2048}).describe()
    assert text == (
        "temperature 0.6 (generation_config.json), top_p 1, top_k 0, min_p 0, max_tokens 2048 (generation_config.json)"
    )


@pytest.mark.parametrize("bad", [{"temperature": math.nan}, {"top_p": 3}, {"top_k": 2.5}, {"max_new_tokens": "9"}])
def test_a_bad_file_is_the_checkpoints_fault(bad):
    with pytest.raises(CheckpointError, match=r"generation_config\.json: "):
        GenerationDefaults.from_generation_config(bad)


def test_an_unset_seed_or_minus_one_takes_the_random_one():
    assert resolve().seed == 7
    assert resolve(seed=-1).seed == 7
    assert resolve(seed=0).seed == 0
    assert resolve(seed=-2).seed == 2**64 - 2
    assert resolve(seed=2**64 - 1).seed == 2**64 - 1


def test_a_top_p_that_no_token_needs_is_one_that_the_likeliest_reaches_in_float32():
    for top_p in (0, 0.0, 1e-300, 1e-45):
        assert resolve(top_p=top_p).top_p == LEAST_TOP_P
    assert resolve(top_p=1e-6).top_p == 1e-6 and resolve(top_p=1).top_p == 1
    file = GenerationDefaults.from_generation_config({"top_p": 0})
    assert resolve_sampling(SamplingParams(), file, random_seed=7).top_p == LEAST_TOP_P


def test_values_become_the_types_that_the_device_takes():
    resolved = resolve(temperature=1e-9, top_k=-1, stop="x", stop_token_ids=[3, 3, 4])
    assert resolved.temperature == 0.0 and resolved.top_k == 0
    assert resolved.stop == ("x",) and resolved.stop_token_ids == {3, 4}
    assert type(resolve(temperature=1).temperature) is float


def test_unset_max_tokens_is_the_rest_for_chat_and_sixteen_otherwise():
    assert max_tokens(chat=True) == 90
    assert max_tokens(chat=False) == 16
    assert max_tokens(chat=False, prompt=95) == 5


def test_max_new_tokens_of_the_file_bounds_requests_that_set_none():
    defaults = GenerationDefaults.from_generation_config({"max_new_tokens": 30})
    assert max_tokens(defaults, chat=True) == 30
    assert max_tokens(defaults, chat=False) == 30
    assert max_tokens(defaults, chat=True, prompt=80) == 20
    assert max_tokens(defaults, chat=True, max_tokens=90) == 90


@pytest.mark.parametrize(
    ("prompt", "asked", "param"),
    [(100, None, "prompt"), (101, 1, "prompt"), (10, 91, "max_tokens"), (10, 10**12, "max_tokens")],
)
def test_what_does_not_fit_the_context_is_refused_in_the_words_that_clients_search_for(prompt, asked, param):
    with pytest.raises(InvalidRequest, match="maximum context length is 100 tokens") as caught:
        max_tokens(prompt=prompt, max_tokens=asked, chat=False)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)
    with pytest.raises(InvalidRequest) as caught:
        max_tokens(prompt=prompt, max_tokens=asked, chat=True)
    assert caught.value.param == param.replace("prompt", "messages")


def test_a_prompt_one_short_of_the_context_gets_one_token():
    assert max_tokens(prompt=99) == 1
    assert max_tokens(prompt=99, max_tokens=1) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("temprature", "unknown field of SamplingParams 'temprature', did you mean 'temperature'?"),
        ("max_token", "unknown field of SamplingParams 'max_token', did you mean 'max_tokens'?"),
        (
            "structured_outputs",
            "unknown field of SamplingParams 'structured_outputs', a constraint is one of json_schema, regex, ",
        ),
        ("zzz", "unknown field of SamplingParams 'zzz', known are "),
    ],
)
def test_a_misspelt_field_in_python_is_told_its_name(name, said):
    with pytest.raises(TypeError) as error:
        SamplingParams(**{name: 1})
    assert str(error.value).startswith(said)
