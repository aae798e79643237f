"""Schemas of single values: the families' smallest members, swept over their bounds."""

import json
from collections.abc import Iterator
from typing import Any

from tests.support.schemas.case import Case, Schema

LENGTHS = [(0, 4), (1, 1), (1, 30), (2, 5), (3, None), (10, 12), (None, 1), (None, 8), (None, 64), (20, None)]
RANGES = [
    (0, 100), (1, 5), (-10, 10), (-50, -5), (0, 1), (18, 130), (100, 65535), (1900, 2100), (0, 2**31 - 1),
    (-(2**40), 2**40), (0, None), (None, 0), (1, None), (None, -7), (999, None), (-3, 4096),
]  # fmt: skip
FLOATS = [(0, 1), (-1, 1), (0.5, 2.25), (-273.15, None), (None, 99.5), (-90, 90), (1.5, 1000), (-0.125, 0.125)]
PATTERNS = [  # with three texts of it and two that are none
    (r"^[a-z]+$", ["a", "xyz", "abcdefgh"], ["", "aB", "a1"]),
    (r"^[A-Z]{2,3}-\d{4}$", ["AB-1234", "XYZ-0000", "QQ-9876"], ["A-1234", "AB-123", "ab-1234"]),
    (r"^\d{5}(-\d{4})?$", ["12345", "00000-1234", "98765"], ["1234", "12345-", "12345-12345"]),
    (r"^#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$", ["#fff", "#00FF7a", "#123"], ["fff", "#ff", "#12345g"]),
    (r"^\+?[1-9]\d{6,14}$", ["+4917012345", "1234567", "123456789012345"], ["+0123456", "123456", "+"]),
    (r"^(red|green|blue)$", ["red", "green", "blue"], ["yellow", "redgreen", ""]),
    (r"^v\d+\.\d+\.\d+$", ["v1.2.3", "v0.0.0", "v10.20.30"], ["1.2.3", "v1.2", "v1.2.3-a"]),
    (r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$", ["a@b.de", "x.y@z.org", "q+1@w.info"], ["a@b", "a b@c.de", "@b.de"]),
    (r"^(0[1-9]|1[0-2])/\d{2}$", ["01/25", "12/99", "10/30"], ["13/25", "00/25", "1/25"]),
    (r"^([01]\d|2[0-3]):[0-5]\d$", ["00:00", "23:59", "12:30"], ["24:00", "12:60", "1:30"]),
    (r"^[\w-]{1,10}$", ["a", "a_b-c", "0123456789"], ["", "01234567890", "a b"]),
    (r"^$|^N/A$|^-$", ["", "N/A", "-"], ["n/a", " "]),
    (r"^a{2,4}b?$", ["aa", "aaab", "aaaa"], ["a", "aaaaa", "aabb"]),
    (r"needle", ["needle", "a needle here", "needles"], ["needl", "", "NEEDLE"]),
    (r"^pre", ["pre", "prefix", "pre pre"], ["Pre", "a pre", "pr"]),
    (r"post$", ["post", "a post", "postpost"], ["posts", "pos", ""]),
    (r"^[a-zà-ü]+$", ["élan", "über", "abc"], ["É", "a b", "1"]),
    (r"^\"[a-z]*\"$", ['""', '"a"', '"xyz"'], ['"', "a", '"A"']),
    (r"^C:\\[a-z]+$", ["C:\\a", "C:\\temp", "C:\\xyz"], ["C:/a", "C:\\", "C:a"]),
    (r"^(ab|cd)*$", ["", "ab", "abcdab"], ["a", "abc", "ba"]),
    (r"^(?:https?)://[a-z.]+(?:/\S*)?$", ["http://a.b", "https://x.y/z", "http://q/"], ["ftp://a", "http://", "a.b"]),
    (r"^\S+( \S+){0,2}$", ["one", "one two", "a b c"], ["", "a  b", "a b c d"]),
]
FORMATS = {
    "date": (["2024-02-29", "1999-12-31", "2030-01-01"], ["2024-13-01", "2024-1-1", "today"]),
    "time": (["12:30:00Z", "23:59:59.5Z", "00:00:00+02:00"], ["25:00:00Z", "12:30", "noon"]),
    "date-time": (
        ["2024-02-29T12:30:00Z", "1999-12-31T23:59:59.999+01:00", "2030-01-01T00:00:00Z"],
        ["2024-02-29", "2024-13-01T00:00:00Z", "2024-01-01T25:00:00Z"],
    ),
    "duration": (["P1D", "PT5M", "P1Y2M3DT4H5M6S"], ["1D", "P", "PT"]),
    "email": (["a@b.de", "x.y@example.org", "q+1@w.info"], ["a", "a@", "@b.de"]),
    "uri": (["http://a.b/c", "https://example.org/x?y=z#q", "urn:isbn:1"], ["/a/b", "a b", "http://a b"]),
    "uuid": (
        [f"{start}-e89b-12d3-a456-426614174000" for start in ("123e4567", "00000000", "ffffffff")],
        ["123e4567", "123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000"],
    ),
    "ipv4": (["127.0.0.1", "255.255.255.255", "8.8.8.8"], ["256.0.0.1", "1.2.3", "::1"]),
    "ipv6": (["::1", "2001:db8::1", "fe80:0:0:0:1:2:3:4"], ["127.0.0.1", "12345::", ":::"]),
    "hostname": (["localhost", "example.org", "a-b.c"], ["-a", "a b", "a..b"]),
}
ENUMS: list[list[Any]] = [
    ["red", "green", "blue"],
    ["a b", 'q"z', "é", "\\", "new\nline"],
    [1, 2, 3, 5, 8],
    [0.5, -1, 10],
    ["x", 7, None, True],
    [{"k": 1}, {"k": 2}, [1, "a"]],
    ["", " ", "  "],
    ["low", "medium", "high", "urgent"],
    ["USD", "EUR", "GBP", "JPY", "CHF"],
    ["in", "int", "integer", "internal"],
    [True, "true", 1.5, "1"],
    [f"option {number}" for number in range(40)],
]
CONSTS: list[Any] = ["v1", "", 0, -3, 1.5, True, False, None, [1, "a"], {"k": None, "é": []}, 'a "b"', "cat"]


def leaves() -> list[Case]:
    return [*_strings(), *_patterns(), *_integers(), *_numbers(), *_choices()]


def _strings() -> Iterator[Case]:
    yield Case("string", {"type": "string"}, ("", "abc", 'q"\\\n\té'), (1, None, ["a"]))
    for low, high in LENGTHS:
        schema: Schema = {"type": "string"}
        schema |= {} if low is None else {"minLength": low}
        schema |= {} if high is None else {"maxLength": high}
        least = low or 0
        most = least + 7 if high is None else high
        valid = ("a" * least, "é" * most, 'q"\\\n'[: least + 1].ljust(least, "z")[:most])
        wrong = ["x" * (least - 1)] * (least > 0) + ["x" * (most + 1)] * (high is not None)
        yield Case("string bounds", schema, valid, (*wrong, 5, None))
    for name, (texts, others) in FORMATS.items():
        yield Case("format", {"type": "string", "format": name}, tuple(texts[:3]), (*others, 3))


def _patterns() -> Iterator[Case]:
    for pattern, texts, others in PATTERNS:
        yield Case("pattern", {"type": "string", "pattern": pattern}, tuple(texts), (*others, 3))


def _integers() -> Iterator[Case]:
    yield Case("integer", {"type": "integer"}, (0, -17, 12345678901234567890), (1.5, "1", None, True))
    for low, high in RANGES:
        schema = _bounds("integer", low, high)
        valid, wrong = _about(low, high, 1)
        yield Case("integer bounds", schema, valid, (*wrong, (low or high or 0) + 0.5, "1"))
    for step in (2, 5, 10, 100):
        schema = {"type": "integer", "multipleOf": step}
        yield Case("multiple of", schema, (0, step, 7 * step), (1, step + 1, 7 * step - 1))
        bounded = schema | {"minimum": 1, "maximum": 10 * step}
        yield Case("multiple of", bounded, (step, 3 * step, 10 * step), (0, 11 * step, step + 1))
    for low, high in [(0, 10), (-5, 5), (17, 99), (-1000, -1)]:
        schema = {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high}
        yield Case("exclusive bounds", schema, (low + 1, (low + high) // 2, high - 1), (low, high, high + 20))


def _numbers() -> Iterator[Case]:
    yield Case("number", {"type": "number"}, (0, -1.5, 1e22, 3.25e-7, 12.0), ("1", None, True))
    for low, high in FLOATS:
        valid, wrong = _about(low, high, 0.25 if low != -0.125 else 0.0625)
        yield Case("number bounds", _bounds("number", low, high), valid, (*wrong, "0"))
    for step in (0.5, 0.25):
        schema = {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": step}
        yield Case("multiple of", schema, (0, step, 10), (step / 2, 10 + step, -step))
    for low, high in [(0, 1), (0, 100), (-1.5, 1.5)]:
        schema = {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        yield Case("exclusive bounds", schema, (low + 0.25, high - 0.25, high - 0.0625), (low, high, high + 1))


def _choices() -> Iterator[Case]:
    yield Case("boolean", {"type": "boolean"}, (True, False), (0, "true", None))
    yield Case("null", {"type": "null"}, (None,), (0, "null", False))
    for options in ENUMS:
        yield Case("enum", {"enum": options}, tuple(options), ("nope", 12345, []))
    for value in CONSTS:
        wrong = tuple(other for other in ("v2", 17, [None], {}) if other != value)
        yield Case("const", {"const": value}, (value,), wrong)
    for names, valid, wrong in [
        (["string", "null"], ("a", "", None), (0, [])),
        (["integer", "string"], (1, "1", -5), (None, 1.5)),
        (["number", "boolean", "null"], (1.5, True, None), ("1", [])),
    ]:
        yield Case("several types", {"type": names}, valid, wrong)


def _bounds(kind: str, low: float | None, high: float | None) -> Schema:
    schema: Schema = {"type": kind}
    return schema | ({} if low is None else {"minimum": low}) | ({} if high is None else {"maximum": high})


def _about(low: float | None, high: float | None, step: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Values inside, the bounds themselves among them, and values just outside and far away."""
    first = high - 1000 * step if low is None else low
    last = first + 1000 * step if high is None else high
    wrong = [first - step, first - 10**6] * (low is not None) + [last + step, last + 10**6] * (high is not None)
    inside = {json.dumps(value): value for value in (first, first + step, last - step, last)}
    return tuple(inside.values()), tuple(wrong)
