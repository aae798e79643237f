"""Circles: a reference that leads back to itself with more beside it is told with its place, or left out."""

import json
import random

import jsonschema_rs
import pytest

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import try_one
from tests.support.grammars import takes

STOP = {"type": "string", "maxLength": 4}
TO_P = {"$ref": "#/$defs/P"}
BESIDE = {
    "a key": {**TO_P, "type": "string"},
    "another part of an allOf": {"allOf": [TO_P, {"type": "string"}]},
    "a key beside an allOf": {"allOf": [TO_P], "minLength": 1},
    "a key beside alternatives": {"anyOf": [TO_P, {"type": "string"}], "maxLength": 9},
    "a part within a part": {"allOf": [{"anyOf": [TO_P]}, {"type": "string"}]},
}
AROUND = {
    "an alternative": lambda part: {"anyOf": [STOP, part]},
    "a later alternative": lambda part: {"anyOf": [STOP, {"type": "null"}, {"anyOf": [part, {"const": 7}]}]},
    "a property": lambda part: {"type": "object", "properties": {"n": part, "s": STOP}},
    "items": lambda part: {"anyOf": [STOP, {"type": "array", "items": part}]},
}
ROOTS = {
    "the whole": {**TO_P},
    "a property": {"type": "object", "properties": {"a": TO_P}, "required": ["a"]},
    "an alternative": {"anyOf": [{"type": "null"}, TO_P]},
}
VALUES = ["xy", "", None, {"a": "xy"}, {"a": {"s": "b"}}, {"s": "xy"}, {}, ["xy"], [], {"a": ["x"]}, 7]


def unrolled(root, part):
    """Without a circle: a value that goes round for ever is of none, whatever a validator says."""
    *parts, whole = (
        json.loads(json.dumps(each).replace("#/$defs/P", f"#/$defs/P{number}"))
        for number, each in enumerate([part] * 4 + [root])
    )
    return {**whole, "$defs": {"P0": False} | {f"P{number + 1}": each for number, each in enumerate(parts)}}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("root", ROOTS)
def test_a_circle_is_left_open_or_told_with_its_place(vocabulary, tokenizer, root, beside, around):
    schema = {**ROOTS[root], "$defs": {"P": AROUND[around](BESIDE[beside]), "Unused": {"minimum": 1e20}}}
    text = json.dumps(schema)
    strict = try_one(vocabulary, Constraint("json_schema", text, strict=True, param="x"), {})
    lenient = try_one(vocabulary, Constraint("json_schema", text, param="x"), {})
    if not strict.error:  # the library has no need to join them
        assert not any("leads back" in warning for warning in lenient.warnings)
    else:
        assert strict.error.startswith("a $ref that leads back to itself must stand alone")
        assert "at '#/$defs/P/" in strict.error
        assert any("leads back to itself is left out, at '#/$defs/P/" in warning for warning in lenient.warnings)
    assert not lenient.error
    judged = unrolled(ROOTS[root], AROUND[around](BESIDE[beside]))
    valid = [value for value in VALUES if jsonschema_rs.is_valid(judged, value)]
    matcher = new_matcher(vocabulary, lenient.text)
    assert valid
    for value in valid:
        assert takes(matcher, tokenizer, json.dumps(value, separators=(",", ":"))), value


def test_a_circle_of_several_definitions_is_left_open(vocabulary, tokenizer):
    draw = random.Random(5)
    for _ in range(30):
        names = ["A", "B", "C", "D"][: draw.randint(2, 4)]
        definitions = {}
        for name, after in zip(names, [*names[1:], names[0]], strict=True):
            ref = {"$ref": f"#/$defs/{after}"}
            joined = draw.choice([ref, {**ref, "type": "string"}, {"allOf": [{"type": "string"}, ref]}])
            definitions[name] = {"anyOf": [STOP, joined]}
        schema = {"$ref": "#/$defs/A", "$defs": definitions}
        tried = try_one(vocabulary, Constraint("json_schema", json.dumps(schema), param="x"), {})
        assert not tried.error, schema
        assert takes(new_matcher(vocabulary, tried.text), tokenizer, '"xy"'), schema
