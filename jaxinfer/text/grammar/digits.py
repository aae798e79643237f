"""Numbers, followed sign by sign: two texts in the same state may go on in the same ways.

Of an integer it matters how many digits there are and how they compare with as many of its bounds' digits; of a number
without bounds in which of its parts it is.
"""

from typing import NamedTuple

_FIGURES = dict.fromkeys(b"0123456789", "9") | {ord("0"): "0"}
_ENDS = "0", "9", "fraction", "exponent"
_PARTS: dict[str, dict[str, str]] = {
    "": {"-": "-", "0": "0", "9": "9"},
    "-": {"0": "0", "9": "9"},
    "0": {".": ".", "e": "e"},
    "9": {"0": "9", "9": "9", ".": ".", "e": "e"},
    ".": {"0": "fraction", "9": "fraction"},
    "fraction": {"0": "fraction", "9": "fraction", "e": "e"},
    "e": {"0": "exponent", "9": "exponent", "-": "sign", "+": "sign"},
    "sign": {"0": "exponent", "9": "exponent"},
    "exponent": {"0": "exponent", "9": "exponent"},
}


class _Whole(NamedTuple):
    """An integer that has begun. length: its digits, up to where more of them say nothing.    least, most: -1, 0, 1:
    how they compare with as many of the bound's."""

    is_negative: bool = False
    length: int = 0
    least: int = 0
    most: int = 0
    is_zero: bool = False


class Digits:
    """The states of an integer between bounds, None: there is none; or of a number without. 0 is the start."""

    def __init__(self, least: int | None = None, most: int | None = None, *, is_integer: bool = True) -> None:
        # by sign, of the digits alone
        self._least = _magnitude(least), _magnitude(None if most is None else -most)
        self._most = _magnitude(most, 0), _magnitude(None if least is None else -least, 0)
        first: _Whole | str = _Whole() if is_integer else ""
        self._states = [first]
        self._ids = {first: 0}

    def after(self, state: int, byte: int) -> int | None:
        """After one more sign. None: it may not come."""
        now = self._states[state]
        found = self._whole_after(now, byte) if isinstance(now, _Whole) else _part_after(now, byte)
        if found is not None and found not in self._ids:
            self._ids[found] = len(self._states)
            self._states.append(found)
        return None if found is None else self._ids[found]

    def _whole_after(self, now: _Whole, byte: int) -> _Whole | None:
        if byte == ord("-") and now == _Whole():
            return _Whole(is_negative=True)
        if byte not in _FIGURES or now.is_zero:
            return None
        least, most = self._least[now.is_negative], self._most[now.is_negative]
        if most is not None and now.length == len(most):
            return None
        length = now.length + 1
        found = _Whole(
            now.is_negative,
            length if most is not None else min(length, len(least or "") + 1),
            _compared(now.least, now.length, byte, least),
            _compared(now.most, now.length, byte, most),
            length == 1 and byte == ord("0"),
        )
        return None if most is not None and length == len(most) and found.most > 0 else found

    def may_end(self, state: int) -> bool:
        """Whether it is whole as it is."""
        now = self._states[state]
        if not isinstance(now, _Whole):
            return now in _ENDS
        least = self._least[now.is_negative] or ""
        return now.length > 0 and (now.length > len(least) or (now.length == len(least) and now.least >= 0))


def _part_after(part: str, byte: int) -> str | None:
    return _PARTS[part].get(_FIGURES.get(byte, chr(byte).lower()))


def _magnitude(bound: int | None, least: int = 1) -> str | None:
    """A bound's digits; None: of numbers of its sign it says nothing."""
    return None if bound is None or bound < least else str(bound)


def _compared(before: int, length: int, byte: int, bound: str | None) -> int:
    """So many digits and one more with a bound's."""
    if bound is None:
        return 0
    if before or length >= len(bound):
        return before or 1
    return (byte > ord(bound[length])) - (byte < ord(bound[length]))
