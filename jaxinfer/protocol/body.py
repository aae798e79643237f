"""Bytes to a JSON object, strictly: what two parsers could read in two ways is refused, and nothing here ends in a 500.

Refused: a key given twice, NaN and Infinity, numbers that are not finite as a double, lone surrogates, invalid UTF-8,
more than MAX_DEPTH nested lists and objects, more than MAX_VALUES values, anything at the top but an object. A byte
order mark at the beginning, which .NET's clients write, is passed over (RFC 8259, section 8.1).
"""

import codecs
import contextlib
import json
import re
from collections import Counter
from typing import Any

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.doubles import check_odd, read_json
from jaxinfer.protocol.long_strings import LONG_BYTES, put_back, take_out
from jaxinfer.protocol.many_ids import TooManyValues
from jaxinfer.protocol.validate import is_unicode, show

LARGE_BYTES = 64 * 2**10  # parses in about 1 ms; more is for a thread, or it would hold up the event loop's streams
MAX_DEPTH = 64
MAX_FIELDS = 256
MAX_VALUES = 2**18  # names count too; to parse as many takes 30 ms, in which no other thread of the server runs
_BETWEEN = (b",", b":", b"[", b"{")  # one of them is before each name and each value
_CHUNK_BYTES = 2**16
_DIGITS = 2**7  # looked at together: one such piece at least of a number that no double holds has nothing but digits
_LOOK_BYTES = 2**12  # of a body whose commas are counted; to count all of them would take a fifth as long as to read it
_SURROGATE = re.compile(rb"\\u[dD][89abcdefABCDEF]")


def parse_body(raw: bytes) -> dict[str, Any]:
    """The request's JSON object. Raises InvalidRequest with code invalid_json."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if len(raw) >= LONG_BYTES:
        skeleton, strings = take_out(raw)
        if strings:
            with contextlib.suppress(InvalidRequest):  # what it says of places holds for the whole only: found again
                body: dict[str, Any] = put_back(_parse(skeleton), strings)
                if not strings:
                    return body
    return _parse(raw)


def _parse(raw: bytes) -> dict[str, Any]:
    _check_size(raw)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"byte {error.start} is not UTF-8") from error
    if (numbers := _parse_numbers(raw)) is not None:
        _check_content(raw, numbers)
        return numbers
    try:
        body, odd = read_json(text, _unique)
    except InvalidRequest:  # a ValueError too, from _unique
        raise
    except RecursionError as error:
        raise _malformed(_TOO_DEEP) from error
    except json.JSONDecodeError as error:
        raise _malformed(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    if not isinstance(body, dict):
        got = (
            ascii(text.strip()[:40])[1:-1] if odd else show(body)
        )  # a number that no double holds as the client wrote it
        raise InvalidRequest(f"the body must be a JSON object, got {got}; send one", code="invalid_json")
    _check_content(raw, body)
    check_odd(body, odd)
    return body


def _parse_numbers(raw: bytes) -> dict[str, Any] | None:
    """The object of a body that is mostly numbers, such as token ids, in a third of json.loads's time.

    None where it holds more text, is refused, may hold a number that no double holds, or may name a field twice, which
    msgspec does not tell: as many colons as names, and no name was lost.
    """
    if raw.count(b",", 0, _LOOK_BYTES) <= raw.count(b'"') or _has_odd_number(raw):
        return None
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        body = msgspec.json.decode(raw)
        if isinstance(body, dict) and _num_names(body) == raw.count(b":"):
            return body
    return None


def _has_odd_number(raw: bytes) -> bool:
    """Whether one may be too large, or so small that its double is 0."""
    return (
        b"e-" in raw
        or b"E-" in raw
        or any(raw[start : start + _DIGITS].isdigit() for start in range(0, len(raw), _DIGITS))
    )


def _num_names(value: dict[str, Any]) -> int:
    """Of an object and those in it, but for what lists hold."""
    return len(value) + sum(_num_names(child) for child in value.values() if isinstance(child, dict))


def _check_size(raw: bytes) -> None:
    """Count the values before they are made; what stands in strings is none. What is no JSON is found later."""
    if len(raw) <= MAX_VALUES or _count(raw) <= MAX_VALUES:
        return
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is escaped would be taken for a string's end
    found, is_inside = 0, False
    for start in range(0, len(plain), _CHUNK_BYTES):
        pieces = plain[start : start + _CHUNK_BYTES].split(b'"')
        found += _count(b"".join(pieces[is_inside::2]))
        is_inside ^= len(pieces) % 2 == 0
        if found > MAX_VALUES:
            message = f"the body must hold at most {MAX_VALUES} names and values, got more; send less at a time"
            raise TooManyValues(message, raw)


def _count(text: bytes) -> int:
    return sum(text.count(mark) for mark in _BETWEEN)


def _check_content(raw: bytes, body: dict[str, Any]) -> None:
    if len(body) > MAX_FIELDS:
        raise InvalidRequest(f"the body must have at most {MAX_FIELDS} fields, got {len(body)}", code="invalid_json")
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and not _is_shallow(body):
        raise _malformed(_TOO_DEEP)
    # six times as fast as the search alone; and most have no backslash, which takes next to nothing to find out
    may_hold_one = b"\\" in raw and (b"\\ud" in raw or b"\\uD" in raw)
    if may_hold_one and _SURROGATE.search(raw) and not is_unicode(json.dumps(body, ensure_ascii=False)):
        raise _malformed("it holds half of a surrogate pair, which is no character")


def _is_shallow(body: dict[str, Any]) -> bool:
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [child for children in inner for child in children if isinstance(child, dict | list)]
        if not level:
            return True
    return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        message = f"the body must name each field once, got {show(twice)} twice; keep one of them"
        raise InvalidRequest(message, param=_as_param(twice), code="invalid_json")
    return found


def _as_param(name: str) -> str | None:
    """A client's own key, if it looks like a field's name."""
    return name if name.isidentifier() and name.isascii() and len(name) <= 64 else None


_TOO_DEEP = f"it nests more than {MAX_DEPTH} lists and objects"


def _malformed(fault: str) -> InvalidRequest:
    law = "the body must be JSON that can be read in one way"
    return InvalidRequest(f"{law}: {fault}; let a JSON library write it", code="invalid_json")
