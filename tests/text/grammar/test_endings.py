"""Short endings of answers that are part of the way through their grammars."""

import json

import numpy as np
import pytest

from jaxinfer.text.grammar.compiler import Compiler
from jaxinfer.text.grammar.source import Constraint, source_of
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.checkpoints import write_checkpoint

VOCAB = 352
ALL = np.full(VOCAB // 32, -1, np.int32)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("endings") / "tiny")
    made = Compiler(lambda: Tokenizer.from_folder(folder), VOCAB, [322])
    yield made
    made.close()


def begun(compiler, kind, value, text):
    source = source_of(Constraint(kind, value if isinstance(value, str) else json.dumps(value)), {})
    grammar = compiler.compile(source, closes=True).result().copy()
    for token in compiler.vocabulary.tokenize_str(text):
        grammar.accept(token)
    assert not grammar.error
    return grammar


def text_of(compiler, tokens):
    return compiler.vocabulary.decode_bytes(list(tokens)).decode()


PERSON = {
    "type": "object",
    "properties": {"na me": {"type": "string"}, "tags": {"type": "array", "items": {"type": "null"}, "minItems": 2}},
    "required": ["na me", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("kind", "value", "text", "ending"),
    [
        ("json_schema", {"type": "object"}, "", "{}"),
        ("json_schema", {}, '{"a": [1, "b', '"]}'),
        ("json_schema", {}, '{"a": [1, {"b": [', "]}]}"),
        ("json_schema", {}, '{"a', '":""}'),
        ("json_schema", PERSON, '{"na me": "x}', '","tags":[null,null]}'),
        ("json_schema", {"type": "string", "minLength": 3}, '"ab', None),  # any sign, then the quote
        ("json_schema", {"type": "integer", "minimum": 0, "maximum": 99}, "7", ""),
        ("regex", "(ab)*c", "ab", None),
        ("regex", "[ab]+c.*d", "", None),
        ("regex", "[a-z ]*(x|yz)", "so", "x"),
        ("regex", r"\w+@\w+\.com", "me", None),
        ("regex", "[a-z]{30}", "", None),
        ("grammar", 'start: "(" start ")" | "x"', "((", "x))"),
    ],
)
def test_endings_are_short(compiler, kind, value, text, ending):
    grammar = begun(compiler, kind, value, text)
    found = grammar.ending(ALL, 40)
    assert found is not None and grammar.may_end(found)
    if ending is not None:
        assert text_of(compiler, found) == ending
    assert not grammar.error


def test_an_ending_that_does_not_fit_is_none(compiler):
    grammar = begun(compiler, "json_schema", PERSON, "{")
    length = len(grammar.ending(ALL, 100))
    assert grammar.ending(ALL, length - 1) is None
    assert len(grammar.ending(ALL, length)) == length


def test_endings_are_made_of_what_may_be_drawn(compiler):
    grammar = begun(compiler, "regex", "[a-z]*(x|y)", "")
    (banned,) = compiler.vocabulary.tokenize_str("x")
    usable = ALL.copy()
    usable[banned // 32] &= ~np.int32(1 << banned % 32)
    assert text_of(compiler, grammar.ending(usable, 40)).endswith("y")
    assert grammar.ending(np.zeros_like(ALL), 40) is None


def test_an_ending_after_a_token_leaves_the_answer_where_it_is(compiler):
    grammar = begun(compiler, "json_schema", {}, "[")
    (quote,) = compiler.vocabulary.tokenize_str('"')
    assert text_of(compiler, grammar.ending(ALL, 40, after=quote)) == '"]'
    assert text_of(compiler, grammar.ending(ALL, 40)) == "]"
    assert grammar.ending(ALL, 40, after=322) is None


def test_words_are_letters_and_spaces(compiler):
    words = compiler.compile("start: /x/", closes=True).result().words
    ids = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    texts = [compiler.vocabulary.decode_bytes([int(i)]).decode() for i in ids]
    assert len(texts) > 52 and all(text.replace(" ", "a").isalpha() for text in texts)


def closed(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


THIS = {"$ref": "#"}
DEEP = {
    "a list": (closed(v={"type": "boolean"}, n={"anyOf": [THIS, {"type": "null"}]}), '{"v":true,"n":', 1),
    "a list of names": (
        closed(name={"type": "string"}, next={"anyOf": [THIS, {"type": "null"}]}),
        '{"name":"a","next":',
        1,
    ),
    "a list that begins within": (closed(n={"anyOf": [THIS, {"type": "null"}]}, v={"type": "boolean"}), '{"n":', 11),
    "a tree": (
        closed(value={"type": "integer"}, children={"type": "array", "items": THIS}),
        '{"value":1,"children":[',
        2,
    ),
    "a term": (closed(a={"anyOf": [THIS, {"type": "number"}]}, b={"anyOf": [THIS, {"type": "number"}]}), '{"a":', 7),
}


@pytest.mark.parametrize(("schema", "level", "tokens"), DEEP.values(), ids=DEEP)
def test_deep_answers_are_closed_wherever_they_stand(compiler, schema, level, tokens):
    """tokens: of an ending, for each level that is open. These were given up at 1 to 20 levels."""
    source = source_of(Constraint("json_schema", json.dumps(schema)), {})
    grammar = compiler.compile(source, closes=True).result().copy()
    depth = min(30, 200 // tokens)
    for i, token in enumerate(compiler.vocabulary.tokenize_str(level * depth)):
        grammar.accept(token)
        if i % 5 == 0:
            found = grammar.ending(ALL, 256)
            assert found is not None and grammar.may_end(found) and len(found) <= tokens * depth + 40


def test_an_ending_of_many_guesses_is_given_up(compiler):
    assert begun(compiler, "regex", "([0-9]x){60}", "").ending(ALL, 256) is None
