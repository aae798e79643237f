"""Bounds: an answer's number is within those of its schema, and a schema with numbers to answer is not refused."""

import json
import operator
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.inexact import inexact
from jaxinfer.text.grammar.source import JSON_SCHEMA, Constraint, guided
from jaxinfer.text.grammar.trial import try_one
from tests.support.grammars import takes

LAWS = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}
MOST = 2**63 - 1
NEAR = [
    *(sign * 2**power + step for sign in (1, -1) for power in (53, 56, 63, 64) for step in range(-3, 4)),
    *(sign * 10**power + step for sign in (1, -1) for power in (16, 18, 19, 30) for step in (-1, 0, 1)),
]
EDGES = st.sampled_from(NEAR) | st.sampled_from(NEAR).map(float) | st.integers(-(2**65), 2**65)
SMALL = st.sampled_from([0, 1, -1, 5, 100, 10**12])
GAPS = st.sampled_from([10.0**-power for power in (*range(1, 23), 40, 64, 100, 308)] + [0.5, 5e-324])


def tried(vocabulary, schema, *, strict=False):
    return try_one(vocabulary, Constraint("json_schema", json.dumps(schema), strict), {})


def digits(number):
    """Without an exponent."""
    return f"{Decimal(repr(number)):f}"


def is_within(text, bounds):
    number = json.loads(text)  # an integer is exact, a number with a point is the double that all read
    return all(LAWS[name](number, bound) for name, bound in bounds.items())


def check(vocabulary, tokenizer, schema, bounds, texts):
    found = tried(vocabulary, schema)
    if len(bounds) == 1 and all(abs(bound) < 2**62 for bound in bounds.values()):
        assert found.error == ""
    if not found.error:
        matcher = new_matcher(vocabulary, found.text)
        assert [text for text in texts if takes(matcher, tokenizer, text) and not is_within(text, bounds)] == []


@settings(max_examples=60)
@given(SMALL, GAPS, st.sampled_from([1, -1]), st.sampled_from(["exclusiveM", "m"]), st.booleans())
@example(0, 1e-15, 1, "exclusiveM", False)  # which was answered 0
@example(0, 1e-15, -1, "exclusiveM", False)
@example(0, 1e-308, 1, "exclusiveM", True)
def test_a_number_near_an_open_bound_is_within(vocabulary, tokenizer, near, gap, sign, far_name, is_split):
    far = near + sign * gap
    near_side, far_side = ("inimum", "aximum") if sign > 0 else ("aximum", "inimum")
    bounds = {f"exclusiveM{near_side}": near, f"{far_name}{far_side}": far}
    schema = {"allOf": [{name: bound} for name, bound in bounds.items()]} if is_split else bounds
    texts = {digits(number) for number in (near, far, near + sign * gap / 2, near + sign * gap / 10, -near)}
    check(vocabulary, tokenizer, {"type": "number"} | schema, bounds, [*texts, *(f"{text}.0" for text in texts), "-0"])


@settings(max_examples=100)
@given(
    st.dictionaries(st.sampled_from(sorted(LAWS)), EDGES, min_size=1, max_size=2),
    st.sampled_from(["integer", "number", ["integer", "string"], None]),
)
@example({"exclusiveMinimum": 2**53}, "integer")  # beside which is no double
@example({"exclusiveMaximum": -(2.0**53)}, "number")
@example({"minimum": 2**57 - 1, "maximum": 2**57}, "number")
@example({"maximum": 7.205759403792794e16}, "number")  # whose digits are not those of its double
def test_a_number_near_bounds_far_from_0_is_within(vocabulary, tokenizer, bounds, kind):
    numbers = {int(bound) + step for bound in bounds.values() for step in (-1025, -1024, -2, -1, 0, 1, 2, 1024, 1025)}
    schema = bounds if kind is None else {"type": kind} | bounds
    check(vocabulary, tokenizer, schema, bounds, list(map(str, numbers)))


OF_GENERATORS = [
    ({"type": "integer", "minimum": -(2**63), "maximum": MOST}, [0, 5, MOST, 1024 - 2**63]),
    ({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308}, [0, 0.5, -(10**18)]),
    ({"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38}, [0, 0.5, -(10**18)]),
    ({"type": "integer", "maximum": 9999999999999999}, [0, 9999999999999998]),
    ({"type": "integer", "minimum": 0, "maximum": 1999999999999999999}, [0, 1700000000123456789]),
    ({"type": "integer", "exclusiveMaximum": 10**16}, [0, 9999999999999998]),
    ({"type": "integer", "exclusiveMinimum": -1e16}, [0, -9999999999999998]),
    ({"type": "number", "maximum": 1e20}, [0, 0.5, 10**18]),
    ({"type": "integer", "minimum": 10**18}, [10**18, 10**18 + 1]),
    ({"type": "number", "maximum": -(10**18)}, [-(10**18), -(10**18) - 1]),
    ({"type": "number", "minimum": 5e-324}, [0.5, 1e-64]),
    ({"type": "number", "minimum": 2.2250738585072014e-308}, [0.5, 1e-64]),
    ({"type": "number", "maximum": 0.9419709336376999}, [0, 0.94197093362]),  # which no digits are read as
    ({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.00000000000001}, [1.000000000000005]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-14}, [0.000000000000005]),
    ({"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": -0.99999999999999}, [-0.999999999999995]),
    ({"type": "number", "exclusiveMinimum": 100, "exclusiveMaximum": 100.000000000001}, [100.0000000000005]),
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("schema", "numbers"), OF_GENERATORS, ids=str)
def test_bounds_that_generators_write_are_held_to(vocabulary, tokenizer, schema, numbers, strict):
    found = tried(vocabulary, schema, strict=strict)
    assert found.error == "" and (found.warnings != ()) == (not strict)
    matcher = new_matcher(vocabulary, found.text)
    assert [number for number in numbers if not takes(matcher, tokenizer, digits(number))] == []


def test_a_warning_names_the_bound_and_what_it_is_read_as(vocabulary):
    found = tried(vocabulary, {"properties": {"a": {"type": "integer", "exclusiveMaximum": 10**16}}})
    said = "exclusiveMaximum 10000000000000000 is read as maximum 9999999999999998, at '#/properties/a'"
    assert found.warnings == (said,)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 2**53 + 2, "maximum": 2**63 - 1},
        {"type": "integer", "minimum": -5.0, "exclusiveMaximum": 2**53},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "number", "minimum": 0.1, "exclusiveMaximum": 0.25},
    ],
    ids=str,
)
def test_bounds_that_the_library_has_as_they_are_are_not_warned_of(vocabulary, schema):
    found = tried(vocabulary, schema)
    assert (found.error, found.warnings) == ("", ())


NOTHING = [
    ({"exclusiveMinimum": 0, "exclusiveMaximum": 1e-300}, "a double of at most 64 places, and there is none at '#'"),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 1.0000000000000002}, "there is none at '#'; bring them farther apart"),
    ({"minimum": 5e-324, "maximum": 1e-300}, "a double of at most 64 places, and there is none at '#'"),
    ({"minimum": 10**400, "maximum": 10**400 + 1}, "less than 2**63 away from 0 that a double holds"),
    ({"minimum": 0.5, "exclusiveMaximum": -(10**400)}, "less than 2**63 away"),
    ({"minimum": 1e20}, "less than 2**63 away from 0 that a double holds, and '#/minimum' is 1e+20"),
    ({"type": "integer", "maximum": -(2**64)}, "and '#/maximum' is -18446744073709551616"),
    ({"type": "integer", "minimum": 2**60 + 1, "maximum": 2**60 + 9}, "or farther from the bound beside it"),
    ({"type": "integer", "minimum": 1e-300, "maximum": 1e-299}, "no integer is between its bounds"),
]


@pytest.mark.parametrize(("bounds", "said"), NOTHING, ids=str)
def test_bounds_without_a_number_that_can_be_written_are_refused_truly(vocabulary, bounds, said):
    found = tried(vocabulary, {"type": "number"} | bounds)
    assert said in found.error and len(found.error) < 300


def test_bounds_of_many_parts_take_no_longer_than_the_schema(vocabulary):
    parts = [{"type": "number", "exclusiveMinimum": 0, "maximum": 1 / (i + 2)} for i in range(3000)]
    written = guided({"type": "array", "prefixItems": parts}, strict=True)
    assert written.count('"exclusiveMinimum"') == 0 and inexact(json.loads(written)) is None


def test_a_bound_that_is_no_number_stays_beside_one_far_from_0(vocabulary):
    schema = {"type": "number", "minimum": 10**18, "maximum": "x"}
    with pytest.raises(InvalidRequest, match="Expected a number for 'maximum'"):
        new_matcher(vocabulary, JSON_SCHEMA + guided(schema, strict=True))
