"""Compiled grammars: which tokens may come next. llguidance behind the little that the rooms above need of it."""

import dataclasses
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import numpy as np

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.endings import Endings
from jaxinfer.text.grammar.places import places_of
from jaxinfer.text.grammar.reasons import reason_of
from jaxinfer.text.grammar.source import AS_SENT
from jaxinfer.text.grammar.spelling import Speller, unusable
from jaxinfer.text.grammar.states import GrammarState, GrammarStates, Spot, TokenTexts
from jaxinfer.text.rust import LibraryPanic, panics_as_exceptions
from jaxinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

MAX_COMPILED, MAX_COMPILED_CHARS = 64, 4 << 20  # grammars that are kept; compiled, a text takes up to 100 times itself
MAX_LEXER_STATES = 50_000  # a kilobyte or two each
MAX_ASKING = 8  # threads, of which the interpreter lets one at a time do what is not a mask
_MAX_FUEL = 200_000  # of one mask, and of one token
_MAX_ITEMS, _MAX_ROW = 15_000, 5_000  # of Earley's table: of one mask, and behind one token
# The same where a client wrote the rules. A row of an ambiguous grammar grows with the text, and costs its third power:
# 20 to 40 ms a token at 2,000, eight times as much at 4,000. A row of a schema grows with the schema alone, and costs
# its square: 8 ms at 5,000, which 1,000 optional properties, an enum of 2,500 objects and an anyOf of 700 arrays need.
_MAX_ITEMS_SENT, _MAX_ROW_SENT = 3_000, 2_000


class Grammar(Protocol):
    """Where one answer stands in its grammar."""

    def copy(self) -> "Grammar":
        """Another that goes its own way from here."""

    def accept(self, token_id: int, *, is_allowed: bool = False) -> None:
        """The answer's next token. One that may not come makes it a grammar with an `error`.

        is_allowed: by its mask, so that nothing has to be found out about it now.
        """

    def accept_text(self, text: bytes) -> None:
        """The same of a text that has come, whatever tokens it came in."""

    def spell(self, token_id: int) -> bytes:
        """What a token adds to the answer's text."""

    @property
    def error(self) -> str:
        """Why nothing can be said any more; "" while all is well."""

    @property
    def spot(self) -> Spot | None:
        """One for all that the same tokens may follow, and `forced` ones; None: that is not known, or there is an
        `error`."""

    def forced(self) -> list[int]:
        """The tokens that come next whatever the model says: of each the mask is that token alone. None where the next
        is open, or the end."""

    @property
    def words(self) -> np.ndarray:
        """i32[ceil(V / 32)], the bits of tokens of letters and spaces alone. This and what follows it: if compiled to
        close."""

    def ending(self, usable: np.ndarray, max_tokens: int, after: int | None = None) -> tuple[int, ...] | None:
        """Up to max_tokens tokens of usable (bits) after which the answer may end, short as a rule; None: none are
        known. after: a token that comes before them; then the search is a short one."""

    def may_end(self, tokens: Sequence[int]) -> bool:
        """Whether these may come, and then the end."""


class Grammars(Protocol):
    """Compiles grammars and asks many of them at once."""

    def compile(self, text: str, *, closes: bool = False) -> "Future[Grammar]":
        """One at its beginning, at once if it is known. Raises, through the future, InvalidRequest.

        closes: its endings will be asked for.
        """

    def fill(self, grammars: Sequence[Grammar], masks: np.ndarray) -> None:
        """Set the bits of the tokens that may come next: masks i32[len(grammars), ceil(V / 32)], lowest bit first."""

    def spread[T, R](self, call: Callable[[list[T]], R], items: list[T]) -> "list[Future[R]]":
        """Have it called with all of these in a few shares, in threads: for what asks one grammar many things."""


def new_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> "LLTokenizer":
    """llguidance's view of a tokenizer. Holds the interpreter for a second where the vocabulary is large.

    Raises InvalidRequest for a tokenizer that it cannot use.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    speller = Speller(tokenizer, vocab_size, eos_token_ids)
    try:
        with panics_as_exceptions("llguidance"):
            return LLTokenizer(TokenizerWrapper(speller), eos_token=list(eos_token_ids) or None)
    except LibraryPanic as panic:
        raise unusable(str(panic)[:200]) from panic


def new_matcher(vocabulary: "LLTokenizer", text: str) -> "LLMatcher":
    """A matcher. Raises InvalidRequest with llguidance's reason."""
    from llguidance import LLMatcher, LLParserLimits

    is_sent = text.endswith(AS_SENT)
    limits = LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES,
        step_lexer_fuel=_MAX_FUEL,
        step_max_items=_MAX_ITEMS_SENT if is_sent else _MAX_ITEMS,
        max_items_in_row=_MAX_ROW_SENT if is_sent else _MAX_ROW,
        verbose_errors=False,
    )
    matcher = LLMatcher(vocabulary, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise InvalidRequest(reason_of(matcher.get_error()))
    return matcher


def warnings_of(matcher: "LLMatcher") -> list[str]:
    """What of its schemas is left out."""
    return [warning[:200] for warning in matcher.get_grammar_warnings()]


class _Matcher:
    """A Grammar. llguidance is told of tokens that a mask allowed when it is asked the next time."""

    def __init__(
        self,
        matcher: "LLMatcher",
        vocabulary: "LLTokenizer",
        pieces: TokenTexts,
        endings: Endings | None = None,
        states: GrammarStates | None = None,
    ) -> None:
        """states: those that its answers come to, if any can be told."""
        self._matcher, self._is_shared = matcher, False
        self._vocabulary, self._pieces = vocabulary, pieces
        self._endings = endings
        self._states = states
        self._state: GrammarState | None = None if states is None else states.start
        self._untold: list[int] = []

    @property
    def matcher(self) -> "LLMatcher":
        """llguidance's, told of all tokens. Copies share one until it has to be asked."""
        if self._is_shared:
            self._matcher, self._is_shared = self._matcher.deep_copy(), False
        if self._untold:
            self._matcher.consume_tokens(self._untold)
            self._untold = []
        return self._matcher

    @property
    def spot(self) -> Spot | None:
        return None if self._state is None else self._state.spot

    def copy(self) -> "_Matcher":
        self._is_shared = True
        found = _Matcher(self._matcher, self._vocabulary, self._pieces, self._endings, self._states)
        found._is_shared, found._state, found._untold = True, self._state, self._untold.copy()
        return found

    def accept(self, token_id: int, *, is_allowed: bool = False) -> None:
        if is_allowed and self._state is not None:
            self._untold.append(token_id)
        else:
            self._tell([token_id])
        if self._state is not None and self._states is not None:
            self._state = self._states.after(self._state, token_id, self)

    def forced_bytes(self) -> bytes | None:
        """As states.Asked."""
        matcher = self.matcher
        return None if matcher.is_error() else bytes(matcher.compute_ff_bytes())

    def _tell(self, tokens: Sequence[int]) -> None:
        """At once."""
        if not self.matcher.consume_tokens(list(tokens)):
            self._state = None

    def accept_text(self, text: bytes) -> None:
        self._tell(self._vocabulary.tokenize_bytes(text))
        self._state = None

    def spell(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    @property
    def error(self) -> str:
        if not self._matcher.is_error():
            return ""
        self._state = None  # from a mask of its own, or tokens that were told late
        return reason_of(self._matcher.get_error())

    def forced(self) -> list[int]:
        spot = self.spot
        if spot is None:
            return list(self.matcher.compute_ff_tokens())
        if spot.forced is None:
            spot.forced = list(self.matcher.compute_ff_tokens())
        return spot.forced

    @property
    def endings(self) -> Endings:
        assert self._endings is not None, "compiled to close"
        return self._endings

    @property
    def words(self) -> np.ndarray:
        return self.endings.words

    def ending(self, usable: np.ndarray, max_tokens: int, after: int | None = None) -> tuple[int, ...] | None:
        if after is None:
            return self.endings.find(self.matcher, usable, max_tokens)
        at = self.matcher.deep_copy()
        return self.endings.find(at, usable, max_tokens, wide=False) if at.consume_token(after) else None

    def may_end(self, tokens: Sequence[int]) -> bool:
        at = self.matcher.deep_copy()  # what is too much for a copy must not break the answer
        if not tokens or self.endings.eos_id is None:
            return bool(at.consume_tokens(list(tokens)) and at.is_accepting())
        # without going there: 3 us instead of 60, where nothing but the end may come after them
        return bool(at.validate_tokens([*tokens, self.endings.eos_id]) > len(tokens))


@dataclasses.dataclass(frozen=True, slots=True)
class Compiles:
    """How many grammars a Compiler was asked for, those that failed included, and how many of them it had already.

    seconds: of its threads, for the others.
    """

    asked: int = 0
    known: int = 0
    seconds: float = 0.0

    def plus(self, other: "Compiles") -> "Compiles":
        return Compiles(self.asked + other.asked, self.known + other.known, self.seconds + other.seconds)


class Compiler:
    """Grammars, compiled in threads and kept by their text, the least recently used ones forgotten.

    The vocabulary is read in the first thread at once, so that no request waits for it later.
    """

    def __init__(self, read_tokenizer: Callable[[], Tokenizer], vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="jaxinfer-grammar")
        # apart from those that compile, for which a step would have to wait
        self._num_asking = min(MAX_ASKING, os.cpu_count() or 1)
        self._asking = ThreadPoolExecutor(self._num_asking, thread_name_prefix="jaxinfer-closing")
        self._known: OrderedDict[tuple[str, bool], Future[Grammar]] = OrderedDict()
        self._known_chars = 0
        self._counts = Compiles()
        self._lock = threading.Lock()
        self._vocabulary = self._pool.submit(lambda: new_vocabulary(read_tokenizer(), vocab_size, eos_token_ids))
        self._executor = self._pool.submit(_new_executor)
        self._longest = self._pool.submit(lambda: _longest(self.vocabulary))
        self._pieces: TokenTexts | None = None
        self._endings: Endings | None = None
        self._endings_lock = threading.Lock()

    @property
    def vocabulary(self) -> "LLTokenizer":
        """Waits until it is read."""
        return self._vocabulary.result()

    def compile(self, text: str, *, closes: bool = False) -> "Future[Grammar]":
        key = (text, closes)
        with self._lock:
            found = self._known.get(key)
            self._counts = self._counts.plus(Compiles(1, found is not None))
            if found is None:
                found = self._known[key] = self._pool.submit(self._compile, text, closes)
                self._known_chars += len(text)
                while (
                    len(self._known) > MAX_COMPILED or len(self._known) > 1 and self._known_chars > MAX_COMPILED_CHARS
                ):
                    self._known_chars -= len(self._known.popitem(last=False)[0][0])
            else:
                self._known.move_to_end(key)
            return found

    def counts(self) -> Compiles:
        """Safe from any thread."""
        return self._counts

    def _compile(self, text: str, closes: bool) -> Grammar:
        self._vocabulary.exception()  # waits: to read it is no compiling
        began = time.monotonic()
        try:
            return self._compiled(text, closes)
        finally:
            with self._lock:
                self._counts = self._counts.plus(Compiles(seconds=time.monotonic() - began))

    def _compiled(self, text: str, closes: bool) -> Grammar:
        endings = self._read_endings() if closes else None
        with self._lock:
            pieces = self._pieces or TokenTexts(self.vocabulary.decode_bytes, self.vocabulary.tokenize_bytes)
            self._pieces = pieces
        compiled = new_matcher(self.vocabulary, text)  # first: places are of schemas that it takes
        places = places_of(text, self._longest.result())
        states = None if places is None else GrammarStates(places, pieces)
        matcher = _Matcher(compiled, self.vocabulary, pieces, endings, states)
        # the first mask costs most: what it finds out is kept for all copies
        self.fill([matcher], np.zeros((1, -(-self.vocabulary.vocab_size // 32)), np.int32))
        return matcher

    def _read_endings(self) -> Endings:
        """Made for the first grammar that wants them, in its thread."""
        with self._endings_lock:
            if self._endings is None:
                self._endings = Endings(self.vocabulary)
            return self._endings

    def fill(self, grammars: Sequence[Grammar], masks: np.ndarray) -> None:
        from llguidance.numpy import fill_next_token_bitmask_par

        rows = [(grammar.matcher, i) for i, grammar in enumerate(grammars) if isinstance(grammar, _Matcher)]
        fill_next_token_bitmask_par(self._executor.result(), rows, masks)

    def spread[T, R](self, call: Callable[[list[T]], R], items: list[T]) -> "list[Future[R]]":
        num_shares = min(self._num_asking, len(items))
        return [self._asking.submit(call, items[share::num_shares]) for share in range(num_shares)]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._asking.shutdown(cancel_futures=True)


def _longest(vocabulary: "LLTokenizer") -> int:
    """Bytes of the longest token. Takes 0.1 s where the vocabulary is large."""
    return max(len(vocabulary.decode_bytes([token])) for token in range(vocabulary.vocab_size))


def _new_executor() -> "LLExecutor":
    from llguidance import LLExecutor

    return LLExecutor()
