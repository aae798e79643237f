"""What a schema says of a value's type, and what it refers to. A stranger's: anything may stand in it."""

import json
from collections.abc import Iterator
from typing import Any

MAX_REFERENCES = 16  # of one to the next that are followed
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
MAX_PATH_STEPS = 256  # of a reference: a document is not as deep
MAX_NESTED = 4  # references whose targets are looked at by themselves, each for the one before it
LEAST_STEPS = 1024


def max_steps(schema: Any) -> int:
    """How much of a tool's schema is looked at each time, and how much of it joined: with references it says much more
    than it holds. By its size, so that many small ones may not take more than a large one.
    """
    return LEAST_STEPS + len(json.dumps(schema)) // 2


class Values:
    """What a tool's schema says of single values. Invariant: what many of them refer to is looked at once, until it
    is_too_much: more than max_steps has been looked at.
    """

    def __init__(self, whole: Any) -> None:
        self._steps_left = max_steps(whole)
        self._whole = whole
        self._under_way: set[int] = set()
        # by the identity of what is referred to, which is kept so that no other takes it
        self._known: dict[int, tuple[Any, frozenset[str], frozenset[str]]] = {}
        self._lists: dict[int, tuple[Any, list[Any] | None]] = {}  # likewise, of alternatives

    @property
    def is_too_much(self) -> bool:
        return self._steps_left < 0

    def types(self, schema: Any) -> frozenset[str]:
        """That it names, itself, in its alternatives or where it refers to; none where it names none."""
        return self._said(schema)[1]

    def keywords(self, schema: Any) -> frozenset[str]:
        """That it has there."""
        return self._said(schema)[2]

    def options(self, schema: Any) -> list[Any] | None:
        """The values of which one must be, where a schema lists them: itself, in the only part of its allOf, in what it
        refers to, or in each of its alternatives. None: it does not, or it is_too_much.
        """
        for _ in range(MAX_REFERENCES):
            schema = referred(schema, self._whole)
            if (listed := _listed(schema)) is not None or not isinstance(schema, dict):
                return listed
            match schema.get("allOf"):
                case [only]:
                    schema = only
                case _:
                    break
        for key in ("anyOf", "oneOf"):
            if isinstance(parts := schema.get(key), list) and parts:
                if id(parts) not in self._lists:
                    self._lists[id(parts)] = parts, self._listed_by_all(parts, key)
                return self._lists[id(parts)][1]
        return None

    def _listed_by_all(self, parts: list[Any], key: str) -> list[Any] | None:
        found: list[Any] = []
        for part in parts:
            listed = _listed(referred(part, self._whole))
            self._steps_left -= 3 + len(listed or ())
            if listed is None or self.is_too_much:
                return None
            found += listed
        once = {json.dumps(option, sort_keys=True): option for option in found}
        return None if key == "oneOf" and len(once) < len(found) else list(once.values())

    def _said(self, schema: Any, depth: int = 0) -> tuple[Any, frozenset[str], frozenset[str]]:
        target = referred(schema, self._whole)
        if id(target) in self._known:
            return self._known[id(target)]
        types: set[str] = set()
        keywords: set[str] = set()
        seen: set[int] = set()
        self._under_way.add(id(target))
        left = [target]
        while left:
            each = left.pop()
            self._steps_left -= 1
            if isinstance(each, dict) and "$ref" in each:
                each = referred(each, self._whole)
                self._steps_left -= 3  # it takes as long as those
                if depth < MAX_NESTED and not self.is_too_much and id(each) not in self._under_way:
                    said = self._said(each, depth + 1)
                    types |= said[1]
                    keywords |= said[2]
                    continue
            if not isinstance(each, dict) or id(each) in seen:
                continue
            seen.add(id(each))
            types.update(_types_in(each))
            keywords.update(each)
            self._steps_left -= len(each["enum"]) if isinstance(each.get("enum"), list) else 0
            left += _alternatives(each)
        self._under_way.remove(id(target))
        self._known[id(target)] = target, frozenset(types), frozenset(keywords)
        return self._known[id(target)]


def _listed(schema: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    return options if isinstance(options, list) else None


def _types_in(part: dict[str, Any]) -> Iterator[str]:
    named = part.get("type")
    yield from (kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str))
    if isinstance(values := part.get("enum"), list):
        yield from map(type_of, values)
    if "const" in part:
        yield type_of(part["const"])


def _alternatives(part: dict[str, Any]) -> list[Any]:
    return [each for key in _ALTERNATIVES if isinstance(listed := part.get(key), list) for each in listed]


def referred(schema: Any, whole: Any) -> Any:
    """What a schema refers to within the one that it is a part of, else itself."""
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            break
        found = whole
        for step in reference[2:].split("/", MAX_PATH_STEPS) if len(reference) > 1 else ():
            found = _step(found, step.replace("~1", "/").replace("~0", "~"))
            if found is None:
                break
        if found is None:
            break
        schema = found
    return schema


def _step(found: Any, name: str) -> Any:
    if isinstance(found, list):
        return found[int(name)] if name.isdecimal() and len(name) < 7 and int(name) < len(found) else None
    return found.get(name) if isinstance(found, dict) else None


def type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
