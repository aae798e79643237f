"""A schema is written so that llguidance reads what its client means."""

import json

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.source import JSON_SCHEMA, guided
from tests.support.grammars import takes


def test_a_number_without_a_fraction_is_an_integer(vocabulary, tokenizer):
    """A length of 3.0 was refused, and a const of 9007199254740991.0 answered with another integer."""
    schema = {"prefixItems": [{"type": "string", "minLength": 3.0}, {"const": 2.0**53 - 1}], "minItems": 2.0}
    matcher = new_matcher(vocabulary, JSON_SCHEMA + guided(schema | {"type": "array", "items": False}, strict=True))
    assert takes(matcher, tokenizer, '["abc",9007199254740991]')
    assert not takes(matcher, tokenizer, '["ab",9007199254740991]')
    assert not takes(matcher, tokenizer, '["abc",9007199254740990]')


def test_other_numbers_stay_as_they_are():
    schema = {"minimum": 0.5, "maximum": 1e18, "multipleOf": 0.25, "default": 1e300, "const": "3.0", "enum": [-0.25, 7]}
    written = json.loads(guided(schema, strict=True))
    assert {name: written[name] for name in schema} == schema
