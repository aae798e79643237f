"""Counts apart from names: minProperties and maxProperties that hold for an object whose names another part lists.

llguidance joins parts of one value (allOf, anyOf, oneOf, $ref) before it counts, and counts names only where all of
them are required. Otherwise it asks for names that are not listed, so that no object of those listed can be written.
"""

from collections.abc import Iterator
from typing import Any

from jaxinfer.text.grammar.counts import left_out
from jaxinfer.text.grammar.parts import placeless, referred

_COUNTS = ("minProperties", "maxProperties")
_CHOICES = ("anyOf", "oneOf")
_MOST = 20_000  # parts that are looked at, of all counts together; a count that is not looked at is left out


def leave_out_counts(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Take those counts out of a schema that is not strict; each part that had one, with what it does not say."""
    counted = [part for part in placeless(schema) if any(name in part for name in _COUNTS)]
    if not counted or not any("properties" in part or "patternProperties" in part for part in placeless(schema)):
        return
    joins = _Joins(schema)
    for part in [part for part in counted if joins.names_apart(part)]:
        yield part, left_out(part, _COUNTS, "names of properties stand in another part")


class _Joins:
    """Which parts of a schema are of one value. Invariant: no more than _MOST parts are looked at."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema, self._left = schema, _MOST
        self._above: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for part in placeless(schema):
            for below, key in self._below(part):
                self._above.setdefault(id(below), []).append((part, key))

    def names_apart(self, part: dict[str, Any]) -> bool:
        """Whether other parts of the same value list names that need not come."""
        names, needed, is_apart = set[str](), set[str](), False
        for other, is_sure in self._of_one_value(part):
            self._left -= 1
            named, required = other.get("properties"), other.get("required")
            names.update(named if isinstance(named, dict) else ())
            needed.update(filter(_is_text, required) if is_sure and isinstance(required, list) else ())
            is_apart = is_apart or (other is not part and bool(named or other.get("patternProperties")))
            if self._left < 0 or (other is not part and "$ref" in other and self._target(other) is None):
                return True
        return is_apart and not names <= needed

    def _of_one_value(self, part: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
        """Each with whether it holds wherever the part does: what is below it, and around it with what is below that,
        but for other choices of the same list."""
        seen = {id(part)}
        yield part, True
        yield from self._all_below(part, True, seen, "")
        unread = [(part, True)]
        while unread:
            inner, is_sure = unread.pop()
            above = self._above.get(id(inner), [])
            for outer, key in above:
                if id(outer) not in seen:
                    seen.add(id(outer))
                    holds = is_sure and len(above) == 1 and key != "$ref"
                    yield outer, holds
                    yield from self._all_below(outer, holds, seen, key if key in _CHOICES else "")
                    unread.append((outer, holds))

    def _all_below(
        self, part: dict[str, Any], is_sure: bool, seen: set[int], without: str
    ) -> Iterator[tuple[dict[str, Any], bool]]:
        unread = [(below, is_sure and key not in _CHOICES) for below, key in self._below(part) if key != without]
        while unread:
            part, is_sure = unread.pop()
            if id(part) not in seen:
                seen.add(id(part))
                yield part, is_sure
                unread += [(below, is_sure and key not in _CHOICES) for below, key in self._below(part)]

    def _below(self, part: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
        for key in ("allOf", *_CHOICES):
            members = part.get(key)
            yield from ((one, key) for one in members if isinstance(one, dict)) if isinstance(members, list) else ()
        if "$ref" in part and (target := self._target(part)) is not None:
            yield target, "$ref"

    def _target(self, part: dict[str, Any]) -> dict[str, Any] | None:
        ref = part["$ref"]
        found = referred(ref, self._schema) if isinstance(ref, str) else None
        return found[1] if found is not None and isinstance(found[1], dict) else None


def _is_text(name: Any) -> bool:
    return isinstance(name, str)
