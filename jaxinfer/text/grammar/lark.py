"""Lark: the rules of a grammar's text in llguidance's dialect, read as far as they have to be known before it is tried.

Of a text with anything else in it than what is read here, nothing is known. Names in capitals are terminals, of which
each is one regular expression; the library refuses those that ask for themselves.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t]|(?:\#|//)[^\n]*)+)|(?P<newline>[\r\n]+)|(?P<string>"(?:\\.|[^"\\\n])*"i?)"""
    r"""|(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)|(?P<json>%json|%regex)\b|(?P<settings>%llguidance)\b|(?P<line>%(?:import|declare))\b"""
    r"""|(?P<ignore>%ignore)\b|(?P<special><[^<>\s]+>|@[\w-]+)|(?P<name>!?[_?]?[a-z][_a-z0-9-]*|_?[A-Z][_A-Z0-9-]*)"""
    r"""|(?P<number>\d+)|(?P<sign>\.\.|->|[:,.(){}\[\]~|=+*?])""",
    re.DOTALL,
)
_SPACE = re.compile(r"\s*")
_CLOSERS = {"(": ")", "[": "]"}
_TIMES = {"?": (0, 1), "*": (0, None), "+": (1, None)}


_SHOWN_CHARS = 20
_LAWS = {  # by what a sign that is none begins with: what must hold, what to do
    '"': (
        'a text must end with " on its line and be written as JSON has it',
        r"close it, and write \\ for a backslash",
    ),
    "'": ("a text must stand in double quotes", 'write "..." in place of its single quotes'),
    "/": ("a regular expression must end with /", r"close it, and write \/ for a slash in it"),
    "<": ("a special token must be written <name>", "close it, or put it into double quotes"),
    "": ("a grammar must be of rules, texts, regular expressions and Lark's signs", "put it into double quotes"),
}


class Token(NamedTuple):
    """A sign of a text: its kind, and where it stands in it; of "json" that is the value behind the word."""

    kind: str
    text: str
    start: int
    end: int


class Part(NamedTuple):
    """Of an alternative: a rule or a group by its name, or a text of its own; how often it comes, most None: without
    end; and where it stands. A group's name is its rule's and its place.
    """

    token: Token
    least: int
    most: int | None
    start: int
    end: int

    @property
    def name(self) -> str:
        return self.token.text if self.token.kind == "name" else ""


class Rules(NamedTuple):
    """alternatives: of each rule and group.    spans: where a rule is written."""

    alternatives: dict[str, list[list[Part]]]
    spans: dict[str, tuple[int, int]]


class _UnknownError(Exception):
    """Something is not understood."""


def is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def tokens(text: str) -> Iterator[Token]:
    """All but white space and comments. What is not understood is of kind "unknown"."""
    decoder, end = json.JSONDecoder(), 0
    while end < len(text):
        found = _TOKEN.match(text, end)
        kind = "unknown" if found is None else found.lastgroup or ""
        start, end = end, end + 1 if found is None else found.end()
        if kind in ("json", "settings"):
            start = _SPACE.match(text, end).end()  # type: ignore[union-attr]  # it matches the empty string
            try:
                end = decoder.raw_decode(text, start)[1]
            except ValueError:  # llguidance says what is wrong with it
                kind, start = "unknown", end
        if kind != "space":
            yield Token(kind, text[start:end], start, end)


def fault_of_signs(text: str) -> str:
    """Why a text, which the library cannot part into its signs, is no Lark: what must hold, where, and what to do."""
    found = next(filter(_is_no_sign, tokens(text)), None)
    if found is None:
        law, cure = _LAWS[""]
        return f"{law}, got another; {cure}"
    line, column = text.count("\n", 0, found.start) + 1, found.start - text.rfind("\n", 0, found.start)
    law, cure = _LAWS.get(found.text[0], _LAWS[""])
    given = text[found.start :].partition("\n")[0][:_SHOWN_CHARS]
    return f"{law}, got {given} in line {line}, column {column}; {cure}"


def _is_no_sign(token: Token) -> bool:
    if token.kind == "string":
        try:
            json.loads(token.text.removesuffix("i"))
        except ValueError:
            return True
    return token.kind == "unknown" and not token.text.startswith("%")  # whose value is what is wrong


def rules_of(text: str) -> Rules | None:
    """None: not all of it is understood."""
    try:
        return _Reader(text).read()
    except _UnknownError:
        return None


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = [*tokens(text), Token("end", "", len(text), len(text))]
        self._at = 0
        self._rules = Rules({}, {})

    def read(self) -> Rules:
        while (token := self._take()).kind != "end":
            if token.kind == "ignore":
                self._read_body("%ignore")
            elif token.kind == "line":
                while self._tokens[self._at].kind not in ("newline", "end"):
                    self._take()
            elif token.kind == "name":
                self._read_head()
                name = token.text.lstrip("!?")
                if name in self._rules.spans:
                    raise _UnknownError
                self._read_body(name)
                self._rules.spans[name] = (token.start, self._tokens[self._at - 1].end)
            elif token.kind not in ("newline", "settings"):
                raise _UnknownError
        return self._rules

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _has(self, *signs: str) -> bool:
        token = self._tokens[self._at]
        return token.kind == "sign" and token.text in signs

    def _takes(self, sign: str) -> bool:
        found = self._has(sign)
        self._at += found
        return found

    def _read_head(self) -> None:
        """Behind a rule's name: a priority, attributes and the colon."""
        if self._takes("."):
            self._take()
        if self._takes("["):
            while not self._takes("]"):
                if self._take().kind == "end":
                    raise _UnknownError
        if not self._takes(":"):
            raise _UnknownError

    def _read_body(self, name: str) -> None:
        """Alternatives, up to the line's end."""
        alternatives = self._rules.alternatives[name] = [[]]
        outer: list[tuple[Token, list[list[Part]]]] = []  # groups that are open, and what each stands in
        while not (self._ends_rule() and not outer):
            token = self._take()
            if token.kind == "newline":
                continue
            if token.text == "|" and token.kind == "sign":
                alternatives.append([])
            elif token.text == "->" and token.kind == "sign":
                self._take()
            elif token.kind == "sign" and token.text in _CLOSERS:
                outer.append((token, alternatives))
                alternatives = self._rules.alternatives[f"{name} ({token.start}"] = [[]]
            elif token.kind == "sign" and outer and token.text == _CLOSERS[outer[-1][0].text]:
                opening, alternatives = outer.pop()
                group = Token("name", f"{name} ({opening.start}", opening.start, token.end)
                alternatives[-1].append(self._part(group, is_optional=token.text == "]"))
            elif token.kind in ("name", "string", "regex", "special", "json") and not token.text.startswith(("!", "?")):
                alternatives[-1].append(self._part(token))
            else:
                raise _UnknownError

    def _ends_rule(self) -> bool:
        """Whether no alternative comes on the next line."""
        at = self._at
        while self._tokens[at].kind == "newline":
            at += 1
        return self._tokens[at].kind == "end" or (at > self._at and self._tokens[at].text != "|")

    def _part(self, token: Token, *, is_optional: bool = False) -> Part:
        """With what says how often it comes, or up to which text a range of texts goes."""
        if token.kind == "string" and self._takes(".."):
            token = Token("special", token.text, token.start, self._take().end)
        least, most = self._times()
        return Part(token, 0 if is_optional else least, most, token.start, self._tokens[self._at - 1].end)

    def _times(self) -> tuple[int, int | None]:
        if self._has("?", "*", "+"):
            return _TIMES[self._take().text]
        if self._takes("~"):
            least = self._number()
            return least, self._number() if self._takes("..") else least
        if not self._takes("{"):
            return 1, 1
        least = 0 if self._has(",") else self._number()
        most: int | None = least
        if self._takes(","):
            most = None if self._has("}") else self._number()
        if not self._takes("}"):
            raise _UnknownError
        return least, most

    def _number(self) -> int:
        token = self._take()
        if token.kind != "number":
            raise _UnknownError
        return int(token.text[:9])


def without_end(rules: Rules) -> str | None:
    """A rule of which no text is whole, and which the start asks for or lets in; None: nothing of the kind is known."""
    owners, left = list[str](), list[int]()
    users: dict[str, list[int]] = {}
    for name, alternatives in rules.alternatives.items():
        for alternative in alternatives:
            needs = _needs(alternative, rules)
            for each in needs:
                users.setdefault(each, []).append(len(owners))
            owners.append(name)
            left.append(len(needs))
    met = {owner for owner, count in zip(owners, left, strict=True) if not count}
    unread = list(met)
    while unread:
        for user in users.get(unread.pop(), ()):
            left[user] -= 1
            if not left[user] and owners[user] not in met:
                met.add(owners[user])
                unread.append(owners[user])
    unmet = sorted(_let_in(rules) - met)
    if not unmet:
        return None
    name, seen = unmet[0], set[str]()
    while name not in seen or " " in name:
        seen.add(name)
        name = next(each for each in sorted(_needs(rules.alternatives[name][0], rules)) if each not in met)
    return name


def _let_in(rules: Rules) -> set[str]:
    """Rules and groups that a text from the start may enter."""
    found, unread = set[str](), ["start"]
    while unread:
        name = unread.pop()
        if name in rules.alternatives and name not in found:
            found.add(name)
            unread += (part.name for alternative in rules.alternatives[name] for part in alternative)
    return found


def _needs(alternative: list[Part], rules: Rules) -> set[str]:
    """Rules and groups of which it has at least one. A terminal has an end."""
    found = {part.name for part in alternative if part.least and not is_terminal(part.name)}
    return found & rules.alternatives.keys()
