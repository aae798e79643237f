"""JSON that every door takes back: a model may write a value that no answer of ours can carry, or no client send again.

Numbers are finite as doubles, and not so small that a double has only 0 for them. Strings have no lone surrogates.
"""

import json
import math
from collections.abc import Callable
from typing import Any, NoReturn

MAX_DEPTH = 56  # of objects and lists: a body's 64, less where a call's arguments stand in one
_FINITE_DIGITS = 308  # an integer of so many digits never exceeds a double


def is_double(digits: str) -> bool:
    """Whether a double stands for the number that JSON spells so."""
    number = float(digits)
    return math.isfinite(number) and (number != 0 or not digits.lower().partition("e")[0].strip("-0."))


def loaded(text: str, make: Callable[[list[tuple[str, Any]]], Any] = dict) -> Any:
    """Raises ValueError, and RecursionError for what is too deep. make: of an object's entries, innermost first."""
    value = json.loads(text, object_pairs_hook=make, parse_constant=_refuse, parse_int=_integer, parse_float=_float)
    _check_depth(value)
    return value


def entries_of(text: str) -> list[tuple[str, Any]]:
    """An object's names and values, each as often as it stands there. Raises the same."""
    entries: list[tuple[str, Any]] = []

    def made(found: list[tuple[str, Any]]) -> dict[str, Any]:
        entries[:] = found
        return dict(found)

    if not isinstance(loaded(text, made), dict):
        raise ValueError("no object")
    return entries


def dumped(value: Any) -> str:
    """Raises ValueError for 1e999, which was read as infinity, and for a lone surrogate, which UTF-8 has not."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant[:20]}")


def _integer(digits: str) -> int:
    if len(digits) > _FINITE_DIGITS and not is_double(digits):
        _refuse("integer so large")
    return int(digits)


def _float(digits: str) -> float:
    return float(digits) if is_double(digits) else _refuse(digits)


def _check_depth(value: Any) -> None:
    """Level by level."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise RecursionError(f"more than {MAX_DEPTH} objects and lists in each other")
