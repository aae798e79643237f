"""Finite names: patternProperties of a closed object, of which a pattern has few names, written as its properties.

llguidance takes the names of properties out of a pattern's, and offers a comma and a quote where no name is left: no
token can come then. And what it takes of a pattern's names it takes again without end; of properties each comes once.
"""

import json
import re
import string
from itertools import product
from typing import Any

from jaxinfer.text.grammar.parts import placeless

_MOST = 32  # names that are listed; more if all of them are properties already
_MAX_WRITTEN = 1 << 16  # characters of what one pattern's names may be, each time
_OF_DEFINITION = re.compile(r"#(/(\$defs|definitions)/[^/]+)?")
_NAMED = {"d": string.digits, "w": string.ascii_letters + string.digits + "_"}
_SIGNS = frozenset("^$\\.*+?()[]{}|")  # which stand for themselves behind a backslash alone
_REPEATED = re.compile(r"(?:\{(\d{1,3})(?:,(\d{1,3}))?\}|(\?))\??")


def list_finite_names(schema: dict[str, Any]) -> None:
    """Change the parts of a schema; none where a reference may name a place within one."""
    closed = [
        part
        for part in placeless(schema)
        if part.get("additionalProperties") is False and isinstance(part.get("patternProperties"), dict)
    ]
    if closed and all(_OF_DEFINITION.fullmatch(str(part["$ref"])) for part in placeless(schema) if "$ref" in part):
        for part in closed:
            _list_names(part)


def _list_names(part: dict[str, Any]) -> None:
    named, required = part.get("properties", {}), part.get("required", [])
    if not (isinstance(named, dict) and isinstance(required, list)):
        return
    known = {*named, *(name for name in required if isinstance(name, str))}
    is_counted = "minProperties" in part or "maxProperties" in part  # which are held to where all names are known
    listed, left = dict(named), dict(part["patternProperties"])
    for pattern, below in part["patternProperties"].items():
        names = names_of(pattern, max(_MOST, len(known)))
        if names is None or len(names) * len(json.dumps(below)) > _MAX_WRITTEN:
            continue
        if known.issuperset(names) or (len(names) <= _MOST and not is_counted):
            listed |= {name: _both(listed[name], below) if name in listed else below for name in names}
            del left[pattern]
    part["properties"], part["patternProperties"] = listed, left
    if not left:
        del part["patternProperties"]


def _both(one: Any, other: Any) -> Any:
    return one if other in (True, {}, one) else {"allOf": [one, other]}


def names_of(pattern: str, most: int) -> list[str] | None:
    """All texts of an expression; None where they are more, or where it has a sign that is not read here."""
    reader = _Reader(pattern, most)
    try:
        names = reader.whole()
    except _UnknownError:
        return None
    return names if len(names) <= most else None


class _UnknownError(Exception):
    """Something is not understood, or is too much."""


class _Reader:
    """An expression, from left to right; the texts of each part, of which there are at most `most`."""

    def __init__(self, text: str, most: int) -> None:
        self._left, self._most = text, most

    def whole(self) -> list[str]:
        """Alternatives from ^ to $."""
        found = self._anchored()
        while self._take("|"):
            found += self._anchored()
        if self._left:
            raise _UnknownError
        return self._each(found)

    def _anchored(self) -> list[str]:
        self._want("^")
        found = self._sequence()
        self._want("$")
        return found

    def _choice(self) -> list[str]:
        found = self._sequence()
        while self._take("|"):
            found += self._sequence()
        return self._each(found)

    def _sequence(self) -> list[str]:
        found = [""]
        while self._left and self._left[0] not in "|)$":
            part = self._one()
            least, most = self._counts()
            found = self._joined(found, [self._power(part, count) for count in range(least, most + 1)])
        return found

    def _power(self, part: list[str], count: int) -> list[str]:
        found = [""]
        for _ in range(count):
            found = self._joined(found, [part])
        return found

    def _joined(self, before: list[str], options: list[list[str]]) -> list[str]:
        behind = [text for option in options for text in option]
        if len(before) * len(behind) > 2 * self._most:  # some may be the same
            raise _UnknownError
        return self._each([one + other for one, other in product(before, behind)])

    def _each(self, texts: list[str]) -> list[str]:
        return list(dict.fromkeys(texts))

    def _counts(self) -> tuple[int, int]:
        found = _REPEATED.match(self._left)
        if found is None:
            if self._left[:1] and self._left[0] in "*+{":
                raise _UnknownError
            return 1, 1
        self._left = self._left[found.end() :]
        if found[3]:
            return 0, 1
        least = int(found[1])
        return least, int(found[2] or least)

    def _one(self) -> list[str]:
        sign, self._left = self._left[0], self._left[1:]
        if sign == "(":
            self._take("?:")
            found = self._choice()
            self._want(")")
            return found
        if sign == "[":
            return self._listed()
        return self._escaped() if sign == "\\" else [_plain(sign)]

    def _escaped(self) -> list[str]:
        sign, self._left = self._left[:1], self._left[1:]
        if sign in _NAMED and sign:
            return list(_NAMED[sign])
        if not sign or not sign.isascii() or sign.isalnum():
            raise _UnknownError
        return [sign]

    def _listed(self) -> list[str]:
        """What stands within brackets."""
        found: list[str] = []
        if self._left[:1] in ("^", "]"):
            raise _UnknownError
        while not self._take("]"):
            chars = self._char_of_class()
            if self._left[:1] == "-" and self._left[1:2] != "]":
                self._want("-")
                chars = self._range(chars, self._char_of_class())
            found += chars
        return self._each(found)

    def _char_of_class(self) -> list[str]:
        if not self._left:
            raise _UnknownError
        sign, self._left = self._left[0], self._left[1:]
        if sign == "\\":
            return self._escaped()
        if sign in "[&~-" and self._left[:1] in (sign, ":"):  # which others read in other ways
            raise _UnknownError
        return [sign]

    def _range(self, first: list[str], last: list[str]) -> list[str]:
        if len(first) != 1 or len(last) != 1 or not 0 <= ord(last[0]) - ord(first[0]) <= 2 * self._most:
            raise _UnknownError
        return [chr(code) for code in range(ord(first[0]), ord(last[0]) + 1)]

    def _take(self, text: str) -> bool:
        is_there = self._left.startswith(text)
        self._left = self._left[len(text) * is_there :]
        return is_there

    def _want(self, text: str) -> None:
        if not self._take(text):
            raise _UnknownError


def _plain(sign: str) -> str:
    if sign in _SIGNS:
        raise _UnknownError
    return sign
