"""Counts that stand apart from names: no valid object is impossible without strict but where the count is told of."""

import itertools
import json
import random
import re

import jsonschema_rs
import pytest

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.repeated import COUNTED_AGAIN
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import try_one
from tests.support.grammars import takes

NAMES, OPEN = "abc", {"additionalProperties": True}
AB = {"properties": {"a": {}, "b": {}}}
UNCOUNTED = re.compile(r"(?:min/maxProperties only|minProperties asks for).*; ")
OBJECTS = [names for size in range(4) for names in itertools.combinations(NAMES, size)]


def is_possible(matcher, tokenizer, names):
    """In whatever order its names come."""
    texts = ("{" + ",".join(f'"{name}":1' for name in order) + "}" for order in itertools.permutations(names))
    return any(takes(matcher, tokenizer, text) for text in texts)


def tried(vocabulary, schema, *, strict):
    return try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict, param="x"), {})


def part_of_object(draw):
    """Some of what a part may say of an object."""
    said = {}
    if draw.random() < 0.6:
        said["properties"] = {name: draw.choice([{}, True, {"enum": [1]}]) for name in NAMES if draw.random() < 0.6}
    if draw.random() < 0.5:
        said[draw.choice(["minProperties", "maxProperties"])] = draw.randrange(4)
    if draw.random() < 0.3:
        said["required"] = draw.sample(NAMES, draw.randrange(3))
    if draw.random() < 0.3:
        said["additionalProperties"] = draw.choice([True, False, {"enum": [1]}])
    if draw.random() < 0.1:
        said["patternProperties"] = {"^z": {}}
    if draw.random() < 0.3:
        said["type"] = draw.choice(["object", ["object"], ["object", "null"]])
    return said


def schema_in_parts(draw, depth=2):
    found = part_of_object(draw)
    for key in ("allOf", "anyOf") if depth else ():
        if draw.random() < 0.4:
            found[key] = [schema_in_parts(draw, depth - 1) for _ in range(draw.randint(1, 2))]
    if draw.random() < 0.3:
        found["$ref"] = "#/$defs/x"
    return found


def root_schema(draw):
    return {"type": "object", **schema_in_parts(draw), "$defs": {"x": part_of_object(draw)}}


def test_no_valid_object_is_impossible_without_strict(vocabulary, tokenizer):
    for seed in range(300):
        schema = root_schema(random.Random(seed))
        validator = jsonschema_rs.validator_for(schema)
        good = {names for names in OBJECTS if validator.is_valid(dict.fromkeys(names, 1))}
        found = tried(vocabulary, schema, strict=False)
        if found.error:
            assert not good, (seed, schema, found.error)
            continue
        matcher = new_matcher(vocabulary, found.text)
        taken = {names for names in OBJECTS if is_possible(matcher, tokenizer, names)}
        assert good <= taken, (seed, schema, good - taken, found.warnings)
        assert taken == good or found.warnings, (seed, schema, taken - good)


def counts_in(schema):
    """Each count that stands anywhere in it, as a message names it."""
    found = {f"{name} {schema[name]}" for name in ("minProperties", "maxProperties") if name in schema}
    below = [*schema.get("allOf", []), *schema.get("anyOf", []), *schema.get("$defs", {}).values()]
    return found.union(*map(counts_in, below))


def test_what_is_not_counted_is_named_with_its_place(vocabulary):
    """In our words, strict or not, as one of the schema's counts."""
    num_told = 0
    for seed in range(300):
        schema = root_schema(random.Random(seed))
        found, refused = (tried(vocabulary, schema, strict=strict) for strict in (False, True))
        told = [warning for warning in found.warnings if COUNTED_AGAIN not in warning]  # see test_repeated.py
        if UNCOUNTED.search(refused.error):
            told.append(UNCOUNTED.split(refused.error)[-1])
        for said in told:
            notes, _, place = said.rpartition(", at ")
            assert re.fullmatch("'#[^']*'", place), (seed, schema, said)
            for note in notes.split("; "):
                counts, why = re.split(r" (?:is|are) (?:left out|not counted), since ", note)
                assert set(counts.split(" and ")) <= counts_in(schema), (seed, schema, said)
                assert "names of properties" in why, (seed, schema, said)
            num_told += 1
    assert num_told > 100


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"allOf": [{"type": "object", **AB, **OPEN}, {"type": "object", **OPEN, "minProperties": 1}]}, "#/allOf/1"),
        ({"allOf": [{"type": ["object"], **AB}, {"minProperties": 1}]}, "#/allOf/1"),
        ({"type": ["object", "null"], "allOf": [AB, {"minProperties": 1}]}, "#/allOf/1"),
        ({"$ref": "#/$defs/x", "minProperties": 1, "$defs": {"x": {"type": "object", **AB, "x-order": 1}}}, "#"),
        ({"allOf": [{"type": "object", **AB, "patternProperties": {"^z": {}}}, {"minProperties": 1}]}, "#/allOf/1"),
        ({"type": "object", **AB, "anyOf": [{"minProperties": 1}, {"required": ["b"]}]}, "#/anyOf/0"),
        ({"anyOf": [{"type": "object", **AB}, {"type": "null"}], "minProperties": 1}, "#"),
    ],
)
def test_a_count_apart_is_left_out_and_told_of_or_refused(vocabulary, tokenizer, schema, place):
    found = tried(vocabulary, schema, strict=False)
    why = "minProperties 1 is left out, since names of properties stand in another part"
    assert found.warnings == (f"{why}, at '{place}'",) and not found.error
    assert takes(new_matcher(vocabulary, found.text), tokenizer, '{"a":1}')
    refused = tried(vocabulary, schema, strict=True).error
    assert "min/maxProperties only count where all names of properties are in required" in refused
    assert refused.endswith(f"; {why.replace('left out', 'not counted')}, at '{place}'")


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"minProperties": 1}, {**AB, "required": ["a"]}]},
        {"properties": {"a": {"minProperties": 1}, "b": {}}},
        {"allOf": [{"patternProperties": {"^z": {}}, "minProperties": 1}, {"title": "t"}]},
        {"allOf": [{**AB, "required": ["a", "b"]}, {"type": ["object", "null"], "minProperties": 3}]},
    ],
)
def test_a_count_that_can_be_followed_stays(vocabulary, schema):
    found = tried(vocabulary, {"type": "object", **schema}, strict=False)
    assert (found.warnings, found.error) == ((), "")
