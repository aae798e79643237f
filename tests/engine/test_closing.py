"""When an answer is led to its end: the known ending, the tokens that are left, and what may be drawn in between."""

import random
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from jaxinfer.engine.closing import FROM, MARGIN, Closer
from jaxinfer.engine.sequence import Request, Structure
from jaxinfer.engine.stats import Counters
from jaxinfer.engine.structured import Structured, masks_of
from jaxinfer.runtime.mask_table import MaskTable

WIDTH, A, OPEN, CLOSE, END, THINK, THOUGHT = 2, 1, 2, 3, 40, 41, 42
USABLE = ~np.array([0, 1 << END - 32], np.int32)
ENDS = ~USABLE


class Brackets:
    """A grammar: letters, and brackets that must all be closed. A bracket that opens needs `cost` tokens to close."""

    words = np.array([1 << A, 0], np.int32)
    error, spot = "", None

    def __init__(self, depth=0, cost=1):
        self.depth, self.cost, self.num_asked = depth, cost, 0

    def copy(self):
        return Brackets(self.depth, self.cost)

    def accept(self, token, *, is_allowed=False):
        self.depth += {OPEN: self.cost, CLOSE: -1}.get(token, 0)
        assert self.depth >= 0 and token in (A, OPEN, CLOSE)

    def ending(self, usable, max_tokens, after=None):
        self.num_asked += 1
        depth = self.depth + {OPEN: self.cost, CLOSE: -1}.get(after, 0)
        return (CLOSE,) * depth if 0 <= depth <= max_tokens else None

    def may_end(self, tokens):
        at = self.copy()
        if any(token not in (A, OPEN, CLOSE) for token in tokens):
            return False
        return at.depth + tokens.count(OPEN) * self.cost - tokens.count(CLOSE) == 0

    def mask(self):
        ids = [A, OPEN, *([CLOSE] if self.depth else [END])]
        return bits(ids)


def bits(ids):
    flags = np.zeros(WIDTH * 32, bool)
    flags[ids] = True
    return np.packbits(flags, bitorder="little").view(np.int32)


def ids_of(mask):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def draw_answer(rng, max_tokens, cost=1, **fields):
    """An answer of a model that never ends by itself, if it may do anything else, and likes to open brackets."""
    structure = Structure("", frozenset({END}), closes=True, **fields)
    request = Request("a", (5,), max_tokens, structure=structure)
    structured = Structured(Brackets(cost=cost), request, WIDTH * 32, max_tokens)
    tokens, kept = [], []
    while len(tokens) < max_tokens and END not in tokens:
        mask = np.full(WIDTH, -1, np.int32) if structured.is_thinking else structured.grammar.mask()
        structured.look()
        assert structured.narrow(mask, [5, *tokens])
        allowed = [token for token in ids_of(mask) if token in (A, OPEN, CLOSE, END, THINK, THOUGHT)]
        kept.append(allowed)
        tokens.append(rng.choice([token for token in allowed if token != END] * 3 + allowed))
        structured.follow(tokens[-1])
    return tokens, kept, structured


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 40, 250])
@pytest.mark.parametrize("cost", [1, 3, 8])
def test_an_answer_ends_within_its_tokens(max_tokens, cost):
    rng = random.Random(max_tokens)
    for _ in range(5):
        tokens, _, structured = draw_answer(rng, max_tokens, cost)
        assert tokens[-1] == END and structured.grammar.depth == 0


def test_far_from_the_end_anything_may_be_drawn_and_nothing_is_looked_for():
    grammar = Brackets()
    closer = Closer(grammar, FROM + 100, USABLE, ENDS)
    for _ in range(99):
        closer.follow(A)
    mask = grammar.mask()
    assert not closer.is_due
    assert grammar.num_asked == 0 and closer.spare is None
    assert closer.narrowed(mask, mask) is mask
    closer.follow(A)
    assert closer.is_due
    closer.look()
    closer.look()
    assert grammar.num_asked == 1


def test_looks_are_few_while_there_is_room():
    grammar = Brackets()
    closer = Closer(grammar, FROM, USABLE, ENDS)
    for _ in range(FROM - MARGIN - 2):
        closer.look()
        closer.follow(A)
    closer.look()
    assert grammar.num_asked == 1


def test_what_opens_too_much_is_left_out_near_the_end():
    _, kept, _ = draw_answer(random.Random(1), 40, cost=12)
    assert OPEN in kept[0]
    assert len(kept) > 30 and all(OPEN not in allowed for allowed in kept[28:])


def test_an_answer_that_cannot_end_in_time_is_left_alone():
    grammar = Brackets(depth=30)
    closer = Closer(grammar, 20, USABLE, ENDS)
    closer.look()
    mask = grammar.mask()
    assert closer.spare is None and closer.narrowed(mask, mask) is mask


@pytest.mark.parametrize("open_id", [None, THINK])
def test_thoughts_end_so_that_the_answer_can(open_id):
    rng, num_thoughtful = random.Random(3), 0
    for max_tokens in (4, 6, 30):
        for _ in range(10):
            tokens, _, structured = draw_answer(rng, max_tokens, open_id=open_id, close_id=THOUGHT)
            assert tokens[-1] == END and structured.grammar.depth == 0
            num_thoughtful += THOUGHT in tokens
    assert num_thoughtful


def test_what_is_known_is_a_function_of_the_tokens():
    """A preempted sequence starts over with a new one."""
    rng = random.Random(5)
    for _ in range(20):
        tokens, kept, first = draw_answer(rng, 60, cost=4)
        cut = rng.randrange(len(tokens))
        request = Request("a", (5,), 60, structure=Structure("", frozenset({END}), closes=True))
        again = Structured(Brackets(cost=4), request, WIDTH * 32, 60)
        for token in tokens[:cut]:
            again.follow(token)
        mask = again.grammar.mask()
        again.look()
        again.narrow(mask, [5, *tokens[:cut]])
        assert ids_of(mask) == kept[cut]


class Asked:
    """Grammars that note how many rows each share has; a share is done at once."""

    def __init__(self):
        self.shares, self.filled = [], []

    def spread(self, call, items):
        self.shares.append(len(items))
        future = Future()
        future.set_result(call(items))
        return [future]

    def fill(self, grammars, masks):
        self.filled += grammars
        masks[:] = [grammar.mask() for grammar in grammars]


def test_a_row_that_closes_is_masked_once_and_beside_the_others():
    """Also where its look is the last for a while, after which it closes no more."""
    near, far = (
        Structured(
            Brackets(), Request("a", (5,), FROM, eos_token_ids=frozenset({END}), structure=form), WIDTH * 32, FROM
        )
        for form in (Structure("", frozenset({END}), closes=True), Structure("", frozenset({END})))
    )
    rows = [SimpleNamespace(structured=row, has_ended=False, tokens=[5]) for row in (near, far)]
    step = SimpleNamespace(sequences=rows, plan=SimpleNamespace(rows=[SimpleNamespace(masked=True)] * 2))
    grammars = Asked()
    assert near.is_closing and not far.is_closing
    table = MaskTable(WIDTH * 32, 2)
    masks, failed = masks_of(step, grammars, table, Counters())
    assert not near.is_closing and not failed
    assert grammars.shares == [1] and grammars.filled == [near.grammar, far.grammar]
    assert [ids_of(table.words[row]) for row in masks.rows] == [[A, OPEN, END]] * 2
