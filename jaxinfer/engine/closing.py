"""Budget-aware closing: as the end of its tokens nears, an answer is led to the end of its grammar.

A short ending is known, of the tokens that may be drawn, and how many tokens are left. While these are many more, any
token may be drawn; nearer, only those after which an ending is known to fit; at last the ending itself. An answer of
which no ending is found that fits is left alone and ends for its length, as all do without this.
"""

from collections.abc import Sequence

import numpy as np

from jaxinfer.runtime.packing import bits_of, marked
from jaxinfer.text.grammar.compiler import Grammar

FROM = 512  # tokens left; before, nothing is looked for
MAX_ENDING = 256  # tokens
MARGIN = 16  # and as many more as the ending has: one token may make the ending so much longer
MAX_TRIED, MAX_SEARCHED = 32, 2  # tokens of a step whose endings are looked for: among a known one's, anew
_SAMPLE = 3  # words that speak for all: what may follow one, as a rule, may follow the others


class Closer:
    """What is known of one answer's ending. A function of the answer's tokens alone, however it was scheduled.

    `look` comes after each token for which `is_due`, before the grammar goes on, from whichever thread. A look costs a
    mask for each token of the ending that nothing forces: 0.4 to 8 ms with a vocabulary of 152,000, and about 40 where
    a mask takes the millisecond that hard regexes do (benchmarks/README.md). Far from the end there are few looks, and
    none while what is known remains an ending.
    """

    def __init__(self, grammar: Grammar, remaining: int, usable: np.ndarray, ends: np.ndarray) -> None:
        """remaining: tokens, the end's included.    usable, ends: bits of those that an ending may be made of, and of
        those that may end it.
        """
        self._grammar, self._usable, self._ends = grammar, usable, ends
        self._remaining = remaining
        self._ending: tuple[int, ...] | None = None
        self._is_sure = False  # that it is still one
        self._look_at = FROM  # tokens left

    def follow(self, token: int | None) -> None:
        """A token has come, which the grammar has taken; None: another, before it begins."""
        self._remaining -= 1
        if self._ending and token == self._ending[0]:
            self._ending = self._ending[1:]
        elif token is not None:
            self._is_sure = False

    @property
    def is_due(self) -> bool:
        """Whether the next mask takes time: a look, or tokens to be tried."""
        return self._must_look or self.spare is not None

    @property
    def spare(self) -> int | None:
        """How many tokens there may be before the ending; None: it is not near, or not known."""
        if self._ending is None or not self._is_sure:
            return None
        spare = self._remaining - len(self._ending) - 1
        return spare if spare <= MARGIN + len(self._ending) else None

    def narrowed(self, mask: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """Of a mask the tokens after which an ending fits; all where that is far or not known.

        whole: with the ends that come too early otherwise: the last chance to end is taken nevertheless.
        """
        spare = self.spare
        if spare is None or self._ending is None:
            return mask
        first: np.ndarray = whole & (_bits(self._ending[:1], len(self._ends)) if self._ending else self._ends)
        if spare <= 0 and first.any():
            return first
        kept: np.ndarray = self._kept(mask, self._ending) | (first & mask)
        return kept if kept.any() else mask

    @property
    def _must_look(self) -> bool:
        return 1 <= self._remaining <= self._look_at

    def look(self) -> None:
        """Find out what is to be known after this token, if that has not been done."""
        if not self._must_look:
            return
        if not self._is_sure:
            self._ending = self._renewed(self._ending)
        self._is_sure = self._ending is not None
        if self._ending is None:
            self._look_at = self._remaining - max(1, self._remaining // 16)
        else:
            spare = self._remaining - 2 * len(self._ending) - 1 - MARGIN
            self._look_at = self._remaining - max(1, spare // 16)

    def _renewed(self, ending: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """What was an ending before the last tokens, if it or the most of it still is; or another."""
        for rest in (ending[1:], ending) if ending is not None else ():
            if len(rest) < self._remaining and self._grammar.may_end(rest):
                return rest
        return self._grammar.ending(self._usable, min(MAX_ENDING, self._remaining - 1))

    def _kept(self, mask: np.ndarray, ending: tuple[int, ...]) -> np.ndarray:
        """Of a mask the tokens after which an ending is known to fit."""
        limit = self._remaining - 2  # that token and the end
        rests = [rest for rest in dict.fromkeys((ending, ending[1:])) if len(rest) <= limit]
        words = mask & self._grammar.words & self._usable
        others = mask & self._usable
        kept = np.zeros_like(mask)
        ids = _ids(words)
        sample = [int(ids[i * (len(ids) - 1) // (_SAMPLE - 1)]) for i in range(_SAMPLE)] if len(ids) > _SAMPLE else []
        if sample and any(all(self._grammar.may_end((token, *rest)) for token in sample) for rest in rests):
            kept |= words
            others &= ~words
        num_searched = 0
        fitting = []
        for token in _ids(others)[:MAX_TRIED].tolist():
            if any(self._grammar.may_end((token, *rest)) for rest in rests):
                fitting.append(token)
            elif num_searched < MAX_SEARCHED:
                num_searched += 1
                if self._grammar.ending(self._usable, limit, after=token) is not None:
                    fitting.append(token)
        kept |= _bits(fitting, len(mask))
        return kept


def _ids(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little").view(bool))


def _bits(ids: Sequence[int], num_words: int) -> np.ndarray:
    return bits_of(marked(ids, 32 * num_words))
