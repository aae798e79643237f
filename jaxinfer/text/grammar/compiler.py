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
from jaxinfer.text.grammar.known import Key, Known
from jaxinfer.text.grammar.places import Places, places_of

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

MAX_COMPILED, MAX_COMPILED_CHARS = 64, 4 << 20  # grammars that are kept; compiled, a text takes up to 100 times itself
MAX_LEXER_STATES = 50_000  # a kilobyte or two each
MAX_ASKING = 8  # threads, of which the interpreter lets one at a time do what is not a mask
# Of one mask, and of one token: about 10 ms on the engine's thread. With the library's own 50,000 items a grammar of 40
# bytes takes more than a second after 50 tokens; 3,000 still do for an enum of 3,000 and an anyOf of 500 objects.
_MAX_FUEL, _MAX_ITEMS = 200_000, 3_000


class Grammar(Protocol):
    """Where one answer stands in its grammar."""

    def copy(self) -> "Grammar":
        """Another that goes its own way from here."""

    def accept(self, token_id: int) -> None:
        """The answer's next token. One that may not come makes it a grammar with an `error`."""

    def accept_text(self, text: bytes) -> None:
        """The same of a text that has come, whatever tokens it came in."""

    def spell(self, token_id: int) -> bytes:
        """What a token adds to the answer's text."""

    @property
    def error(self) -> str:
        """Why nothing can be said any more; "" while all is well."""

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


def new_vocabulary(tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> "LLTokenizer":
    """llguidance's view of a tokenizer. Holds the interpreter for a second where the vocabulary is large.

    Raises InvalidRequest for a tokenizer that it cannot use.
    """
    from llguidance import LLTokenizer

    try:
        return LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_token_ids) or None)
    except Exception as error:  # the library raises nothing more specific
        message = f"structured output needs a tokenizer that llguidance can read, and of this model's it says: {error}"
        raise InvalidRequest(message[:400], code="unsupported_parameter") from error


def new_matcher(vocabulary: "LLTokenizer", text: str) -> "LLMatcher":
    """A matcher. Raises InvalidRequest with llguidance's reason."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES, step_lexer_fuel=_MAX_FUEL, step_max_items=_MAX_ITEMS, verbose_errors=False
    )
    matcher = LLMatcher(vocabulary, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise InvalidRequest(reason_of(matcher.get_error()))
    return matcher


def reason_of(error: str) -> str:
    """What of llguidance's error says what is wrong, without the place in a text that is ours."""
    line, *more = [line for line in error.splitlines() if line.strip()] or ["it cannot be compiled"]
    reason = line.removeprefix("at ").partition(": ")[2] if line.startswith("at ") else line
    why = next((line.removeprefix("error: ") for line in more if line.startswith("error: ")), "")
    if why and reason.endswith(":"):  # of a regular expression, which comes between
        return f"{reason} {why}: {more[0].strip()}"
    return reason.partition(". Enable 'coerce_one_of'")[0]  # which clients call strict


def warnings_of(matcher: "LLMatcher") -> list[str]:
    """What of its schemas is left out."""
    return [warning[:200] for warning in matcher.get_grammar_warnings()]


class _Pieces(dict[int, bytes]):
    """What tokens add to a text, each asked for once: the library takes microseconds for one."""

    def __init__(self, vocabulary: "LLTokenizer") -> None:
        self.vocabulary = vocabulary

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = bytes(self.vocabulary.decode_bytes([token_id]))
        return piece


class _Matcher:
    """A Grammar. Of tokens that its masks allow, llguidance is told when it is asked the next time; of what is known
    of a place it is not asked.
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        pieces: _Pieces,
        endings: Endings | None = None,
        known: Known | None = None,
        places: Places | None = None,
    ) -> None:
        """known, places: what is known of places, and those that its answers come to, if any can be told."""
        self._matcher = matcher
        self._pieces = pieces
        self._endings = endings
        self._known = known
        self.places = places
        self._place = None if places is None else places.start
        self._last: int | None = None
        self._untold: list[int] = []
        self.mask: np.ndarray | None = None  # where it stands, once that has been asked for

    @property
    def matcher(self) -> "LLMatcher":
        """llguidance's, told of all tokens."""
        if self._untold:
            self._matcher.consume_tokens(self._untold)
            self._untold = []
        return self._matcher

    @property
    def key(self) -> Key | None:
        """The same wherever the same tokens may come; None: nothing is known of that."""
        if self._place is None or self.places is None or (key := self.places.key(self._place, self._last)) is None:
            return None
        return self.places, key

    def copy(self) -> "_Matcher":
        found = _Matcher(self.matcher.deep_copy(), self._pieces, self._endings, self._known, self.places)
        found._place, found._last = self._place, self._last
        return found

    def accept(self, token_id: int) -> None:
        if self._place is not None and self.places is not None:
            self._place = self.places.after(self._place, self._pieces[token_id])
            self._last = token_id
        mask, self.mask = self.mask, None
        if self._place is not None and mask is not None and mask[token_id // 32] >> token_id % 32 & 1:
            self._untold.append(token_id)
        else:
            self.matcher.consume_token(token_id)

    def accept_text(self, text: bytes) -> None:
        self._place = self.mask = None
        self.matcher.consume_tokens(self._pieces.vocabulary.tokenize_bytes(text))

    def spell(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    @property
    def error(self) -> str:
        return reason_of(self._matcher.get_error()) if self._matcher.is_error() else ""

    def forced(self) -> list[int]:
        key = self.key
        found = None if self._known is None or key is None else self._known.forced(key)
        if found is None:
            found = list(self.matcher.compute_ff_tokens())
            if self._known is not None and key is not None:
                self._known.add_forced(key, found)
        return found

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

    def __init__(self, read_tokenizer: Callable[[], str], vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """read_tokenizer: the text of tokenizer.json."""
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
        self._pieces: _Pieces | None = None
        self._endings: Endings | None = None
        self._endings_lock = threading.Lock()
        self._at_places = Known(vocab_size)

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
                    self._forget(*self._known.popitem(last=False))
            else:
                self._known.move_to_end(key)
            return found

    def _forget(self, key: tuple[str, bool], compiled: "Future[Grammar]") -> None:
        """It was not asked for longest. Answers that are under way go on."""
        self._known_chars -= len(key[0])

        def forget(done: "Future[Grammar]") -> None:
            if not done.cancelled() and done.exception() is None and isinstance(grammar := done.result(), _Matcher):
                self._at_places.forget(grammar.places)

        compiled.add_done_callback(forget)

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
            pieces = self._pieces = self._pieces or _Pieces(self.vocabulary)
        compiled = new_matcher(self.vocabulary, text)
        matcher = _Matcher(compiled, pieces, endings, self._at_places, places_of(text, self._longest.result()))
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
        matchers = [grammar for grammar in grammars if isinstance(grammar, _Matcher)]
        keys = [matcher.key for matcher in matchers]
        unknown = self._at_places.fill(keys, masks)
        if unknown:
            self._find_out(matchers, keys, unknown, masks)
        for matcher, mask in zip(matchers, masks, strict=True):
            matcher.mask = mask

    def _find_out(
        self, matchers: list[_Matcher], keys: list[Key | None], unknown: list[int], masks: np.ndarray
    ) -> None:
        """Ask llguidance for these rows' masks, once where places are the same."""
        firsts: dict[Key | int, int] = {}
        like = {i: firsts.setdefault(keys[i] or i, i) for i in unknown}
        asked = [i for i, first in like.items() if i == first]
        self._ask(matchers, asked, masks)
        broken = {i for i in asked if matchers[i].error}  # of which the others know nothing
        good = [i for i in asked if i not in broken]
        self._at_places.add([keys[i] for i in good], masks[good])
        self._ask(matchers, [i for i, first in like.items() if i != first and first in broken], masks)
        for i, first in like.items():
            if i != first and first not in broken:
                masks[i] = masks[first]

    def _ask(self, matchers: list[_Matcher], rows: list[int], masks: np.ndarray) -> None:
        from llguidance.numpy import fill_next_token_bitmask_par

        if rows:
            fill_next_token_bitmask_par(self._executor.result(), [(matchers[i].matcher, i) for i in rows], masks)

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
