"""What is known of places: answers get the masks that llguidance would give them, however little is kept."""

import json
import random

import numpy as np
import pytest

from jaxinfer.text.grammar import compiler as module
from jaxinfer.text.grammar.compiler import Compiler
from jaxinfer.text.grammar.known import Known
from jaxinfer.text.grammar.places import Places
from jaxinfer.text.grammar.source import Constraint, source_of

VOCAB, END = 352, 322
ORDER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 9},
        "kind": {"enum": ["open", "paid"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 40}, "maxItems": 3},
        "email": {"type": "string", "pattern": "^[a-z]{2,4}@x$"},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
TEXTS = [
    source_of(Constraint("json_schema", json.dumps(ORDER)), {}),
    source_of(Constraint("json_schema", json.dumps({"type": "object"})), {}),
    source_of(Constraint("regex", "[a-c]{3,12}(xx|yz)"), {}),
    source_of(Constraint("json_schema", json.dumps({"type": "array"})), {}),
]


@pytest.fixture
def compiled(folder):
    made = Compiler((folder / "tokenizer.json").read_text, VOCAB, [END])
    yield made
    made.close()


def counted(compiled, monkeypatch):
    """How many masks llguidance was asked for."""
    asked, ask = [], compiled._ask
    monkeypatch.setattr(
        compiled, "_ask", lambda matchers, rows, masks: (asked.extend(rows), ask(matchers, rows, masks))
    )
    return asked


def bits(mask):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def masks_of(compiled, grammars):
    masks = np.full((len(grammars), VOCAB // 32), 5, np.int32)
    compiled.fill(grammars, masks)
    return masks


@pytest.mark.parametrize("max_places", [1, 7, 4096])
def test_answers_of_many_grammars_get_the_masks_they_would_get_alone(compiled, vocabulary, monkeypatch, max_places):
    compiled._at_places = Known(VOCAB, max_places)
    asked, draw, num_masks = counted(compiled, monkeypatch), random.Random(max_places), 0
    starts = [compiled.compile(text).result() for text in TEXTS]
    alone = [module.new_matcher(vocabulary, text) for text in TEXTS]
    for _ in range(6):
        picked = draw.choices(range(len(TEXTS)), k=12)
        rows = [(starts[i].copy(), alone[i].deep_copy()) for i in picked]
        for _ in range(40):
            masks = masks_of(compiled, [grammar for grammar, _ in rows])
            num_masks += len(rows)
            going = []
            for (grammar, matcher), mask in zip(rows, masks, strict=True):
                own = np.frombuffer(matcher.compute_bitmask(), np.int32)[: len(mask)]
                np.testing.assert_array_equal(mask, own)
                if len(usable := bits(mask)) == 1:
                    assert grammar.forced() == matcher.compute_ff_tokens()
                token = min(draw.choices(usable, k=draw.choice([1, 4])))
                if draw.random() < 0.05:
                    grammar = grammar.copy()
                if token != END and matcher.consume_token(token):
                    grammar.accept(token)
                    assert not grammar.error
                    going.append((grammar, matcher))
            rows = going
    assert len(asked) < num_masks * (0.7 if max_places > 1000 else 1)


def test_answers_that_come_to_a_new_place_together_ask_once(compiled, monkeypatch):
    start = compiled.compile(TEXTS[0]).result()
    asked = counted(compiled, monkeypatch)
    grammars = [start.copy() for _ in range(9)]
    for token in compiled.vocabulary.tokenize_str('{"name":"'):
        masks_of(compiled, grammars)
        for grammar in grammars:
            grammar.accept(token)
    assert len({*map(bytes, masks_of(compiled, grammars))}) == 1
    assert 0 < len(asked) == len(set(asked) & {0}) * len(asked)


def test_a_token_that_may_not_come_is_an_error_where_the_mask_was_known(compiled):
    start = compiled.compile(TEXTS[0]).result()
    for _ in range(2):
        grammar = start.copy()
        (mask,) = masks_of(compiled, [grammar])
        allowed = bits(mask)
        grammar.accept(next(token for token in range(256) if token not in allowed))
        assert grammar.error


def test_what_is_broken_is_known_to_nobody(compiled, monkeypatch):
    """Who goes too far for llguidance fails alone: another at the same place is asked for itself."""
    start = compiled.compile(TEXTS[0]).result()
    broken, good = start.copy(), start.copy()
    (token,) = compiled.vocabulary.tokenize_str("{")
    broken._matcher.consume_token(END)
    assert broken.error and broken.key == good.key
    compiled._at_places = Known(VOCAB)
    masks = masks_of(compiled, [broken, good])
    assert token in bits(masks[1]) and token not in bits(masks[0])
    assert token in bits(masks_of(compiled, [good])[0])


def test_the_place_that_nobody_asked_for_longest_goes_first():
    known = Known(64, max_places=2)
    a, b, c, d = ((Places({}, 8), name) for name in "abcd")
    rows = np.array([[1, 2], [3, 4], [5, 6]], np.int32)
    known.add([a, None, b], rows)
    known.add_forced(a, [7])
    masks = np.zeros((3, 2), np.int32)
    assert known.fill([a, None, c], masks) == [1, 2]
    assert masks.tolist() == [[1, 2], [0, 0], [0, 0]]
    known.add([c, c], rows[1:])
    assert known.fill([a, c, b], masks) == [2]
    assert masks[:2].tolist() == [[1, 2], [3, 4]]
    assert known.forced(a) == [7]
    known.add([b], rows[2:])
    known.add([d], rows[:1])
    assert known.fill([a, c], masks[:2]) == [0, 1]
    assert known.forced(a) is None
    known.add_forced(a, [8])
    assert known.forced(a) is known.forced(d) is None
    assert known.fill([d, b], masks[:2]) == []
    assert masks[:2].tolist() == [[1, 2], [5, 6]]


def test_grammars_that_are_forgotten_leave_nothing(compiled, monkeypatch):
    monkeypatch.setattr(module, "MAX_COMPILED", 2)
    compiled._at_places = known = Known(VOCAB, 9)
    for number in range(30):
        text = source_of(Constraint("json_schema", json.dumps({"type": "array", "maxItems": number})), {})
        grammar = compiled.compile(text).result().copy()
        masks_of(compiled, [grammar])
        grammar.accept(compiled.vocabulary.tokenize_str("[")[0])
        masks_of(compiled, [grammar])
        kept = {key[0] for key in known._rows}
        assert len(kept) <= 2 and len(known._rows) <= 4
    assert grammar.places in kept
    compiled._forget(*compiled._known.popitem())
    assert grammar.places not in {key[0] for key in known._rows}
    masks_of(compiled, [grammar])  # under way: it goes on, and leaves nothing
    grammar.accept(compiled.vocabulary.tokenize_str("[")[0])
    assert not grammar.error and bits(masks_of(compiled, [grammar])[0])
    assert grammar.places not in {key[0] for key in known._rows}


def test_an_answer_of_any_depth_goes_on(compiled):
    grammars = [compiled.compile(TEXTS[3]).result().copy() for _ in range(2)]
    (bracket,) = compiled.vocabulary.tokenize_str("[")
    for _ in range(1500):
        masks = masks_of(compiled, grammars)
        assert bracket in bits(masks[0]) and (masks[0] == masks[1]).all()
        for grammar in grammars:
            grammar.accept(bracket)
    assert not grammars[0].error
