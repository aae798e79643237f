"""Spelling: what a grammar forces comes byte by byte as the grammar says, over tokenizers of every kind."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from jaxinfer.errors import InvalidRequest
from jaxinfer.llm.text_side import TextSide
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.detokenizer import Detokenizer
from jaxinfer.text.grammar.compiler import Compiler
from jaxinfer.text.grammar.source import Constraint, source_of
from jaxinfer.text.grammar.spelling import MAX_KEPT_BYTES, Speller
from jaxinfer.text.message import MessageText
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.attempts import assert_below, processor_s
from tests.support.spelt import END, KINDS, PRE_TOKENIZERS, TEXTS, byte_fallback, byte_level

MOST_STEPS = 400


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def tokenizer(kind):
    return KINDS[kind]()


@pytest.fixture(scope="module")
def compiled(tokenizer):
    made = new_compiler(tokenizer)
    yield made
    made.close()


@pytest.fixture(scope="module")
def speller(tokenizer):
    return Speller(tokenizer, tokenizer.vocab_size + 5, [])


def new_compiler(tokenizer):
    return Compiler(lambda: tokenizer, tokenizer.vocab_size + 5, [tokenizer.control_tokens[END]])


def drawn(compiled, tokenizer, constraint, draw):
    """What a client sees after each step of an answer that is drawn from its masks, forced tokens together at times;
    the last is the whole answer."""
    grammar = compiled.compile(source_of(constraint, tokenizer.control_tokens)).result().copy()
    detokenizer, seen = Detokenizer(tokenizer, goes_on=True), [""]
    masks = np.zeros((1, -(-compiled.vocabulary.vocab_size // 32)), np.int32)
    while len(seen) < MOST_STEPS:
        compiled.fill([grammar], masks)
        assert not grammar.error
        usable = np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little")).tolist()
        if tokenizer.control_tokens[END] in usable:
            return [*seen, seen[-1] + detokenizer.flush()]
        forced = grammar.forced() if len(usable) == 1 and draw.random() < 0.7 else []
        tokens = forced or [draw.choice(usable)]
        for token in tokens:
            grammar.accept(token, is_allowed=True)
        seen.append(seen[-1] + detokenizer.feed(tokens))
    raise AssertionError("the answer does not end")


def check_choices(compiled, tokenizer, texts):
    for whole in texts:
        *cut, last = drawn(compiled, tokenizer, Constraint("choice", json.dumps([whole])), random.Random(whole))
        assert last == whole and all(whole.startswith(text) for text in cut)


def test_a_choice_comes_as_it_was_sent_cut_anywhere(kind, compiled, tokenizer):
    """All kinds of tokenizers come to all texts, each to some."""
    names = [*TEXTS, *TEXTS]
    start = 4 * sorted(KINDS).index(kind) % len(TEXTS)
    check_choices(compiled, tokenizer, [TEXTS[name] for name in names[start : start + 4]])


@pytest.mark.slow
def test_every_choice_comes_as_it_was_sent_cut_anywhere(compiled, tokenizer):
    check_choices(compiled, tokenizer, TEXTS.values())


def test_names_and_values_of_a_schema_come_as_they_were_sent(compiled, tokenizer):
    draw = random.Random(1)
    for text in draw.sample(sorted(TEXTS.values()), 2):
        schema = {"type": "object", "properties": {text: {"enum": [text]}}, "required": [text]}
        constraint = Constraint("json_schema", json.dumps(schema | {"additionalProperties": False}))
        assert json.loads(drawn(compiled, tokenizer, constraint, draw)[-1]) == {text: text}


@settings(max_examples=25)  # of each kind
@given(text=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \u2581\u0301a<>"), max_size=40))
def test_the_tokens_of_any_text_add_its_bytes(speller, tokenizer, text):
    table = tokenizer.piece_table(skip_special_tokens=True)
    assert b"".join(table[token] for token in speller(text.encode())) == text.encode()


@pytest.mark.parametrize("text", ["a th", "cafe\u0301 a", " a a"])
def test_a_text_is_spelt_in_the_words_of_the_vocabulary(text):
    """Where a tokenizer changes nothing of it, as it would encode it."""
    for plain, changing in [
        (byte_level(), KINDS["bytes, NFC"]()),
        (KINDS["fallback, spaces replaced"](), KINDS["fallback, a space in front"]()),
    ]:
        size = changing.vocab_size
        assert Speller(changing, size, [])(text.encode()) == plain.encode(text, add_special_tokens=False)


def test_a_text_that_a_pattern_of_the_file_fails_on_is_spelt_all_the_same():
    backtracking = pre_tokenizers.Split(tokenizers.Regex("(a+)+b"), "isolated")
    behind = pre_tokenizers.Sequence([backtracking, PRE_TOKENIZERS["ByteLevel"]()])
    tokenizer, text = byte_level(pre_tokenizer=behind), "a" * 50
    with pytest.raises(InvalidRequest, match="the model's tokenizer can encode"):
        tokenizer.encode(text)
    ids = Speller(tokenizer, tokenizer.vocab_size, [])(text.encode())
    assert tokenizer.decode(ids) == text


def test_a_pattern_that_may_take_long_splits_no_text_that_is_spelt():
    slow = pre_tokenizers.Split(tokenizers.Regex("(?:abcd)+(?:abcd)+w"), "isolated")
    level = PRE_TOKENIZERS["ByteLevel"]()
    tokenizer = byte_level(pre_tokenizer=pre_tokenizers.Sequence([slow, level]))
    many = byte_level(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Punctuation()] * 2000 + [level]))
    text, plain = "abcd" * 2000 + " w", byte_level(pre_tokenizer=level)
    for each in (tokenizer, many):
        speller = Speller(each, each.vocab_size, [])
        assert_below(1, lambda: processor_s(lambda: speller(text.encode())), "the processor time of a spelling")  # noqa: B023
        assert plain.decode(speller(text.encode())) == text


def test_an_answer_whose_form_was_asked_for_keeps_a_space_in_front():
    tokenizer = KINDS["fallback, a space in front"]()
    ids = Speller(tokenizer, tokenizer.vocab_size, [])(b" a")
    assert MessageText(tokenizer, verbatim=True).feed(ids).text == " a"
    assert MessageText(tokenizer).feed(ids).text == "a"


def test_a_vocabulary_without_some_byte_is_refused():
    backend = tokenizers.Tokenizer.from_str(byte_fallback().backend.to_str())
    file = json.loads(backend.to_str())
    file["model"]["vocab"]["other"] = file["model"]["vocab"].pop("<0xE4>")
    with pytest.raises(InvalidRequest, match="has no token for the byte 0xe4"):
        Speller(Tokenizer(json.dumps(file).encode()), 1000, [])


def test_tokens_that_are_too_long_for_the_library_are_left_out_of_grammars():
    file = json.loads(byte_level().backend.to_str())
    size = len(file["model"]["vocab"]) + len(file["added_tokens"])
    names = "a" * 4000, "b" * 1025
    for i, (name, special) in enumerate(zip(names, (False, True), strict=True)):
        file["added_tokens"].append(file["added_tokens"][0] | {"id": size + i, "content": name, "special": special})
    compiled = new_compiler(tokenizer := Tokenizer(json.dumps(file).encode()))
    try:
        check_choices(compiled, tokenizer, ["a" * 4010, "b" * 1030])
    finally:
        compiled.close()


def test_ids_are_read_as_they_are_there_however_far_apart():
    file = json.loads(byte_level().backend.to_str())
    file["model"]["vocab"]["ab"] = 4_000_000_000
    tokenizer = Tokenizer(json.dumps(file).encode())
    assert len(list(tokenizer.ids())) == len(file["model"]["vocab"]) + len(file["added_tokens"])
    side = TextSide(tokenizer, ChatTemplate({}), Path())
    side.check_fits(100, 90, "prompt")
    assert side.spell("a\u0301b")


def test_logits_that_do_not_fit_the_tokenizer_are_refused():
    tokenizer = byte_level()
    for width, end in ((tokenizer.vocab_size - 1, 0), (tokenizer.vocab_size, tokenizer.vocab_size)):
        with pytest.raises(InvalidRequest, match=f"the model has logits for {width}"):
            Speller(tokenizer, width, [end])


def test_a_text_that_comes_again_is_not_taken_to_the_tokenizer_again(tokenizer, speller, monkeypatch):
    first, texts = speller(b'"customer"'), []
    monkeypatch.setattr("jaxinfer.text.grammar.spelling.encode_one", lambda _, text, __: texts.append(text) or [])
    speller(b'"customer"').clear()  # its caller may change what it gets
    assert speller(b'"customer"') == first
    long = b"x" * (MAX_KEPT_BYTES + 1)
    speller(long), speller(long)
    assert texts == [long.decode()] * 2
