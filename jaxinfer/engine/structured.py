"""Structured output: where a sequence stands in its grammar, and what may be drawn next.

A grammar begins after the thoughts, if there are any. Until then nothing may end the sequence, so that an answer that
stops by itself is always one of the grammar's.
"""

import logging
from collections.abc import Hashable
from collections.abc import Sequence as Ids
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from jaxinfer.engine.closing import Closer
from jaxinfer.engine.stats import Counters
from jaxinfer.runtime.mask_table import ANY, Masks, MaskTable
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
BROKEN = "an answer must stay within its grammar, this one cannot any more: "


class NoGrammar:
    """In the place of one that could not be compiled, where an answer goes on without: of one with an `error` nothing
    else is asked.
    """

    def __init__(self, error: str) -> None:
        self.error = error

    def copy(self) -> "NoGrammar":
        return self

    spot = None

    def accept(self, token_id: int, *, is_allowed: bool = False) -> None:
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
        self._banned_after, self._bans = controls.banned_after, controls.bans_by_context
        self._min_length = len(request.prompt) + controls.min_tokens
        self._ignored = tuple(sorted(request.structure.end_ids - request.eos_token_ids))
        self._all_ends = tuple(sorted(self._end_ids))
        self._vocab_size = vocab_size
        self._allowed = None
        if controls.allowed_token_ids is not None or controls.bad_words:
            self._allowed = bits_of(allowed_by(controls, vocab_size))
        self._needs_draws = request.logprobs is not None or self._allowed is not None
        self._shares = self._allowed is None and not self._bans
        is_late = self._structure.after is not None  # then they are over
        self._thoughts = None if is_late else _unless_over(self._structure.thoughts())
        self.is_led = self.is_free = False
        self.mask: Ids[int] | None = None  # what the token in flight may be, words of 32 bits
        self._closer: Closer | None = None
        if self._structure.closes and not grammar.error:
            usable = ~self._ends if self._allowed is None else self._allowed & ~self._ends
            ends = self._ends if self._allowed is None else self._allowed & self._ends
            self._closer = Closer(grammar, max_tokens, usable, ends)

    @cached_property
    def _ends(self) -> np.ndarray:
        """As masks are. Most answers have no use for it."""
        return bits_of(marked(self._end_ids, self._vocab_size))

    @property
    def is_thinking(self) -> bool:
        """Whether the grammar says nothing yet of the next token."""
        return self._thoughts is not None and self._thoughts.are_on

    @property
    def _may_think(self) -> bool:
        """Whether the next token may begin thoughts."""
        return self._thoughts is not None and self._thoughts.may_begin

    @property
    def is_closing(self) -> bool:
        """Whether its next mask takes so long that it should be made beside others'."""
        return self._closer is not None and self._closer.is_due

    def key(self, length: int) -> Hashable | None:
        """After so many tokens: one for all whose masks are the same. None: its mask is its own."""
        if self._thoughts is not None or not self._shares or self.is_free or self.is_closing:
            return None
        spot = self.grammar.spot
        return None if spot is None else (spot, self.unwanted(length))

    def unwanted(self, length: int) -> tuple[int, ...]:
        """The ends that may not come after so many tokens if anything else may."""
        return self._all_ends if length < self._min_length else self._ignored

    @property
    def may_forward(self) -> bool:
        """Whether tokens that the grammar forces may be taken without a draw of each."""
        return not (self._needs_draws or self._thoughts is not None or self.is_free)

    def let_free(self) -> bool:
        """Go on without the grammar, if that may be and has not happened yet."""
        may = self._structure.may_be_left and not self.is_free
        if may:
            self.is_free, self._closer = True, None
        return may

    def follow(self, token: int, *, is_forced: bool = False) -> None:
        """The next token of the output. is_forced: the grammar itself has said that it must come."""
        self.look()  # where tokens of before a restart are followed, no mask has asked for it
        is_thought = self._thoughts is not None and self._thoughts.follow(token)
        if self._thoughts is not None:
            self._thoughts = _unless_over(self._thoughts)
        is_answer = not (is_thought or token in self._end_ids or self.is_free)
        if is_answer:
            is_allowed = is_forced or (self.mask is not None and _has(self.mask, token))
            self.grammar.accept(token, is_allowed=is_allowed)
        self.mask = None
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
        if self.is_thinking:
            mask &= ~self._ends
        if self._may_think:
            assert self._structure.open_id is not None
            _set(mask, self._structure.open_id)
        if self._allowed is not None:
            mask &= self._allowed
        for token in self._banned_after(tokens):
            _clear(mask, token)
        rest = _without(mask, self.unwanted(len(tokens)))
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
        if self.is_thinking:
            assert close_id is not None
            return _only(close_id, rest) if spare is not None and spare < 2 and _has(rest, close_id) else rest
        kept = closer.narrowed(rest, mask)
        if self._may_think and open_id is not None and _has(rest, open_id) and (spare is None or spare >= 2):
            _set(kept, open_id)
        return kept


def _unless_over(thoughts: Thoughts) -> Thoughts | None:
    return thoughts if thoughts.are_on or thoughts.may_begin else None


# A masked row of a step: which of them it is, and whose.
type Asked = tuple[int, "Sequence", Structured]


def masks_of(
    step: "Step", grammars: Grammars, table: MaskTable, counters: Counters
) -> tuple[Masks, list[tuple["Sequence", str]]]:
    """What the masked rows of a step may draw, once all tokens before it are committed, and the sequences for which
    nothing is left, with the reason.
    """
    rows, live, keys = list[int](), list[Asked](), list[Hashable | None]()
    for sequence, row in zip(step.sequences, step.plan.rows, strict=True):
        if row.masked:
            structured = sequence.structured
            if structured is not None and not sequence.has_ended:
                live.append((len(rows), sequence, structured))
                keys.append(structured.key(len(sequence.tokens)))
            rows.append(ANY)
    own, unknown = list[Asked](), dict[Hashable, list[Asked]]()
    for one, key, place in zip(live, keys, table.begin(keys), strict=True):
        rows[one[0]] = place
        if key is None:
            own.append(one)
        elif place == ANY:
            unknown.setdefault(key, []).append(one)
    own += _find_out(grammars, table, rows, unknown)
    reasons = _fill_own(grammars, table, rows, own, counters) if own else {}
    for i, _, structured in live:
        structured.mask = table.views[rows[i]] if rows[i] != ANY else None
    failed = [(sequence, reasons[i]) for i, sequence, _ in own if reasons[i]]
    counters.masked_tokens += len(live) - len(failed)
    return table.masks(rows), failed


def _find_out(
    grammars: Grammars, table: MaskTable, rows: list[int], unknown: dict[Hashable, list[Asked]]
) -> list[Asked]:
    """Have the masks of these keys made, once each. Returns those of which none came: what is wrong is their own."""
    if not unknown:
        return []
    masks = np.empty((len(unknown), table.words.shape[1]), np.int32)
    grammars.fill([members[0][2].grammar for members in unknown.values()], masks)
    left = list[Asked]()
    for (key, members), mask in zip(unknown.items(), masks, strict=True):
        _, sequence, structured = members[0]
        rest = _without(mask, structured.unwanted(len(sequence.tokens)))
        rest = rest if rest.any() else mask
        if structured.grammar.error or not rest.any():
            left += members
            continue
        row = table.add(key, rest)
        for i, _, _ in members:
            rows[i] = row
    return left


def _fill_own(
    grammars: Grammars, table: MaskTable, rows: list[int], own: list[Asked], counters: Counters
) -> dict[int, str]:
    """Make the masks of rows that share none, those that close in threads of the grammars'.

    Returns for each row why nothing is left; "" if something is.
    """
    masks = np.empty((len(own), table.words.shape[1]), np.int32)
    pairs = list(zip(own, masks, strict=True))
    closing = [pair for pair in pairs if pair[0][2].is_closing]  # as it is now, before they look
    others = [pair for pair in pairs if not pair[0][2].is_closing]
    num_led = sum(structured.is_led for (_, _, structured), _ in closing)
    fill = partial(_fill, grammars)
    shares = grammars.spread(fill, closing)
    reasons = fill(others)
    for share in shares:
        reasons |= share.result()
    counters.closing_answers += sum(structured.is_led for (_, _, structured), _ in closing) - num_led
    for index, ((i, _, _), mask) in enumerate(pairs):
        rows[i] = table.put(index, mask)
    return reasons


def _fill(grammars: Grammars, pairs: list[tuple[Asked, np.ndarray]]) -> dict[int, str]:
    """Set these rows' masks. Returns for each row why nothing is left."""
    asked = []
    for (_, _, structured), mask in pairs:
        structured.look()
        if structured.is_thinking or structured.is_free or structured.grammar.error:
            mask[:] = -1
        else:
            asked.append((structured.grammar, mask))
    if asked:
        filled = np.empty((len(asked), len(asked[0][1])), np.int32)
        grammars.fill([grammar for grammar, _ in asked], filled)
        for (_, mask), new in zip(asked, filled, strict=True):
            mask[:] = new
    return {i: _narrow(structured, mask, sequence.tokens) for (i, sequence, structured), mask in pairs}


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


def _without(mask: np.ndarray, tokens: Ids[int]) -> np.ndarray:
    """Another mask."""
    rest = mask.copy()
    for token in tokens:
        _clear(rest, token)
    return rest


def _has(mask: Ids[int] | np.ndarray, token: int) -> bool:
    return bool(mask[token >> 5] >> (token & 31) & 1)


def _only(token: int, mask: np.ndarray) -> np.ndarray:
    found = np.zeros_like(mask)
    _set(found, token)
    return found
