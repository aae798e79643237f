"""What can be built around a schema of a single value, and schemas that no leaf is in."""

from collections.abc import Callable, Iterator
from typing import Any

from tests.support.schemas.case import Case, Schema, closed

Shape = Callable[[Case], Case]


def alone(leaf: Case) -> Case:
    return leaf


def optional(leaf: Case) -> Case:
    """A property that may be null, and one that may be missing."""
    schema = closed({"value": {"anyOf": [leaf.schema, {"type": "null"}]}, "note": {"type": "string"}}, "value")
    valid = [{"value": value} for value in (*leaf.valid, None)]
    wrong = [{"value": value} for value in _not_null(leaf)]
    return leaf._replace(
        family=f"nullable {leaf.family}",
        schema=schema,
        valid=(*valid, {"value": leaf.valid[0], "note": "n"}, {"value": leaf.valid[0], "note": ""}),
        invalid=(*wrong, {}, {"note": "n"}, {"value": leaf.valid[0], "note": 3}),
    )


def before_another(leaf: Case) -> Case:
    schema = closed({"first": leaf.schema, "last": {"type": "boolean"}}, "last")
    return leaf._replace(
        family=f"optional {leaf.family}",
        schema=schema,
        valid=(*[{"first": value, "last": True} for value in leaf.valid], {"last": False}, {"last": True}),
        invalid=(*[{"first": value, "last": True} for value in leaf.invalid], {"first": leaf.valid[0]}, {"lost": 1}),
    )


def open_object(leaf: Case) -> Case:
    """Properties that nobody named come after those that are."""
    schema = {"type": "object", "properties": {"na me": leaf.schema, "é": leaf.schema}, "required": ["na me"]}
    first, last = leaf.valid[0], leaf.valid[-1]
    more = [{"na me": first, "é": last}, {"na me": last, "other": [{"x": 1.5}], "z": None}, {"na me": first}]
    wrong = [{"na me": value} for value in leaf.invalid] + [{"na me": first, "é": leaf.invalid[0]}, {"é": first}]
    return leaf._replace(family=f"object of {leaf.family}", schema=schema, valid=tuple(more), invalid=tuple(wrong))


def array(leaf: Case) -> Case:
    schema = {"type": "array", "items": leaf.schema, "minItems": 1, "maxItems": 4}
    some = list(leaf.valid)
    return leaf._replace(
        family=f"array of {leaf.family}",
        schema=schema,
        valid=(some[:4], [some[-1]], some[:1] * 4, some[:1] * 3),
        invalid=([], some[:1] * 5, *[[some[0], value] for value in leaf.invalid], some[0] if some[0] != [] else 0),
    )


def arrays_of_references(leaf: Case) -> Case:
    """As code generators write it: each type once, and a name for it."""
    schema = {
        "$ref": "#/$defs/Table",
        "$defs": {
            "Cell": leaf.schema,
            "Row": {"type": "array", "items": {"$ref": "#/$defs/Cell"}},
            "Table": {"type": "array", "items": {"$ref": "#/$defs/Row"}, "maxItems": 3},
        },
    }
    some = list(leaf.valid)
    wrong = [[[], [value]] for value in leaf.invalid]
    return leaf._replace(
        family=f"table of {leaf.family}",
        schema=schema,
        valid=([some, some[:1]], [[], []], [], [some[:1], [], some]),
        invalid=(*wrong, [some[:1] * 2, 7], [[], [], [], []]),
    )


def mapping(leaf: Case) -> Case:
    schema = {"type": "object", "additionalProperties": leaf.schema}
    valid = [{"a": leaf.valid[0]}, {f"k {i}": value for i, value in enumerate(leaf.valid)}, {}, {"": leaf.valid[-1]}]
    wrong = [{"a": leaf.valid[0], "b": value} for value in leaf.invalid]
    return leaf._replace(family=f"map of {leaf.family}", schema=schema, valid=tuple(valid), invalid=(*wrong, []))


def either(leaf: Case) -> Case:
    """One of two objects, told apart by a constant."""
    one = closed({"kind": {"const": "one"}, "value": leaf.schema})
    many = closed({"kind": {"const": "many"}, "values": {"type": "array", "items": leaf.schema}})
    first = leaf.valid[0]
    return leaf._replace(
        family=f"union of {leaf.family}",
        schema={"oneOf": [one, many]},
        valid=(
            *[{"kind": "one", "value": value} for value in leaf.valid],
            {"kind": "many", "values": []},
            {"kind": "many", "values": list(leaf.valid)},
        ),
        invalid=(
            *[{"kind": "one", "value": value} for value in leaf.invalid],
            *[{"kind": "many", "values": [first, value]} for value in leaf.invalid],
            {"kind": "many", "value": first},
            {"kind": "none", "value": first},
        ),
    )


def pair(leaf: Case) -> Case:
    schema = {"type": "array", "prefixItems": [leaf.schema, {"type": "boolean"}], "items": False, "minItems": 2}
    valid = [[value, flag] for value in leaf.valid for flag in (True, False)]
    wrong = [[value, True] for value in leaf.invalid]
    first = leaf.valid[0]
    return leaf._replace(
        family=f"tuple of {leaf.family}",
        schema=schema,
        valid=(*valid, [first, True]),
        invalid=(*wrong, [first], [first, 0], [first, True, True], []),
    )


def described(leaf: Case) -> Case:
    """A reference with words of its own, as older generators have it."""
    value = {"title": "Value", "description": "what it is", "allOf": [{"$ref": "#/definitions/Leaf"}]}
    schema = closed({"value": value}, title="Thing", definitions={"Leaf": leaf.schema})
    if leaf.family != "format":  # of which draft 7 has fewer
        schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    return leaf._replace(
        family=f"described {leaf.family}",
        schema=schema,
        valid=tuple({"value": value} for value in leaf.valid),
        invalid=(*[{"value": value} for value in leaf.invalid], {}, {"value": leaf.valid[0], "more": 1}),
    )


SHAPES: list[Shape] = [
    alone, optional, before_another, open_object, array, arrays_of_references, mapping, either, pair, described
]  # fmt: skip


def _not_null(leaf: Case) -> Iterator[Any]:
    return (value for value in leaf.invalid if value is not None)


def others() -> list[Case]:
    return [*_objects(), *_intersections(), *_together(), *_references(), *_recursive()]


def _objects() -> Iterator[Case]:
    text: Schema = {"type": "string"}
    for low, high in [(0, 2), (1, 1), (1, 3), (2, 4)]:
        schema = {"type": "object", "additionalProperties": {"type": "integer"}}
        schema |= {"minProperties": low, "maxProperties": high}
        sizes = [low, high, max(low, 1), high]
        valid = tuple({f"{name}{i}": i for i in range(size)} for name, size in zip("kxyz", sizes, strict=True))
        wrong = tuple({f"k{i}": i for i in range(size)} for size in (high + 1, high + 3))
        yield Case("count of properties", schema, valid, wrong)
    for pattern, name, other in [("^x-", "x-a", "y"), ("^[a-z]$", "q", "qq"), ("_id$", "user_id", "user")]:
        schema = {"type": "object", "patternProperties": {pattern: text}, "additionalProperties": False}
        yield Case("names by pattern", schema, ({}, {name: ""}, {name: "t"}), ({name: 1}, {other: "t"}))
        schema = {"type": "object", "patternProperties": {pattern: text}, "additionalProperties": {"type": "integer"}}
        yield Case("names by pattern", schema, ({}, {name: "t", other: 1}, {other: 2}), ({name: 1}, {other: "t"}))
    anything = ({}, [], "x", None, 1.5, {"a": [{"b": None}]}, True)
    for schema in ({"type": "object"}, {"type": "object", "properties": {}}):
        yield Case("any object", schema, ({}, {"a": 1}, {"b": [{}], "c": ""}), (*anything[1:5], 3))
    yield Case("any array", {"type": "array"}, ([], [1, "a", None], [[{}]]), (*anything[2:5], {}))
    for size in (1, 2, 3, 5):
        schema = {"type": "array", "items": {"type": "integer"}, "minItems": size, "maxItems": size + 1}
        valid = (list(range(size)), list(range(size + 1)), [7] * size)
        yield Case("count of items", schema, valid, ([1] * (size + 2), [1] * size + ["a"], ["b"] * (size + 1)))


def _intersections() -> Iterator[Case]:
    whole: Schema = {"type": "integer"}
    yield Case("all of", {"allOf": [whole, {"minimum": 3}, {"maximum": 9}]}, (3, 5, 9), (2, 10, "5"))
    yield Case("all of", {"allOf": [{"minimum": 3}], "type": "integer", "maximum": 7}, (3, 4, 7), (2, 8, 3.5))
    yield Case("all of", {"allOf": [{"enum": [1, 2, 3, 4]}, {"enum": [2, 3, 4, 5]}]}, (2, 3, 4), (1, 5, "2"))
    short = {"allOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 4}]}
    yield Case("all of", short, ("ab", "abc", "abcd"), ("a", "abcde", 3))
    base = {"type": "object", "properties": {"id": whole}, "required": ["id"]}
    named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    both = {"allOf": [{"$ref": "#/$defs/Base"}, named], "$defs": {"Base": base}}
    valid = ({"id": 1, "name": "a"}, {"id": -2, "name": ""}, {"id": 3, "name": "x", "more": None})
    yield Case("all of", both, valid, ({"id": 1}, {"name": "a"}, {"id": "1", "name": "a"}))
    some = {"type": "integer", "anyOf": [{"maximum": 3}, {"minimum": 10}]}
    yield Case("any of", some, (3, -5, 10, 99), (4, 9, "3"))
    kinds = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
    yield Case("any of", kinds, ("a", ["a", "b"], None, []), (1, ["a", 1], {}))
    apart = {"oneOf": [{"type": "integer", "maximum": 0}, {"type": "string"}, {"type": "boolean"}]}
    yield Case("one of", apart, (0, "1", True), (1, None, []))
    hole = {"type": "object", "properties": {"a": False, "b": True}, "required": ["b"]}
    yield Case("yes and no", hole, ({"b": 1}, {"b": None}, {"b": []}), ({"a": 1, "b": 1}, {}, []))


def _together() -> Iterator[Case]:
    """Keywords that have to hold at once."""
    text: Schema = {"type": "string"}
    days = {"type": "string", "format": "date", "pattern": "^20"}
    yield Case("together", days, ("2024-01-01", "2000-12-31", "2099-02-28"), ("1999-01-01", "20", "2024-13-01"))
    mail = {"type": "string", "format": "email", "maxLength": 6}
    yield Case("together", mail, ("a@b.de", "a@b.c", "ab@c.d"), ("aa@b.de", "a", 1))
    some = {"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 4}
    yield Case("together", some, ("aa", "aaa", "aaaa"), ("a", "aaaaa", "bb"))
    yield Case("together", {"enum": ["a", "bb", "ccc", "dddd"], "minLength": 2}, ("bb", "ccc", "dddd"), ("a", "ee"))
    yield Case("together", {"type": "integer", "enum": ["1", 1, 2, 3]}, (1, 2, 3), ("1", 4))
    yield Case("together", {"type": "integer", "minimum": 0.5, "maximum": 3.5}, (1, 2, 3), (0, 4, 1.5))
    maybe = closed({"a": text}) | {"type": ["object", "null"]}
    yield Case("together", maybe, (None, {"a": "x"}, {"a": ""}), ({}, {"a": 1}, "x"))
    one_of_them = {"additionalProperties": False, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    pair = {"type": "object", "properties": {"a": text, "b": text}} | one_of_them
    yield Case("together", pair, ({"a": "x"}, {"b": "y"}, {"a": "x", "b": "y"}), ({}, {"c": ""}, {"a": 1}))
    rest = {"type": "array", "prefixItems": [{"type": "integer"}], "items": text}
    yield Case("together", rest, ([], [1], [1, "a", "b"]), (["a"], [1, 2], [1, "a", 3]))
    untyped = {"properties": {"a": text}, "required": ["a"]}
    yield Case("together", untyped, ({"a": "x"}, 1, None, ["b"]), ({}, {"a": 1}))
    more = {"type": "object", "properties": {"a": text}, "required": ["a"], "minProperties": 2}
    yield Case("together", more, tuple({"a": "x", name: 1} for name in "bcd"), ({"a": "x"}, {"b": 1, "c": 2}))


def _references() -> Iterator[Case]:
    text: Schema = {"type": "string"}
    valid, wrong = ({"x": "a"}, {"x": ""}, {}), ({"x": 1}, {"x": None})
    definitions: Schema = {"a/b c": text, "q": text | {"$anchor": "here"}}
    for reference in ("#/$defs/a~1b%20c", "#here", "#/$defs/q", "https://example.org/s.json#/$defs/q"):
        schema = {"type": "object", "properties": {"x": {"$ref": reference}}, "$defs": definitions}
        yield Case("reference", schema | {"$id": "https://example.org/s.json"}, valid, wrong)
    chain: Schema = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(20)} | {"d20": text}
    yield Case(
        "reference", {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": chain}, valid, wrong
    )
    beside = {"$ref": "#/$defs/t", "maxLength": 2}
    schema = {"type": "object", "properties": {"x": beside}, "$defs": {"t": text | {"minLength": 1}}}
    yield Case("reference", schema, ({"x": "a"}, {"x": "ab"}, {}), ({"x": ""}, {"x": "abc"}, {"x": 1}))


def _recursive() -> Iterator[Case]:
    link = closed({"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}})
    end = {"value": 1, "next": None}
    twice = {"value": 2, "next": {"value": 3, "next": end}}
    yield Case("recursive", link, (end, twice, {"value": 0, "next": twice}), ({"value": 1}, {"value": 1, "next": {}}))
    tree = {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": closed(
                {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}
            )
        },
    }
    leaf: Schema = {"name": "leaf", "children": []}
    deep = {"name": "a", "children": [leaf, {"name": "b", "children": [leaf]}]}
    wrong = {"name": "a", "children": [{"name": 1, "children": []}]}
    yield Case("recursive", tree, (leaf, deep, {"name": "", "children": [deep, leaf]}), (wrong, [leaf], {"name": "a"}))
    term = {"$ref": "#/$defs/term"}
    sums = closed({"op": {"enum": ["+", "*"]}, "left": term, "right": term})
    expression = {"anyOf": [{"$ref": "#/$defs/sum"}, term], "$defs": {"sum": sums, "term": {}}}
    expression["$defs"]["term"] = {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/sum"}]}
    one = {"op": "+", "left": 1, "right": 2.5}
    more = {"op": "*", "left": one, "right": {"op": "+", "left": 0, "right": one}}
    yield Case("recursive", expression, (7, one, more), ({"op": "-", "left": 1, "right": 2}, {"op": "+"}, "1"))
    value = {"$ref": "#/$defs/json"}
    anything = {
        "$ref": "#/$defs/json",
        "$defs": {
            "json": {
                "anyOf": [
                    {"type": ["string", "number", "boolean", "null"]},
                    {"type": "array", "items": value},
                    {"type": "object", "additionalProperties": value},
                ]
            }
        },
    }
    yield Case("recursive", closed({"x": anything["$defs"]["json"]}, **{"$defs": anything["$defs"]}),
               ({"x": [{"a": [None, 1.5]}]}, {"x": "a"}, {"x": {}}), ({}, {"y": 1}, []))  # fmt: skip


def refused() -> list[Case]:
    """What strict says no to. Without strict it is left out, and then `loose` passes as well."""
    word: Schema = {"type": "string"}
    words: Schema = {"type": "array", "items": word}
    pair: Schema = {"type": "object", "properties": {"a": word, "b": word}}
    full, lone = {"a": "x", "b": "y"}, {"a": "x"}
    rows: list[tuple[str, Schema, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]] = [
        ("uniqueItems", words | {"uniqueItems": True}, ([], ["a"], ["a", "b"]), ([1], "a"), (["a", "a"],)),
        ("contains", words | {"contains": {"const": "z"}}, (["z"], ["a", "z"], ["z", "z"]), ([1], "z"), ([], ["a"])),
        ("minContains", words | {"contains": {"const": "z"}, "minContains": 2},
         (["z", "z"], ["z"] * 3, ["z", "a", "z"]), ([1], 1), (["z"],)),
        ("not", word | {"not": {"const": "no"}}, ("yes", "", "n"), (1, None), ("no",)),
        ("if", word | {"if": {"minLength": 3}, "then": {"pattern": "^a"}}, ("", "ab", "abc"), (1, []), ("bbb",)),
        ("propertyNames", {"type": "object", "propertyNames": {"maxLength": 1}}, ({}, {"a": 1}, {"b": 2}), ([], 1),
         ({"ab": 1},)),
        ("dependentRequired", pair | {"dependentRequired": {"a": ["b"]}}, ({}, full, {"b": "y"}), ([], {"a": 1}),
         (lone,)),
        ("dependentSchemas", pair | {"dependentSchemas": {"a": {"required": ["b"]}}}, ({}, full, {"b": ""}),
         ([], {"a": 1}), (lone,)),
        ("unevaluatedProperties", pair | {"unevaluatedProperties": False}, ({}, full, lone), ([], {"b": 1}),
         ({"c": 1},)),
        ("unevaluatedItems", {"type": "array", "prefixItems": [word], "unevaluatedItems": False},
         ([], ["a"], ["b"]), ([1], {}), (["a", "b"],)),
        ("maxProperties 1", pair | {"maxProperties": 1}, ({}, lone, {"b": "y"}), ([], {"a": 1}), (full,)),
        ("oneOf", {"oneOf": [word, {"type": "string", "maxLength": 2}]}, ("abc", "abcd", "abcde"), (1, None), ("a",)),
    ]  # fmt: skip
    unknown = {
        "uri-reference": ("a b", "/a", "#x", "../b"),
        "json-pointer": ("a", "", "/a", "/a/0"),
        "regex": ("(", "a+", "", "[x]"),
        "idn-email": ("a", "a@b.de", "ä@b.de", "x@y.org"),
    }
    turned = {
        r"^(?!a)[a-z]+$": ("look-around", ("b", "bc", "xyz"), ("a", "ab")),
        r"^(?=.*\d)\w+$": ("look-around", ("a1", "1", "x9y"), ("a", "")),
        r"(?<!a)b$": ("look-around", ("b", "cb", "a b"), ("ab", "c")),
        r"^([a-c])\1$": ("backreferences", ("aa", "bb", "cc"), ("ab", "a")),
        r"\bcat\b": ("the ends of words", ("cat", "a cat", "cat!"), ("cats", "a")),
        r"(^a|,b)*$": ("^ or $ within", ("a", ",b", "a,b"), ()),
    }
    rows += [(why, word | {"pattern": text}, good, (1, []), bad) for text, (why, good, bad) in turned.items()]
    found = [Case(f"strict refuses {name}", *rest[:3], name, rest[3]) for name, *rest in rows]
    for name, (bad, *good) in unknown.items():
        found.append(
            Case("strict refuses format", {"type": "string", "format": name}, tuple(good), (1, []), name, (bad,))
        )
    return [*found, *[_inside(case) for case in found]]


def _inside(case: Case) -> Case:
    """The same two levels down: it is named from there too."""
    schema = closed({"rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}}}, **{"$defs": {"Row": case.schema}})

    def put(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple({"rows": [value]} for value in values)

    return case._replace(schema=schema, valid=put(case.valid), invalid=put(case.invalid), loose=put(case.loose))
