"""What a request says of its answer's form is refused before it costs the event loop much."""

from typing import Any

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.structured import MAX_GRAMMAR_BYTES, MAX_TAGS, constraint_of, read_structured
from jaxinfer.protocol.validate import validate_sampling
from tests.support.attempts import assert_below, processor_s


def tags(triggers: list[str], begins: list[str]) -> dict[str, Any]:
    structures = [{"begin": begin, "schema": {}, "end": "y"} for begin in begins]
    return {"structural_tag": {"triggers": triggers, "structures": structures}}


LONG = "<" * (MAX_GRAMMAR_BYTES // MAX_TAGS)
TOO_MUCH = {
    "more than can be compared": (tags([*["a"] * 130_000, "<x"], ["<x"] * 16_000), "at most 128 structures"),
    "a structure too many": (tags(["<"], ["<x"] * (MAX_TAGS + 1)), "at most 128 structures"),
    "a trigger too many": (tags(["<"] * (MAX_TAGS + 1), ["<x"]), "at most 128 structures"),
    "texts so long": (tags([LONG + "a"] * MAX_TAGS, [LONG + "b"] * MAX_TAGS), "at most 1048576 bytes"),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_tags_that_would_take_long_to_compare_are_refused_at_once(what):
    body, law = TOO_MUCH[what]

    def refused() -> None:
        with pytest.raises(InvalidRequest, match=law) as refusal:
            read_structured(body)
        assert refusal.value.param == "structural_tag"

    assert_below(1, lambda: processor_s(refused), "the processor time of tags; to compare them all takes minutes")


def test_as_many_tags_as_may_be_are_taken():
    body = tags(["<"] * MAX_TAGS, ["<x"] * MAX_TAGS)
    assert read_structured(body)["structural_tag"] == body["structural_tag"]


LONE = "a\ud800"
TAG = {"begin": "a", "schema": {}, "end": "z"}
WITH_LONE = [
    LONE,
    [LONE],
    ["a", LONE],
    {LONE: 1},
    {"a": [{"b": LONE}]},
    f'{{"const": "{LONE}"}}',
    {"structures": [TAG | {"begin": LONE}], "triggers": ["a"]},
    {"structures": [TAG | {"schema": {"const": {LONE: 1}}}], "triggers": ["a"]},
    {"structures": [TAG], "triggers": ["a", LONE]},
]


@pytest.mark.parametrize("field", SamplingParams.__struct_fields__)
def test_half_of_a_surrogate_pair_is_refused_in_every_field(field):
    for value in WITH_LONE:
        params = SamplingParams(**{field: value})
        with pytest.raises(InvalidRequest) as refusal:
            constraint_of(params)
            validate_sampling(params, vocab_size=9)
        assert refusal.value.param.startswith(field) and str(refusal.value).isascii()
