"""A tool's schema that says much more than it holds costs little: it is held, left free or refused at once."""

import json
import re
from typing import Any

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.tools import MAX_TOOL_BYTES
from jaxinfer.text.tools.arguments import arguments_of, shapes
from jaxinfer.text.tools.formats import CALL, SEPARATOR, new_parser
from jaxinfer.text.tools.grammar import loosened, tool_grammar
from jaxinfer.text.tools.reader import ToolUse
from jaxinfer.text.tools.schema_types import Values
from tests.support.attempts import assert_below, processor_s

FORMS = ("qwen3_coder", "pythonic")
ANY = {"anyOf": [{}] * 30_000}
REF = {"$ref": "#/$defs/x"}
WIDE = {"properties": {f"p{i}": {} for i in range(4_000)}}


def tree(leaf: dict[str, Any], width: int, depth: int) -> dict[str, Any]:
    """Definitions of which each is all of some that come later, which are all others."""
    levels = [{f"d{level}_{i}": {"allOf": []} for i in range(width)} for level in range(depth)]
    for level, names in enumerate(levels):
        later = levels[level + 1] if level + 1 < depth else {"x": leaf}
        for i, each in enumerate(names.values()):
            refs = [{"$ref": f"#/$defs/{name}"} for name in later] * (16 // len(later))
            each["allOf"] = refs[i:] + refs[:i]
    return {
        "$ref": "#/$defs/d0_0",
        "$defs": {name: each for level in levels for name, each in level.items()} | {"x": leaf},
    }


def doubled(depth: int) -> dict[str, Any]:
    """Of each level two, which are both of the next, time and again, and say something of their own."""
    defs: dict[str, Any] = {}
    for level in range(depth):
        both = [{"$ref": f"#/$defs/{kind}{level + 1}"} for kind in "rs"] * 8
        for kind in "rs":
            own = {"properties": {"a": {"title": f"{kind}{level}"}}}
            defs[f"{kind}{level}"] = own | ({"allOf": both} if level + 1 < depth else {})
    return {"$ref": "#/$defs/r0", "$defs": defs}


SCHEMAS: dict[str, dict[str, Any]] = {
    "many that refer to one of many alternatives": {
        "type": "object", "$defs": {"x": ANY}, "properties": {f"p{i}": REF for i in range(4_000)}
    },
    "many that hold one that refers to it": {
        "$defs": {"x": ANY}, "properties": {f"p{i}": {"anyOf": [REF]} for i in range(3_000)}
    },
    "some that refer to each other": {
        "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i * k % 1999}"} for k in (2, 3, 5)]} for i in range(1999)},
        "properties": {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(900)},
    },
    "a tree over a wide one": tree(WIDE, width=16, depth=7),
    "a tree of twos": doubled(7),
    "a choice of many": {"properties": {"a": {"enum": [f"{i}" for i in range(25_000)]}}},
    "much that is required": tree({"required": [f"{i}" for i in range(15_000)]}, width=16, depth=7),
    "a long reference": {
        "$defs": {"x": {"$ref": "#/" + "a/" * 30_000}}, "properties": {f"p{i}": REF for i in range(4_000)}
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_it_is_held_left_free_or_refused_in_a_second(name, strict, form):
    schema = json.loads(json.dumps(SCHEMAS[name]))
    assert len(json.dumps(schema)) < MAX_TOOL_BYTES
    use = ToolUse({"f": schema}, due=True, strict=frozenset("f" if strict else ""))

    def hold() -> None:
        try:
            warned = loosened(form, use)
            grammar = tool_grammar(form, use, due=True, control_tokens={})
            assert grammar and (not warned or "more than can be looked at" in warned[0])
        except InvalidRequest as refusal:
            assert re.search("a grammar of at most" + "|more than can be looked at" * strict, str(refusal))

    assert_below(1, lambda: processor_s(hold), "the processor time of a schema")


@pytest.mark.parametrize("name", SCHEMAS)
def test_calls_of_it_are_read_as_fast(name):
    schema = json.loads(json.dumps(SCHEMAS[name]))
    parser = new_parser("qwen3_coder", {"f": schema})
    call = "<tool_call><function=f><parameter=p0>1</parameter><parameter=p1>2</parameter></function></tool_call>"
    assert_below(0.5, lambda: processor_s(lambda: [parser.feed(call) for _ in range(20)]), "the time of twenty calls")


def test_what_refers_to_each_other_is_of_the_types_of_all():
    """Whichever is asked for first."""
    defs: dict[str, Any] = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i * 3 + 1) % 7}"}, {"enum": [i]}]} for i in range(7)
    }
    defs["d4"]["anyOf"] += [{"$ref": "#/$defs/d6"}, {"$ref": "#/$defs/d4"}, {"type": "null"}]
    defs["d6"]["anyOf"] += [{"type": ["string"]}, {"$ref": "#/$defs/d0"}]
    refs = [{"$ref": f"#/$defs/d{i}"} for i in range(7)]
    alone = [Values({"$defs": defs}).types(ref) for ref in refs]
    assert alone[0] == {"integer", "null", "string"} and alone[3] == {"integer"}
    for order in (range(7), range(6, -1, -1), (4, 0, 6, 2, 1, 3, 5)):
        values = Values({"$defs": defs})
        assert {i: values.types(refs[i]) for i in order} == dict(enumerate(alone))


def test_what_is_said_twice_is_held_once():
    a, b, c = {"minimum": 1}, {"maximum": 2}, {"type": "integer"}
    schema = {"allOf": [{"properties": {"a": each}} for each in (a, b, a, dict(b), {"allOf": [c, a]})]}
    (shape,) = shapes(schema, strict=True)
    assert shape.properties == {"a": {"allOf": [a, b, c]}} == arguments_of(schema)[0]


def test_calls_behind_a_call_that_all_lack_their_ends_are_read_in_linear_time():
    def read_all() -> None:
        parser = new_parser("qwen3_coder", {"f": {}})
        for _ in range(4):
            parser.feed("<function=f></function>" + "<function=f><parameter=a>" * 500)
        parser.finish()

    assert_below(1, lambda: processor_s(read_all), "the processor time of torn calls")


@pytest.mark.parametrize(
    ("form", "begin"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {'),
        ("minicpm5", '<function name="f"><param name="a">'),
        ("deepseek_v3", f"{CALL}function{SEPARATOR}f\n```json\n{{"),
    ],
)
def test_an_answer_that_comes_whole_is_read_in_linear_time(form, begin):
    """Of 20,000 calls that are left open, where the square took up to 9 s."""

    def read_all() -> None:
        parser = new_parser(form, {"f": {"properties": {"a": {}}}})
        parser.feed(begin * 20_000)
        parser.finish()

    assert_below(1, lambda: processor_s(read_all), "the processor time of calls that are left open")
