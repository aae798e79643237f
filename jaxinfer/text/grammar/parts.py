"""Parts of a JSON schema: each object in it whose keys are keywords."""

from collections.abc import Iterator
from typing import Any

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


def below_of(place: str, name: str | int) -> str:
    """The place of what has this name or number at a place, or the end of it where it is long."""
    return f"{place}/{str(name)[:100]}"[-200:]
