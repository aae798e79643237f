"""Regular expressions of JSON strings, followed sign by sign: two texts in the same state may go on in the same ways.

A state is the set of places in the expression that a text may have come to (Glushkov, 1961), as the bits of a number.
What a class holds beyond ASCII is no matter, since texts are followed as far as they are plain. Of an expression with
anything else in it than what is read here, nothing is known.
"""

import re
import string
from collections.abc import Iterable, Iterator
from typing import NamedTuple

PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\')  # bytes of a JSON string that stand for themselves
MAX_LENGTH, MAX_PLACES, MAX_STATES = 2000, 400, 1000
MAX_READ, MAX_NESTED = 2000, 30  # parts, what is repeated as often as it may come; parentheses within one another
_NAMED = {"d": string.digits, "w": string.ascii_letters + string.digits + "_", "s": " "}
_LITERALS = frozenset(map(chr, PLAIN)) - frozenset("^$*+?()[]{}|.")
_CODE = re.compile(r"x[0-9a-f]{2}|u(?:[0-9a-f]{4}|\{[0-9a-f]{1,6}\})")  # as quoting.py and ecma.py write them
_IN_CLASSES = frozenset(map(chr, PLAIN)) - frozenset("[]&~^-")


class _Fragment(NamedTuple):
    """Of a part of an expression: where its texts begin and end, and what may follow each place within it."""

    first: int
    last: int
    follow: dict[int, int]
    may_be_empty: bool


_NOTHING = _Fragment(0, 0, {}, may_be_empty=True)


class Pattern:
    """The states of one expression, numbered; 0 is the start."""

    def __init__(self, places: _Fragment, classes: list[frozenset[int]]) -> None:
        """classes: the bytes that each place takes."""
        self.num_places = len(classes)
        self._follow, self._last = places.follow, places.last
        self._taking = {byte: _sum(i for i, taken in enumerate(classes) if byte in taken) for byte in PLAIN}
        self._ids: dict[int, int] = {}
        self._next: list[int] = []  # the places that may come next, by state
        self._is_open: list[bool] = []
        self._add(places.first, may_end=places.may_be_empty)

    def _add(self, following: int, *, may_end: bool) -> None:
        self._next.append(following)
        self._is_open.append(sum(following & taking != 0 for taking in self._taking.values()) + may_end > 1)

    def after(self, state: int, byte: int) -> int | None:
        """After a byte of PLAIN. None: it may not come, or there are too many states."""
        met = self._next[state] & self._taking[byte]
        if met and met not in self._ids and len(self._next) < MAX_STATES:
            self._ids[met] = len(self._next)
            following = 0
            for place in _bits(met):
                following |= self._follow[place]
            self._add(following, may_end=met & self._last != 0)
        return self._ids.get(met)

    def walk(self, state: int, text: bytes) -> int | None:
        """After all of these bytes. None: they are not all of PLAIN, or as above."""
        now: int | None = state
        for byte in text:
            if byte not in PLAIN or now is None:
                return None
            now = self.after(now, byte)
        return now

    def is_open(self, state: int) -> bool:
        """Whether several bytes may come next, the quote that ends the text among them."""
        return self._is_open[state]


def pattern_of(text: str) -> Pattern | None:
    """Of an expression from ^ to $ all of which is understood; None of others."""
    inner = text[1:-1]
    if len(text) > MAX_LENGTH or text != f"^{inner}$":
        return None
    reader = _Reader(inner)
    try:
        places = reader.sequence()
    except _UnknownError:
        return None
    return None if reader.left else Pattern(places, reader.classes)


def _sum(places: Iterable[int]) -> int:
    return sum(1 << place for place in places)


def _bits(places: int) -> Iterator[int]:
    while places:
        place = places & -places
        yield place.bit_length() - 1
        places ^= place


class _UnknownError(Exception):
    """Something is not understood."""


class _Reader:
    """An expression, from left to right. left: what has not been read.    classes: the bytes of each place so far."""

    def __init__(self, text: str) -> None:
        self.left = text
        self.classes: list[frozenset[int]] = []
        self._depth = self._num_read = 0

    def _take(self) -> str:
        if not self.left:
            raise _UnknownError
        taken, self.left = self.left[0], self.left[1:]
        return taken

    def sequence(self) -> _Fragment:
        found = _NOTHING
        while self.left and self.left[0] not in "|)":
            found = _joined(found, self._repeated())
        return found

    def _choice(self) -> _Fragment:
        found = self.sequence()
        while self.left[:1] == "|":
            self._take()
            found = _either(found, self.sequence())
        return found

    def _repeated(self) -> _Fragment:
        begin = self.left
        found = self._one()
        least, most = self._times()
        if self.left[:1] in tuple("?+*{"):  # lazy or possessive
            raise _UnknownError
        end, copies = self.left, [found]
        for _ in range(1, most or max(least, 1)):
            self.left = begin  # each copy has places of its own
            copies.append(self._one())
        self.left = end
        return _times(copies, least, most)

    def _times(self) -> tuple[int, int | None]:
        """How often what came before may come; most None: without end."""
        sign = self.left[:1]
        if sign in ("*", "+", "?"):
            self._take()
            return int(sign == "+"), 1 if sign == "?" else None
        if sign != "{":
            return 1, 1
        body, end, self.left = self.left[1:].partition("}")
        least, comma, most = body.partition(",")
        numbers = [least, *([most] if most else [])]
        if not end or not all(number.isdecimal() and number.isascii() and len(number) < 4 for number in numbers):
            raise _UnknownError
        bounds = int(least), int(most) if most else None if comma else int(least)
        if bounds[1] is not None and not bounds[0] <= bounds[1] > 0:
            raise _UnknownError
        return bounds

    def _one(self) -> _Fragment:
        self._num_read += 1
        sign = self._take()
        if sign != "(":
            return self._place(self._class(sign))
        self._depth += 1
        if self.left[:2] == "?:":
            self.left = self.left[2:]
        if self._depth > MAX_NESTED or self._num_read > MAX_READ:
            raise _UnknownError
        found = self._choice()
        if self._take() != ")":
            raise _UnknownError
        self._depth -= 1
        return found

    def _place(self, taken: frozenset[int]) -> _Fragment:
        if len(self.classes) == MAX_PLACES or not taken:
            raise _UnknownError
        self.classes.append(taken)
        place = len(self.classes) - 1
        return _Fragment(1 << place, 1 << place, {place: 0}, may_be_empty=False)

    def _class(self, sign: str) -> frozenset[int]:
        """The bytes of PLAIN that one sign, or what begins with it, stands for."""
        if sign == "[":
            return self._listed()
        if sign == "\\":
            return self._escaped()
        if sign == ".":
            return PLAIN
        if sign not in _LITERALS:
            raise _UnknownError
        return frozenset(sign.encode())

    def _escaped(self) -> frozenset[int]:
        sign = self._take()
        if sign.lower() in _NAMED:
            named = frozenset(_NAMED[sign.lower()].encode())
            return named if sign.islower() else PLAIN - named
        if not sign.isascii() or sign.isalnum() or ord(sign) not in PLAIN:
            raise _UnknownError
        return frozenset(sign.encode())

    def _listed(self) -> frozenset[int]:
        """What stands within brackets."""
        is_not, found = self.left[:1] == "^", frozenset[int]()
        if is_not:
            self._take()
        while (sign := self._take()) != "]":
            if sign == "\\" and (found_code := _CODE.match(self.left)):
                found |= self._coded(found_code)
                continue
            if sign == "-":  # for itself, at either end
                if found and self.left[:1] != "]":
                    raise _UnknownError
                found |= frozenset(b"-")
                continue
            if sign not in _IN_CLASSES and sign != "\\":
                raise _UnknownError
            taken = self._escaped() if sign == "\\" else frozenset(sign.encode())
            if self.left[:1] == "-" and self.left[1:2] != "]":
                self._take()
                last = self._take()
                if len(taken) != 1 or last not in _IN_CLASSES or ord(last) < min(taken):
                    raise _UnknownError
                taken = frozenset(range(min(taken), ord(last) + 1)) & PLAIN
            found |= taken
        return PLAIN - found if is_not else found

    def _coded(self, first: re.Match[str]) -> frozenset[int]:
        """Of a class, a code or a range between two, behind its first backslash."""
        self.left = self.left[first.end() :]
        last = first
        if self.left[:2] == "-\\":
            after = _CODE.match(self.left[2:])
            if after is None:
                raise _UnknownError
            self.left, last = self.left[2 + after.end() :], after
        low, high = (int(code[0][1:].strip("{}"), 16) for code in (first, last))
        return frozenset(byte for byte in PLAIN if low <= byte <= high)


def _joined(one: _Fragment, other: _Fragment) -> _Fragment:
    """One after the other."""
    follow = one.follow | other.follow | {place: one.follow[place] | other.first for place in _bits(one.last)}
    first = one.first | other.first if one.may_be_empty else one.first
    last = one.last | other.last if other.may_be_empty else other.last
    return _Fragment(first, last, follow, one.may_be_empty and other.may_be_empty)


def _either(one: _Fragment, other: _Fragment) -> _Fragment:
    empty = one.may_be_empty or other.may_be_empty
    return _Fragment(one.first | other.first, one.last | other.last, one.follow | other.follow, empty)


def _times(copies: list[_Fragment], least: int, most: int | None) -> _Fragment:
    """As many of these as may come; most None: the last one again and again."""
    if most is None:
        again = copies[-1]
        copies[-1] = again._replace(
            follow=again.follow | {place: again.follow[place] | again.first for place in _bits(again.last)}
        )
    found = _NOTHING
    for number, copy in enumerate(copies, start=1):
        found = _joined(found, copy if number <= least else copy._replace(may_be_empty=True))
    return found
