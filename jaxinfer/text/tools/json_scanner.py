"""JsonScanner: follows one JSON object through a text that comes in pieces, without building it.

Models write four things that JSON has not, and that mean one thing only: control characters in strings as they are,
line ends above all, a comma before a closer, none before a further name or value, and several before a further name,
where a list may lack a value. All are taken, and written as JSON has them.
"""

import json
import re

from jaxinfer.text.tools.strict_json import MAX_DEPTH, is_double

MAX_LITERAL_CHARS = 400
SPACE = r"[ \t\n\r]*"  # which JSON has between its marks, and no other
_SPACE = re.compile(SPACE)
_STRING_BODY = re.compile(r'[^"\\\x00-\x1f]*')
_LITERAL = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_OPEN_EXPONENT = r"[eE][-+]?[0-9]*"
_OPEN_LITERAL = re.compile(  # the longest beginning of one
    r"t(r(ue?)?)?|f(a(l(se?)?)?)?|n(u(ll?)?)?"
    rf"|-?((0|[1-9][0-9]*)(\.([0-9]+({_OPEN_EXPONENT})?)?|{_OPEN_EXPONENT})?)?"
)
_ESCAPE = re.compile(r'["\\/bfnrt]|u[0-9a-fA-F]{4}')
_OPEN_ESCAPE = re.compile(r"u[0-9a-fA-F]{0,3}")
_HIGH, _LOW = re.compile(r"u[dD][89abAB].."), re.compile(r"u[dD][c-fC-F]..")
_DIGITS = frozenset("0123456789")
_CLOSERS = {"{": "}", "[": "]"}


class JsonScanner:
    """What it has written always begins a JSON object (RFC 8259), in which nothing is deeper than MAX_DEPTH
    and every number and letter can be sent back (strict_json); `bad` once the text cannot be one, and then it takes
    nothing more. wants: "object", or "value" for any.
    """

    def __init__(self, wants: str = "object") -> None:
        self.bad = False
        self._open: list[str] = []  # the closers that are due
        self._wants = wants
        self._written: list[str] = []
        self._comma = ""  # with white space behind it, held back: a closer may follow
        self._part = ""  # of a literal or an escape
        self._is_behind_value = False  # a literal or a string, without white space
        self._in_key = False
        self._wants_low = False  # a high surrogate came, and its low one is due

    @property
    def has_ended(self) -> bool:
        return self._wants == "next" and not self._open

    @property
    def missing(self) -> str | None:
        """The closers without which what it took is no object yet; None where it lacks more."""
        return "".join(reversed(self._open)) if self._wants == "next" else None

    @property
    def lacks_key(self) -> bool:
        """Whether nothing follows a comma in the object as a whole."""
        return bool(self._comma) and self._open == ["}"]

    @property
    def depth(self) -> int:
        return len(self._open)

    def feed(self, text: str, start: int, floor: int) -> int:
        """Take text[start:] up to where a closer brings the depth down to `floor`. The place after what was taken."""
        at = start
        while at < len(text) and not self.bad:
            before = len(self._open)
            past = self._take(text, at)
            self._write(text[at:past])
            at = past
            if len(self._open) < before and len(self._open) == floor:
                break
        return at

    def written(self) -> str:
        """What was taken since the last call of this, as JSON has it."""
        text = "".join(self._written)
        self._written.clear()
        return text

    def _write(self, taken: str) -> None:
        """Something that _take has taken at once."""
        if taken and taken < " " and self._wants == "string":
            taken = json.dumps(taken)[1:-1]
        elif taken == "," and self._wants in ("key", "value"):
            self._comma, taken = self._comma or taken, ""
        elif self._comma and taken:
            self._comma, taken = (self._comma + taken, "") if taken.isspace() else ("", self._comma + taken)
            taken = taken.removeprefix(",") if taken.endswith(("}", "]")) else taken
        self._written.append(taken)

    def _take(self, text: str, at: int) -> int:
        match self._wants:
            case "string":
                return self._take_string(text, at)
            case "escape":
                return self._take_escape(text[at], at)
            case "literal":
                return self._take_literal(text, at)
        past = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string
        if past > at:
            self._is_behind_value = False
            return past
        past = self._take_mark(text[at], at)
        self._is_behind_value = self._is_behind_value and past == at  # a mark was taken
        return past

    def _take_mark(self, char: str, at: int) -> int:
        """One character between strings and literals."""
        wants = self._wants
        if char == '"' and wants in ("value", "first value", "key", "first key"):
            self._in_key, self._wants = wants in ("key", "first key"), "string"
        elif char in _CLOSERS and wants in ("value", "first value", "object") and (char == "{" or wants != "object"):
            self._open.append(_CLOSERS[char])
            self._wants = "first key" if char == "{" else "first value"
            self.bad = len(self._open) > MAX_DEPTH
        elif self._open and char == self._open[-1] and (self._comma or wants in ("next", "first key", "first value")):
            self._open.pop()
            self._wants = "next"
        elif char == "," and wants == "next" and self._open:
            self._wants = "key" if self._open[-1] == "}" else "value"
        elif char == "," and wants == "key":
            pass
        elif char == ":" and wants == "colon":
            self._wants = "value"
        elif wants in ("value", "first value"):
            self._part, self._wants = "", "literal"
            return at
        elif wants == "next" and self._lacks_comma(char):
            self._written.append(",")
            self._wants = "key" if self._open[-1] == "}" else "value"
            return at
        else:
            self.bad = True
        return at if self.bad else at + 1

    def _lacks_comma(self, char: str) -> bool:
        """Whether this begins a further name, or a further value of a list; two numbers may be one, and two strings
        side by side one with quotes in it."""
        if not self._open or self._open[-1] == "}":
            return bool(self._open) and char == '"'
        return char in _CLOSERS or (char == '"' and not self._is_behind_value)

    def _take_string(self, text: str, at: int) -> int:
        if self._wants_low and text[at] != "\\":
            self.bad = True
            return at
        past = _STRING_BODY.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string
        if past > at:
            return past
        if text[at] == '"':
            self._wants = "colon" if self._in_key else "next"
            self._is_behind_value = True
        elif text[at] == "\\":
            self._part, self._wants = "", "escape"
        return at + 1

    def _take_escape(self, char: str, at: int) -> int:
        self._part += char
        if _ESCAPE.fullmatch(self._part):
            self._end_escape()
        elif not _OPEN_ESCAPE.fullmatch(self._part):
            self.bad = True
            return at
        return at + 1

    def _end_escape(self) -> None:
        """Halves of a pair of surrogates stand only beside each other."""
        is_low = bool(_LOW.fullmatch(self._part))
        self.bad = is_low != self._wants_low
        self._wants_low = bool(_HIGH.fullmatch(self._part))
        self._wants = "string"

    def _take_literal(self, text: str, at: int) -> int:
        known = len(self._part)
        new = text[at : at + MAX_LITERAL_CHARS - known]
        self._part = _OPEN_LITERAL.match(self._part + new)[0]  # type: ignore[index]  # it matches the empty string
        past = at + len(self._part) - known
        if past < len(text):  # what goes on with a literal is no mark
            self.bad = not _LITERAL.fullmatch(self._part) or (self._part[-1] in _DIGITS and not is_double(self._part))
            self._wants = "literal" if self.bad else "next"
            self._is_behind_value = True
        return past


def mended(text: str) -> str:
    """A value as JSON has it, of one as models write it; a text that is none as it stands."""
    scanner = JsonScanner("value")
    at = scanner.feed(text, 0, 0)
    return scanner.written() if scanner.has_ended and not text[at:].strip() else text
