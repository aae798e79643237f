"""Repeated: of an answer that names a property twice the last value counts, and what counts is of the schema."""

import itertools
import json

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.source import Constraint, guided
from jaxinfer.text.grammar.trial import refuse, try_one
from tests.support.grammars import takes

NAMES = "abc"
OTHERS = [{"additionalProperties": value} for value in (True, {"const": 0}, {"enum": [0, 1]}, False)]
PATTERNED = [{"patternProperties": {"^[ab]$": value}} | rest for value in ({"const": 0}, {}) for rest in OTHERS]
SCHEMAS = st.builds(
    lambda names, others, limits: {"type": "object", "required": names, **others, **limits},
    st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
    st.sampled_from(OTHERS + PATTERNED),
    st.fixed_dictionaries({}, optional={"minProperties": st.integers(0, 4), "maxProperties": st.integers(2, 4)}),
)
ANSWERS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from("01"), st.booleans()), max_size=4)


SIGNS = "aé\n\x00\x1b\x7f"
VALUES = st.recursive(
    st.text(SIGNS, max_size=3) | st.just(0),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "\n", "\x1b"]), inner, max_size=2)
    ),
    max_leaves=3,
)
CLOSED = {"properties": dict.fromkeys(NAMES, {"enum": [0, 1]}), "additionalProperties": False}
PIECES = st.tuples(  # of what an object is held to at once, and where each stands
    st.sampled_from([{"required": ["a"]}, {"required": ["b"]}, {"required": ["b", "c"]}, CLOSED, {"minProperties": 1}]),
    st.sampled_from(["beside", "above", "in a list", "referred to"]),
)


def together(first, pieces):
    """A schema that holds objects to each of these."""
    schema, defs = first, {}
    for piece, place in pieces:
        if place == "above" or schema.keys() & piece.keys():
            schema = {**piece, "allOf": [schema]}
        elif place == "beside":
            schema = schema | piece
        elif place == "in a list":
            schema = {"allOf": [piece, schema]}
        else:
            defs[str(len(defs))] = piece
            schema = {"allOf": [schema, {"$ref": f"#/$defs/{len(defs) - 1}"}]}
    return {"type": "object", **schema, "$defs": defs}


def tried(vocabulary, schema, *, strict):
    return try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict, param="x"), {})


def spelt(name, is_escaped):
    return f'"\\u{ord(name):04x}"' if is_escaped else f'"{name}"'


def text_of(value):
    """As the library spells what may be spelt in several ways."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def object_of(pairs):
    return "{" + ",".join(f"{spelt(name, is_escaped)}:{value}" for name, value, is_escaped in pairs) + "}"


@settings(max_examples=80)
@given(SCHEMAS, st.booleans(), st.lists(ANSWERS, min_size=12, max_size=12))
def test_what_a_strict_schema_takes_is_of_it_as_it_is_read(vocabulary, tokenizer, schema, has_properties, answers):
    if has_properties:
        schema = schema | {"properties": {name: {"const": 1} for name in schema["required"]}}
    found = tried(vocabulary, schema, strict=True)
    if found.error:
        return
    matcher, validator = new_matcher(vocabulary, found.text), jsonschema_rs.validator_for(schema)
    required = [(name, "1", False) for name in sorted(schema["required"])]
    for answer in answers:
        text = object_of([*required, *answer])
        assert not takes(matcher, tokenizer, text) or validator.is_valid(json.loads(text)), text


@settings(max_examples=40)
@given(st.lists(st.sampled_from("ab"), unique=True), st.integers(0, 5), st.sampled_from(OTHERS + PATTERNED))
def test_a_count_is_held_to_up_to_one_name_more_than_required(vocabulary, required, least, others):
    """Or it is warned of; a closed object has no names to repeat."""
    schema = {"type": "object", "required": required, "minProperties": least, **others}
    has_others = "^[ab]$" not in others.get("patternProperties", {}) or len(required) < 2
    is_closed = others == {"additionalProperties": False} or not (
        others.get("additionalProperties", True) or has_others
    )
    strict, lenient = (tried(vocabulary, schema, strict=strict) for strict in (True, False))
    is_told = least > len(required) + 1 and not is_closed
    assert ("a repeated name counts again" in strict.error) == is_told
    assert any("a repeated name counts again" in said for said in lenient.warnings) == is_told


@pytest.mark.parametrize("place", ["$defs/A", "anyOf/0", "properties/p/items"])
def test_the_refusal_names_the_place_and_what_to_do(vocabulary, place):
    schema = {"type": "object", "minProperties": 3, "required": ["a"]}
    for name in reversed(place.split("/")):
        schema = [schema] if name == "0" else {name: schema}
    if "$defs" in schema:
        schema["$ref"] = "#/$defs/A"
    with pytest.raises(InvalidRequest) as refusal:
        refuse(tried(vocabulary, schema, strict=True), Constraint("json_schema", param="x"))
    fact = "minProperties must be at most 2, one more than the names in required, since a repeated name counts again"
    assert f"{fact}; it is 3 at '#/{place}'; leave that out, or set strict to false" in str(refusal.value)


@pytest.mark.parametrize("part", [{"const": {"a": 1, "b": 2, "c": 3}}, {"type": "string"}, {"enum": [{"a": 1}, "x"]}])
def test_what_lists_its_values_or_is_no_object_is_left(vocabulary, part):
    assert "counts again" not in tried(vocabulary, {**part, "minProperties": 3}, strict=True).error


@settings(max_examples=100)
@given(st.integers(0, 4), st.lists(PIECES, max_size=4))
def test_what_parts_say_together_is_counted_together(vocabulary, tokenizer, least, pieces):
    """As the library merges them: what it takes of a count that is not refused is of the schema, and no more is
    refused."""
    schema = together({"minProperties": least}, pieces)
    found = tried(vocabulary, schema, strict=True)
    required = {name for piece, _ in pieces for name in piece.get("required", ())}
    is_closed = CLOSED in (piece for piece, _ in pieces)
    assert ("counts again" in found.error) == (not is_closed and least > len(required) + 1)
    if found.error:
        return
    matcher, validator = new_matcher(vocabulary, found.text), jsonschema_rs.validator_for(schema)
    for count, others in itertools.product(range(len(NAMES) + 1), range(4)):
        for names in itertools.permutations(NAMES, count):
            text = object_of([(name, "1", False) for name in (*names, *"z" * others)])
            assert not takes(matcher, tokenizer, text) or validator.is_valid(json.loads(text)), text


@pytest.mark.parametrize(
    "schema",
    [
        {"required": ["a", "b", "c"], "allOf": [{"minProperties": 3}]},
        {"minProperties": 3, "allOf": [{"required": ["a", "b"]}, {"allOf": [{"required": ["c"]}]}]},
        {"allOf": [{"minProperties": 3}, {"$ref": "#/$defs/b"}], "$defs": {"b": {"required": ["a", "b"]}}},
        {"required": ["a", "b", "c"], "$ref": "#/$defs/3", "$defs": {"3": {"minProperties": 3}}},
        {"required": ["a", "b", "c"], "anyOf": [{"minProperties": 3}, {"minProperties": 4, "required": ["d"]}]},
        {**CLOSED, "allOf": [{"minProperties": 2}], "required": ["a", "b", "c"]},
        {"minProperties": 3, "allOf": [{"const": {"a": 1, "b": 2, "c": 3}}]},
    ],
)
def test_required_of_all_that_holds_is_counted(vocabulary, schema):
    assert not tried(vocabulary, {"type": "object", **schema}, strict=True).error


@pytest.mark.parametrize(("kind", "most"), [("object", 4), (["object", "null"], 3)])
def test_what_is_used_twice_counts_what_both_require(vocabulary, kind, most):
    """Where it is written out for each, what that one requires."""
    users = [{"required": ["a", "b", "c"], "$ref": "#/$defs/A"}, {"required": ["b", "c", "d"], "$ref": "#/$defs/A"}]
    schema = {"type": "object", "anyOf": users, "$defs": {"A": {"type": kind, "minProperties": most}}}
    assert not tried(vocabulary, schema, strict=True).error
    schema["$defs"]["A"]["minProperties"] = most + 1
    assert f"minProperties must be at most {most}" in tried(vocabulary, schema, strict=True).error


@settings(max_examples=150)
@given(st.lists(VALUES, min_size=1, max_size=3), st.booleans())
def test_each_value_of_a_strict_schema_is_an_answer_or_it_is_refused(vocabulary, tokenizer, values, is_open):
    one = {"const": values[0]} if len(values) == 1 else {"enum": values}
    schema = {"type": "object", "properties": {"a": one}, "required": ["a"]}
    schema |= {} if is_open else {"additionalProperties": False}
    found = tried(vocabulary, schema, strict=True)
    if found.error:
        assert is_open and f"'#/properties/a/{next(iter(one))}' has U+00" in found.error
        assert found.error.endswith(
            "set additionalProperties to false in each object that lists names, or set strict to false"
        )
        assert not tried(vocabulary, schema | {"additionalProperties": False}, strict=True).error
        assert not tried(vocabulary, schema, strict=False).error
        return
    matcher = new_matcher(vocabulary, found.text)
    for value in values:
        assert takes(matcher, tokenizer, f'{{"a":{text_of(value)}}}'), value


PATTERNS = [
    r"^\x1b$",
    r"^\u0001+$",
    "^\x7f$",
    r"^[\x1b\x01]$",
    r"^\x1b?$",
    r"^[\x1b-a]$",
    r"^[^a]$",
    "^\n$",
    r"^[^ -\u{10ffff}]$",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("least", [0, 1])
def test_a_pattern_that_needs_a_code_is_refused_where_names_could_use_it(vocabulary, pattern, least):
    text = {"type": "string", "pattern": pattern, "minLength": least}
    schema = {"type": "object", "properties": {"a": text}, "required": ["a"]}
    found = tried(vocabulary, schema, strict=True)
    validator = jsonschema_rs.validator_for(text)
    has_answer = any(validator.is_valid(one) for one in ("", "\n", "!", "A"))
    assert ("'#/properties/a/pattern' has no other text" in found.error) == (not has_answer), found.error
    assert not tried(vocabulary, schema | {"additionalProperties": False}, strict=True).error


@pytest.mark.parametrize("name", ["a\nb", "\x1b", "\x7f"])
def test_a_listed_name_comes_once_beside_patterns_too(vocabulary, tokenizer, name):
    """Its control characters have several spellings."""
    schema = {"type": "object", "properties": {name: {"const": 1}}, "patternProperties": {r"^[ab\x00-\x7f]+$": {}}}
    matcher = new_matcher(vocabulary, tried(vocabulary, schema | {"additionalProperties": False}, strict=True).text)
    coded = "".join(f"\\u{ord(sign):04X}" if sign < " " or sign == "\x7f" else sign for sign in name)
    assert (
        takes(matcher, tokenizer, f'{{"{coded}":2}}') is takes(matcher, tokenizer, f'{{"{coded.lower()}":2}}') is False
    )


def test_an_argument_of_a_strict_tool_that_needs_a_code_is_refused_under_tools(vocabulary):
    calls = guided({"type": "object", "properties": {"a": {"enum": ["\x1b[0m", "x"]}}}, strict=True)
    text = f'%llguidance {{}}\narguments_0: %json {calls}\ntool_0: "f(" arguments_0 ")"\nstart: tool_0'
    found = try_one(vocabulary, Constraint("tools", calls=text), {})
    assert found.param == "tools" and "'#/properties/a/enum' has U+001B" in found.error
