r"""ECMA: signs of a schema's patterns that stand for other characters in Rust, written so that llguidance reads ECMA's.

ECMA's `.` is no line end, Rust's any but U+000A. White space has U+FEFF in ECMA, in Rust U+0085. Rust has no \cJ, no
\0, no backspace in a class, and no characters in two halves.
"""

import re
from typing import NamedTuple

from jaxinfer.text.grammar.quoting import CLASS

_SPACES = r"\x09-\x0d\x20\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_OTHERS = (
    r"\x00-\x08\x0e-\x1f\x21-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
    r"\u3001-\ufefe\uff00-\u{10ffff}"
)
_IN_CLASSES = {r"\s": _SPACES, r"\S": _OTHERS}
_ALONE = {".": r"[^\x0a\x0d\u2028\u2029]", r"\s": f"[{_SPACES}]", r"\S": f"[^{_SPACES}]"}
_FLAGS = re.compile(r"\(\?([A-Za-z]*)(?:-([A-Za-z]+))?([:)])")
_HIGH, _LOW = (rf"\\u[dD][{first}][0-9a-fA-F]{{2}}" for first in ("89abAB", "c-fC-F"))
_CODE = rf"\\c[A-Za-z]|\\0(?!\d)|{_HIGH}{_LOW}"  # a control character, or a character in two halves
_PAIR = re.compile(_HIGH + _LOW)
_SIGN = re.compile(rf"{_CODE}|{CLASS}|{_FLAGS.pattern}|[().]", re.DOTALL)
_PART = re.compile(rf"{_CODE}|\\?.", re.DOTALL)  # of a class: a range's ends are parts of their own
_HALF = re.compile(rf"{_HIGH}{_LOW}|(?P<lone>{_HIGH}|{_LOW})|\\.", re.DOTALL)


class _Scope(NamedTuple):
    """Signs that flags of a group change: there they are what Rust has them for."""

    has_dot: bool = False
    has_space: bool = False


def as_ecma(pattern: str) -> str:
    """The expression for Rust's library. Within a group with flags that change these signs, they stay as they are."""
    scopes = [_Scope()]
    return _SIGN.sub(lambda found: _respelt(found[0], scopes), pattern)


def as_sent(text: str) -> str:
    """What is said of an expression, in the signs that it was sent with."""
    for sign, ours in (*_ALONE.items(), *_IN_CLASSES.items()):
        text = text.replace(ours, sign)
    return text


def lone_half(pattern: str) -> str:
    """An escape of half a character, which no text holds by itself; "" where there is none."""
    return next((found[0] for found in _HALF.finditer(pattern) if found["lone"]), "")


def _respelt(sign: str, scopes: list[_Scope]) -> str:
    """scopes: of the groups that are open, the innermost last."""
    if sign == "." or sign in _IN_CLASSES:
        is_own = scopes[-1].has_dot if sign == "." else scopes[-1].has_space
        return sign if is_own else _ALONE[sign]
    if flags := _FLAGS.fullmatch(sign):
        scope = _Scope(_is_set("sR", flags, scopes[-1].has_dot), _is_set("u", flags, scopes[-1].has_space))
        scopes[-1:] = [scope] if flags[3] == ")" else [scopes[-1], scope]
    elif sign == "(":
        scopes.append(scopes[-1])
    elif sign == ")" and len(scopes) > 1:
        scopes.pop()
    if sign.startswith("["):
        return _class_respelt(sign, has_space=scopes[-1].has_space)
    return _coded(sign)


def _is_set(names: str, flags: re.Match[str], before: bool) -> bool:
    """Whether one of these flags has been changed, but for s, which a group may leave again."""
    on, off = flags[1], flags[2] or ""
    if "s" in off and not set(names) & set(on):
        return False
    return before or bool(set(names) & set(on + off.replace("s", "")))


def _coded(sign: str) -> str:
    """An escape of one character that Rust does not have, by its code."""
    if sign.startswith("\\c") and len(sign) == 3:
        return f"\\x{ord(sign[2]) % 32:02x}"
    if sign == "\\0":
        return r"\x00"
    if _PAIR.fullmatch(sign):
        high, low = int(sign[2:6], 16), int(sign[8:], 16)
        return rf"\u{{{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00:x}}}"
    return sign


def _class_respelt(sign: str, *, has_space: bool) -> str:
    parts = [r"\x08" if part == r"\b" else _coded(part) for part in _PART.findall(sign)]
    named = [place for place, part in enumerate(parts) if part in _IN_CLASSES]
    begin = 2 if sign.startswith("[^") else 1
    keeps = (
        len({parts[place] for place in named}) != 1 or has_space
    )  # none, or both, which are all characters there are
    if keeps or any(parts[place - 1] == "-" and place - 1 > begin for place in named):  # refused as the end of a range
        return "".join(parts)
    return "".join(_IN_CLASSES.get(part, part) for part in parts)
