"""What no request may hold: JSON numbers that no double holds, which other programs read as infinity, as zero, as null,
or not at all (RFC 8259, section 6), and of Python's values those that are no JSON.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.validate import Verbatim, invalid, is_unicode

LAW = "a number that is finite as a double, up to 1.7e308, and 0 or at least 5e-324 in size"
_CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FINITE_DIGITS = 308  # an integer of so many digits never exceeds a double
_FINITE_BELOW = 2**1023
_SHOWN_CHARS = 60
_NAME_CHARS = 64
_MAX_DEPTH = 10_000  # a list of Python's may hold itself; what is nested more deeply is refused where it is read
_PARENTS = (Mapping, Sequence)
_BYTES = (bytes, bytearray, memoryview)


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


def read_json(text: str, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> tuple[Any, list[str]]:
    """JSON, and what in it was read as a number that no double holds or as none, in order. hook: of json.loads, for the
    pairs of an object. Raises json.JSONDecodeError and RecursionError.
    """
    odd: list[str] = []
    value = json.loads(
        text,
        object_pairs_hook=hook,
        parse_constant=partial(_note, odd),
        parse_float=partial(_number, odd, parse_float),
        parse_int=partial(_number, odd, parse_integer),
    )
    return value, odd


def check_odd(tree: Any, odd: list[str], at: str = "") -> None:
    """Raise InvalidRequest, with its path, for the first number that read_json found odd. at: the path of the tree."""
    if odd:
        path = path_of_overflow(tree, at) or at
        message = f"{path} must be {LAW}, got {shown_number(odd[0])}"
        if odd[0] in _CONSTANTS:
            what = at or "the body"
            message = f"{what} must be JSON that can be read in one way: {path} is {odd[0]}, which is not a JSON number"
        raise InvalidRequest(message, param=path, code="invalid_json")


def _note(odd: list[str], name: str) -> float:
    odd.append(name)
    return _CONSTANTS[name]


def _number(odd: list[str], parse: Callable[[str], float], digits: str) -> float:
    number = parse(digits)
    if isinstance(number, float) and math.isinf(number):
        odd.append(digits)
    return number


def check_json(tree: Any, at: str) -> None:
    """Raise InvalidRequest, which names its path, for the first value in `tree` that a body over HTTP cannot hold.

    at: the path of `tree`.
    """
    if (found := _first(tree, at, _breaks_a_law)) is not None:
        path, value = found
        law, given = _fault(value) or ("", "")
        raise invalid(path, law, Verbatim(given))


def _breaks_a_law(value: Any) -> bool:
    # Most values are texts of ASCII: a tree of a hundred thousand of them is looked through in a tenth of a second.
    return not (type(value) is str and value.isascii()) and _fault(value) is not None


def path_of_overflow(tree: Any, at: str = "") -> str | None:
    """Where the first number is that no double holds, as in `messages[0].content`; None if there is none."""
    found = _first(tree, at, lambda value: isinstance(value, int | float) and not _is_finite(value))
    return None if found is None else found[0]


def _first(tree: Any, at: str, is_wrong: Callable[[Any], bool]) -> tuple[str, Any] | None:
    """The path of the first such value, and the value."""
    if is_wrong(tree):
        return at, tree
    steps: list[str] = []  # that lead to the value whose children are looked at; it may be nested deeply
    levels = [_children(tree)]
    while levels:
        for step, child in levels[-1]:
            if is_wrong(child):
                return (at + "".join([*steps, _shown(step)])).removeprefix("."), child
            if type(child) is not str and len(levels) < _MAX_DEPTH and isinstance(child, _PARENTS):
                steps.append(_shown(step))
                levels.append(_children(child))
                break
        else:
            levels.pop()
            del steps[-1:]
    return None


def _fault(value: Any) -> tuple[str, str] | None:
    """Which law a value breaks by itself, and what it is."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return None if _is_finite(value) else (LAW, "another")
    if isinstance(value, str):
        return None if value.isascii() or is_unicode(value) else ("valid Unicode", "half of a surrogate pair")
    if isinstance(value, Mapping):
        kinds = [type(key).__name__ for key in value if not isinstance(key, str)]
        if kinds:
            return "an object whose names are texts", f"a name of type {kinds[0]}"
        return next(filter(None, map(_fault, value)), None)  # of a name
    if isinstance(value, Sequence) and not isinstance(value, _BYTES):
        return None
    law = "what JSON has: an object, a list, a text, a number, true, false or null"
    return law, f"a value of type {type(value).__name__}"


def _children(tree: Any) -> Iterator[tuple[Any, Any]]:
    """What an object or a list holds, each behind its name or position."""
    if isinstance(tree, Mapping):
        return iter(tree.items())
    return iter(enumerate(tree if isinstance(tree, Sequence) and not isinstance(tree, str) else ()))


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
