"""Compiled grammars: what they may cost the engine's thread, and how many are kept."""

import json

import numpy as np
import pytest

from jaxinfer.text.grammar import compiler
from jaxinfer.text.grammar.compiler import Compiler
from jaxinfer.text.grammar.reasons import TOO_COMPLEX
from jaxinfer.text.grammar.source import Constraint, source_of
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.checkpoints import write_checkpoint

AMBIGUOUS = [
    "start: s\ns: s s | A | s s s\nA: /[a-z ]/",
    'start: ("x"?){1,5000}',
    'start: (a*){1,5000}\na: "x"',
]
MOST_TOKENS = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("grammars") / "tiny")


@pytest.fixture
def compiled(folder):
    made = Compiler(lambda: Tokenizer.from_folder(folder), 352, [322])
    yield made
    made.close()


def words(count):
    return "start: " + " | ".join(f'"{number:06d}"' for number in range(count))


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_a_grammar_that_costs_more_with_each_token_ends_with_a_reason(compiled, folder, text):
    (letter,) = Tokenizer.from_folder(folder).encode("x", add_special_tokens=False)
    grammar, masks, count = as_sent(compiled, text), np.zeros((1, 11), np.int32), 0
    while not grammar.error and count < MOST_TOKENS:
        grammar.accept(letter)
        compiled.fill([grammar], masks)
        count += 1
    assert 5 < count < MOST_TOKENS
    assert grammar.error == TOO_COMPLEX


def as_sent(compiled, text):
    return compiled.compile(source_of(Constraint("grammar", text), {})).result().copy()


def optional(count):
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}}


@pytest.mark.parametrize(
    "schema",
    [
        optional(1000),
        {"enum": [{"a": i} for i in range(2500)]},
        {"anyOf": [{"items": {"const": i}} for i in range(500)]},
    ],
    ids=["1,000 optional properties", "an enum of 2,500 objects", "500 alternatives"],
)
def test_a_large_schema_is_followed_to_its_names(compiled, folder, schema):
    grammar = compiled.compile(source_of(Constraint("json_schema", json.dumps(schema)), {})).result().copy()
    masks = np.zeros((1, 11), np.int32)
    for token in Tokenizer.from_folder(folder).encode('{"', add_special_tokens=False):
        grammar.accept(token)
        compiled.fill([grammar], masks)
    assert not grammar.error


@pytest.mark.parametrize("text", [words(1024), words(3000)], ids=["1,024 words", "3,000 words"])
def test_long_lists_are_no_such_grammar(compiled, text):
    assert not compiled.compile(text).result().error


def test_grammars_are_kept_by_what_their_texts_come_to(compiled, monkeypatch):
    monkeypatch.setattr(compiler, "MAX_COMPILED_CHARS", 3 * len(words(100)))
    texts = [words(100) + f' | "{name}"' for name in "abcdef"]
    kept = [compiled.compile(text) for text in texts]
    assert compiled.compile(texts[-1]) is kept[-1]
    assert compiled.compile(texts[0]) is not kept[0]
    long = compiled.compile(words(1000))  # alone beyond the bound, and still of use
    assert compiled.compile(words(1000)) is long
    compiled.compile(texts[1]).result()
