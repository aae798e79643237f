"""Objects without undeclared names: what Ollama's clients expect of `format`, where JSON Schema allows any name."""

from collections.abc import Iterator
from typing import Any

_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_OTHER_NAMES = ("additionalProperties", "unevaluatedProperties", "patternProperties")


def close_objects(schema: dict[str, Any]) -> None:
    """Set additionalProperties to false in each object that declares properties and says nothing of other names.

    The grammars of Ollama do so too. A schema that describes one object in several places stays as it is: each place
    would refuse the names of the others.
    """
    parts = list(_parts(schema))
    if any(_combines(part) for part in parts):
        return
    for part in parts:
        if isinstance(part.get("properties"), dict) and not any(name in part for name in _OTHER_NAMES):
            part["additionalProperties"] = False


def _combines(part: dict[str, Any]) -> bool:
    """Whether several schemas describe the value of this one."""
    several = [part[name] for name in ("$ref", "anyOf", "oneOf", "allOf", "if", "dependentSchemas") if name in part]
    all_of = part.get("allOf")
    return (
        ("properties" in part and bool(several)) or len(several) > 1 or (isinstance(all_of, list) and len(all_of) > 1)
    )


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema and all schemas within it. Without recursion: a client decides how deep they are."""
    left: list[Any] = [schema]
    while left:
        part = left.pop()
        if not isinstance(part, dict):
            continue
        yield part
        left += [part.get(name) for name in _SINGLE]
        for name in _LISTS:
            left += part[name] if isinstance(part.get(name), list) else []
        for name in _MAPS:
            left += part[name].values() if isinstance(part.get(name), dict) else []
