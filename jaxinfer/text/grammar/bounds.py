"""Bounds of numbers, written so that llguidance holds answers to them.

It has each bound as a double, an integer's then as one of 64 bits, and writes a number beside a bound without an
exponent. A bound that it would have as another moves inward, to the nearest one that it has: an answer stays one of
the schema, and some values at the edge are lost. Where nothing would be left a bound stays, for inexact.py to refuse.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from decimal import ROUND_UP, Decimal, localcontext
from typing import Any, NamedTuple, TypeGuard

from jaxinfer.text.grammar.doubles import spelling

EXACT = 1 << 53  # up to it, each integer is a double
MOST_OF_64 = (1 << 63) - 1  # llguidance does not end well with what is below its negative
FARTHEST = float((1 << 63) - 1024)  # the double next to the ends of 64 bits
MAX_PLACES = 64  # behind the point, of a bound that is not 0: each nests an expression that the library bounds
_SHORT = 15  # digits that every double has
_FAR = 10**18  # from it on, a number without its other bound may have more digits than llguidance counts


class _Side(NamedTuple):
    """One end of what is allowed. inward: 1 for the least, -1 for the most."""

    closed: str
    open: str
    inward: int


class _Bound(NamedTuple):
    value: int | float
    is_open: bool


LEAST, MOST = _Side("minimum", "exclusiveMinimum", 1), _Side("maximum", "exclusiveMaximum", -1)
BOUNDS = {*LEAST[:2], *MOST[:2]}


def hold_bounds(part: dict[str, Any], others: list[float]) -> list[str]:
    """Move the bounds of one part of a schema; says which values are lost.

    others: `fractions` of the whole schema, since several parts may hold for one value.
    """
    ends = {side: _bound(part, side) for side in (LEAST, MOST)}
    new: dict[_Side, _Bound] = {}
    is_whole = _is_whole(part)
    for side, end in ends.items():
        if end is None:
            continue
        other = MOST if side is LEAST else LEAST
        moved = _of_integer(end, side) if is_whole else _of_number(end, side, ends[other], others)
        if moved is None:
            return []
        if abs(moved) >= _FAR and moved * side.inward > 0 and not part.keys() & {*other[:2]}:
            far = -other.inward * FARTHEST if is_whole else _written(-other.inward * math.inf, other, is_open=False)
            new[other] = _Bound(far or 0, is_open=False)
        if moved != end.value or (end.is_open and abs(moved) > EXACT):
            new[side] = _Bound(moved, is_open=False)
    held = {side: new.get(side, end) for side, end in ends.items()}
    if _is_empty(held[LEAST], held[MOST]) and not _is_empty(ends[LEAST], ends[MOST]):
        return []
    for side, bound in new.items():
        part.pop(side.open, None)
        part[side.closed] = _plain(bound.value)
    return [_lost(side, ends[side], bound) for side, bound in new.items() if _loses(ends[side], bound, side, is_whole)]


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def fault_of_bounds(part: dict[str, Any]) -> str:
    """Why llguidance would not hold a number to the bounds of a part as they are; "" if it would."""
    least, most = _bound(part, LEAST), _bound(part, MOST)
    if _is_whole(part):
        return ""
    ends = [(end, side) for end, side in ((least, LEAST), (most, MOST)) if end is not None]
    if any(abs(end.value) > EXACT and _of_number(end, side, None, []) != end.value for end, side in ends):
        return "between its bounds there must be a double whose shortest digits are between them too"
    is_near = least is not None and most is not None and 0 < _exactly(most.value) - _exactly(least.value) < 1
    is_open = any(end.is_open and not _is_fraction(end.value) for end, _ in ends)
    if (is_near and is_open) or any(_is_deep(end.value, side) for end, side in ends):
        return f"between its bounds there must be a double of at most {MAX_PLACES} places"
    return ""


def fractions(parts: Iterable[dict[str, Any]]) -> list[float]:
    """The bounds of all parts that have a fraction, the least first."""
    return sorted(part[name] for part in parts for name in BOUNDS & part.keys() if _is_fraction(part[name]))


def _is_fraction(bound: Any) -> bool:
    return isinstance(bound, float) and math.isfinite(bound) and not bound.is_integer()


def _bound(part: dict[str, Any], side: _Side) -> _Bound | None:
    """The nearer of the two; None: there is none, or the library says what is wrong with it."""
    given = {name: part[name] for name in side[:2] if name in part}
    if isinstance(is_open := given.get(side.open), bool):  # as draft 4 has it
        found = given.get(side.closed)
        return _Bound(found, is_open) if is_number(found) else None
    if not given or not all(map(is_number, given.values())):
        return None
    value = max(given.values()) if side is LEAST else min(given.values())
    return _Bound(value, given.get(side.open) == value)


def _is_whole(part: dict[str, Any]) -> bool:
    """Whether all its numbers are integers."""
    kinds = part.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return "integer" in kinds and "number" not in kinds


def _of_integer(end: _Bound, side: _Side) -> int | float | None:
    """None: no integer of 64 bits that a double holds is within."""
    if abs(end.value) <= EXACT - end.is_open and (
        not _is_fraction(end.value) or spelling(float(end.value)) is not None
    ):
        return end.value
    bound = _first(end, side)
    if abs(bound) <= EXACT:
        return bound
    if bound > FARTHEST and (side is LEAST or bound >= MOST_OF_64):  # the library has 2**63 as the most of 64 bits
        return None if side is LEAST and bound > MOST_OF_64 else MOST_OF_64 + 1
    return _nearest_double(bound, side, is_open=False)


def _first(end: _Bound, side: _Side) -> int:
    """The integer nearest to a bound that is within."""
    first = math.ceil(side.inward * end.value)
    return side.inward * (first + (end.is_open and first == side.inward * end.value))


def _of_number(end: _Bound, side: _Side, beside: _Bound | None, others: list[float]) -> int | float | None:
    """None: no double that the library can write is within."""
    value = end.value
    if abs(value) > EXACT - end.is_open:
        return _written(value, side, is_open=end.is_open)
    if value % 1 and spelling(float(value)) is None:
        return _nearest_double(value, side, is_open=end.is_open)
    if _is_deep(value, side):
        return _in_places(value)
    if not end.is_open or value % 1:
        return value
    next_to = others[bisect_right(others, value) :][:1] if side is LEAST else others[: bisect_left(others, value)][-1:]
    near = [*next_to, *([beside.value] if beside else [])]
    gaps = [gap for other in near if 0 < (gap := (_exactly(other) - _exactly(value)) * side.inward) < 1]
    return _beside(value, min(gaps), side) if gaps else value


def _is_deep(value: int | float, side: _Side) -> bool:
    """Whether the bound next to 0 has too many places."""
    return value * side.inward > 0 and value % 1 != 0 and -_exponent(value) > MAX_PLACES


def _nearest_double(value: int | float, side: _Side, *, is_open: bool) -> float | None:
    """Within a bound as a double, and as the digits that the library writes for one."""
    bound = max(-FARTHEST, min(value, FARTHEST))
    found = float(bound)
    while not (_is_within(found, value, side, is_open=is_open) and (found % 1 == 0 or spelling(found) is not None)):
        found = math.nextafter(found, side.inward * math.inf)
        if abs(found) > FARTHEST:
            return None
    return found


def _written(value: int | float, side: _Side, *, is_open: bool) -> float | None:
    """The same beyond 2**53, where its shortest digits, with zeros behind them, must be within the double too."""
    found = _nearest_double(value, side, is_open=is_open)
    while found is not None and not _is_within(found, found, side, is_open=False):
        found = _nearest_double(found, side, is_open=True)
    return found


def _is_within(found: float, value: int | float, side: _Side, *, is_open: bool) -> bool:
    """Whichever of a double and its shortest digits each of the two is read as."""
    gaps = [
        (number - bound) * side.inward
        for number in (Decimal(found), _exactly(found))
        for bound in (Decimal(value), _exactly(value))
    ]
    return min(gaps) > 0 if is_open else min(gaps) >= 0


def _in_places(value: int | float) -> float:
    with localcontext(prec=2 * MAX_PLACES):
        places = min(MAX_PLACES, _SHORT - 1 - Decimal(value).adjusted())
        return float(_exactly(value).quantize(Decimal(1).scaleb(-places), ROUND_UP))


def _beside(value: int | float, gap: Decimal, side: _Side) -> float:
    """Next to an open bound that is an integer, within the gap behind it if it can be; 15 digits where it is wide."""
    digits = len(str(abs(int(value))))
    step = Decimal(1).scaleb(min(digits - _SHORT, gap.adjusted() - 1))
    found = float(int(value) + side.inward * step)
    inside = (_exactly(found) - int(value)) * side.inward
    if 0 < inside < gap and -_exponent(found) <= MAX_PLACES and spelling(found) is not None:
        return found
    if value == 0:
        return side.inward * 10.0**-MAX_PLACES
    found = math.nextafter(value, side.inward * math.inf)
    return found if spelling(found) is not None else math.nextafter(found, side.inward * math.inf)


def _exactly(number: int | float) -> Decimal:
    """Its shortest digits, as it is written."""
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


def _exponent(number: int | float) -> int:
    return int(_exactly(number).as_tuple().exponent)


def _is_empty(least: _Bound | None, most: _Bound | None) -> bool:
    if least is None or most is None:
        return False
    return least.value > most.value or (least.value == most.value and (least.is_open or most.is_open))


def _loses(end: _Bound | None, bound: _Bound, side: _Side, is_whole: bool) -> bool:
    """Whether some value is lost."""
    if end is None or not is_whole:
        return True
    return min(int(bound.value), MOST_OF_64) != _first(end, side)


def _lost(side: _Side, end: _Bound | None, bound: _Bound) -> str:
    held = f"{side.closed} {min(_plain(bound.value), MOST_OF_64)}"
    return f"{held} is added" if end is None else f"{side[end.is_open]} {str(end.value)[:40]} is read as {held}"


def _plain(number: int | float) -> int | float:
    return int(number) if number % 1 == 0 else number
