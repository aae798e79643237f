"""Endless schemas: those of which no value is whole, told from those of which one is."""

import json

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.grammar.endless import endless, may_recur, without_endless
from jaxinfer.text.grammar.parts import placeless

NAMES = ("a", "b", "c")
DEPTH = 40  # of parts in a drawn schema within one another: a value that goes deeper repeats one


def required(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


SELF = {"$ref": "#"}
ENDLESS = {
    "a required property": (required(a=SELF), "'#' in it asks"),
    "a reference to itself": (SELF, "'#' in it asks"),
    "two references": (
        {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}},
        "defs/x",
    ),
    "items": ({"type": "array", "items": SELF, "minItems": 1}, "'#' in it asks"),
    "the second item": ({"type": "array", "prefixItems": [{}, SELF], "minItems": 2}, "'#' in it asks"),
    "all alternatives": ({"anyOf": [required(a=SELF), required(b=SELF)]}, "'#' in it asks"),
    "one of all": ({"allOf": [{"type": "object"}, required(a=SELF)]}, "'#' in it asks"),
    "deeper": (required(x=required(y={"anyOf": [SELF, {"$ref": "#/properties/x"}]})), "'#' in it asks"),
    "others": ({"type": "object", "additionalProperties": SELF, "required": ["x"]}, "'#' in it asks"),
    "as many properties": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": SELF, "minProperties": 2},
        "'#' in it asks",
    ),
    "a name of a pattern": (
        {"type": "object", "patternProperties": {"^x": SELF, "y": {}}, "required": ["xy"]},
        "'#' in it asks",
    ),
    "a property that is of a pattern too": (
        {"type": "object", "properties": {"x": {}}, "patternProperties": {"^x": SELF}, "required": ["x"]},
        "'#' in it asks",
    ),
    "a name of no pattern": (
        {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False, "required": ["y"]},
        "additionalProperties' in it allows none",
    ),
    "as many names of a pattern": (
        {"type": "object", "patternProperties": {"^x": SELF}, "additionalProperties": False, "minProperties": 1},
        "'#' in it asks",
    ),
    "what it contains": ({"type": "array", "contains": SELF}, "'#' in it asks"),
    "nothing": (required(a=False), "'#/properties/a' in it allows none"),
    "a name with signs": (
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": required(a={"$ref": "#/$defs/a~1b%20c"})}},
        "a~1b c",
    ),
}
WHOLE = [
    {},
    {"type": "object", "properties": {"a": SELF}},
    {"anyOf": [{"type": "null"}, required(a=SELF)]},
    {"type": "array", "items": SELF},
    {"type": ["object", "null"], "properties": {"a": SELF}, "required": ["a"]},
    {"$ref": "#/nowhere"},
    {"$ref": "https://example.com/schema"},
    {"type": "object", "properties": {"a": {}}, "additionalProperties": SELF, "minProperties": 1},
    {"type": "array", "prefixItems": [{}, SELF], "minItems": 1},
    {"type": "object", "patternProperties": {"^x": SELF}, "required": ["y"]},
    {"type": "object", "patternProperties": {"^x": SELF}, "minProperties": 1},
    {"type": "object", "patternProperties": {"(?<x>": SELF}, "required": ["y"]},
    {"type": "array", "contains": SELF, "minContains": 0},
    {"type": "object", "additionalProperties": False, "minProperties": 10**12, "patternProperties": {"^x": {}}},
]


@pytest.mark.parametrize(("schema", "why"), ENDLESS.values(), ids=ENDLESS)
def test_a_schema_that_asks_for_itself_without_end_is_found_with_its_place(schema, why):
    assert why in endless(schema)


@pytest.mark.parametrize("schema", WHOLE, ids=str)
def test_a_schema_that_may_come_to_an_end_is_not(schema):
    assert endless(schema) is None


PAIR = required(x={"$ref": "#/$defs/a"})
INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "cut"),
    [
        ({"anyOf": [{"$ref": "#/$defs/a"}, INTEGER]}, {"anyOf": [False, INTEGER]}),
        ({"properties": {"p": PAIR, "q": INTEGER}}, {"properties": {"p": False, "q": INTEGER}}),
        ({"additionalProperties": PAIR, "type": "object"}, {"additionalProperties": False, "type": "object"}),
        ({"type": "array", "prefixItems": [INTEGER, PAIR]}, {"type": "array", "prefixItems": [INTEGER, False]}),
    ],
)
def test_what_never_ends_is_false_where_the_rest_may_end(schema, cut):
    assert without_endless(schema | {"$defs": {"a": PAIR}}) == cut | {"$defs": {"a": False}}


@pytest.mark.parametrize(
    ("defs", "may"),
    [
        ({"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{}, {"$ref": "#/$defs/c"}]}, "c": {}}, False),
        ({"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{}, {"$ref": "#/$defs/a"}]}}, True),
        ({"a": {"$ref": "#"}}, True),
        ({"a": {"$ref": "#/$defs/x\\y"}}, True),  # as it is spelt in JSON, it is not known
        ({"a": {"items": {"$ref": "#/$defs/a"}}}, True),
        ({"a": {"$ref": "#/nowhere"}, "b": {"$ref": "https://example.com/b"}}, False),
    ],
)
def test_whether_references_may_lead_back_to_themselves(defs, may):
    schema = {"$ref": "#/$defs/a", "$defs": defs}
    assert may_recur(schema, json.dumps(schema)) is may


def test_a_part_stays_that_something_beneath_is_referred_to():
    schema = {
        "properties": {
            "p": required(x={"$ref": "#/properties/p"}, y=INTEGER),
            "q": {"$ref": "#/properties/p/properties/y"},
        }
    }
    assert without_endless(schema) is schema


def parts():
    """Of a schema with three definitions, which refer to one another."""
    least = st.integers(0, 2)
    refs = st.sampled_from(NAMES).map(lambda name: {"$ref": f"#/$defs/{name}"})

    def beyond(inner):
        properties = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
        names = st.lists(st.sampled_from([*NAMES, "p1"]), max_size=2, unique=True)
        others = st.sampled_from([True, False]) | inner
        objects = st.builds(
            lambda properties, patterns, names, others, least: {
                "type": "object",
                "properties": properties,
                "patternProperties": patterns,
                "required": names,
                "additionalProperties": others,
                "minProperties": least,
            },
            properties,
            st.dictionaries(st.just("^p"), inner),
            names,
            others,
            least,
        )
        arrays = st.builds(lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, least)
        holders = st.builds(lambda one, least: {"type": "array", "contains": one, "minItems": least}, inner, least)
        tuples = st.builds(lambda one, rest: {**rest, "prefixItems": [one]}, inner, arrays)
        return (
            objects
            | arrays
            | holders
            | tuples
            | st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some})
        )

    return st.recursive(refs | st.sampled_from([{"type": "null"}, True, False]), beyond, max_leaves=6)


def value_of(part, whole, depth, known):
    """A value of a part, found by trying; None: there is none of such a depth. Values are in a list of one.

    known: what has been tried.
    """
    key = id(part), depth
    if key not in known:
        known[key] = tried(part, whole, depth, known)
    return known[key]


def tried(part, whole, depth, known):
    if depth == 0 or part is False:
        return None
    if part is True or part == {"type": "null"}:
        return [None]
    if "$ref" in part:
        return value_of(whole["$defs"][part["$ref"][-1]], whole, depth - 1, known)
    if "anyOf" in part:
        return next(filter(None, (value_of(one, whole, depth - 1, known) for one in part["anyOf"])), None)
    if part["type"] == "array":
        rest = part.get("items", True)
        schemas = [*part.get("prefixItems", []), rest, rest][: part["minItems"]]
        if "contains" in part:
            schemas = [part["contains"], *schemas[1:]]
        values = [value_of(one, whole, depth - 1, known) for one in schemas]
        return None if None in values else [[value for (value,) in values]]
    found = {}
    for name in (*part["required"], *part["properties"], "x", "y", "p2", "p3"):
        if name in found or (name not in part["required"] and len(found) >= part["minProperties"]):
            continue
        others = part["patternProperties"].get("^p") if name.startswith("p") else None
        others = part["additionalProperties"] if others is None else others
        value = value_of(part["properties"].get(name, others), whole, depth - 1, known)
        if value is not None:
            found[name] = value[0]
        elif name in part["required"]:
            return None
    return [found] if len(found) >= part["minProperties"] else None


@settings(max_examples=80)
@given(st.tuples(*[parts()] * 4))
def test_it_is_endless_where_no_value_is_found_however_deep(drawn):
    root, *definitions = drawn
    whole = {"allOf": [root], "$defs": dict(zip(NAMES, definitions, strict=True))}
    found = value_of(root, whole, DEPTH, {})
    assert (endless(whole) is None) == (found is not None)
    assert found is None or jsonschema_rs.is_valid(whole, found[0])
    cut, known = without_endless(whole), dict[tuple[int, int], list | None]()
    if found is None:
        assert cut is whole
        return
    assert jsonschema_rs.is_valid(cut, found[0])
    is_recursive = may_recur(whole, json.dumps(whole))
    assert is_recursive or all(value_of(one, whole, DEPTH, {}) or "false" in json.dumps(whole) for one in definitions)
    assert all(value_of(part, cut, DEPTH, known) for part in placeless(cut) if part is not cut)


def test_thousands_of_parts_are_read_at_once():
    chain = {f"d{i}": required(a={"$ref": f"#/$defs/d{i + 1}"}) for i in range(2_000)}
    assert endless({"$ref": "#/$defs/d0", "$defs": chain | {"d2000": {}}}) is None
    assert "d0' in it asks" in endless({"$ref": "#/$defs/d0", "$defs": chain | {"d2000": {"$ref": "#/$defs/d0"}}})
