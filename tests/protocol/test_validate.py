"""Every rule of the validator: what is refused, with which param, and that the neighbouring value is allowed."""

import ast
import contextlib
import fractions
import math
import re
import time
from array import array
from pathlib import Path
from typing import Literal, TypedDict

import msgspec
import numpy as np
import pytest

from jaxinfer import protocol
from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.structured import FIELDS as STRUCTURED_FIELDS
from jaxinfer.protocol.validate import (
    MAX_STOP_CHARS,
    NUMBERS,
    check_prompt_ids,
    convert,
    is_same,
    show,
    validate_prompt_ids,
    validate_sampling,
)

VOCAB = 97
NEVER_A_NUMBER = [math.nan, math.inf, -math.inf, "0.7", [], {}, True, False, b"1", 1j]


def check(**fields):
    validate_sampling(SamplingParams(**fields), vocab_size=VOCAB)


def refused(**fields):
    with pytest.raises(InvalidRequest) as caught:
        check(**fields)
    assert caught.value.status == 400
    assert caught.value.param in fields
    assert re.fullmatch(r"(\S+) must .+, got .+; .+", str(caught.value), re.DOTALL), "requirement, value, cure"
    return str(caught.value)


@pytest.mark.parametrize("value", NEVER_A_NUMBER, ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_neither_non_finite_nor_of_another_type(name, value):
    refused(**{name: value})


@pytest.mark.parametrize("value", [1.0, 2.5, 10**18 * 10**10, -(10**30), fractions.Fraction(1, 2)], ids=repr)
@pytest.mark.parametrize("name", [name for name, allowed in NUMBERS.items() if allowed.integer])
def test_an_integer_is_neither_a_float_nor_huge(name, value):
    refused(**{name: value})


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("n", [0, -1, 17, 10**6, 10**18], [1, 16, None]),
        ("temperature", [-0.1, 2.0001, -1, 10**400], [0, 2, 0.0, 1e-300, None]),
        ("top_p", [-0.5, -1e-300, 1.0001, 2], [0, 0.0, 1, 1.0, 1e-12, None]),
        ("top_k", [-2, 2**31, 2**63], [-1, 0, 1, VOCAB + 1, 2**31 - 1, None]),
        ("min_p", [-1e-9, 1.1], [0, 1, 0.05, None]),
        ("seed", [-(2**63) - 1, 2**64], [-(2**63), -1, 0, 2**64 - 1, None]),
        ("max_tokens", [0, -1, 2**63], [1, 10**12, None]),
        ("presence_penalty", [-2.1, 2.0001, 10**400], [-2, 2, 0, 0.5, None]),
        ("frequency_penalty", [-2.1, 2.0001, 10**400], [-2, 2, 0, 0.5, None]),
        ("repetition_penalty", [0, -1, 1e-7, 1e7, 10**400], [1e-6, 1, 1.0, 1e6, None]),
        ("thinking_token_budget", [-2, 2**31], [-1, 0, 1, 2**31 - 1, None]),
        ("min_tokens", [-1, 2**63], [0, 10**12, None]),
    ],
)
def test_each_range_ends_where_it_says(name, bad, good):
    for value in bad:
        refused(**{name: value})
    for value in good:
        check(**{name: value})


def test_numpy_scalars_are_numbers():
    check(temperature=np.float32(0.5), top_k=np.int64(3), n=np.int32(2))
    refused(temperature=np.float32("nan"))
    refused(top_k=np.float64(3))


@pytest.mark.parametrize("name", ["ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"])
def test_a_flag_is_a_boolean(name):
    for value in (1, 0, "true", None, []):
        refused(**{name: value})
    check(**{name: True})


def test_the_name_that_a_client_has_for_a_form_is_a_text():
    assert refused(form_field=5).startswith("form_field must be the name of a field")
    check(form_field="guided_json")


@pytest.mark.parametrize(
    "stop",
    ["", [""], ["a", ""], [1], [None], 5, True, {"a": 1}, ["a"] * 17, "x" * (MAX_STOP_CHARS + 1), ["\ud800"]],
    ids=show,
)
def test_stop_is_a_string_or_a_few(stop):
    assert refused(stop=stop).startswith("stop must be ")


def test_a_stop_string_needs_a_text_to_be_found_in():
    assert refused(stop="x", detokenize=False).startswith("stop must be left out without detokenize")
    check(detokenize=False, stop_token_ids=[1])


def test_a_stop_list_is_refused_without_reading_all_of_it():
    assert refused(stop=["x"] * 500_000).endswith("got 500000 of them; leave some out")


@pytest.mark.parametrize("stop", [None, "a", [], ["a"] * 16, ("a", "b"), "x" * MAX_STOP_CHARS, "\n", "🙂"], ids=show)
def test_good_stops_pass(stop):
    check(stop=stop)


@pytest.mark.parametrize(
    "ids", [[-1], [VOCAB], [2**31], [2**63], [True], [1.0], ["abc"], [None], 5, "12", [0] * 257], ids=show
)
def test_stop_token_ids_lie_below_the_width_of_the_logits(ids):
    refused(stop_token_ids=ids)


def test_good_stop_token_ids_pass():
    for ids in (None, [], [0, VOCAB - 1], (1, 2), [5] * 256, [np.int64(3)]):
        check(stop_token_ids=ids)


@pytest.mark.parametrize("name", ["allowed_token_ids", "stop_token_ids"])
def test_lists_of_ids_may_be_tuples_or_left_out(name):
    for ids in (None, (1, 2), [0, VOCAB - 1], [5, 5], [np.int64(3)]):
        check(**{name: ids})


@pytest.mark.parametrize(
    "ids", [[], (), [-1], [VOCAB], [2**31], [2**63], [True], [1.0], ["abc"], [None], 5, "12", {}, [0] * 98], ids=show
)
def test_allowed_token_ids_are_some_ids_below_the_width_of_the_logits(ids):
    assert refused(allowed_token_ids=ids).startswith("allowed_token_ids must be ")


@pytest.mark.parametrize(
    "words", [[""], ["a", ""], [1], [-1], [VOCAB], [True], "a", 5, {}, ["a"] * 33, ["x" * 257], ["\ud800"]], ids=show
)
def test_bad_words_are_a_few_strings(words):
    assert refused(bad_words=words).startswith("bad_words must be ")
    check(bad_words=["a"] * 32)
    check(bad_words=("x" * 256, " b"))
    check(bad_words=[])


@pytest.mark.parametrize(
    "bias",
    [
        *({key: 1.0} for key in (-1, VOCAB, 2**31, 2**63, True, 1.0, "abc", "-1", "97", "07", " 7", "7.0", "", None)),
        *({key: 1.0} for key in ("9" * 5000, "٣")),
        *({5: value} for value in (*NEVER_A_NUMBER, 100.1, -101, 10**400, None)),
        {"7": 1, 7: 2},
        {i: 0.0 for i in range(301)},
        [5],
        "5",
        5,
    ],
    ids=show,
)
def test_logit_bias_is_numbers_by_token_ids(bias):
    with pytest.raises(InvalidRequest, match="logit_bias must be ") as caught:
        validate_sampling(SamplingParams(logit_bias=bias), vocab_size=VOCAB)
    assert caught.value.param == "logit_bias"


def test_good_biases_pass():
    for bias in (None, {}, {0: 100, VOCAB - 1: -100.0}, {"0": 1, "96": 0.5}, {np.int64(3): np.float32(1)}):
        check(logit_bias=bias)
    validate_sampling(SamplingParams(logit_bias={i: 0.0 for i in range(300)}), vocab_size=1000)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_logprobs_are_as_many_as_the_server_allows(name):
    for value in (21, -1, VOCAB, 2**31, 10**9, True, 1.0, "5", []):
        assert refused(**{name: value}).startswith(f"{name} must be an integer from 0 to 20 (max_logprobs), got ")
    for value in (None, 0, 20, np.int64(3)):
        check(**{name: value})
    validate_sampling(SamplingParams(**{name: 50}), vocab_size=VOCAB, max_logprobs=50)


def test_a_budget_of_thoughts_comes_without_logprobs_unless_it_is_off():
    """A token that nobody drew has none."""
    for budget in (0, 5):
        assert refused(thinking_token_budget=budget, logprobs=0).startswith("thinking_token_budget must be left out")
    check(thinking_token_budget=-1, logprobs=0)


def test_min_tokens_is_at_most_max_tokens():
    assert refused(min_tokens=6, max_tokens=5) == (
        "min_tokens must be at most max_tokens, 5, got 6; lower it or raise max_tokens"
    )
    check(min_tokens=5, max_tokens=5)
    check(min_tokens=5)


def test_every_field_has_a_rule():
    lists = {"stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logit_bias"}
    checked = {*NUMBERS, *lists, *STRUCTURED_FIELDS, "form_field", "logprobs", "prompt_logprobs"}
    flags = {field.name for field in msgspec.structs.fields(SamplingParams) if field.type is bool}
    assert checked | flags == {field.name for field in msgspec.structs.fields(SamplingParams)}


@pytest.mark.parametrize(
    "ids", [[], [-1], [VOCAB], [2**31], [2**63], [True], [1.0], ["abc"], [[1]], "12", 5, None, {}], ids=show
)
def test_prompt_ids_are_a_list_of_ids_below_the_width_of_the_logits(ids):
    with pytest.raises(InvalidRequest) as caught:
        validate_prompt_ids(ids, vocab_size=VOCAB, param="prompt")
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("bad", [VOCAB, -1, True, "x", None])
def test_the_one_bad_id_of_very_many_is_found_at_the_pace_at_which_good_ones_pass(bad):
    """This runs in the event loop: to ask of each id alone took ten times as long, 0.2 s for a body full of them."""
    good = [1] * 262_000

    def seconds(ids: list[object]) -> float:
        begun_s = time.process_time()
        with contextlib.suppress(InvalidRequest):
            validate_prompt_ids(ids, vocab_size=VOCAB)
        return time.process_time() - begun_s

    assert min(seconds([*good, bad]) for _ in range(3)) < 3 * max(seconds(good) for _ in range(3)) + 0.02
    with pytest.raises(InvalidRequest, match=r" at position 262000; take the ids"):
        validate_prompt_ids([*good, bad, *good, bad], vocab_size=VOCAB)


def test_a_bad_prompt_id_is_named_with_its_position():
    with pytest.raises(InvalidRequest, match=r"token ids from 0 to 96, got 97 at position 2"):
        validate_prompt_ids([1, 2, VOCAB], vocab_size=VOCAB)


@pytest.mark.parametrize("ids", [array("I"), array("I", [VOCAB]), array("i", [1]), array("f", [1.0])], ids=str)
def test_an_array_of_ids_is_held_to_the_same(ids):
    check_prompt_ids(array("I", [0, VOCAB - 1]), vocab_size=VOCAB)
    with pytest.raises(InvalidRequest):
        check_prompt_ids(ids, vocab_size=VOCAB)


def test_good_prompt_ids_come_back_as_a_list():
    assert validate_prompt_ids((0, VOCAB - 1), vocab_size=VOCAB) == [0, VOCAB - 1]
    assert validate_prompt_ids([np.int64(3)], vocab_size=VOCAB) == [3]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        ("a\x1b[0m\n", r"'a\x1b[0m\n'"),
        ("x" * 61, "a string of length 61"),
        ([1] * 100, "a list of length 100"),
        (10**5000, "an integer of 16610 bits"),
        (1.5, "1.5"),
        ({"a": ["y" * 200]}, "{'a': ['" + "y" * 112 + "..."),
    ],
    ids=show,
)
def test_values_are_shown_short_and_without_control_characters(value, shown):
    assert show(value) == shown


def test_true_is_not_one():
    assert not is_same(True, 1) and not is_same(0, False)
    assert is_same((), []) and is_same(1.0, 1)


def test_a_wire_types_error_has_no_word_of_pythons_types():
    wire = msgspec.defstruct("Wire", [("a", str | None, None), ("b", float, 0.0), ("c", list, []), ("d", dict, {})])
    said = []
    for given in ({"a": 1}, {"b": "x"}, {"c": {}}, {"d": [1]}):
        with pytest.raises(InvalidRequest) as caught:
            convert(given, wire)
        said.append(str(caught.value))
    assert said == [
        "a must be a string or null, got an integer; send a string or null",
        "b must be a number, got a string; send a number",
        "c must be an array, got an object; send an array",
        "d must be an object, got an array; send an object",
    ]


def test_a_wire_types_error_names_the_path():
    wire = msgspec.defstruct("Wire", [("items", list[dict[str, int]])])
    with pytest.raises(InvalidRequest) as caught:
        convert({"items": [{"a": True}]}, wire)
    assert caught.value.param == "items[0][...]"
    assert str(caught.value) == "items[0][...] must be an integer, got true or false; send an integer"


@pytest.mark.parametrize("field", ["type", "of"])
def test_a_field_that_a_wire_type_lacks_is_named_with_its_place(field):
    inner = msgspec.defstruct("Inner", [(field, str)])
    listed = msgspec.defstruct("Wire", [("items", list[inner])])
    for given, kind, place in (({}, inner, field), ({"items": [{}]}, listed, f"items[0].{field}")):
        with pytest.raises(InvalidRequest) as caught:
            convert(given, kind)
        assert (str(caught.value), caught.value.param) == (f"{place} must be given; send it", place)
        assert caught.value.code == "missing_required_parameter"


CURED = (
    "chat",
    "completions",
    "session",
    "truncation",
    "embeddings",
    "tokenize",
    "structured",
    "fields",
    "validate",
    "ollama",
)


@pytest.mark.parametrize("room", CURED)
def test_a_refusal_of_a_field_ends_with_what_to_do(room):
    module = ast.parse(Path(protocol.__path__[0], f"{room}.py").read_text("utf-8"))
    calls = [
        node for node in ast.walk(module) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "invalid"
    ]
    assert [call.lineno for call in calls if "cure" not in {keyword.arg for keyword in call.keywords}] == []


def test_a_value_that_is_no_choice_is_refused_in_words():
    effort = Literal["low", "high"]
    law = "must be one of high, low, got 'x'; take one of them"
    for given, kind, place in (
        ({"effort": "x"}, TypedDict("Wire", {"effort": effort}), "effort"),
        (
            {"of": [{"effort": "x"}]},
            TypedDict("Wire", {"of": list[TypedDict("Inner", {"effort": effort})]}),
            "of[0].effort",
        ),
        ({"of": {"a": "x"}}, TypedDict("Wire", {"of": dict[str, effort] | None}), "of[...]"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            convert(given, kind)
        assert str(refusal.value) == f"{place} {law}"
