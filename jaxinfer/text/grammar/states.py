"""States: the places of one schema that answers have come to, so that to follow a token is to look it up."""

from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from jaxinfer.text.grammar.places import Place, Places, is_open, is_plain

MAX_STEPS = 1 << 14  # from one state to another, of one schema: half a kilobyte each


class Pieces(dict[int, bytes]):
    """What tokens add to a text, each asked for once: the library takes microseconds for one."""

    def __init__(self, decode: Callable[[list[int]], bytes]) -> None:
        self._decode = decode
        self.kinds = _Kinds(self)

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = bytes(self._decode([token_id]))
        return piece


class _Kinds(dict[int, int]):
    """Of a token that a string may take as it stands, how many characters it is, less than nothing; else itself."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def __missing__(self, token_id: int) -> int:
        piece = self._pieces[token_id]
        kind = self[token_id] = -len(piece) if piece and is_plain(piece) else token_id
        return kind


class Spot:
    """Where the same tokens may come, whatever came before: one for all answers, while anybody thinks of it.

    forced: the tokens that come next whatever the model says; None: nobody has asked.
    """

    __slots__ = ("__weakref__", "forced")

    def __init__(self) -> None:
        self.forced: list[int] | None = None


class State:
    """A place, and the token that came last where that matters. spot: None: nothing is known of what may come.

    by_kind: all tokens of a kind lead to the same.    after: where those lead that have come.
    """

    __slots__ = ("after", "by_kind", "place", "spot")

    def __init__(self, place: Place, spot: Spot | None, *, by_kind: bool) -> None:
        self.place, self.spot, self.by_kind = place, spot, by_kind
        self.after: dict[int, State | None] = {}


_NEW = State(Place("due", None), None, by_kind=False)  # in the place of what has not come yet


class States:
    """Those of one schema, for one thread."""

    def __init__(self, places: Places, pieces: Pieces) -> None:
        self._places, self._pieces = places, pieces
        self._states: dict[Hashable, State] = {}
        self._spots: WeakValueDictionary[Hashable, Spot] = WeakValueDictionary()
        self._num_steps = 0
        self.start = self._state(places.start, None)

    def after(self, state: State, token: int) -> State | None:
        """Where it stands after one more; None where that is none of the schema's."""
        kind = self._pieces.kinds[token] if state.by_kind else token
        found = state.after.get(kind, _NEW)
        if found is not _NEW:
            return found
        self._num_steps += 1
        if self._num_steps > MAX_STEPS:
            self._clear()
        place = self._places.after(state.place, self._pieces[token])
        found = state.after[kind] = None if place is None else self._state(place, token)
        return found

    def _state(self, place: Place, last: int | None) -> State:
        key = self._places.key(place, last)
        by_kind = place.phase == "string" and not place.raw
        whole = place, None if is_open(place) else last
        if whole not in self._states:
            spot = None
            if key is not None and (spot := self._spots.get(key)) is None:
                spot = self._spots[key] = Spot()
            self._states[whole] = State(place, spot, by_kind=by_kind)
        return self._states[whole]

    def _clear(self) -> None:
        """Forget how states follow each other. Answers go on from theirs, and what is known of spots stays."""
        for state in (self.start, *self._states.values()):
            state.after.clear()
        self._states.clear()
        self._num_steps = 0
