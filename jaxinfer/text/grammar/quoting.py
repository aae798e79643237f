r"""Quoting: classes of characters that llguidance misreads where an expression stands in a JSON string.

Of a class with all control characters, or all but the line end, it takes every escape of one letter, `\"` and `\\` too,
also where the class has no `"` or no `\`. Without U+0000 it reads each class as it is. So a negated class leaves U+0000
out, which no answer needs, and any other such class is refused. It may join classes that are alternatives: what has
U+0000 is read as it is where all of an expression's classes together lack a control character.
"""

import re
from collections.abc import Iterator

_HEX = "[0-9a-fA-F]"
# More than one sign. Their lengths are bounded, and a class that nobody closes goes on to the end, so that an
# expression of any length is read in one go.
_ITEM = rf"\\(?:[pPxu]\{{[^}}]{{0,64}}\}}|x{_HEX}{{2}}|u{_HEX}{{4}}|.)|\[:\^?[a-z]{{1,12}}:\]"
CLASS = rf"\[\^?\]?(?:{_ITEM}|[^\]\\])*(?:\]|\\?\Z)|{_ITEM}"  # in brackets, or an escape that stands for itself
_CLASS = re.compile(CLASS, re.DOTALL)
_CHAR = rf"\\(?:x{_HEX}{{2}}|u{_HEX}{{4}}|U{_HEX}{{8}}|.)|[^\\]"
_IN_CLASS = re.compile(rf"({_CHAR})(?:-(?!\]\Z)({_CHAR}))?", re.DOTALL)  # one, or a range
_CODE = re.compile(rf"\\[xu]\{{({_HEX}{{1,6}})\}}")
_BY_NAME = re.compile(r"\\([pP])\{?\^?(?:\w+=)?([\w ]+)\}?|\[:(\^?)([a-z]+):\]")
_CONTROL_CHARS = frozenset(map(chr, range(0x20))) - {"\n", "\r"}
_CONTROLS = {"c", "cc", "other", "control", "cntrl"}  # classes by name with U+0000, without " and \
_MARKS = {"p", "po", "punctuation", "otherpunctuation", "punct", "patternsyntax", "quotationmark", "graphemebase"}
_MARKS_OF_ASCII = {"punct", "print", "graph"}  # those of brackets that hold " and \, but no U+0000


def quotable(pattern: str) -> str:
    """The expression, of whose negated classes those that would be misread have no U+0000."""
    return _CLASS.sub(lambda found: _without_nul(found[0]) if _is_misquoted(found[0]) else found[0], pattern)


def misquoted(pattern: str) -> str:
    """Why a class of an expression would be misread in a JSON string; "" where none would."""
    misread = next(filter(_is_misquoted, _classes(pattern)), None)
    if misread is not None and _may_have_controls(pattern):
        law = r'what takes U+0000 must take " and \ too, or it is read as if it did'
        return f"{law}, got {misread[:60]}; leave U+0000 out"
    return ""


def _may_have_controls(pattern: str) -> bool:
    """Whether all classes of an expression together may have all control characters but line ends."""
    outside = _CLASS.sub("", pattern)
    left = set(_CONTROL_CHARS).difference(outside)
    for one in _classes(pattern):
        left -= _members_in_python(_in_python(one), left)
    return "." in outside or not left or _BY_NAME.search(pattern) is not None


def _classes(pattern: str) -> Iterator[str]:
    """In brackets, or an escape that stands for itself."""
    return (found[0] for found in _CLASS.finditer(pattern))


def _without_nul(one: str) -> str:
    if not one.startswith("[^"):
        return one
    inner = one[2:]
    return rf"[^\x00\{inner}" if inner[0] in "-]" else rf"[^\x00{inner}"


def _is_misquoted(one: str) -> bool:
    holds = _members(one)
    return "\0" in holds and not {'"', "\\"} <= holds


def _members(one: str) -> set[str]:
    r"""Which of U+0000, " and \ a class holds, as far as they matter."""
    is_not = one.startswith("[^")
    rest = _in_python(one)
    named = [_members_by_name(*found) for found in _BY_NAME.findall(rest)]
    plain = _BY_NAME.sub("", rest)
    if is_not:
        plain = plain.replace("[^^", r"[^\^", 1).replace("[^", "[", 1)
    held = _members_in_python(plain, set('\0"\\')).union(*named)
    return set('\0"\\') - held if is_not else held


def _in_python(one: str) -> str:
    return _CODE.sub(lambda code: rf"\U{code[1]:0>8}", one)


def _members_in_python(one: str, chars: set[str]) -> set[str]:
    """A class without names is one of Python's too; none where nothing else is left, or where it is no expression."""
    if one.startswith("["):
        one = "[" + _IN_CLASS.sub(lambda found: "-".join(map(_plain, filter(None, found.groups()))), one[1:])
    try:
        return {char for char in chars if re.fullmatch(one, char, re.DOTALL)}
    except (re.error, OverflowError):
        return set()


def _plain(char: str) -> str:
    """Without a meaning of its own in a class: Python warns of signs of sets."""
    return f"\\{char}" if char in "[-&~|" else char


def _members_by_name(sign: str, name: str, is_not: str, of_ascii: str) -> set[str]:
    plain = re.sub(r"[\s_]", "", name or of_ascii).lower()
    if plain in ("any", "ascii", "assigned", "common", "zyyy"):
        held = set('\0"\\')
    elif plain in _CONTROLS:
        held = {"\0"}
    else:
        held = set('"\\') if plain in (_MARKS if name else _MARKS | _MARKS_OF_ASCII) else set[str]()
    return set('\0"\\') - held if sign == "P" or is_not else held
