"""Flat objects: one whose count of properties stands apart from their names, in allOf or behind a $ref, in one part.

llguidance counts names only where all of them and the count are in one part.
"""

import re
from collections.abc import Iterator
from typing import Any

from jaxinfer.text.grammar.parts import placeless, referred, without_unused

_COUNTS = {"minProperties": max, "maxProperties": min}
_SAYS_NOTHING = {"title", "description", "$comment", "default", "examples"}
_OF_OBJECTS = {"properties", "required", "additionalProperties", *_COUNTS}
_JOINED = {"allOf", "$ref", "type", *_OF_OBJECTS}
_OF_DEFINITION = re.compile(r"#(/(\$defs|definitions)/[^/]+)?")
_MOST = 64  # parts that are joined
_MAX_WRITTEN = 1 << 18  # characters and names of a schema in which a definition may be written several times
_MAX_DEPTH = 200


def with_flat_counts(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with each such object in one part; what cannot be said in one part stays as it is."""
    joined = [part for part in placeless(schema) if "allOf" in part or ("$ref" in part and _OF_OBJECTS & part.keys())]
    refs = [str(part["$ref"]) for part in placeless(schema) if "$ref" in part]
    if not joined or not all(map(_OF_DEFINITION.fullmatch, refs)):  # a place within a part may be written anew
        return schema
    flats = {id(part): flat for part in joined if (flat := _flat(part, schema)) is not None}
    written = _written(schema, flats) if flats else None
    # Of what nothing refers to any more, a count would be told.
    return schema if written is None else without_unused(written, _MAX_WRITTEN)


def _written(schema: dict[str, Any], flats: dict[int, dict[str, Any]]) -> dict[str, Any] | None:
    """The schema with these parts, by the id of what they replace; None where it gets too large, or has no end."""
    left = _MAX_WRITTEN

    def copied(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1 + len(value) if isinstance(value, str | dict | list) else 1
        if left < 0 or depth > _MAX_DEPTH:
            raise OverflowError
        if isinstance(value, dict):
            flat = flats.get(id(value))
            if flat is not None:
                rest = {name: below for name, below in value.items() if name not in _JOINED}
                value = rest | flat
            return {name: copied(below, depth + 1) for name, below in value.items()}
        return [copied(below, depth + 1) for below in value] if isinstance(value, list) else value

    try:
        return copied(schema, 0)  # type: ignore[no-any-return]
    except OverflowError:
        return None


def _flat(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any] | None:
    """What a part and all that are joined with it say of objects; None where that is none, or cannot be said."""
    members = list(_members(part, schema))
    if None in members or not any(_COUNTS.keys() & member.keys() for member in members if member is not None):
        return None
    says = [member for member in members if member and _OF_OBJECTS & member.keys()]
    if len(says) < 2 or not all(map(_is_plain, says)):
        return None
    flat: dict[str, Any] = {"type": "object"} if any("type" in member for member in members if member) else {}
    if any("properties" in member for member in says):
        flat["properties"] = _properties(says)
    others = [member for member in says if "additionalProperties" in member]
    if others and not _may_close(others, says, flat):
        return None
    if needed := dict.fromkeys(name for member in says for name in member.get("required", [])):
        flat["required"] = [*needed]
    for name, choose in _COUNTS.items():
        if counts := [member[name] for member in says if name in member]:
            flat[name] = choose(counts)
    return flat


def _members(part: Any, schema: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """A part, what its $ref names and the parts of its allOf, all of them in turn; None for what is not understood."""
    unread, num_read, first = [part], 0, part
    while unread:
        part = unread.pop(0)
        num_read += 1
        if part is True:
            continue
        if (
            num_read > _MOST
            or not isinstance(part, dict)
            or (part is not first and part.keys() - _JOINED - _SAYS_NOTHING)
        ):
            yield None
            return
        yield part if part.get("type", "object") == "object" and "patternProperties" not in part else None
        if (ref := part.get("$ref")) is not None:
            found = referred(ref, schema) if isinstance(ref, str) else None
            unread.append(found[1] if found else None)
        if (all_of := part.get("allOf")) is not None:
            unread += all_of if isinstance(all_of, list) else [None]


def _is_plain(member: dict[str, Any]) -> bool:
    named, needed = member.get("properties", {}), member.get("required", [])
    counts = [member[name] for name in _COUNTS.keys() & member.keys()]
    return (
        isinstance(named, dict)
        and isinstance(needed, list)
        and all(isinstance(name, str) for name in needed)
        and all(isinstance(count, int | float) and not isinstance(count, bool) for count in counts)
    )


def _properties(says: list[dict[str, Any]]) -> dict[str, Any]:
    """By name; where several have one, all hold."""
    found: dict[str, list[Any]] = {}
    for member in says:
        for name, below in member.get("properties", {}).items():
            found.setdefault(name, []).append(below)
    return {name: all_of[0] if len(all_of) == 1 else {"allOf": all_of} for name, all_of in found.items()}


def _may_close(others: list[dict[str, Any]], says: list[dict[str, Any]], flat: dict[str, Any]) -> bool:
    """Add additionalProperties to what is flat, if it can be said: each is of the names that its own part lacks."""
    if all(member["additionalProperties"] is False for member in others):
        common = set(flat.get("properties", {})).intersection(*(member.get("properties", {}) for member in others))
        flat["properties"] = {name: below for name, below in flat.get("properties", {}).items() if name in common}
        flat["additionalProperties"] = False
        return True
    (one, *more) = others
    if more or any(member.get("properties", {}).keys() - one.get("properties", {}).keys() for member in says):
        return False
    flat["additionalProperties"] = one["additionalProperties"]
    return True
