"""Readable parts: what generators write of a schema that llguidance refuses, though it says nothing of answers, or
though an answer may do without it.
"""

import re
from typing import Any
from urllib.parse import quote

from jaxinfer.text.grammar.anchors import SIGN, has_anchor_within

_DRAFT = re.compile(r"https?://json-schema\.org/(draft-0[467]|draft/20(?:19-09|20-12))/schema#?")
_LATEST = re.compile(r"https?://json-schema\.org/schema#?")
# A base as RFC 3986 has it, but for hosts in brackets. A colon in its first part is a scheme's; behind # there is
# nothing, or a name alone.
_CHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
_URI = re.compile(
    rf"(?:[A-Za-z][A-Za-z0-9+.-]*:|(?!{_CHAR}*:))"
    rf"(?://(?:{_CHAR}*@)?{_CHAR}*(?::\d*)?(?=[/?#]|\Z))?(?!//)(?:{_CHAR}|[:/])*"
    rf"(?:\?(?:{_CHAR}|[:/?])*)?(?:#\Z|\Z|(?<!.)#[A-Za-z_][\w.-]*\Z)",
    re.ASCII | re.DOTALL,
)
_NOT_IN_URIS = re.compile(r"%(?![0-9A-Fa-f]{2})|[^!-~]|[\"#<>\[\]\\^`{|}]")
_SAYS_NOTHING = {"type", "title", "description", "$comment", "$schema", "default", "examples", "deprecated"}
# An escape, a class, which goes on to the end where nobody closes it, look-around, groups and repetitions, any other
_SIGN = re.compile(rf"\\(?:k<|.)|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\\?\Z)|\(\?<?[=!]|{SIGN}|.", re.DOTALL)
_BACK = re.compile(r"\\(?:[1-9]|k<)")
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")


def make_readable(part: dict[str, Any], *, strict: bool) -> list[str]:
    """Change one part of a schema; says what it does not say any more."""
    notes = _name_draft(part)
    for name in ("$id", "id"):  # draft 4 has it without the sign
        if isinstance(base := part.get(name), str) and not _URI.match(base):
            del part[name]
    if isinstance(ref := part.get("$ref"), str):
        document, sign, place = ref.partition("#")
        part["$ref"] = f"{_as_uri(document)}{sign}{_as_uri(place)}"
    if "propertyNames" in part and _is_any_name(part["propertyNames"]):
        del part["propertyNames"]
    return notes if strict else notes + _leave_patterns(part)


def _as_uri(text: str) -> str:
    return _NOT_IN_URIS.sub(lambda found: quote(found[0], safe="", errors="surrogatepass"), text)


def _name_draft(part: dict[str, Any]) -> list[str]:
    """By the name that the library knows; what has another is of the latest."""
    name = part.get("$schema")
    if not isinstance(name, str):
        return []
    if found := _DRAFT.fullmatch(name):
        scheme = "https" if found[1].startswith("draft/") else "http"
        part["$schema"] = f"{scheme}://json-schema.org/{found[1]}/schema"
        return []
    del part["$schema"]
    return [] if _LATEST.fullmatch(name) else [f"$schema {name[:80]} is read as draft 2020-12"]


def _is_any_name(names: Any) -> bool:
    """Whether each text is one."""
    if not isinstance(names, dict):
        return names is True
    kinds = names.get("type", "string")
    return not names.keys() - _SAYS_NOTHING and "string" in (kinds if isinstance(kinds, list) else [kinds])


def _leave_patterns(part: dict[str, Any]) -> list[str]:
    """Those that no automaton follows."""
    left = []
    if isinstance(pattern := part.get("pattern"), str) and (why := _needs(pattern)):
        del part["pattern"]
        left.append(("pattern", pattern, why))
    if isinstance(named := part.get("patternProperties"), dict):
        gone = {name: why for name in named if (why := _needs(name))}
        part["patternProperties"] = {name: below for name, below in named.items() if name not in gone}
        left += [("patternProperties", name, why) for name, why in gone.items()]
    return [f"{key} {pattern[:60]} is left out, since it needs {why}" for key, pattern, why in left]


def _needs(pattern: str) -> str:
    signs = _SIGN.findall(pattern)
    if any(sign in _LOOKS for sign in signs):
        return "look-around"
    if any(map(_BACK.match, signs)):
        return "backreferences"
    if not {r"\b", r"\B"}.isdisjoint(signs):
        return r"the ends of words (\b, \B)"
    return "^ or $ within an expression" if has_anchor_within(signs) else ""
