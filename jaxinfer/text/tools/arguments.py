"""What a tool's schema says of its arguments one by one, for the forms that write each by itself, after its name.

References and alternatives at the schema's root are carried out, so that what is left are Shapes: objects of
properties. What no list of properties can say is Unheld.
"""

import dataclasses
import json
import math
from collections.abc import Iterable
from functools import reduce
from itertools import product
from typing import Any

from jaxinfer.text.tools.schema_types import max_steps, referred

MAX_SHAPES, MAX_DEPTH = 16, 16  # of one tool: alternatives of alternatives multiply
_OF_NAMES = frozenset(
    {"dependencies", "dependentRequired", "dependentSchemas", "patternProperties", "propertyNames"}
)  # which say nothing where they are empty
_OF_OBJECTS = frozenset({"$dynamicRef", "$recursiveRef", "const", "enum", "if", "not"})
_DEFINITIONS = ("$defs", "definitions")
TOO_MUCH = "more than can be looked at"


class Unheld(Exception):
    """The keyword that cannot be held, or a name of the schema that cannot be written."""


class Unwritable(Unheld):
    """Without which there is no such call: a name that must come, or every value that it may have."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """An object. other: the schema of properties that are not named.    least, most: how many properties.

    asks: it says itself that such properties may come.
    """

    properties: dict[str, Any]
    required: frozenset[str] = frozenset()
    other: Any = True
    least: int = 0
    most: int | None = None
    asks: bool = False


def shapes(schema: Any, *, strict: bool) -> list[Shape]:
    """The alternatives, each with a schema for all that is required, and no property that may not come.

    strict: oneOf is not taken for anyOf. Raises Unheld.
    """
    found = [shape for each in _Root(schema, strict=strict).shapes(schema) if (shape := _settled(each)) is not None]
    if not found:
        raise Unheld("a contradiction")
    for shape in found:
        if shape.least > len(shape.required):
            raise Unheld("minProperties")
        if shape.most is not None and shape.most < len(shape.properties):
            raise Unheld("maxProperties")
    return found


def by_name(alternatives: Iterable[Shape]) -> dict[str, Any]:
    """What each argument may be, whichever of these it belongs to."""
    found: dict[str, list[Any]] = {}
    for shape in alternatives:
        for name, schema in shape.properties.items():
            if schema not in (known := found.setdefault(name, [])):
                known.append(schema)
    return {name: known[0] if len(known) == 1 else {"anyOf": known} for name, known in found.items()}


def arguments_of(schema: Any) -> tuple[dict[str, Any], Any]:
    """The same of a tool's schema, or what it says of properties where it cannot be held as a whole; and what arguments
    without a name there may be.
    """
    try:
        alternatives = shapes(schema, strict=False)
    except Unheld:
        root = referred(schema, schema)
        root = root if isinstance(root, dict) else {}
        properties = root.get("properties")
        return properties if isinstance(properties, dict) else {}, root.get("additionalProperties", True)
    return by_name(alternatives), {"anyOf": [shape.other for shape in alternatives]}


def alone(schema: Any, whole: Any) -> Any:
    """A part of a schema as a document of its own, with all in it that it refers to."""
    if not isinstance(schema, dict) or '"$ref"' not in json.dumps(schema):
        return schema
    definitions = {key: whole[key] for key in _DEFINITIONS if isinstance(whole.get(key), dict)}
    if not _refers_elsewhere([schema, definitions]):
        return {**definitions, **schema}
    name = "whole"
    while name in definitions.get("$defs", {}):
        name += "_"
    root = f"#/$defs/{name}"
    rest = {key: value for key, value in whole.items() if key not in definitions}
    inner = definitions.get("$defs", {}) | {name: rest}
    return _moved({**definitions, **schema, "$defs": inner}, root)


class _Root:
    """A tool's schema. Invariant: each of its references is followed once, however often it is made, and no more steps
    are taken than max_steps says.
    """

    def __init__(self, whole: Any, *, strict: bool) -> None:
        self._whole, self._strict = whole, strict
        self._followed: dict[str, list[Shape] | None] = {}  # None: on the way
        self._steps_left = max_steps(whole)
        self._spelt: dict[int, tuple[Any, str]] = {}  # by identity, with what it is of so that no other takes it

    def shapes(self, schema: Any, depth: int = 0) -> list[Shape]:
        if isinstance(schema, bool):
            return [Shape({})] if schema else []
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            raise Unheld("a schema that is none" if depth <= MAX_DEPTH else "a schema so deep")
        if not _may_be_object(schema):
            return []
        own = _own(schema)
        self._spend(own)
        parts = [[own]]
        if "$ref" in schema:
            parts.append(self._follow(schema["$ref"], depth))
        for key in ("allOf", "anyOf", "oneOf"):
            if key in schema:
                alternatives = [self.shapes(each, depth + 1) for each in self._list(key, schema[key])]
                parts += alternatives if key == "allOf" else [[shape for each in alternatives for shape in each]]
        if math.prod(map(len, parts)) > MAX_SHAPES:
            raise Unheld("anyOf")
        other = schema.get("unevaluatedProperties", True)
        asks = "unevaluatedProperties" in schema
        return [
            dataclasses.replace(shape, other=self._both(shape.other, other), asks=shape.asks or asks)
            for shape in (reduce(self._joined, chosen) for chosen in product(*parts))
        ]

    def _follow(self, reference: Any, depth: int) -> list[Shape]:
        if not isinstance(reference, str) or (target := referred({"$ref": reference}, self._whole)) is None:
            raise Unheld("$ref")
        if reference not in self._followed:
            if target == {"$ref": reference}:  # to nothing that is there
                raise Unheld("$ref")
            self._followed[reference] = None
            self._followed[reference] = self.shapes(target, depth + 1)
        found = self._followed[reference]
        if found is None:  # to itself
            raise Unheld("$ref")
        return found

    def _joined(self, one: Shape, two: Shape) -> Shape:
        """What is of both."""
        self._spend(one, two)
        properties = {**one.properties, **two.properties}
        only_common = _is_any(one.other) and _is_any(two.other)
        changed = one.properties.keys() & two.properties.keys() if only_common else tuple(properties)
        self._take(len(changed))
        for name in changed:
            properties[name] = self._both(one.properties.get(name, one.other), two.properties.get(name, two.other))
        most = min((most for most in (one.most, two.most) if most is not None), default=None)
        required, other = one.required | two.required, self._both(one.other, two.other)
        return Shape(properties, required, other, max(one.least, two.least), most, one.asks or two.asks)

    def _both(self, one: Any, two: Any) -> Any:
        if one is False or two is False:
            return False
        if _is_any(one) or one is two:
            return two
        if _is_any(two):
            return one
        parts = _parts(one) + _parts(two)
        self._take(len(parts))
        parts = list({self._text_of(part): part for part in parts}.values())
        return {"allOf": parts} if len(parts) > 1 else parts[0]

    def _text_of(self, schema: Any) -> str:
        if id(schema) not in self._spelt:
            text = json.dumps(schema, sort_keys=True)
            self._spelt[id(schema)] = schema, text
            self._take(len(text) // 256)
        return self._spelt[id(schema)][1]

    def _spend(self, *looked_at: Shape) -> None:
        """Whole shapes, which are looked at and copied faster than one by one."""
        self._take(1 + sum(len(shape.properties) + len(shape.required) for shape in looked_at) // 8)

    def _take(self, num_steps: int) -> None:
        self._steps_left -= num_steps
        if self._steps_left < 0:
            raise Unheld(TOO_MUCH)

    def _list(self, key: str, alternatives: Any) -> list[Any]:
        if not isinstance(alternatives, list) or not 1 <= len(alternatives) <= MAX_SHAPES:
            raise Unheld(key)
        if key == "oneOf" and self._strict:
            raise Unheld(key)
        return alternatives


def _may_be_object(schema: dict[str, Any]) -> bool:
    """Raises Unheld for what a list of properties cannot say."""
    for key in sorted(schema.keys() & (_OF_NAMES | _OF_OBJECTS)):
        if key in _OF_OBJECTS or schema[key] not in ({}, True):
            raise Unheld(key)
    types = schema.get("type", "object")
    if not isinstance(types, str | list):
        raise Unheld("type")
    return "object" in ([types] if isinstance(types, str) else types)


def _own(schema: dict[str, Any]) -> Shape:
    """What a schema says itself."""
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, dict) or not all(isinstance(each, dict | bool) for each in properties.values()):
        raise Unheld("properties")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise Unheld("required")
    limits = {key: schema.get(key) for key in ("minProperties", "maxProperties")}
    for key, limit in limits.items():
        if not isinstance(limit, int | None):
            raise Unheld(key)
    least, most = limits.values()
    other, asks = schema.get("additionalProperties", True), "additionalProperties" in schema
    return Shape(properties, frozenset(required), other, least or 0, most, asks)


def _is_any(schema: Any) -> bool:
    return schema in (True, {})


def _parts(schema: Any) -> list[Any]:
    """What must all hold, if it says nothing else."""
    is_list = isinstance(schema, dict) and schema.keys() == {"allOf"} and isinstance(schema["allOf"], list)
    return schema["allOf"] if is_list and schema["allOf"] else [schema]


def _settled(shape: Shape) -> Shape | None:
    """With what is required among the properties and what may not come left out; None: there is no such object."""
    required = sorted(shape.required - shape.properties.keys())
    if required and not isinstance(shape.other, dict | bool):
        raise Unheld("additionalProperties")
    properties = shape.properties | dict.fromkeys(required, {} if shape.other is True else shape.other)
    if any(properties[name] is False for name in shape.required):
        return None
    return dataclasses.replace(shape, properties={k: v for k, v in properties.items() if v is not False})


def _is_elsewhere(reference: Any) -> bool:
    """Whether it is to the document, but to none of its definitions."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return False
    return not reference.startswith(tuple(f"#/{key}/" for key in _DEFINITIONS))


def _refers_elsewhere(node: Any) -> bool:
    left = [node]
    while left:  # not a function of itself: a schema may be as deep as a body may
        each = left.pop()
        if isinstance(each, dict):
            if _is_elsewhere(each.get("$ref")):
                return True
            left += each.values()
        elif isinstance(each, list):
            left += each
    return False


def _moved(node: Any, root: str) -> Any:
    """With the references to the document's root, which is now at `root`, as they must be."""
    if isinstance(node, dict):
        moved = {key: _moved(value, root) for key, value in node.items()}
        return moved | {"$ref": root + node["$ref"][1:]} if _is_elsewhere(node.get("$ref")) else moved
    return [_moved(each, root) for each in node] if isinstance(node, list) else node
