r"""GBNF, the EBNF of llama.cpp, as the text of Lark that llguidance compiles.

The library takes the longest lexeme that may come, which forbids texts where one lexeme hides another (`hiding.py`). A
grammar without recursion is then one lexeme, of which an answer may be any text, as in llama.cpp. Of any other, each
rule without recursion is one, and each text and class beside them. Sign by sign nothing would be hidden, but a mask
takes 9 ms in place of 0.07 ms (a grammar of JSON, 150,000 tokens, one core, 2026-11-29).

Lark refuses line ends and \[ in a text; && in a class is an intersection of classes in Rust; `.` is any character in
llama.cpp, in Rust any but a line end. All of these are written as both read them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, NoReturn

from jaxinfer.errors import InvalidRequest

_CHAR = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[tnr\\\"\[\]])"
_IN_TEXT, _IN_CLASS = rf'(?:{_CHAR}|[^"\\])', rf"(?:{_CHAR}|[^\]\\])"
_TEXT = re.compile(rf'"({_IN_TEXT}*+)("?)')
_CLASS = re.compile(rf"\[(\^?)({_IN_CLASS}*+)(\]?)")
_RANGE = re.compile(rf"(?P<one>{_IN_CLASS})(?:-(?P<last>{_IN_CLASS}))?")
_ONE = re.compile(_IN_TEXT)
_NAME = re.compile(r"[\w-]+")
_SPACE, _LINES = re.compile(r"(?:[ \t]|#[^\r\n]*)*+"), re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*+")
_COUNT = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_TIMES: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_SIGNS = {times: sign for sign, times in _TIMES.items()}
_LARK = re.compile(r"^\s*(?:%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
_NAMED = {"t": "\t", "n": "\n", "r": "\r"}
_ANY = "/[\\x00-\U0010ffff]/"
_SHOWN_CHARS = 20
Codes = tuple[tuple[int, int], ...]  # characters, from one to another
_ALL: Codes = ((0, 0x10FFFF),)


class GbnfPart(NamedTuple):
    """A part of a rule, and where the client has written it.

    text: a sign's in Lark, or a rule's name.    parts: of a sequence, of alternatives, or what is repeated.
    least, most: how often; None is without end.    chars: of a sign, what each of its characters may be.
    """

    kind: Literal["sign", "rule", "sequence", "either", "times"]
    start: int
    end: int
    text: str = ""
    parts: tuple["GbnfPart", ...] = ()
    least: int = 1
    most: int | None = 1
    chars: tuple[Codes, ...] = ()


def is_gbnf(text: str) -> bool:
    """Whether a client's grammar is no Lark."""
    return "::=" in text and _LARK.search(text) is None


class Gbnf:
    """A client's grammar. Raises InvalidRequest, which names the place in the client's text, and RecursionError.

    rules: by their names.    plain: those without recursion.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.rules = _Reader(text).read()
        self.plain = self._without_recursion()
        self._names = self._new_names()

    def is_lexeme(self, piece: GbnfPart) -> bool:
        """Whether the library takes all of it at once, where it stands in a rule that is no lexeme."""
        return piece.kind == "sign" or (piece.kind == "rule" and piece.text in self.plain)

    def lark(self, *, whole: bool) -> str:
        """whole: as one lexeme, of a grammar without recursion."""
        names = {name: ours.upper() if name in self.plain else ours for name, ours in self._names.items()}
        names["root"] = "ROOT" if whole else "start"
        lines = [f"{names[name]}: {_written(piece, names)}" for name, piece in self.rules.items()]
        return "\n".join(["%llguidance {}", *["start: ROOT"] * whole, *lines])

    def line_of(self, piece: GbnfPart) -> int:
        """The number of the line in which it begins."""
        return self.text.count("\n", 0, piece.start) + 1

    def name_of(self, lark_name: str) -> str:
        """As the client has written the rule that Lark has under this name."""
        return next((name for name, ours in self._names.items() if ours == lark_name.lower()), "root")

    def largest_repetition(self) -> tuple[str, int]:
        """As it is written, and how many times all that is in it may come; ("", 0) where nothing is repeated."""
        sizes: dict[str, int] = {}

        def size(piece: GbnfPart) -> int:
            if piece.kind == "rule":
                if piece.text not in sizes:
                    sizes[piece.text] = 0  # of one on the way
                    sizes[piece.text] = size(self.rules[piece.text])
                return sizes[piece.text]
            return sum(map(size, piece.parts)) * (piece.most or 1) if piece.parts else 1

        repeated = (piece for rule in self.rules.values() for piece in pieces(rule) if (piece.most or 1) > 1)
        found = ((self.text[piece.start : piece.end], size(piece)) for piece in repeated)
        return max(found, key=lambda repetition: repetition[1], default=("", 0))

    def _without_recursion(self) -> set[str]:
        asked = {name: {part.text for part in pieces(rule) if part.kind == "rule"} for name, rule in self.rules.items()}
        users: dict[str, list[str]] = {name: [] for name in asked}
        for name, below in asked.items():
            for each in below:
                users[each].append(name)
        left = {name: len(below) for name, below in asked.items()}
        unread = [name for name, count in left.items() if not count]
        found = set(unread)
        while unread:
            for user in users[unread.pop()]:
                left[user] -= 1
                if not left[user]:
                    found.add(user)
                    unread.append(user)
        return found

    def _new_names(self) -> dict[str, str]:
        """In Lark, of which no two are the same."""
        found, taken = {"root": "root"}, {"root", "start"}
        for name in [name for name in self.rules if name != "root"]:
            ours = re.sub(r"[^a-z0-9_]", "_", name.lower())
            ours = ours if re.match("[a-z]", ours) else f"rule_{ours}"
            found[name] = ours if ours not in taken else f"{ours}_{len(taken)}_"
            taken.add(found[name])
        return found


def _written(piece: GbnfPart, names: Mapping[str, str]) -> str:
    """In Lark. names: of its rules, there."""
    match piece.kind:
        case "sign":
            return piece.text
        case "rule":
            return names[piece.text]
        case "sequence":
            return " ".join(_grouped(part, names) for part in piece.parts) or '""'
        case "either":
            return " | ".join(_written(part, names) for part in piece.parts)
    if piece.most == 0:
        return '""'
    most = "" if piece.most is None else piece.most
    inner = piece.parts[0]
    body = f"({_written(inner, names)})" if inner.kind == "times" else _grouped(inner, names)
    return body + _SIGNS.get((piece.least, piece.most), f"{{{piece.least},{most}}}")


def _grouped(piece: GbnfPart, names: Mapping[str, str]) -> str:
    """As a part of more."""
    written = _written(piece, names)
    return f"({written})" if piece.kind in ("sequence", "either") else written


def pieces(piece: GbnfPart) -> Iterator[GbnfPart]:
    """It and all that is in it."""
    yield piece
    for part in piece.parts:
        yield from pieces(part)


class _Reader:
    """Reads rules as llama.cpp does. Of two with one name the last counts, as there."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def read(self) -> dict[str, GbnfPart]:
        rules: dict[str, GbnfPart] = {}
        self._skip(_LINES)
        while self._at < len(self._text):
            name = self._name()
            self._skip(_SPACE)
            if not self._text.startswith("::=", self._at):
                self._refuse("a rule must begin with its name and ::=", "write each rule as name ::= ...")
            self._at += 3
            self._skip(_LINES)
            rules[name] = self._either(_SPACE)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                self._refuse(
                    "a rule must be of texts in double quotes, [classes], names, (groups) and | * + ? {n,m}",
                    "put it into double quotes",
                )
            self._skip(_LINES)
        if "root" not in rules:
            raise InvalidRequest("a grammar must have a rule root, which it begins with, got none; name one so")
        for piece in rules.values():
            for part in pieces(piece):
                if part.kind == "rule" and part.text not in rules:
                    self._refuse("each rule that is named must be written", "write it, or quote a text", part.start)
        return rules

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._text, self._at)
        assert found is not None, "it matches the empty text"
        self._at = found.end()

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            self._refuse("a rule must begin with its name and ::=", "write each rule as name ::= ...")
        self._at = found.end()
        return found[0]

    def _has(self, signs: str) -> bool:
        return self._at < len(self._text) and self._text[self._at] in signs

    def _either(self, space: re.Pattern[str]) -> GbnfPart:
        """Alternatives. space: that may be between their parts; on the next line one may go on that begins with |."""
        start, found = self._at, [self._sequence(space)]
        while True:
            before = self._at
            self._skip(_LINES)
            if not self._has("|"):
                self._at = before
                break
            self._at += 1
            self._skip(_LINES)
            found.append(self._sequence(space))
        return found[0] if len(found) == 1 else GbnfPart("either", start, self._at, parts=tuple(found))

    def _sequence(self, space: re.Pattern[str]) -> GbnfPart:
        start, found = self._at, list[GbnfPart]()
        while (piece := self._one()) is not None:
            self._skip(space)
            while (times := self._times()) is not None:
                piece = GbnfPart("times", piece.start, self._at, "", (piece,), *times)
                self._skip(space)
            found.append(piece)
        return found[0] if len(found) == 1 else GbnfPart("sequence", start, self._at, parts=tuple(found))

    def _one(self) -> GbnfPart | None:
        """A text, a class, a dot, a group or a rule's name; None: none begins here."""
        start = self._at
        if self._has('"'):
            return self._literal()
        if self._has("["):
            return self._class()
        if self._has("."):
            self._at += 1
            return GbnfPart("sign", start, self._at, _ANY, chars=(_ALL,))
        if self._has("("):
            self._at += 1
            self._skip(_LINES)
            inner = self._either(_LINES)
            if not self._has(")"):
                self._refuse("a group must end with )", "close it", start)
            self._at += 1
            return inner._replace(start=start, end=self._at)
        if _NAME.match(self._text, self._at) is None:
            return None
        name = self._name()
        return GbnfPart("rule", start, self._at, name)

    def _times(self) -> tuple[int, int | None] | None:
        if self._has("?*+"):
            self._at += 1
            return _TIMES[self._text[self._at - 1]]
        if not self._has("{"):
            return None
        found = _COUNT.match(self._text, self._at)
        least = 0 if found is None else int(found[1][:9])
        most = least if found is None or found[2] is None else int(found[3][:9]) if found[3] else None
        if found is None or (most is not None and most < least):
            self._refuse("a repetition must be {n}, {n,} or {n,m} with m not below n", "write its numbers so")
        self._at = found.end()
        return least, most

    def _literal(self) -> GbnfPart:
        start, (inner, _) = self._at, self._closed(_TEXT, 'a text must end with "')
        chars = [self._char(spelt[0]) for spelt in _ONE.finditer(inner)]
        written = f'"{"".join(map(_as_code, chars))}"'
        return GbnfPart("sign", start, self._at, written, chars=tuple(((ord(char), ord(char)),) for char in chars))

    def _class(self) -> GbnfPart:
        start, (caret, inner, _) = self._at, self._closed(_CLASS, "a class must end with ]")
        if not inner:
            if caret:
                return GbnfPart("sign", start, self._at, _ANY, chars=(_ALL,))
            self._refuse("a class must have a character", "write one, or leave the class out", start)
        written, codes = "", list[tuple[int, int]]()
        for pair in _RANGE.finditer(inner):
            ends = [self._char(end) for end in pair.groups() if end]
            if ends[0] > ends[-1]:
                self._refuse(
                    "a range must not end before it begins", "turn it round", start + 1 + len(caret) + pair.start()
                )
            written += "-".join(map(_as_code, ends))
            codes.append((ord(ends[0]), ord(ends[-1])))
        chars = _all_but(codes) if caret else tuple(codes)
        return GbnfPart("sign", start, self._at, f"/[{caret}{written}]/", chars=(chars,))

    def _closed(self, sign: re.Pattern[str], law: str) -> tuple[str, ...]:
        """The groups of a sign that begins here, of which the last closes it."""
        start, found = self._at, sign.match(self._text, self._at)
        assert found is not None, "what it begins with was seen"
        self._at = found.end()
        if not found[sign.groups] and self._has("\\"):
            law = r"an escape must be \x00, \u0000, \U00000000, \n, \r, \t, \\, \", \[ or \]"
            self._refuse(law, r"write \\ for a backslash")
        if not found[sign.groups]:
            self._refuse(law, "close it", start)
        return found.groups()

    def _char(self, spelt: str) -> str:
        """What a character or an escape stands for."""
        if len(spelt) == 1:
            return spelt
        if len(spelt) == 2:
            return _NAMED.get(spelt[1], spelt[1])
        code = int(spelt[2:], 16)
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            law = "an escape must be the code of a character, which is at most 10FFFF and no half of a pair"
            raise InvalidRequest(
                f"{law} (D800 to DFFF), got {spelt}; write the character itself, or its whole code as \\U0001F600"
            )
        return chr(code)

    def _refuse(self, law: str, cure: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        given = self._text[at:].splitlines()[0][:_SHOWN_CHARS] if self._text[at:].strip("\r\n") else "its end"
        raise InvalidRequest(f"{law}, got {given or 'a line end'} in line {line}, column {column}; {cure}")


def _all_but(codes: list[tuple[int, int]]) -> Codes:
    found, next_code = list[tuple[int, int]](), 0
    for first, last in sorted(codes):
        if first > next_code:
            found.append((next_code, first - 1))
        next_code = max(next_code, last + 1)
    return (*found, (next_code, 0x10FFFF)) if next_code <= 0x10FFFF else tuple(found)


def _as_code(char: str) -> str:
    """One that may be a sign of Lark or of Rust's expressions by its code."""
    return f"\\x{ord(char):02x}" if ord(char) < 0x80 and not char.isalnum() else char
