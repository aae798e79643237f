"""Doubles as llguidance reads them from the text of a grammar: digits as an integer of 64 bits, made a double, then
multiplied with or divided by a power of ten. Each step rounds, so that many of 17 digits become their neighbours.
"""

import sys
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache

_MAX_POWER = 308  # of ten, as a double; a larger one takes two steps
_MAX_DIGITS = 1 << 64
_STEPS = 16  # of a quarter of what parts the doubles there, up and down: what is farther away is another number


@lru_cache(maxsize=1 << 16)
def spelling(number: float) -> str | None:
    """A number that llguidance, and who reads it exactly, has as this double; None: there is none, of one in 400."""
    if number < 0:
        found = spelling(-number)
        return None if found is None else f"-{found}"
    shortest = Decimal(repr(number)).as_tuple()
    exponent = int(shortest.exponent)
    if read(int("".join(map(str, shortest.digits))), exponent) == number:
        return repr(number)
    exact = Decimal(number)
    for exponent in range(exact.adjusted() - 18, exact.adjusted() - 14):
        for digits in _around(int(exact.scaleb(-exponent).to_integral_value())):
            found = f"{digits}e{exponent}"
            if digits < _MAX_DIGITS and read(digits, exponent) == number == float(found):
                return found
    return None


def spelling_of_integer(number: int) -> str | None:
    """The same of an integer beyond 64 bits, which is written as the shortest digits of its double, and zeros."""
    if abs(number) > sys.float_info.max or int(Decimal(repr(float(number)))) != number:
        return None
    return spelling(float(number))


def read(digits: int, exponent: int) -> float:
    """What llguidance has for so many digits, as an integer, and their power of ten."""
    found = float(digits)
    while exponent < -_MAX_POWER:
        found /= 1e308
        exponent += _MAX_POWER
    if exponent > _MAX_POWER:
        return float("inf")
    power = float(f"1e{abs(exponent)}")
    return found * power if exponent >= 0 else found / power


def _around(digits: int) -> Iterator[int]:
    """These, and those beside them that may become another double, the next first."""
    step = max(1, 1 << max(0, digits.bit_length() - 55))
    yield digits
    for count in range(1, _STEPS):
        yield digits + count * step
        yield digits - count * step
