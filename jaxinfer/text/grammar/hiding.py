"""Hiding: where llguidance's lexer forbids texts of a grammar of llama.cpp's.

The lexer goes on with a lexeme as long as any that may come can: of `"abc" | [a-z]+ "!"` it is only "abc" behind "ab",
and "abd!" may not come. So one lexeme hides another where both can begin, one ends, and its next character is one that
the other can go on with. All that can follow a lexeme anywhere is taken to follow it everywhere, so that some of what
is found hides nothing.
"""

import itertools
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

from jaxinfer.text.grammar.gbnf import Codes, Gbnf, GbnfPart

MAX_SEARCH_S, MAX_PAIRS = 0.25, 20_000  # for a grammar; of lexemes or characters that are looked at
_SHOWN_CHARS, _MAX_JOINS = 30, 1_000_000
_MAX_COPIES = 16  # of what is repeated; more are taken to be without end


class Hidden(NamedTuple):
    """Two lexemes of a grammar: where `ends` ends, `goes_on` may."""

    ends: GbnfPart
    goes_on: GbnfPart


class _TooLargeError(Exception):
    """More than is looked at."""


class _Ends(NamedTuple):
    """Of a part: with which places it may begin and end, and whether it may be empty."""

    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()
    is_empty: bool = True


class _Order:
    """Which places of an expression follow which (Glushkov, 1961)."""

    def __init__(self, until_s: float) -> None:
        self.next: list[set[int]] = []
        self._until_s, self._num_joins = until_s, 0

    def new(self) -> _Ends:
        """One place more."""
        if len(self.next) > MAX_PAIRS or time.thread_time() > self._until_s:
            raise _TooLargeError
        self.next.append(set())
        return _Ends(frozenset({len(self.next) - 1}), frozenset({len(self.next) - 1}), False)

    def row(self, parts: Iterable[_Ends]) -> _Ends:
        """Parts one behind the other."""
        found = _Ends()
        for part in parts:
            self._num_joins += len(found.last) * len(part.first)
            if self._num_joins > _MAX_JOINS:
                raise _TooLargeError
            for last in found.last:
                self.next[last] |= part.first
            first = found.first | part.first if found.is_empty else found.first
            last_of = found.last | part.last if part.is_empty else part.last
            found = _Ends(first, last_of, found.is_empty and part.is_empty)
        return found

    def loop(self, part: _Ends) -> None:
        """A part that may come again."""
        self.row((part, part))


def _either(parts: Iterable[_Ends]) -> _Ends:
    found = [*parts]
    first = frozenset[int]().union(*(part.first for part in found))
    return _Ends(first, frozenset[int]().union(*(part.last for part in found)), any(part.is_empty for part in found))


class _Lexeme:
    """The characters of one, and their order."""

    def __init__(self, grammar: Gbnf, piece: GbnfPart, until_s: float) -> None:
        self._rules, self._order = grammar.rules, _Order(until_s)
        self.codes: list[Codes] = []
        self.ends = self._walk(piece)
        self.next = self._order.next

    def _walk(self, piece: GbnfPart) -> _Ends:
        match piece.kind:
            case "sign":
                self.codes += piece.chars
                return self._order.row(self._order.new() for _ in piece.chars)
            case "rule":
                return self._walk(self._rules[piece.text])
            case "either":
                return _either(map(self._walk, piece.parts))
            case "sequence":
                return self._order.row(map(self._walk, piece.parts))
        if piece.most is None or piece.most > _MAX_COPIES:
            inner = self._walk(piece.parts[0])
            self._order.loop(inner)
            return inner._replace(is_empty=inner.is_empty or piece.least == 0)
        copies = (self._walk(piece.parts[0]) for _ in range(piece.most))
        return self._order.row(
            copy._replace(is_empty=copy.is_empty or number >= piece.least) for number, copy in enumerate(copies)
        )


class _Search:
    """The lexemes of a grammar where they stand, and which of them can begin together."""

    def __init__(self, grammar: Gbnf) -> None:
        self._until_s = time.thread_time() + MAX_SEARCH_S
        self._grammar, self._order = grammar, _Order(self._until_s)
        self.places: list[GbnfPart] = []
        self._lexemes: dict[str, _Lexeme] = {}
        self._firsts: dict[int, set[Codes]] = {}
        self._numbers: dict[int, _Ends] = {}  # of a lexeme, by where it is written
        asked = [
            name for name in grammar.rules if name == "root" or name not in grammar.plain
        ]  # the others are lexemes
        self._rules = dict.fromkeys(asked, _Ends(is_empty=False))
        before: dict[str, _Ends] = {}
        while before != self._rules:  # until no rule begins or ends otherwise
            before = self._rules.copy()
            for name in reversed(asked):  # which mostly ask for those behind them
                self._rules[name] = self._walk(grammar.rules[name])

    def _walk(self, piece: GbnfPart) -> _Ends:
        if self._grammar.is_lexeme(piece):
            if piece.start not in self._numbers:
                self.places.append(piece)
                is_empty = self.lexeme(piece).ends.is_empty
                self._numbers[piece.start] = self._order.new()._replace(is_empty=is_empty)
            return self._numbers[piece.start]
        match piece.kind:
            case "rule":
                return self._rules[piece.text]
            case "either":
                return _either(map(self._walk, piece.parts))
            case "sequence":
                return self._order.row(map(self._walk, piece.parts))
        inner = self._walk(piece.parts[0])
        if piece.most is None or piece.most > 1:
            self._order.loop(inner)
        return inner._replace(is_empty=inner.is_empty or piece.least == 0)

    def lexeme(self, piece: GbnfPart) -> _Lexeme:
        if piece.text not in self._lexemes:
            self._lexemes[piece.text] = _Lexeme(self._grammar, piece, self._until_s)
        return self._lexemes[piece.text]

    def _firsts_behind(self, place: int) -> set[Codes]:
        """With what may begin that follows this one."""
        if place not in self._firsts:
            lexemes = [self.lexeme(self.places[follower]) for follower in self._order.next[place]]
            self._firsts[place] = {lexeme.codes[first] for lexeme in lexemes for first in lexeme.ends.first}
        return self._firsts[place]

    def find(self) -> Hidden | None:
        known: dict[tuple[str, str], tuple[bool, set[Codes]]] = {}
        unread = _pairs(self._rules["root"].first, self._rules["root"].first)
        seen = set(unread)
        while unread:
            one, other = unread.pop()
            ends, goes_on = self.places[one], self.places[other]
            key = (ends.text, goes_on.text)
            if key not in known:
                known[key] = _beside(self.lexeme(ends), self.lexeme(goes_on))
            is_shared, later = known[key]
            if later and any(_meet(codes, first) for first in self._firsts_behind(one) for codes in later):
                return Hidden(ends, goes_on)
            more = _pairs(self._order.next[one], self._order.next[other]) if is_shared else []
            new = {pair for pair in more if pair not in seen}
            seen |= new
            unread += new
            if len(seen) > MAX_PAIRS or time.thread_time() > self._until_s:
                raise _TooLargeError
        return None


def _pairs(some: Collection[int], others: Collection[int]) -> list[tuple[int, int]]:
    if len(some) * len(others) > MAX_PAIRS:
        raise _TooLargeError
    return [*itertools.product(some, others)]


def _beside(ends: _Lexeme, goes_on: _Lexeme) -> tuple[bool, set[Codes]]:
    """Of two that begin together: whether a text is of both, and what the second goes on with where the first ends."""
    unread = [(a, b) for a in ends.ends.first for b in goes_on.ends.first if _meet(ends.codes[a], goes_on.codes[b])]
    seen, is_shared, later = set(unread), False, set[Codes]()
    while unread:
        a, b = unread.pop()
        if a in ends.ends.last:
            is_shared = is_shared or b in goes_on.ends.last
            later |= {goes_on.codes[place] for place in goes_on.next[b]}
        for pair in itertools.product(ends.next[a], goes_on.next[b]):
            if pair not in seen and _meet(ends.codes[pair[0]], goes_on.codes[pair[1]]):
                seen.add(pair)
                unread.append(pair)
        if len(seen) > MAX_PAIRS:
            raise _TooLargeError
    return is_shared, later


def _meet(one: Codes, other: Codes) -> bool:
    """Whether a character is of both."""
    return any(first <= last_b and first_b <= last for first, last in one for first_b, last_b in other)


def hidden_in(grammar: Gbnf) -> Hidden | None:
    """The first that is found; None: none is, or the grammar is too large to be searched."""
    try:
        return _Search(grammar).find()
    except (_TooLargeError, RecursionError):
        return None


def told(grammar: Gbnf, hidden: Hidden) -> str:
    """For the client: which texts may not come, though they are of the grammar."""
    ends, goes_on = (f"{_shown(grammar, piece)} in line {grammar.line_of(piece)}" for piece in hidden)
    return f"where {ends} ends, an answer goes on with {goes_on} if that can go on; texts in which it does not are lost"


def _shown(grammar: Gbnf, piece: GbnfPart) -> str:
    written = " ".join(grammar.text[piece.start : piece.end].split())
    return written if len(written) <= _SHOWN_CHARS else f"{written[:_SHOWN_CHARS]}..."
