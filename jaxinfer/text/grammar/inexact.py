"""Inexact integers: those of const and enum that no double holds. llguidance has doubles, and would write another."""

from collections.abc import Iterator
from typing import Any

_EXACT = 1 << 53  # up to it, each integer is a double
_OF_NAMES = {
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
}  # whose keys are no keywords
_NOTES = {"default", "examples"}


def inexact(schema: Any) -> str | None:
    """Where a schema asks for such an integer, and what to do; None: nowhere."""
    unread: list[tuple[Any, str, bool]] = [(schema, "#", False)]
    while unread:
        part, place, is_of_names = unread.pop()
        for name, below in part.items() if isinstance(part, dict) else enumerate(part):
            if not isinstance(below, dict | list | int) or (name in _NOTES and not is_of_names):
                continue
            at = f"{place}/{str(name)[:100]}"[-200:]
            if isinstance(part, dict) and name in ("const", "enum") and not is_of_names:
                if (number := next(filter(_is_inexact, _integers(below)), None)) is not None:
                    return (
                        f"an integer of const or enum must be one that a double holds, and {ascii(at)} has "
                        f"{str(number)[:40]}; use a string of its digits"
                    )
            elif not isinstance(below, int):
                unread.append((below, at, name in _OF_NAMES and not is_of_names))
    return None


def _integers(value: Any) -> Iterator[int]:
    unread = [value]
    while unread:
        value = unread.pop()
        if isinstance(value, int):
            yield value
        elif isinstance(value, dict | list):
            unread.extend(value.values() if isinstance(value, dict) else value)


def _is_inexact(number: int) -> bool:
    return abs(number) > _EXACT and float(number) != number
