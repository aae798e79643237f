"""States: however an answer's tokens are told, it is where llguidance would be, whatever has been forgotten."""

import json
import random

import numpy as np
import pytest
from llguidance.numpy import fill_next_token_bitmask

from jaxinfer.text.grammar import compiler as module
from jaxinfer.text.grammar import states as states_module
from jaxinfer.text.grammar.compiler import Compiler
from jaxinfer.text.grammar.source import Constraint, source_of
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.schemas.signs import SIGNS

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
    made = Compiler(lambda: Tokenizer.from_folder(folder), VOCAB, [END])
    yield made
    made.close()


@pytest.fixture
def compiled_of_json(json_tokenizer):
    tokenizer = Tokenizer(json_tokenizer.to_str().encode())
    made = Compiler(lambda: tokenizer, tokenizer.vocab_size, [json_tokenizer.token_to_id("<end>")])
    yield made
    made.close()


def bits(mask):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def own_mask(matcher, vocab_size=VOCAB):
    mask = np.zeros((1, -(-vocab_size // 32)), np.int32)
    fill_next_token_bitmask(matcher, mask, 0)
    return mask[0]


@pytest.mark.parametrize("max_steps", [1, 7, 2048])
def test_answers_that_are_told_late_are_where_they_would_be(compiled, monkeypatch, max_steps):
    """What is known of a spot is what llguidance says there of an answer that it was told at once."""
    monkeypatch.setattr(states_module, "MAX_STEPS", max_steps)
    draw = random.Random(max_steps)
    assert check(compiled, TEXTS, draw, 72) > 0.3


@pytest.mark.parametrize("seed", range(3))
def test_what_a_tokenizer_makes_of_a_token_and_forced_text_is_known(compiled_of_json, seed):
    """It may be another than of the text alone. Strings that are full force their quote, whatever filled them."""
    full = [
        {"type": "array", "items": {"type": "string", "maxLength": most}, "minItems": 2, "maxItems": 2}
        for most in (1, 2, 4)
    ]
    pattern = {"type": "array", "items": {"type": "string", "pattern": "^[a-c.]{2,3}_id(x|yy)$"}}
    texts = [source_of(Constraint("json_schema", json.dumps(schema)), {}) for schema in (SIGNS, SIGNS, pattern, *full)]
    assert check(compiled_of_json, texts, random.Random(seed), 150) > 0.3


def test_who_leaves_that_out_is_found_out(compiled_of_json, monkeypatch):
    monkeypatch.setattr(states_module._Joins, "after", lambda self, last, forced: None)
    with pytest.raises(AssertionError):
        check(compiled_of_json, [source_of(Constraint("json_schema", json.dumps(SIGNS)), {})], random.Random(0), 150)


def check(compiled, texts, draw, answers):
    """Of all masks, how many were known, each as llguidance says."""
    known, num_masks, num_known = {}, 0, 0
    vocabulary = compiled.vocabulary
    starts = [compiled.compile(text).result() for text in texts]
    alone = [module.new_matcher(vocabulary, text) for text in texts]
    for _ in range(answers):
        i = draw.randrange(len(texts))
        grammar, matcher = starts[i].copy(), alone[i].deep_copy()
        for _ in range(40):
            mask, num_masks = own_mask(matcher, vocabulary.vocab_size), num_masks + 1
            spot = grammar.spot
            assert spot is None or "%json" in texts[i]
            if spot in known:
                num_known += 1
                np.testing.assert_array_equal(known[spot], mask)
            else:
                found = np.zeros((1, len(mask)), np.int32)
                compiled.fill([grammar], found)
                np.testing.assert_array_equal(found[0], mask)
                known |= {} if spot is None else {spot: mask}
            if len(usable := bits(mask)) == 1:
                assert grammar.forced() == matcher.compute_ff_tokens()
            token = min(draw.choices(usable, k=draw.choice([1, 4])))
            grammar = grammar.copy() if draw.random() < 0.05 else grammar
            if token == vocabulary.eos_token or not matcher.consume_token(token):
                break
            grammar.accept(token, is_allowed=draw.random() < 0.8)
            assert not grammar.error
    return num_known / num_masks


def test_a_token_that_may_not_come_is_an_error(compiled):
    grammar = compiled.compile(TEXTS[0]).result().copy()
    allowed = bits(own_mask(grammar.matcher))
    grammar.accept(next(token for token in range(256) if token not in allowed))
    assert grammar.error and grammar.spot is None
    assert not compiled.compile(TEXTS[0]).result().error


def test_what_llguidance_was_told_too_late_is_an_error_when_it_is_asked_at_the_latest(compiled):
    """Nothing but its mask says that a token is allowed; where that was wrong, the answer does not go on."""
    grammar = compiled.compile(TEXTS[0]).result().copy()
    (brace, wrong) = (compiled.vocabulary.tokenize_str(text)[0] for text in "{}")
    grammar.accept(brace, is_allowed=True)
    grammar.accept(wrong, is_allowed=True)
    compiled.fill([grammar], np.zeros((1, VOCAB // 32), np.int32))
    assert grammar.error and grammar.spot is None


def test_steps_of_a_schema_are_forgotten_and_spots_are_kept(compiled, monkeypatch):
    monkeypatch.setattr(states_module, "MAX_STEPS", 50)
    start = compiled.compile(TEXTS[1]).result()
    states, draw = start._states, random.Random(2)

    def walk(text):
        grammar = start.copy()
        for token in compiled.vocabulary.tokenize_str(text):
            grammar.accept(token, is_allowed=True)
        return grammar

    kept = walk('{"a":[').spot
    for _ in range(200):
        walk('{"' + "".join(draw.choices("abcdefgh", k=6)) + '":1,"b":[2')
        assert len(states._states) <= 52
        assert sum(len(state.after) for state in (states.start, *states._states.values())) <= 52
    assert walk('{"a":[').spot is kept


def test_an_answer_of_any_depth_goes_on(compiled):
    grammar = compiled.compile(TEXTS[3]).result().copy()
    (bracket,) = compiled.vocabulary.tokenize_str("[")
    masks = np.zeros((1, VOCAB // 32), np.int32)
    for depth in range(1500):
        if depth < 70 or depth % 100 == 0:
            compiled.fill([grammar], masks)
            assert bracket in bits(masks[0])
        grammar.accept(bracket, is_allowed=True)
        assert (grammar.spot is None) == (depth >= 64)
    assert not grammar.error
