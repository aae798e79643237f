"""Parts of a JSON schema: each object in it whose keys are keywords."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_OF_NAMES = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}  # whose keys are names
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
