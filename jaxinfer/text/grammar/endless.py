"""Endless schemas: those of which no value is whole, since a part of it asks for another value of its own kind.

Each part has a value if all its groups have: a required property is a group by itself, the parts of an anyOf are one
of which one is enough. What has a value is found from the parts that ask for nothing; what is left has none.
"""

import copy
import graphlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jaxinfer.text.grammar.parts import placeless, referred

_REF = re.compile(r'"\$ref": "([^"\\]*)"')

type _Named = tuple[tuple[str, ...], Any]  # a part, and by which names it is found


class _Group(NamedTuple):
    """So many of these parts must have a value. Their names go on from who asks for them, or begin anew with #."""

    least: int
    parts: list[_Named]


def endless(schema: Any) -> str | None:
    """Why no value can be of a schema; None: nothing of the kind is known."""
    groups, without, left = _found(schema, [schema])
    return _why(schema, groups, without, left) if id(schema) in without else None


def may_recur(schema: Any, written: str) -> bool:
    """Whether references of a schema may lead back to themselves. Reads less than `without_endless` does.
    written: the schema as JSON.
    """
    refs = _REF.findall(written)
    if len(refs) < written.count('"$ref"'):
        return True
    beneath, left = dict[str, set[str]](), 4 * len(written)
    for ref in set(refs):
        if (found := referred(ref, schema)) is not None:
            text = json.dumps(found[1], ensure_ascii=False)
            left -= len(text)
            if left < 0:  # they lie within one another
                return True
            beneath[ref] = set(_REF.findall(text))
    try:
        graphlib.TopologicalSorter(beneath).prepare()
    except graphlib.CycleError:
        return True
    return False


def without_endless(schema: Any) -> Any:
    """The same schema with `false` in the place of each part that no value can be of, and as it is where it is such a
    part itself: an answer that entered one would go on for ever.
    """
    _, without, _ = _found(schema, placeless(schema))
    if id(schema) in without or not (cut := without - {id(False)}):
        return schema
    found = copy.deepcopy(schema, dict.fromkeys(cut, False))
    refs = (part["$ref"] for part in placeless(found) if isinstance(part.get("$ref"), str))
    return found if all(referred(ref, found) or not referred(ref, schema) for ref in refs) else schema


def _found(schema: Any, asked: Iterable[Any]) -> tuple[dict[int, list[_Group]], set[int], dict[int, list[int]]]:
    """The groups of these parts and of all that they ask for, the parts of which there is no value, and how many each
    of a part's groups still lacks.
    """
    groups, users = _read(schema, asked)
    open_groups = {part: len(found) for part, found in groups.items()}
    left = {part: [group.least for group in found] for part, found in groups.items()}
    met = [part for part, count in open_groups.items() if not count]
    while met:
        for user, number in users.get(met.pop(), ()):
            left[user][number] -= 1
            if left[user][number] == 0:
                open_groups[user] -= 1
                if open_groups[user] == 0:
                    met.append(user)
    return groups, {part for part, count in open_groups.items() if count}, left


def _read(schema: Any, asked: Iterable[Any]) -> tuple[dict[int, list[_Group]], dict[int, list[tuple[int, int]]]]:
    """The groups of each part, and the groups that ask for it. Parts are known by their ids."""
    groups: dict[int, list[_Group]] = {}
    users: dict[int, list[tuple[int, int]]] = {}
    unread = list(asked)
    while unread:
        part = unread.pop()
        if id(part) in groups:
            continue
        groups[id(part)] = list(_groups(part, schema))
        for number, group in enumerate(groups[id(part)]):
            for _, below in group.parts:
                users.setdefault(id(below), []).append((id(part), number))
                unread.append(below)
    return groups, users


def _why(schema: Any, groups: dict[int, list[_Group]], without: set[int], left: dict[int, list[int]]) -> str:
    """Follows parts without a value to one that was seen before, or that allows nothing."""
    part, place = schema, tuple[str, ...](["#"])
    seen: dict[int, tuple[str, ...]] = {}
    while id(part) not in seen:
        seen[id(part)] = place
        unmet = next(group for group, count in zip(groups[id(part)], left[id(part)], strict=True) if count > 0)
        below = next((found for found in unmet.parts if id(found[1]) in without), None)
        if below is None:
            return f"no value can be of it, since {_spelt(place)} in it allows none; allow one there"
        (names, part), place = below, (*place, *below[0])
        if names[:1] == ("#",):
            place = names
    fact = f"{_spelt(seen[id(part)])} in it asks for another value of itself without end"
    return f"no value can be of it, since {fact}; leave out what requires that"


def _spelt(place: tuple[str, ...]) -> str:
    return ascii("/".join(name.replace("~", "~0").replace("/", "~1") for name in place))[:100]


def _groups(part: Any, whole: Any) -> Iterator[_Group]:
    """What a part asks for, as far as it is known to: what is not understood asks for nothing."""
    if part is False:
        yield _Group(1, [])
    if not isinstance(part, dict):
        return
    if isinstance(ref := part.get("$ref"), str) and (found := referred(ref, whole)) is not None:
        yield _Group(1, [found])
    for name in ("anyOf", "oneOf"):
        if isinstance(options := part.get(name), list):
            yield _Group(1, [((name, str(i)), option) for i, option in enumerate(options)])
    if isinstance(all_of := part.get("allOf"), list):
        yield from (_Group(1, [(("allOf", str(i)), one)]) for i, one in enumerate(all_of))
    if part.get("type") in ("object", ["object"]):
        yield from _of_object(part)
    if part.get("type") in ("array", ["array"]):
        yield from _of_array(part)


def _of_object(part: dict[str, Any]) -> Iterator[_Group]:
    required, properties, others = part.get("required"), part.get("properties", {}), part.get("additionalProperties")
    patterns = part.get("patternProperties", {})
    if not isinstance(properties, dict) or not isinstance(patterns, dict):
        return
    rest: list[_Named] = [] if others is None else [(("additionalProperties",), others)]
    by_pattern: dict[str, _Named] = {key: (("patternProperties", key), one) for key, one in patterns.items()}
    for name in required if isinstance(required, list) else ():
        if not isinstance(name, str) or (matching := _matching(patterns, name)) is None:
            continue
        own: list[_Named] = [(("properties", name), properties[name])] if name in properties else []
        held_to = [*own, *(by_pattern[pattern] for pattern in matching)] or rest
        yield from (_Group(1, [one]) for one in held_to)
    least = part.get("minProperties")
    if rest and isinstance(least, int) and least > 0:
        least = min(least, len(properties) + 1)  # others as often as they are needed
        named: list[_Named] = [(("properties", name), one) for name, one in properties.items()]
        yield _Group(least, named + [*by_pattern.values(), *rest] * least)


def _matching(patterns: dict[str, Any], name: str) -> list[str] | None:
    """The patterns that a name matches; None where that is not known."""
    try:
        return [pattern for pattern in patterns if re.search(pattern, name)]
    except re.error:
        return None


def _of_array(part: dict[str, Any]) -> Iterator[_Group]:
    if "contains" in part and part.get("minContains", 1) != 0:
        yield _Group(1, [(("contains",), part["contains"])])
    least, items, first = part.get("minItems"), part.get("items"), part.get("prefixItems", [])
    if not isinstance(least, int) or not isinstance(first, list) or isinstance(items, list):
        return
    yield from (_Group(1, [(("prefixItems", str(i)), one)]) for i, one in enumerate(first[: max(0, least)]))
    if least > len(first) and items is not None:
        yield _Group(1, [(("items",), items)])
