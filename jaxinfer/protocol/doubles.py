"""JSON numbers that no double holds: other programs read them as infinity, as zero, as null, or not at all (RFC 8259,
section 6), so no request may hold one.
"""

import math
from collections.abc import Iterator
from typing import Any

from jaxinfer.protocol.validate import Verbatim, invalid

LAW = "a number that is finite as a double, up to 1.7e308, and 0 or at least 5e-324 in size"
_FINITE_DIGITS = 308  # an integer of so many digits never exceeds a double
_FINITE_BELOW = 2**1023
_SHOWN_CHARS = 60
_NAME_CHARS = 64


def parse_integer(digits: str) -> float:
    """What the digits say, or infinity; Python refuses to convert very many of them."""
    return int(digits) if len(digits) <= _FINITE_DIGITS or math.isfinite(float(digits)) else float(digits)


def parse_float(digits: str) -> float:
    """What the digits say; infinity also for what is so small that its double is 0."""
    number = float(digits)
    return number if number or not digits.lower().partition("e")[0].strip("-0.") else math.inf


def shown_number(digits: str) -> str:
    """As the client wrote it, short enough for an error message."""
    return digits if len(digits) <= _SHOWN_CHARS else f"a number of {len(digits)} characters"


def check_finite(tree: Any, at: str) -> None:
    """Raise InvalidRequest, which names its path, for the first such number in `tree`. at: the path of `tree`."""
    if (path := path_of_overflow(tree, at)) is not None:
        raise invalid(path, LAW, Verbatim("another"))


def path_of_overflow(tree: Any, at: str = "") -> str | None:
    """Where the first such number is, as in `messages[0].content`; None if there is none."""
    steps: list[str] = []  # that lead to the value whose children are looked at; it may be nested deeply
    levels = [_children(tree)]
    while levels:
        for step, child in levels[-1]:
            if isinstance(child, int | float) and not _is_finite(child):
                return (at + "".join([*steps, _shown(step)])).removeprefix(".")
            if isinstance(child, dict | list | tuple):
                steps.append(_shown(step))
                levels.append(_children(child))
                break
        else:
            levels.pop()
            del steps[-1:]
    return None


def _children(tree: Any) -> Iterator[tuple[Any, Any]]:
    """What an object or a list holds, each behind its name or position."""
    return iter(tree.items() if isinstance(tree, dict) else enumerate(tree if isinstance(tree, list | tuple) else ()))


def _is_finite(number: float) -> bool:
    if isinstance(number, int) and -_FINITE_BELOW < number < _FINITE_BELOW:
        return True
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer
        return False


def _shown(step: Any) -> str:
    """A name that is no identifier is quoted, and one that is long is cut."""
    if isinstance(step, int):
        return f"[{step}]"
    step = str(step)
    is_plain = step.isascii() and step.isidentifier() and len(step) <= _NAME_CHARS
    return f".{step}" if is_plain else f"[{ascii(step[:_NAME_CHARS])}]"
