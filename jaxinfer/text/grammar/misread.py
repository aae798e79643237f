"""Misread expressions: regular expressions that llguidance would take for others than they are.

It rewrites an expression before Rust's library parses it: a backslash that stands last is lost, `\\d` becomes a class
of its own, which at the end of a range is read sign by sign, and a line end, which the flag x skips, becomes a sign.
Rust's library repeats a repetition where others read a possessive one (`a?+`). In a schema, whose patterns are ECMA's,
Rust's signs for sets of classes stand for themselves.
"""

import re
from typing import Any

from jaxinfer.text.grammar.ecma import lone_half
from jaxinfer.text.grammar.parts import below_of, parts
from jaxinfer.text.grammar.quoting import misquoted

_SIGN = re.compile(  # an escape, flags, a class by name, a set of classes, any other
    r"\\(?:[pPxu]\{[^}]*\}|.|$)|\(\?[a-zA-Z-]+|\[:\^?[a-z]+:\]|\[\^?\]?|--|&&|~~|.", re.DOTALL
)
_POSSESSIVE = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\+")
_CLASSES = re.compile(r"\\[dDwWsS]$")
_SETS = ("&&", "--", "~~", "[")
_OWN = {  # signs of Rust's in a schema's pattern, whose ECMA has each as the sign itself
    **{"\\A": "the text's begin; write ^ for that", "\\z": "the text's end; write $ for that"},
    **{"\\a": "a bell; write \\x07 for that", "\\<": "a word's begin; write < for the sign"},
    **{"\\>": "a word's end; write > for the sign", "\\U": "a character's code; write \\u{...} for that"},
    **dict.fromkeys(("\\p", "\\P"), "a class with a name of one letter; write \\p{L} for that"),
}
_ECMAS_CLASS = re.compile(r"\\[pP]\{(?:(?:gc|General_Category|sc|Script|scx|Script_Extensions)=)?\w+\}", re.ASCII)
NO_CLASS = "a class that ECMA has by name"
_HOW = "a script as \\p{sc=Greek}, a category as \\p{gc=Lu}, all but one as \\P{gc=Lu}"


def misread(pattern: str, *, is_of_schema: bool = False, strict: bool = False) -> str:
    """Why an expression would be read as another; "" where it is read as it is."""
    depth, before, verbose = 0, "", False  # before: what of a class stands before a sign: a character, a range's begin
    if is_of_schema and (half := lone_half(pattern)):
        return f"{half} is half a character, which no text holds by itself; write both halves, or leave it out"
    outside = []  # of classes: signs, escaped ones as x
    for sign in _SIGN.findall(pattern):
        if sign == "\\":
            return "a backslash must have a sign behind it, and the last one has none; write \\\\ for a backslash"
        if sign.startswith("(?") and not depth:
            verbose = verbose or "x" in sign.partition("-")[0]
        if verbose and sign == "\n":
            return "with the flag x an expression must be one line, and this one has several; join its lines"
        if is_of_schema and (why := _not_ecmas(sign, depth)):
            return why
        if strict and sign[:2] in ("\\p", "\\P") and not _ECMAS_CLASS.fullmatch(sign):
            return f"{sign[:60]} must be {NO_CLASS}, {_HOW}"
        if depth and before == "range" and _CLASSES.match(sign):
            return f"a range in a class must end in a character, got -{sign}; write \\- for a hyphen"
        outside.append("[]" if depth or _opens(sign) else "x" if sign[0] == "\\" else sign)
        before = _state(before, sign)
        depth = max(0, depth + _opens(sign) - (sign == "]"))
    if found := _POSSESSIVE.search("".join(outside)):
        return (
            f"a repetition must not be possessive, and {found[0]} is read as a repetition of one; leave out the last +"
        )
    return ""


def _not_ecmas(sign: str, depth: int) -> str:
    """Why a sign would be read as another than ECMA has it."""
    if sign in _OWN:
        return f"{sign} must be {sign[1]} itself, as ECMA has it, and is read as {_OWN[sign]}"
    if sign.startswith("\\x{"):
        law = f"{sign} must be an x that is repeated, as ECMA has it"
        return f"{law}, and is read as a character's code; write \\u{sign[2:]} for that"
    if sign in ("[]", "[^]") and not depth:
        return f"{sign} must be a class by itself, as ECMA has it, and is read on to the next ]; write {sign[:-1]}\\]"
    if depth and sign.startswith("[:"):
        law = f"{sign} in a class must stand for its signs, as ECMA has it"
        return f"{law}, and is read as a class by name; write \\[ for [, or the class's characters"
    if depth and sign.startswith(_SETS):
        return f"{sign[:2]} in a class must stand for itself, and is read as a set of classes; write \\{sign[0]}"
    return ""


def _opens(sign: str) -> bool:
    return sign.startswith("[") and not sign.startswith("[:")


def _state(before: str, sign: str) -> str:
    """After a sign of a class: "char" where a range may begin, "range" within one, "" otherwise."""
    if sign in ("[]", "[^]"):  # the bracket that closes stands for itself
        return "char"
    if sign == "-" and before == "char":
        return "range"
    is_char = before != "range" and sign[0] != "[" and sign not in ("]", *_SETS) and not _CLASSES.match(sign)
    return "char" if is_char and sign[:2] not in ("\\p", "\\P") else ""


def misread_in_schema(schema: Any, *, strict: bool = False) -> str:
    """The same of the patterns of a schema, with the place; "" where all are read as they are.

    strict: a class by name that ECMA has not is a fault too.
    """
    for part, place in parts(schema) if isinstance(schema, dict | list) else ():
        names = part.get("patternProperties")
        patterns = [("pattern", part.get("pattern"))]
        patterns += [("patternProperties", name) for name in names] if isinstance(names, dict) else []
        for name, pattern in patterns:
            if not isinstance(pattern, str):
                continue
            if why := misread(pattern, is_of_schema=True, strict=strict) or misquoted(pattern):
                return f"{why}, at {ascii(below_of(place, name))}"
    return ""
