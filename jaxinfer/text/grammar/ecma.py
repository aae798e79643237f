r"""ECMA: signs of a schema's patterns that stand for other characters in Rust, written so that llguidance reads ECMA's.

ECMA's `.` is no line end, Rust's any but U+000A. White space has U+FEFF in ECMA, in Rust U+0085.
"""

import re

from jaxinfer.text.grammar.quoting import CLASS

_SPACES = r"\x09-\x0d\x20\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_OTHERS = (
    r"\x00-\x08\x0e-\x1f\x21-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
    r"\u3001-\ufefe\uff00-\U0010ffff"
)
_IN_CLASSES = {r"\s": _SPACES, r"\S": _OTHERS}
_ALONE = {".": r"[^\x0a\x0d\u2028\u2029]", r"\s": f"[{_SPACES}]", r"\S": f"[^{_SPACES}]"}
_FLAGS = r"\(\?[A-Za-z-]+[:)]"
_SIGN = re.compile(rf"{CLASS}|{_FLAGS}|\.", re.DOTALL)
_PART = re.compile(r"\\?.", re.DOTALL)  # of a class: a range's ends are parts of their own
_OWN = frozenset("sRu")  # flags by which a `.` is any character, or classes are of bytes


def as_ecma(pattern: str) -> str:
    """The expression for Rust's library. One with flags of Rust's own that change these signs stays as it is."""
    signs = [found[0] for found in _SIGN.finditer(pattern)]
    if any(sign.startswith("(?") and _OWN & set(sign) for sign in signs):
        return pattern
    return _SIGN.sub(lambda found: _respelt(found[0]), pattern)


def as_sent(text: str) -> str:
    """What is said of an expression, in the signs that it was sent with."""
    for sign, ours in (*_ALONE.items(), *_IN_CLASSES.items()):
        text = text.replace(ours, sign)
    return text


def _respelt(sign: str) -> str:
    if not sign.startswith("["):
        return _ALONE.get(sign, sign)
    parts = _PART.findall(sign)
    named = [place for place, part in enumerate(parts) if part in _IN_CLASSES]
    if len({parts[place] for place in named}) != 1:  # none, or both, which are all characters there are
        return sign
    begin = 2 if sign.startswith("[^") else 1
    if any(parts[place - 1] == "-" and place - 1 > begin for place in named):  # refused as the end of a range
        return sign
    return "".join(_IN_CLASSES.get(part, part) for part in parts)
