"""A number that no double holds is refused by its path, wherever in a body it stands; any other is read. What no body
can hold is refused in Python too.
"""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.body import parse_body
from jaxinfer.protocol.doubles import check_json
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.structured import constraint_of, read_structured

TOO_LARGE = ("2e310", "-3e320", "1e999999999", "1" + "0" * 309, "-" + "9" * 400, "9" * 5000, "1" * 310 + ".5")
TOO_SMALL = ("1e-400", "-0.5E-330", "0." + "0" * 400 + "1")
# 1.7976931348623157e308 is the largest double, and what is halfway to the next one is no longer rounded to it
FINITE = (
    "1.7976931348623157e308",
    "9" * 308,
    "1" + "0" * 308,
    "5e-324",
    "0e999",
    "0e-999",
    "-0.0",
    "0.00",
    "12345678901234567890",
)
HALFWAY = 2**1024 - 2**970
MARK = "here it stands"
NAMES = st.sampled_from(["const", "metadata", "a b", "", "é", "0", "x" * 90, 'quo"te', "if"])
LEAVES = st.sampled_from([None, True, 0, -7, 2**70, 0.5, 1e308, "", "1e999", 'a "2e310"', [], {}, [[1, 2.5], "x"]])
BODIES = st.dictionaries(NAMES, LEAVES, max_size=3)


@st.composite
def places(draw):
    """A body, and names and positions that lead to a place in it: there it says MARK."""
    tree, steps = MARK, []
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            before, behind = draw(st.lists(LEAVES, max_size=3)), draw(st.lists(LEAVES, max_size=3))
            tree, steps = [*before, tree, *behind], [len(before), *steps]
        else:
            name = draw(NAMES)
            tree, steps = draw(BODIES) | {name: tree}, [name, *steps]
    name = draw(NAMES)
    return draw(BODIES) | {name: tree}, [name, *steps]


def path_of(steps):
    """Names of fields stand behind dots, others in quotes and cut."""
    shown = [f".{step}" if step in ("const", "if", "metadata") else f"[{show(step)}]" for step in steps]
    return "".join(shown).removeprefix(".")


def show(step):
    return step if isinstance(step, int) else ascii(step[:64])


@given(places(), st.sampled_from(TOO_LARGE + TOO_SMALL))
def test_a_number_that_overflows_is_refused_by_its_path_at_any_place_of_any_body(place, number):
    body, steps = place
    raw = json.dumps(body).replace(json.dumps(MARK), number)
    with pytest.raises(InvalidRequest, match="must be a number that is finite as a double") as refusal:
        parse_body(raw.encode())
    assert refusal.value.param == path_of(steps)


@given(places(), st.sampled_from(FINITE))
def test_a_number_that_does_not_is_read_as_ever(place, number):
    body, _ = place
    raw = json.dumps(body).replace(json.dumps(MARK), number)
    assert repr(parse_body(raw.encode())) == repr(json.loads(raw))


@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=300), st.sampled_from(TOO_LARGE + TOO_SMALL), st.data())
def test_a_body_of_token_ids_is_no_exception(ids, number, data):
    position = data.draw(st.integers(0, len(ids)))
    digits = [*map(str, ids[:position]), number, *map(str, ids[position:])]
    with pytest.raises(InvalidRequest) as refusal:
        parse_body(f'{{"prompt": [{", ".join(digits)}]}}'.encode())
    assert refusal.value.param == f"prompt[{position}]"


@pytest.mark.parametrize(("integer", "is_taken"), [(HALFWAY - 1, True), (HALFWAY, False), (-HALFWAY, False)])
def test_the_bound_is_where_a_double_ends(integer, is_taken):
    raw = f'{{"metadata": {integer}}}'.encode()
    if is_taken:
        assert parse_body(raw) == {"metadata": integer} and math.isfinite(float(integer))
    else:
        with pytest.raises(InvalidRequest) as refusal:
            parse_body(raw)
        assert refusal.value.param == "metadata"


def test_it_is_found_behind_a_long_text_too():
    with pytest.raises(InvalidRequest) as refusal:
        parse_body(b'{"prompt": "%b", "metadata": {"a": [0, -3e320]}}' % (b"x" * 2**18))
    assert refusal.value.param == "metadata.a[1]"


def test_what_is_no_number_at_all_is_named_by_its_path():
    with pytest.raises(InvalidRequest, match="-Infinity, which is not a JSON number") as refusal:
        parse_body(b'{"tools": [{"function": {"minimum": -Infinity}}]}')
    assert refusal.value.param == "tools[0].function.minimum"


SCHEMAS = {"const": (2e310, "const"), "enum": ([-3e320, 2], "enum[0]"), "maximum": (10**400, "maximum")}


@pytest.mark.parametrize("word", SCHEMAS)
def test_a_schema_that_no_body_brought_may_hold_none_either(word):
    """It would be written as null: an answer that the schema does not mean."""
    value, path = SCHEMAS[word]
    tag = {"begin": "<a>", "schema": {"properties": {"x": {word: value}}}, "end": ""}
    tags = {"structures": [tag], "triggers": ["<a>"]}
    for params, where in (
        (SamplingParams(json_schema={word: value}), f"json_schema.{path}"),
        (SamplingParams(structural_tag=tags), f"structural_tag.structures[0].schema.properties.x.{path}"),
    ):
        with pytest.raises(InvalidRequest, match="must be a number that is finite as a double") as refusal:
            constraint_of(params)
        assert refusal.value.param == where


@pytest.mark.parametrize("text", ['{"const": 2e310}', '{"const": 1e-400}', '{"const": %s}' % ("9" * 400)])
@pytest.mark.parametrize("name", ["guided_json", "json_schema"])
def test_nor_may_a_schema_that_came_as_text(name, text):
    with pytest.raises(InvalidRequest, match=re.escape(f"{name}.const must be a number")):
        read_structured({name: text})


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"structured_outputs": {"json": '{"const": 2e310}'}}, "structured_outputs.json.const"),
        ({"response_format": {"type": "json_object", "schema": '{"const": 2e310}'}}, "response_format.schema.const"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": '{"enum": [1e999]}'}}},
            "response_format.json_schema.schema.enum[0]",
        ),
    ],
)
def test_a_schema_as_text_within_a_field_is_named_by_its_whole_path(body, place):
    with pytest.raises(InvalidRequest) as refusal:
        read_structured(body)
    assert refusal.value.param == place


def test_a_schema_nested_deeply_is_looked_through_to_its_end():
    depth = 900
    text = '{"items": ' * depth + '{"const": 1e999}' + "}" * depth
    with pytest.raises(InvalidRequest, match="finite as a double"):
        read_structured({"json_schema": text})


NO_JSON = [
    b"x",
    bytearray(b"x"),
    memoryview(b"x"),
    {1},
    frozenset(),
    object(),
    1j,
    math.nan,
    -math.inf,
    10**400,
    "\ud800",
    {1: 2},
    {None: 1},
]
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=9,
)


@settings(max_examples=30)
@given(tree=PLAIN, wrong=st.sampled_from(NO_JSON), steps=st.lists(st.sampled_from(["a", 1]), max_size=4))
def test_what_json_cannot_hold_is_refused_by_its_path_and_nothing_else_is(tree, wrong, steps):
    check_json(tree, "x")
    path = "x"
    for step in reversed(steps):
        wrong = {"b": tree, "a": wrong} if step == "a" else [tree, wrong]
    for step in steps:
        path += ".a" if step == "a" else "[1]"
    with pytest.raises(InvalidRequest, match="must be") as refusal:
        check_json(wrong, "x")
    assert refusal.value.param == path


@pytest.mark.parametrize("name", ["json_schema", "structural_tag"])
def test_a_schema_in_python_holds_what_json_holds(name):
    schema = {"const": [b"x"]}
    tag = {"structures": [{"begin": "a", "schema": schema, "end": ""}], "triggers": ["a"]}
    with pytest.raises(InvalidRequest, match=r"const\[0\] must be what JSON has: .*, got a value of type bytes"):
        constraint_of(SamplingParams(**{name: schema if name == "json_schema" else tag}))
