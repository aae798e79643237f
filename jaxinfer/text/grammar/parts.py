"""Parts of a JSON schema: each object in it whose keys are keywords."""

import copy
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_OF_NAMES = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}  # whose keys are names
_DEFINITIONS = {"$defs", "definitions"}
_VALUES = {"const", "enum", "default", "examples"}  # no schemas


def parts(schema: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Each part with its place, the whole first."""
    unread: list[tuple[Any, str, bool]] = [(schema, "#", False)]
    while unread:
        part, place, is_of_names = unread.pop()
        is_schema = isinstance(part, dict) and not is_of_names
        if is_schema:
            yield part, place
        for name, below in part.items() if isinstance(part, dict) else enumerate(part):
            if isinstance(below, dict | list) and not (is_schema and name in _VALUES):
                unread.append((below, below_of(place, name), is_schema and name in _OF_NAMES))


def placeless(schema: Any) -> Iterator[dict[str, Any]]:
    """The same parts in another order, in a third of the time."""
    unread = [schema]
    while unread:
        part = unread.pop()
        if isinstance(part, list):
            unread += part
        elif isinstance(part, dict):
            yield part
            for name, below in part.items():
                if isinstance(below, dict) and name in _OF_NAMES:
                    unread += below.values()
                elif isinstance(below, dict | list) and name not in _VALUES:
                    unread.append(below)


def below_of(place: str, name: str | int) -> str:
    """The place of what has this name or number at a place, or the end of it where it is long."""
    return f"{place}/{str(name)[:100]}"[-200:]


def referred(ref: str, whole: Any) -> tuple[tuple[str, ...], Any] | None:
    """The part of the same schema that a reference names, and by which names it is found."""
    first, *names = ref.split("/")
    if first != "#":
        return None
    names, part = [unquote(name).replace("~1", "/").replace("~0", "~") for name in names], whole
    for name in names:
        if isinstance(part, list) and name.isdecimal() and len(name) < 7 and int(name) < len(part):
            part = part[int(name)]
        elif isinstance(part, dict) and name in part:
            part = part[name]
        else:
            return None
    return ("#", *names), part


_MOST_PARTS = 1_000  # that are looked at: tools ask for each parameter


def without_unused(schema: dict[str, Any], most: int = _MOST_PARTS) -> dict[str, Any]:
    """The same schema with `true` in the place of each definition that nothing refers to, directly or not; as it is
    where that is not known, or takes a look at more than so many parts."""
    seen, is_on_the_way = set[int](), set[int]()
    held: list[Any] = []  # definitions of all parts that are used
    unread: list[Any] = [schema]
    while unread:
        part = unread.pop()
        if id(part) in seen or not isinstance(part, dict | list):
            continue
        seen.add(id(part))
        if len(seen) > most:
            return schema
        if isinstance(part, list):
            unread += part
            continue
        if "$dynamicRef" in part or "$recursiveRef" in part:
            return schema
        if isinstance(ref := part.get("$ref"), str):
            found = referred(ref, schema)
            if found is None:
                return schema
            way: Any = schema
            for name in found[0][1:]:
                way = way[int(name)] if isinstance(way, list) else way[name]
                is_on_the_way.add(id(way))
            unread.append(found[1])
        for name, below in part.items():
            if name in _DEFINITIONS and isinstance(below, dict):
                held += below.values()
            elif name in _OF_NAMES and isinstance(below, dict):
                unread += below.values()
            elif name not in _VALUES:
                unread.append(below)
    unused = {id(part) for part in held if isinstance(part, dict)} - seen - is_on_the_way
    return copy.deepcopy(schema, dict.fromkeys(unused, True)) if unused else schema
