"""States: the places of one schema that answers have come to, so that to follow a token is to look it up."""

from collections.abc import Callable, Hashable
from typing import Protocol
from weakref import WeakValueDictionary

from jaxinfer.text.grammar.patterns import Pattern
from jaxinfer.text.grammar.places import Place, Places, is_open, is_plain

MAX_STEPS = 1 << 14  # from one state to another, of one schema: half a kilobyte each
MAX_JOINS = 1 << 16  # of tokens and forced texts, of one vocabulary: a few hundred bytes each


class TokenTexts(dict[int, bytes]):
    """What tokens add to a text, each asked for once: the library takes microseconds for one."""

    def __init__(self, decode: Callable[[list[int]], bytes], tokenize: Callable[[bytes], list[int]]) -> None:
        self._decode = decode
        self.kinds = _Kinds(self)
        self.joins = _Joins(self, tokenize)

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = bytes(self._decode([token_id]))
        return piece


class _Kinds(dict[int, int]):
    """Of a token that a string may take as it stands, how many characters it is, less than nothing; else itself."""

    def __init__(self, pieces: TokenTexts) -> None:
        self._pieces = pieces

    def __missing__(self, token_id: int) -> int:
        piece = self._pieces[token_id]
        kind = self[token_id] = -len(piece) if piece and is_plain(piece) else token_id
        return kind


class _Joins:
    """How forced text is split behind the token before it. Where a tokenizer splits both together as that token and
    more, llguidance forces what it makes of the rest then; else, as mostly, what it makes of the rest alone."""

    def __init__(self, pieces: TokenTexts, tokenize: Callable[[bytes], list[int]]) -> None:
        self._pieces, self._tokenize = pieces, tokenize
        self._known: dict[tuple[int, bytes], tuple[int, ...] | None] = {}

    def after(self, last: int, forced: bytes) -> tuple[int, ...] | None:
        """The tokens; None: those of the rest alone, the same for all tokens before it."""
        if len(forced) < 2:
            return None  # a byte is a token, nothing is none
        key = last, forced
        if key not in self._known:
            if len(self._known) == MAX_JOINS:
                self._known.clear()
            first, *rest = self._tokenize(self._pieces[last] + forced)
            differs = first == last and rest != self._tokenize(forced)
            self._known[key] = tuple(rest) if differs else None
        return self._known[key]


class Standing(Protocol):
    """Who stands at a state."""

    def forced_bytes(self) -> bytes | None:
        """All that must come next; None: that cannot be said any more."""


class _InPattern:
    """Of a token that a string with a pattern may take as it stands, to which of its states it leads, less than
    nothing; else itself, as where it is one of few that may come and the last token matters."""

    def __init__(self, pieces: TokenTexts, pattern: Pattern, state: int) -> None:
        self._pieces, self._pattern, self._state = pieces, pattern, state

    def __getitem__(self, token_id: int) -> int:
        end = self._pattern.walk(self._state, self._pieces[token_id])
        return token_id if end is None or not self._pattern.is_open(end) else -1 - end


class _KindOf(Protocol):
    """Of tokens that lead to the same place one number, less than nothing; others are their own kind."""

    def __getitem__(self, token_id: int, /) -> int: ...


class Spot:
    """Where the same tokens may come, whatever came before: one for all answers, while anybody thinks of it.

    forced: the tokens that come next whatever the model says; None: nobody has asked.
    """

    __slots__ = ("__weakref__", "forced")

    def __init__(self) -> None:
        self.forced: list[int] | None = None


class GrammarState:
    """A place, and what of the token that came last matters. spot: None: nothing is known of what may come.

    kinds: None: each token is its own.    after: where kinds lead that have come.
    """

    __slots__ = ("after", "kinds", "place", "spot")

    def __init__(self, place: Place, spot: Spot | None, kinds: _KindOf | None = None) -> None:
        self.place, self.spot, self.kinds = place, spot, kinds
        self.after: dict[int, GrammarState | None] = {}


_NEW = GrammarState(Place("due", None), None)  # in the place of what has not come yet


class GrammarStates:
    """Those of one schema, for one thread."""

    def __init__(self, places: Places, pieces: TokenTexts) -> None:
        self._places, self._pieces = places, pieces
        self._states: dict[Hashable, GrammarState] = {}
        self._spots: WeakValueDictionary[Hashable, Spot] = WeakValueDictionary()
        self._forced: dict[Place, bytes] = {}  # where it is not known that nothing is
        self._num_steps = 0
        self.start = self._state(places.start, None)

    def after(self, state: GrammarState, token: int, asked: Standing) -> GrammarState | None:
        """Where it stands after one more; None where that is none of the schema's, or cannot be said. asked: has had
        the token."""
        kind = token if state.kinds is None else state.kinds[token]
        found = state.after.get(kind, _NEW)
        if found is not _NEW:
            return found
        self._num_steps += 1
        if self._num_steps > MAX_STEPS:
            self._clear()
        place = self._places.after(state.place, self._pieces[token])
        if place is None:
            state.after[kind] = None
            return None
        forced = self._forced_at(place, asked)
        if forced is None:
            return None
        found = state.after[kind] = self._state(place, self._pieces.joins.after(token, forced))
        return found

    def _forced_at(self, place: Place, asked: Standing) -> bytes | None:
        """What must come next at a place whose whole text is known."""
        if place.is_long or is_open(place):
            return b""
        found = self._forced.get(place)
        if found is None and (found := asked.forced_bytes()) is not None:
            self._forced[place] = found
        return found

    def _state(self, place: Place, join: tuple[int, ...] | None) -> GrammarState:
        whole = place, join
        found = self._states.get(whole)
        if found is None:
            key, spot = self._places.key(place, join), None
            if key is not None and (spot := self._spots.get(key)) is None:
                spot = self._spots[key] = Spot()
            found = self._states[whole] = GrammarState(place, spot, self._kinds(place))
        return found

    def _kinds(self, place: Place) -> _KindOf | None:
        """Of a string's tokens. Where one fills it up its quote alone is forced, behind which white space may come: so
        it does not matter which one it was."""
        if place.node is None or place.raw or place.is_long:
            return None
        if place.phase == "pattern" and place.node.pattern is not None:
            return _InPattern(self._pieces, place.node.pattern, place.length)
        return self._pieces.kinds if place.phase == "string" else None

    def _clear(self) -> None:
        """Forget how states follow each other. Answers go on from theirs, and what is known of spots stays."""
        for state in (self.start, *self._states.values()):
            state.after.clear()
        self._states.clear()
        self._forced.clear()
        self._num_steps = 0
