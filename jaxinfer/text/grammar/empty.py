"""Empty parts: definitions that no value is of. llguidance passes over an empty alternative and an empty property where
it stands, and refuses the whole schema where it is referred to.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

from jaxinfer.text.grammar.bounds import is_number
from jaxinfer.text.grammar.parts import placeless, referred

_MAX_PARTS = 4096  # that are looked at
_MAX_PASSES = 3  # an empty definition may be so by another
_MAX_CHARS = 1 << 12  # of an empty definition, which is written where it is referred to
_TYPES: dict[str, Any] = {"string": str, "object": dict, "array": list, "boolean": bool, "null": type(None)}
_SIZES = (("string", "Length"), ("array", "Items"), ("object", "Properties"))


def with_empty_written(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its empty definitions where they are referred to; the same where there are none."""
    if not any(_empty_references(schema)):
        return schema
    schema = copy.deepcopy(schema)
    for _ in range(_MAX_PASSES):
        found = [(part, copy.deepcopy(target)) for part, target in _empty_references(schema)]
        for part, target in found:
            del part["$ref"]
            part["allOf"] = [*_list(part.get("allOf")), target]
    return schema


def _empty_references(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    known: dict[int, bool] = {}
    for part in placeless(schema):
        target = _target(part, schema)
        if target is not None and _is_empty(target, schema, known) and len(str(target)) < _MAX_CHARS:
            yield part, target


def _target(part: dict[str, Any], schema: dict[str, Any]) -> Any:
    ref = part.get("$ref")
    found = referred(ref, schema) if isinstance(ref, str) and ref != "#" else None
    return None if found is None else found[1]


def _is_empty(part: Any, schema: dict[str, Any], known: dict[int, bool]) -> bool:
    """Whether no value is of a part, as far as is looked at. known: of which parts that is; not of one on the way."""
    if not isinstance(part, dict) or len(known) > _MAX_PARTS:
        return part is False
    if id(part) not in known:
        known[id(part)] = False
        known[id(part)] = _says_nothing(part) or _joins_nothing(part, schema, known)
    return known[id(part)]


def _joins_nothing(part: dict[str, Any], schema: dict[str, Any], known: dict[int, bool]) -> bool:
    """By the parts of which it is."""
    if any(_is_empty(one, schema, known) for one in _list(part.get("allOf"))):
        return True
    for options in (_list(part.get("anyOf")), _list(part.get("oneOf"))):
        if options and all(_is_empty(one, schema, known) for one in options):
            return True
    return "$ref" in part and _is_empty(_target(part, schema), schema, known)


def _says_nothing(part: dict[str, Any]) -> bool:
    """By its own keywords."""
    values = [part["const"]] if "const" in part else part.get("enum")
    if isinstance(values, list):
        return not any(_may_be(value, part) for value in values)
    kind = part.get("type")
    if kind in ("integer", "number"):
        return _least(part) > _most(part)
    sizes = (what for name, what in _SIZES if name == kind)
    return any(_count(part, f"min{what}", 0) > _count(part, f"max{what}", math.inf) for what in sizes)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _may_be(value: Any, part: dict[str, Any]) -> bool:
    """Whether a value is of a part's type, bounds and lengths."""
    kinds = part.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(kinds, list) and not any(_is_of(value, kind) for kind in kinds):
        return False
    if is_number(value):
        return _least(part) <= value <= _most(part)
    if isinstance(value, str):
        return _count(part, "minLength", 0) <= len(value) <= _count(part, "maxLength", math.inf)
    return True


def _is_of(value: Any, kind: Any) -> bool:
    if kind in ("number", "integer"):
        return is_number(value) and (kind == "number" or value == int(value))
    return not isinstance(kind, str) or kind not in _TYPES or isinstance(value, _TYPES[kind])


def _least(part: dict[str, Any]) -> int | float:
    return _count(part, "minimum", -math.inf)


def _most(part: dict[str, Any]) -> int | float:
    return _count(part, "maximum", math.inf)


def _count(part: dict[str, Any], name: str, default: float) -> int | float:
    found = part.get(name, default)
    return found if is_number(found) else default
