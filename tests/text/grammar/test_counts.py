"""Counts: what is followed of minProperties and maxProperties holds, and no object that there is is called none."""

import itertools
import json
from urllib.parse import quote

import jsonschema_rs
import pytest

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.counts import settle_counts
from jaxinfer.text.grammar.flat import with_flat_counts
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import try_one
from tests.support.grammars import takes

NAMES = "abc"
ANSWERS = [
    json.dumps(dict.fromkeys(names, 1), separators=(",", ":"))
    for names in itertools.chain.from_iterable(itertools.combinations(NAMES, size) for size in range(4))
]


def schemas():
    """Each count of an object with up to three names, all of them listed or not."""
    for size, least, most, is_open in itertools.product(range(1, 4), range(5), [None, *range(5)], [False, True]):
        for required in itertools.chain.from_iterable(itertools.combinations(NAMES[:size], n) for n in range(size + 1)):
            schema = {"type": "object", "properties": {name: {"enum": [1]} for name in NAMES[:size]}}
            schema |= {"required": list(required), "additionalProperties": is_open and {"enum": [1]}}
            yield schema | {"minProperties": least} | ({} if most is None else {"maxProperties": most})


def tried(vocabulary, schema, *, strict):
    return try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict, param="x"), {})


def test_a_count_is_held_to_or_told_of(vocabulary, tokenizer):
    for schema in schemas():
        validator = jsonschema_rs.validator_for(schema)
        good = {answer for answer in ANSWERS if validator.is_valid(json.loads(answer))}
        strict, lenient = (tried(vocabulary, schema, strict=strict) for strict in (True, False))
        for found in (strict, lenient):
            if not found.error:
                matcher = new_matcher(vocabulary, found.text)
                taken = {answer for answer in ANSWERS if takes(matcher, tokenizer, answer)}
                assert good <= taken and (taken == good or found.warnings), schema
        assert not (good and lenient.error), (schema, lenient.error)
        assert "number of properties" not in strict.error + lenient.error


@pytest.mark.parametrize(
    ("counts", "required"), [({"minProperties": 3}, "b"), ({"minProperties": 3.0}, ""), ({"maxProperties": 3}, "abc")]
)
def test_a_count_that_says_the_same_as_required_is_followed(counts, required):
    part = {"properties": dict.fromkeys(NAMES, {}), "required": [*required], "additionalProperties": False, **counts}
    assert settle_counts(part, strict=True) == []
    assert part["required"] == [*NAMES] and not part.keys() & counts.keys()


@pytest.mark.parametrize("place", ["properties", "items", "anyOf"])
def test_what_is_left_out_is_told_with_its_place(vocabulary, place):
    part = {"type": "object", "properties": dict.fromkeys(NAMES, {"type": "null"}), "additionalProperties": False}
    schema = {place: [part | {"minProperties": 2}] if place == "anyOf" else part | {"minProperties": 2}}
    schema = {"properties": {"a": part | {"minProperties": 2}}} if place == "properties" else schema
    (said,) = tried(vocabulary, schema, strict=False).warnings
    assert said.startswith("minProperties 2 is left out, since not all names of properties are in required, at '#/")
    refused = tried(vocabulary, schema, strict=True).error
    assert "min/maxProperties only count where" in refused
    assert refused.endswith(said.replace("left out", "not counted"))


def in_parts(schema):
    """The same objects, with the counts apart from the names."""
    counts = {name: schema[name] for name in schema.keys() & {"minProperties", "maxProperties"}}
    rest = {name: below for name, below in schema.items() if name not in counts}
    defs = {"$defs": {"counted": counts, "named": rest}}
    yield rest | {"allOf": [counts]}
    yield counts | {"allOf": [rest]}
    yield {"allOf": [{"title": "x", **rest}, {"allOf": [counts]}]}
    yield defs | counts | {"$ref": "#/$defs/named"}
    yield defs | {"allOf": [{"$ref": "#/$defs/named"}, {"$ref": "#/$defs/counted"}]}
    names = {name: rest["properties"][name] for name in list(rest["properties"])[:1]}
    yield rest | counts | {"properties": {**rest["properties"]}, "allOf": [{"properties": names}]}


@pytest.mark.parametrize("strict", [True, False])
def test_counts_apart_from_the_names_are_held_to_as_beside_them(vocabulary, strict):
    for i, schema in enumerate(schemas()):
        if i % 7:
            continue
        beside = tried(vocabulary, schema, strict=strict)
        for apart in in_parts(schema):
            found = tried(vocabulary, apart, strict=strict)
            assert (bool(found.error), len(found.warnings)) == (bool(beside.error), len(beside.warnings)), apart


FLAT = {"title": "t", "type": "object", "properties": {"a": {}}, "minProperties": 1}
NESTED = {"properties": {"b": {"allOf": [{"minProperties": 1}, {"properties": {"a": {}}, "type": "object"}]}}}


@pytest.mark.parametrize(
    ("schema", "flat"),
    [
        ({"title": "t", "allOf": [{"properties": {"a": {}}}, {"minProperties": 1, "type": "object"}]}, FLAT),
        (
            {"allOf": [NESTED, {"minProperties": 2}]},
            {"properties": {"b": {key: FLAT[key] for key in FLAT if key != "title"}}, "minProperties": 2},
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": False, "allOf": [{**FLAT, "maxProperties": 2}]},
            {**FLAT, "maxProperties": 2, "additionalProperties": False, "properties": {"a": {"allOf": [{}, {}]}}},
        ),
    ],
)
def test_objects_in_parts_are_written_as_one(schema, flat):
    found = with_flat_counts(schema)
    assert {name: below for name, below in found.items() if name != "title"} == {
        name: below for name, below in flat.items() if name != "title"
    }


RECURSIVE = {"properties": {"a": {"$ref": "#/$defs/x", "minProperties": 2}}, "additionalProperties": False}
DOUBLING = {
    f"d{i}": {"properties": {name: {"$ref": f"#/$defs/d{i + 1}", "minProperties": 1} for name in "ab"}}
    for i in range(30)
} | {"d30": {"properties": {"a": {}}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/x", "minProperties": 1, "$defs": {"x": RECURSIVE}},
        {"$ref": "#/$defs/d0", "minProperties": 1, "$defs": DOUBLING},
        {"$ref": "#", "minProperties": 1},
        {"allOf": [{"minProperties": 1}, {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}]},
        {"allOf": [{"minProperties": 1}, {"type": ["object", "null"], "properties": {"a": {}}}]},
        {"allOf": [{"minProperties": 1}, {"properties": {"a": {"$ref": "#/allOf/0"}}}]},
        {"patternProperties": {"a": {}}, "allOf": [{"properties": {"a": {}}}, {"minProperties": 1}]},
        {"properties": {"b": {}}, "allOf": [{"additionalProperties": {"type": "null"}}, {"minProperties": 1}]},
        {"allOf": [{"minProperties": 1}, False]},
        {"allOf": [{"minProperties": "1"}, {"properties": {"a": {}}}]},
        {"allOf": 3, "minProperties": 1},
        {
            "properties": {"x": {"allOf": [{"properties": {"z": {}}}, {"minProperties": 1}]}},
            "not": {"$ref": "#/properties/x/properties/z"},
        },
    ],
)
def test_what_cannot_be_one_part_stays_as_it_is(schema):
    assert with_flat_counts(schema) == schema


@pytest.mark.parametrize("name", ["d", "a/b", "a~b", "\u00e9", "a b", "%41"])
def test_no_definition_is_lost_that_something_refers_to(name):
    """Whatever signs its name has, which a reference spells otherwise."""
    ref = "#/$defs/" + quote(name.replace("~", "~0").replace("/", "~1"))
    defs = {name: {"type": "string"}, "c": {"type": "object", "minProperties": 1}}
    schema = {"allOf": [{"$ref": "#/$defs/c"}], "properties": {"x": {"$ref": ref}}, "$defs": defs}
    flat = with_flat_counts(schema)
    assert flat["properties"] == schema["properties"] and flat["$defs"][name] == {"type": "string"}
