"""Circles: parts of a schema with a $ref, an alternative or a part of an allOf that leads back to them, and more that
holds beside it. llguidance joins what stands beside a reference with what it names, which has no end there.
"""

import json
from collections.abc import Iterator
from typing import Any

from jaxinfer.text.grammar.parts import parts, placeless, referred
from jaxinfer.text.grammar.schemas import lets, placed_schemas
from jaxinfer.text.grammar.source import note, spelt_for_guidance

_SAYS_NOTHING = {"title", "description", "$comment", "$schema", "$id", "default", "examples", "deprecated"}
_OTHERS = {"$defs", "definitions", "x-guidance"}
_LEADS = ("$ref", "anyOf", "oneOf", "allOf")


def without_circles(text: str) -> str:
    """A grammar's text whose schemas that are not strict have nothing beside such references; "" where none had."""
    opened, end = "", 0
    for schema, start, after in placed_schemas(text):
        if lets(schema) and _open(schema):
            written = spelt_for_guidance(json.dumps(schema, ensure_ascii=False))
            opened, end = opened + text[end:start] + written, after
    return opened + text[end:] if end else ""


def _open(schema: dict[str, Any]) -> bool:
    """Leave out what stands beside, and note it; whether there was anything that can be."""
    found = [*_circles(schema)]
    for part, _, key, kept in found:
        for name in part.keys() - _SAYS_NOTHING - _OTHERS - {key}:
            del part[name]
        part[key] = [kept] if key == "allOf" else kept
        note(part, ["what stands beside a $ref that leads back to itself is left out"], strict=False)
    refs = [part["$ref"] for part in placeless(schema) if isinstance(part.get("$ref"), str)]
    return bool(found) and all(referred(ref, schema) for ref in refs)


def place_of_circle(schema: Any) -> str:
    """The first; "" where none is found."""
    return next((place for _, place, *_ in _circles(schema)), "") if isinstance(schema, dict) else ""


def _circles(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, str, Any]]:
    """Each part with its place, and under which key what leads back to it."""
    for part, place in parts(schema):
        rest = part.keys() - _SAYS_NOTHING - _OTHERS - {*_LEADS}
        all_of = part.get("allOf")
        conditions = [(key, part[key]) for key in _LEADS[:3] if key in part]
        conditions += [("allOf", one) for one in all_of] if isinstance(all_of, list) else []
        if len(conditions) + bool(rest) > 1:
            found = next(((key, value) for key, value in conditions if _leads_to(part, key, value, schema)), None)
            if found is not None:
                yield part, place, *found


def _leads_to(part: dict[str, Any], key: str, value: Any, schema: dict[str, Any]) -> bool:
    unread: list[Any] = [{"$ref": value} if key == "$ref" else value]
    seen = set[int]()
    while unread:
        for below in placeless(unread.pop()):
            if below is part:
                return True
            found = referred(ref, schema) if isinstance(ref := below.get("$ref"), str) else None
            if found is not None and id(found[1]) not in seen:
                seen.add(id(found[1]))
                unread.append(found[1])
    return False
