"""Watch: looks in an answer for what begins a grammar that begins late, a token or a text that tokens spell."""

from collections.abc import Collection
from collections.abc import Sequence as Ids
from typing import TYPE_CHECKING

from jaxinfer.text.grammar.compiler import Grammar
from jaxinfer.text.tools.opening import Finder

if TYPE_CHECKING:
    from jaxinfer.engine.sequence import Structure

_EVERY = range(1 << 31)


class Watch:
    """Of one answer. Thoughts are passed over."""

    def __init__(self, structure: "Structure", grammar: Grammar, start: int) -> None:
        """start: where the answer begins among its sequence's tokens."""
        after = structure.after
        assert after is not None, "it begins late"
        self._thoughts = structure.thoughts()
        self._spell = grammar.spell
        self._token = after if isinstance(after, int) else -1
        self._finder = None if isinstance(after, int) else Finder(after)
        self._next = start  # the token to be looked at

    @property
    def worth_a_look(self) -> Collection[int]:
        """The tokens after which it may have come."""
        if self._finder is None:
            return (self._token,)
        return () if self._finder.is_over else _EVERY

    def look(self, tokens: Ids[int]) -> tuple[int, bytes] | None:
        """Where in a sequence's tokens the grammar begins, and what it has read there already; None: not yet."""
        for i in range(self._next, len(tokens)):
            if self._thoughts.follow(tokens[i]):
                continue
            if self._finder is not None:
                head = self._finder.feed(self._spell(tokens[i]))
            else:
                head = b"" if tokens[i] == self._token else None
            if head is not None:
                return i + 1, head
            if self._finder is not None and self._finder.is_over:
                break
        self._next = len(tokens)
        return None
