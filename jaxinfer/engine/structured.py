"""Structured output: where a sequence stands in its grammar, and what may be drawn next.

A grammar begins after the thoughts, if there are any. Until then nothing may end the sequence, so that an answer that
stops by itself is always one of the grammar's.
"""

import logging
from collections.abc import Sequence as Ids
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jaxinfer.engine.closing import Closer
from jaxinfer.engine.stats import Counters
from jaxinfer.runtime.packing import allowed_by, bits_of, marked
from jaxinfer.runtime.plan import Controls
from jaxinfer.text.grammar.compiler import Grammar as Grammar  # the scheduler sees it
from jaxinfer.text.grammar.compiler import Grammars
from jaxinfer.text.thinking import Thoughts

if TYPE_CHECKING:
    from jaxinfer.engine.scheduler import Step
    from jaxinfer.engine.sequence import Request, Sequence

log = logging.getLogger(__name__)

EMPTY = (
    "a grammar and allowed_token_ids, bad_words and min_tokens must leave a token that may be drawn, here they leave "
    "none; allow more"
)
BROKEN = "an answer must stay within its grammar, which this one cannot any more: "


class NoGrammar:
    """In the place of one that could not be compiled, where an answer goes on without: of one with an `error` nothing
    else is asked.
    """

    def __init__(self, error: str) -> None:
        self.error = error

    def copy(self) -> "NoGrammar":
        return self

    def accept(self, token_id: int) -> None:
        """Any token may come."""

    def accept_text(self, text: bytes) -> None:
        """And any text."""

    def spell(self, token_id: int) -> bytes:
        """Nothing, so that no text begins it."""
        return b""


class Structured:
    """One sequence in its grammar. Invariant: every committed output token since it began has been followed.

    is_led: whether what may be drawn has been narrowed for it to end within max_tokens.
    is_free: what the grammar says does not count any more. Of one that nobody has asked for: nothing fails because of
    it.
    """

    def __init__(self, grammar: Grammar, request: "Request", vocab_size: int, max_tokens: int) -> None:
        """max_tokens: of the output from where the grammar begins."""
        assert request.structure is not None, "a grammar comes with a request for one"
        self.grammar = grammar
        self._structure = request.structure
        self._end_ids = request.eos_token_ids | request.stop_token_ids | request.structure.end_ids
        controls = request.controls or Controls()
        self._banned_after, self._bans = controls.banned_after, controls.needs_last_token
        self._min_length = len(request.prompt) + controls.min_tokens
        self._ignored = tuple(sorted(request.structure.end_ids - request.eos_token_ids))
        self._all_ends = tuple(sorted(self._end_ids))
        self._ends = bits_of(marked(self._end_ids, vocab_size))
        self._allowed = None
        if controls.allowed_token_ids is not None or controls.bad_words:
            self._allowed = bits_of(allowed_by(controls, vocab_size))
        self._needs_draws = request.logprobs is not None or self._allowed is not None
        is_late = self._structure.after is not None  # then they are over
        self._thoughts = Thoughts("answering", None, None) if is_late else self._structure.thoughts()
        self.is_led = self.is_free = False
        self._closer: Closer | None = None
        if self._structure.closes and not grammar.error:
            usable = ~self._ends if self._allowed is None else self._allowed & ~self._ends
            ends = self._ends if self._allowed is None else self._allowed & self._ends
            self._closer = Closer(grammar, max_tokens, usable, ends)

    @property
    def is_thinking(self) -> bool:
        """Whether the grammar says nothing yet of the next token."""
        return self._thoughts.are_on

    @property
    def is_closing(self) -> bool:
        """Whether its next mask takes so long that it should be made beside others'."""
        return self._closer is not None and self._closer.is_due

    @property
    def only_unwanted(self) -> bool:
        """Whether its mask is the grammar's but for ends, which many can be narrowed by together."""
        is_answer = not (self._thoughts.are_on or self._thoughts.may_begin or self.is_free)
        return is_answer and self._closer is None and self._allowed is None and not (self._bans or self.grammar.error)

    def unwanted(self, length: int) -> tuple[int, ...]:
        """The ends that may not come after so many tokens if anything else may."""
        return self._all_ends if length < self._min_length else self._ignored

    @property
    def may_forward(self) -> bool:
        """Whether tokens that the grammar forces may be taken without a draw of each."""
        return not (self._needs_draws or self._thoughts.are_on or self._thoughts.may_begin or self.is_free)

    def let_free(self) -> bool:
        """Go on without the grammar, if that may be and has not happened yet."""
        may = self._structure.may_be_left and not self.is_free
        if may:
            self.is_free, self._closer = True, None
        return may

    def follow(self, token: int) -> None:
        """The next token of the output."""
        self.look()  # where tokens of before a restart are followed, no mask has asked for it
        is_answer = not (self._thoughts.follow(token) or token in self._end_ids or self.is_free)
        if is_answer:
            self.grammar.accept(token)
        if self._closer is not None:
            self._closer.follow(token if is_answer else None)

    def look(self) -> None:
        """Let what closes the answer see where it stands, which has to come before its mask."""
        if self._closer is not None:
            self._closer.look()

    def narrow(self, mask: np.ndarray, tokens: Ids[int]) -> bool:
        """From what the grammar allows, i32[ceil(V / 32)], take what else is forbidden after these tokens, in place.

        An end that comes too early is forbidden only if something else is left: a grammar's end wins.
        Returns whether anything is.
        """
        if self._thoughts.are_on:
            mask &= ~self._ends
        if self._thoughts.may_begin:
            assert self._structure.open_id is not None
            _set(mask, self._structure.open_id)
        if self._allowed is not None:
            mask &= self._allowed
        for token in self._banned_after(tokens):
            _clear(mask, token)
        rest = mask.copy()
        for token in self.unwanted(len(tokens)):
            _clear(rest, token)
        if self._closer is not None:
            rest = rest if rest.any() else mask.copy()
            mask[:] = self._closing(self._closer, rest, mask)
            self.is_led = self.is_led or (self.is_closing and not np.array_equal(mask, rest))
        elif rest.any():
            mask[:] = rest
        return bool(mask.any())

    def _closing(self, closer: Closer, rest: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Of the rest of a mask what leads to the grammar's end in time. The thoughts have to end for it too."""
        spare, close_id, open_id = closer.spare, self._structure.close_id, self._structure.open_id
        if self._thoughts.are_on:
            assert close_id is not None
            return _only(close_id, rest) if spare is not None and spare < 2 and _has(rest, close_id) else rest
        kept = closer.narrowed(rest, mask)
        if self._thoughts.may_begin and open_id is not None and _has(rest, open_id) and (spare is None or spare >= 2):
            _set(kept, open_id)
        return kept


def masks_of(
    step: "Step", grammars: Grammars, vocab_size: int, counters: Counters
) -> tuple[np.ndarray, list[tuple["Sequence", str]]]:
    """What the masked rows of a step may draw (as Pending.draw wants it), once all tokens before it are committed, and
    the sequences for which nothing is left, with the reason.

    Those that close are done by threads of the grammars', beside the others.
    """
    pairs = zip(step.sequences, step.plan.rows, strict=True)
    sequences = [sequence for sequence, row in pairs if row.masked]
    masks = np.empty((len(sequences), -(-vocab_size // 32)), np.int32)
    live = [(i, s, s.structured) for i, s in enumerate(sequences) if s.structured is not None and not s.has_ended]
    if len(live) < len(masks):
        masks[[i for i, s in enumerate(sequences) if s.has_ended or s.structured is None]] = -1
    closing = [one for one in live if one[2].is_closing]  # as it is now, before they look
    others = [one for one in live if not one[2].is_closing]
    fill = partial(_fill, grammars, masks)
    num_led = sum(structured.is_led for _, _, structured in closing)
    shares = grammars.spread(fill, closing)
    reasons = fill(others)
    for share in shares:
        reasons |= share.result()
    counters.closing_answers += sum(structured.is_led for _, _, structured in closing) - num_led
    failed = [(sequence, reasons[i]) for i, sequence, _ in live if reasons[i]]
    counters.masked_tokens += len(live) - len(failed)
    return masks, failed


def _fill(grammars: Grammars, masks: np.ndarray, rows: list[tuple[int, "Sequence", Structured]]) -> dict[int, str]:
    """Set the masks of these rows. Returns for each why nothing is left; "" if something is."""
    asked = []
    for i, sequence, structured in rows:
        structured.look()
        if structured.is_thinking or structured.is_free or structured.grammar.error:
            masks[i] = -1
        else:
            asked.append((i, sequence, structured))
    if asked:
        filled = masks if len(asked) == len(masks) else np.empty((len(asked), masks.shape[1]), np.int32)
        grammars.fill([structured.grammar for _, _, structured in asked], filled)
        if filled is not masks:
            masks[[i for i, _, _ in asked]] = filled
    done = _narrow_together(masks, asked)
    return {i: "" if i in done else _narrow(structured, masks[i], sequence.tokens) for i, sequence, structured in rows}


def _narrow_together(masks: np.ndarray, rows: list[tuple[int, "Sequence", Structured]]) -> set[int]:
    """Narrow those of these rows that want no more than `unwanted` to be left out. Returns the rows that are done.

    Row by row, arrays of a whole vocabulary cost 20 us each: 3 ms of a step of 128 rows.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for i, sequence, structured in rows:
        if structured.only_unwanted:
            alike.setdefault(structured.unwanted(len(sequence.tokens)), []).append(i)
    done: set[int] = set()
    for unwanted, members in alike.items():
        places = np.array(members)
        words = sorted({token // 32 for token in unwanted})
        before = masks[np.ix_(places, words)]
        for token in unwanted:
            masks.view(np.uint32)[places, token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
        whole = masks if len(members) == len(masks) else masks[places]
        is_left = np.bitwise_or.reduce(whole, axis=1) != 0
        if not is_left.all():  # an end is all there is
            masks[np.ix_(places[~is_left], words)] = before[~is_left]
        done.update(places[is_left].tolist())
    return done


def _narrow(structured: Structured, mask: np.ndarray, tokens: Ids[int]) -> str:
    if structured.is_free or not (error := structured.grammar.error):
        reason = "" if structured.narrow(mask, tokens) else EMPTY
    else:
        reason = BROKEN + error
    if reason and structured.let_free():
        log.warning("a call is not held to its tools' schemas any more: %s", reason)
        mask[:] = -1
        return _narrow(structured, mask, tokens)
    return reason


def _set(mask: np.ndarray, token: int) -> None:
    mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)


def _clear(mask: np.ndarray, token: int) -> None:
    mask.view(np.uint32)[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)


def _has(mask: np.ndarray, token: int) -> bool:
    return bool(mask[token // 32] >> token % 32 & 1)


def _only(token: int, mask: np.ndarray) -> np.ndarray:
    found = np.zeros_like(mask)
    _set(found, token)
    return found
