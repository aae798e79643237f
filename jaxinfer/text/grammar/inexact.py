"""Inexact numbers: those of a schema for which llguidance has others, so that an answer would not be of the schema.

It has each number as a double, and an integer as one of 64 bits, the next to it where it is beyond them.
"""

import math
import sys
from collections.abc import Iterator
from typing import Any

from jaxinfer.text.grammar.bounds import BOUNDS, EXACT, MOST_OF_64, fault_of_bounds, is_number
from jaxinfer.text.grammar.doubles import spelling, spelling_of_integer
from jaxinfer.text.grammar.parts import below_of, parts


def inexact(schema: Any) -> str | None:
    """Where a schema has such a number, and what to do; None: nowhere."""
    if not isinstance(schema, dict | list):
        return None
    found = list(parts(schema))
    asks_integers = any("integer" in _types(part) for part, _ in found)
    for part, place in found:
        for name in part.keys() & {"const", "enum", "multipleOf", *BOUNDS}:
            for number in _numbers(part[name]):
                if isinstance(number, float) and spelling(number) is None:
                    law = f"a number of {name} must be a double that the grammar's library reads as itself"
                    return f"{law}, and {_shown(place, name)} has {_short(number)}; use fewer digits"
        for name in part.keys() & {"const", "enum"}:
            for number in _numbers(part[name]):
                if why := _fault_of_value(number, asks_integers):
                    return f"{why}, and {_shown(place, name)} has {_short(number)}; use a string of its digits"
        for name in part.keys() & BOUNDS:
            if is_number(part[name]) and not _holds(name, part[name]):
                law = f"within {name} there must be a number less than 2**63 away from 0 that a double holds"
                cure = "bring it nearer to 0, or farther from the bound beside it"
                return f"{law}, and {_shown(place, name)} is {_short(part[name])}; {cure}"
        if why := fault_of_bounds(part):
            return f"{why}, and there is none at {ascii(place)}; bring them farther apart, or away from 0"
    return None


def _types(part: dict[str, Any]) -> list[Any]:
    kind = part.get("type")
    return kind if isinstance(kind, list) else [kind]


def _numbers(value: Any) -> Iterator[int | float]:
    unread = [value]
    while unread:
        value = unread.pop()
        if is_number(value):
            yield value
        elif isinstance(value, dict | list):
            unread.extend(value.values() if isinstance(value, dict) else value)


def _fault_of_value(number: int | float, asks_integers: bool) -> str:
    """Why an answer cannot be this number; "" if it can.

    asks_integers: some part of the schema does. Which parts hold for one value is not looked for.
    """
    if abs(number) <= EXACT or number % 1:
        return ""
    if number == -MOST_OF_64 - 1 or (asks_integers and abs(number) > MOST_OF_64):
        return "an integer of const or enum must be less than 2**63 away from 0"
    is_exact = abs(number) <= sys.float_info.max and float(number) == number
    if is_exact and (abs(number) <= MOST_OF_64 or isinstance(number, float) or spelling_of_integer(number) is not None):
        return ""
    return "an integer of const or enum must be one that a double holds in as many digits"


def _holds(name: str, bound: int | float) -> bool:
    """Whether llguidance's integer in the place of a bound is within the bound."""
    if abs(bound) > sys.float_info.max:
        return False
    number, is_open = float(bound), name.startswith("exclusive")
    if name in ("minimum", "exclusiveMinimum"):
        least = min(math.floor(number) + 1.0 if is_open else math.ceil(number), MOST_OF_64)
        return least > -MOST_OF_64 - 1 and (least > bound if is_open else least >= bound)
    most = min(math.ceil(number) - 1.0 if is_open else math.floor(number), MOST_OF_64)
    return most > -MOST_OF_64 - 1 and (most < bound if is_open else most <= bound)


def _shown(place: str, name: str) -> str:
    return ascii(below_of(place, name))


def _short(number: int | float) -> str:
    return str(number)[:40]
