"""Repeated names: a grammar cannot remember a name that the schema does not list, so that an object may have it twice.

Who reads the object has the last value alone. So of minProperties only the names of `required`, each of which comes
once, and one more are sure. A listed name comes twice only where a name beside it may be spelt with escapes; strict
schemas of the kind allow none, in their values neither, which the library cannot tell apart.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from jaxinfer.text.grammar.parts import below_of, parts, placeless, referred

COUNTED_AGAIN = "a repeated name counts again"
_CODED = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # which a text holds as \uXXXX alone
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # which have a spelling as \uXXXX
_MAY_BE_CODED = re.compile(r"[\x00-\x1f\x7f]|\\[xucpPv0]|\[[:^]")  # in an expression that has no other text
_LISTS = {"properties", "required", "patternProperties"}
LISTS = re.compile(f'"(?:{"|".join(sorted(_LISTS))})"')  # a schema without them needs no walk
_OF_TEXTS = {"pattern", "minLength", "maxLength", "format"}


def counted_again(schema: Any) -> Iterator[str]:
    """Where an object of a schema may have fewer names than minProperties says, and why."""
    facts = None
    for part, place in parts(schema) if isinstance(schema, dict) else ():
        least = part.get("minProperties")
        if not isinstance(least, int) or least < 2:
            continue
        facts = facts or _Facts(schema)
        known = facts.of(part)
        if None not in known and least > len(known) + 1:
            law = f"minProperties must be at most {len(known) + 1}, one more than the names in required"
            yield f"{law}, since {COUNTED_AGAIN}; it is {least} at {ascii(place)}"


class _Facts:
    """What is known of each object that a part of a schema takes: the names that it must have, and None where no name
    can come again. A part is held to with what stands beside it in an allOf, and with what refers to it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._below: dict[int, frozenset[str | None]] = {}
        self._of: dict[int, frozenset[str | None]] = {}
        users: dict[int, list[dict[str, Any]]] = {}
        unused = set[int]()  # parts that are of no value but through their users
        for part in placeless(schema):
            inside = [one for name in ("allOf", "anyOf", "oneOf") for one in _dicts(part.get(name))]
            unused.update(map(id, inside))
            unused.update(id(one) for name in ("$defs", "definitions") for one in _dicts(part.get(name)))
            for one in (*inside, *self._referred(part)):
                users.setdefault(id(one), []).append(part)
        self._users = {one: found for one, found in users.items() if one in unused}

    def of(self, part: dict[str, Any]) -> frozenset[str | None]:
        if id(part) not in self._of:
            self._of[id(part)] = frozenset()  # while it refers to itself
            above = [self.of(user) for user in self._users.get(id(part), ())]
            self._of[id(part)] = self._own(part) | (frozenset.intersection(*above) if above else frozenset())
        return self._of[id(part)]

    def _own(self, part: dict[str, Any]) -> frozenset[str | None]:
        """By what stands in it."""
        if id(part) not in self._below:
            self._below[id(part)] = frozenset()
            required = part.get("required")
            known = (name for name in required if isinstance(name, str)) if isinstance(required, list) else ()
            found = [frozenset[str | None](known), frozenset() if _may_repeat(part) else frozenset([None])]
            found += [self._own(one) for one in (*_dicts(part.get("allOf")), *self._referred(part))]
            self._below[id(part)] = frozenset[str | None]().union(*found)
        return self._below[id(part)]

    def _referred(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        ref = part.get("$ref")
        found = referred(ref, self._schema) if isinstance(ref, str) else None
        return [] if found is None else _dicts([found[1]])


def respelt(schema: Any) -> str:
    r"""What to do where a name that the schema lists, or of a pattern, may come again with an escape, as "\u0061" for
    "a"; "" where none may."""
    named = []
    for part in placeless(schema):
        if not _LISTS.isdisjoint(part):
            if part.get("additionalProperties") is not False:
                return "set additionalProperties to false in each object that lists names"
            named.append(part)
    has_patterns = any(part.get("patternProperties") for part in named)
    if has_patterns and any(_CONTROL.search(name) for part in named for name in _listed(part)):
        return "leave patternProperties out"
    return ""


def uncoded(schema: dict[str, Any], is_empty: Callable[[dict[str, Any]], bool]) -> str:
    r"""Where a schema whose texts may hold no \uXXXX has one that must, and what to do; "": nowhere.

    is_empty: whether no text is of a schema.
    """
    for part, place in parts(schema):
        for name in part.keys() & {"const", "enum"}:
            if (found := next(filter(None, map(_CODED.search, _texts(part[name]))), None)) is not None:
                return _why(f"{ascii(below_of(place, name))} has U+{ord(found[0]):04X}", schema)
        patterned = [("pattern", part)] if isinstance(part.get("pattern"), str) else []
        patterned += [("patternProperties", {"pattern": name}) for name in _dict(part.get("patternProperties"))]
        for name, one in patterned:
            alone = {"type": "string"} | {name: one[name] for name in one.keys() & _OF_TEXTS}
            if _MAY_BE_CODED.search(one["pattern"]) and is_empty(alone):
                return _why(f"{ascii(below_of(place, name))} has no other text", schema)
    return ""


def _why(fact: str, schema: dict[str, Any]) -> str:
    law = r"no text may need \uXXXX, by which a listed name could come again"
    return f"{law}, and {fact}; {respelt(schema)}, or set strict to false"


def _texts(value: Any) -> Iterator[str]:
    """In a value; names are no matter, which are written as they are."""
    unread = [value]
    while unread:
        value = unread.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            unread += value.values() if isinstance(value, dict) else value


def _listed(part: dict[str, Any]) -> Iterator[str]:
    yield from _dict(part.get("properties"))
    required = part.get("required")
    yield from (name for name in required if isinstance(name, str)) if isinstance(required, list) else ()


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    """Those of a list, or by name."""
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for one in found if isinstance(one, dict)]


def _may_repeat(part: dict[str, Any]) -> bool:
    kinds = part.get("type", "object")
    is_object = "object" in (kinds if isinstance(kinds, list) else [kinds])
    is_closed = part.get("additionalProperties") is False and not part.get("patternProperties")
    return is_object and not is_closed and not part.keys() & {"const", "enum"}
