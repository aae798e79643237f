"""Short endings: tokens that bring an answer from where it stands in its grammar to where it may end."""

from collections import Counter, deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_CLOSERS = "}])>"  # of them and '"' an ending is made wherever they may come
_LINKS = (b":", b",")
_OPENERS = b"([{<-+\\"  # which begin something
MAX_WIDE, MAX_PLACES = 160, 16  # tokens tried in a wide search, at so many places
# Tokens of an ending that are guessed, or behind which a text may go on: each costs a mask of many tokens, up to 1.3 ms
# where 152,000 tokens are. Signs between values cost 0.02 ms, and a deep answer needs several for each level.
MAX_COSTLY = 48
_FIRST, _SHORTEST = 256, 4096  # of a vocabulary, by rank and by length: all of a large one take a millisecond
MAX_GUESSED = 6
_PLAIN = frozenset(b" abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_SPACES = frozenset(b" \t\r\n")


class Endings:
    """Which tokens of a vocabulary lead to an end, and what is found with them.

    What is found is short as a rule, not the shortest. Nothing is random, and nothing is kept between two calls.
    """

    def __init__(self, vocabulary: "LLTokenizer") -> None:
        """Takes a fraction of a second where the vocabulary is large."""
        self._vocabulary = vocabulary
        self.eos_id = vocabulary.eos_token if 0 <= vocabulary.eos_token < vocabulary.vocab_size else None
        texts = [vocabulary.decode_bytes([token]) for token in range(vocabulary.vocab_size)]
        self._width = -(-len(texts) // 32)
        self._outside = _ranks(texts, f'{_CLOSERS}"')
        self._in_text = _ranks(texts, f'"{_CLOSERS}')
        self._first_outside, self._first_in_text = (
            np.argsort(ranks)[:_FIRST] for ranks in (self._outside, self._in_text)
        )
        self._never_tires = np.array([_is_closer(text) or text in _LINKS for text in texts])
        # of a wide search: single letters and signs, which tell states apart, before long tokens
        order = np.argsort([(len(text) or 99) + 99 * (not text.isascii()) for text in texts], kind="stable")
        self._short = order[:_SHORTEST]
        self.words = _bits([bool(text) and _PLAIN.issuperset(text) for text in texts], self._width)
        self._num_words = _count(self.words)

    def find(
        self, matcher: "LLMatcher", usable: np.ndarray, max_tokens: int, *, wide: bool = True
    ) -> tuple[int, ...] | None:
        """Up to max_tokens usable ones (bits, as of a mask) after which the answer may end; None: none are known.

        wide: if the quick search finds none, or one that reads like a guess, look further.
        """
        found, num_guessed = self._find_quickly(matcher, usable, max_tokens)
        if not wide or (found is not None and num_guessed <= MAX_GUESSED):
            return found
        return self._find_widely(matcher, usable, max_tokens if found is None else len(found) - 1) or found

    def _find_quickly(
        self, matcher: "LLMatcher", usable: np.ndarray, max_tokens: int
    ) -> tuple[tuple[int, ...] | None, int]:
        """Each step takes what is forced, or the best token by an order of our own, and never goes back. Also how many
        tokens were neither forced nor such as lead to an end."""
        at, found, used, num_guessed, num_costly = matcher.deep_copy(), list[int](), Counter[int](), 0, 0
        while not (at.is_accepting() or at.is_error()) and len(found) < max_tokens:
            tokens = self._forced(at, usable)
            if not tokens:
                if num_costly == MAX_COSTLY:
                    return None, num_guessed
                tokens, is_text = self._best(at, usable, used)
                used.update(tokens)  # not those that are forced: a name with an n would make null tire before a brace
                is_guess = not all(self._never_tires[token] for token in tokens)
                num_guessed += is_guess
                num_costly += is_guess or is_text
            if not tokens or at.try_consume_tokens(tokens) < len(tokens):
                return None, num_guessed
            found += tokens
        is_found = at.is_accepting() and not at.is_error() and len(found) <= max_tokens
        return tuple(found) if is_found else None, num_guessed

    def _find_widely(self, matcher: "LLMatcher", usable: np.ndarray, max_tokens: int) -> tuple[int, ...] | None:
        """Breadth first among places whose masks differ, MAX_WIDE tokens in all."""
        places = deque([(matcher.deep_copy(), ())])
        seen, num_tried = set[bytes](), 0
        while places and len(seen) < MAX_PLACES:
            at, found = places.popleft()
            mask = self._mask(at, usable)
            if mask.tobytes() in seen or len(found) >= max_tokens:
                continue
            seen.add(mask.tobytes())
            flags = _flags(mask)
            for token in self._short[flags[self._short]].tolist():
                num_tried += 1
                if num_tried > MAX_WIDE:
                    return None
                after = at.deep_copy()
                if not after.consume_token(token):
                    continue
                forced = self._forced(after, usable)
                if after.try_consume_tokens(forced) < len(forced):
                    continue
                tokens = (*found, token, *forced)
                if after.is_accepting() and len(tokens) <= max_tokens:
                    return tokens
                places.append((after, tokens))
        return None

    def _forced(self, at: "LLMatcher", usable: np.ndarray) -> list[int]:
        """Tokens that spell what must come in any case."""
        text = at.compute_ff_bytes()
        if not text or b"\xff" in text:  # which stands before the id of a control token
            return []
        tokens = self._vocabulary.tokenize_bytes(text)
        return tokens if all(usable[token // 32] >> token % 32 & 1 for token in tokens) else []

    def _best(self, at: "LLMatcher", usable: np.ndarray, used: Counter[int]) -> tuple[list[int], bool]:
        """One token, or none; and whether a text may go on."""
        mask = self._mask(at, usable)
        is_text = 4 * _count(mask & self.words) > self._num_words  # where a brace closes nothing
        ranks, first = (self._in_text, self._first_in_text) if is_text else (self._outside, self._first_outside)
        may_come = (mask[first // 32] >> first % 32 & 1).astype(bool)
        for token in first[may_come].tolist():  # as a rule it is one of these: no need to look at all of them
            if not used[token] or self._never_tires[token]:
                return [token], is_text
        allowed = np.flatnonzero(_flags(mask)[: len(ranks)])
        if not len(allowed):
            return [], is_text
        costs = ranks[allowed]
        if tired := [token for token in used if not self._never_tires[token]]:  # or (ab)*c would never come to its c
            times = np.zeros(len(ranks), np.int64)
            times[tired] = [used[token] for token in tired]
            costs = costs + times[allowed] * len(ranks)
        return [int(allowed[np.argmin(costs)])], is_text

    def _mask(self, at: "LLMatcher", usable: np.ndarray) -> np.ndarray:
        from llguidance.numpy import fill_next_token_bitmask

        mask = np.empty((1, self._width), np.int32)
        fill_next_token_bitmask(at, mask)
        return np.asarray(mask[0] & usable)


def _is_closer(text: bytes) -> bool:
    return bool(text) and set(text) <= set(f'{_CLOSERS}"'.encode())


def _ranks(texts: list[bytes], first: str) -> np.ndarray:
    """i64[V], the place of each token. Closers come first, by what they begin with; then what goes on in JSON, other
    single signs and digits; then what is long, since that fills what must be filled; and white space last."""

    def key(token: int) -> tuple[int, int, int]:
        text = texts[token]
        if _is_closer(text):
            # a quote that opens a text is best alone; all other closers close more the longer they are
            opens = text[:1] == b'"' and first[0] != '"'
            return first.index(chr(text[0])), len(text) if opens else -len(text), token
        if text in _LINKS:
            return 10, 0, token
        if len(text) == 1 and text.isascii() and not (text.isalnum() or text.isspace() or text in _OPENERS):
            return 11, 0, token
        if text.isdigit():
            return 12, len(text), token
        if text and text in _OPENERS:
            return 14, 0, token
        return 15 if not text or _SPACES.intersection(text) else 13, -len(text), token

    ranks = np.empty(len(texts), np.int64)
    ranks[sorted(range(len(texts)), key=key)] = np.arange(len(texts))
    ranks[[token for token, text in enumerate(texts) if text.isspace()]] += 8 * len(texts)  # later than what is tired
    return ranks


def _bits(flags: list[bool], width: int) -> np.ndarray:
    padded = np.zeros(width * 32, bool)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little").view(np.int32)


def _flags(mask: np.ndarray) -> np.ndarray:
    return np.unpackbits(mask.view(np.uint8), bitorder="little").view(bool)


def _count(mask: np.ndarray) -> int:
    return int(np.bitwise_count(mask.view(np.uint32)).sum())
