"""Places: wherever two answers to a schema stand at the same one, llguidance says the same of what may come next."""

import json
import random

import numpy as np
import pytest
from llguidance.numpy import fill_next_token_bitmask

from jaxinfer.text.grammar import places as module
from jaxinfer.text.grammar.compiler import new_matcher, new_vocabulary
from jaxinfer.text.grammar.places import Places, places_of
from jaxinfer.text.grammar.source import Constraint, source_of
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.grammars import root_schema
from tests.support.patterns import drawn
from tests.support.schemas.corpus import corpus
from tests.support.schemas.signs import SIGNS

MOST_TOKENS = 60
CASES = [case for case in corpus() if not case.refused]
SCHEMAS = [case.schema for case in CASES]
TENTH = random.Random(5).sample(SCHEMAS, len(SCHEMAS) // 10)
PATTERNS = (
    r"[a-z]{2,12}@[a-z]{2,12}\.(com|org)",
    r"\d{4}-\d{2}-\d{2}(T\d\d:\d\d)?",
    r"(\+\d{1,3} )?\d{6,12}",
    "[A-Z]{2}-[0-9a-f]{8}",
)


@pytest.fixture(scope="module")
def of_json(json_tokenizer):
    end = json_tokenizer.token_to_id("<end>")
    return new_vocabulary(Tokenizer(json_tokenizer.to_str().encode()), json_tokenizer.get_vocab_size(), [end])


def bits(mask):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def faults(schema, vocabulary, draw, answers):
    """Where a key stood for two different sets of tokens; and how often one was met again, of how many steps."""
    text = source_of(Constraint("json_schema", json.dumps(schema)), {})
    longest = max(len(vocabulary.decode_bytes([token])) for token in range(vocabulary.vocab_size))
    places, start = places_of(text, longest), new_matcher(vocabulary, text)
    known, found, num_met, num_steps = {}, [], 0, 0
    for _ in range(answers):
        matcher, place, answer, token = start.deep_copy(), places.start, b"", None
        for _ in range(MOST_TOKENS):
            mask = np.zeros((1, -(-vocabulary.vocab_size // 32)), np.int32)
            fill_next_token_bitmask(matcher, mask, 0)
            usable = bits(mask[0])
            says = usable, matcher.compute_ff_tokens() if len(usable) == 1 else None
            key = None if place is None else places.key(place, token)
            num_steps += 1
            if key is not None and known.setdefault(key, (says, answer))[0] != says:
                found.append(f"{json.dumps(schema)}: {answer!r} is not {known[key][1]!r}")
            num_met += key is not None and known[key][1] != answer
            # signs more often than words, so that answers come to their ends
            token = min(draw.choices(usable, k=draw.choice([1, 4])))
            if token == vocabulary.eos_token or not matcher.consume_token(token):
                break
            piece = vocabulary.decode_bytes([token])
            place, answer = None if place is None else places.after(place, piece), answer + piece
            if place is None:
                found.append(f"{json.dumps(schema)}: {answer!r} is at no place")
                break
    return found, num_met, num_steps


def check(schemas, vocabulary, answers):
    draw, num_met, num_steps = random.Random(3), 0, 0
    for schema in schemas:
        found, met, steps = faults(schema, vocabulary, draw, answers)
        assert found == []
        num_met, num_steps = num_met + met, num_steps + steps
    return num_met / num_steps


def test_the_same_tokens_may_come_at_the_same_place(vocabulary, of_json):
    draw = random.Random(11)
    schemas = [SIGNS, *TENTH, *(root_schema(draw)[0] for _ in range(40))]
    assert check(schemas, vocabulary, 6) > 0.2
    assert check(schemas[::3], of_json, 6) > 0.2


@pytest.mark.parametrize("seed", range(4))
def test_the_same_tokens_may_come_at_the_same_place_of_a_pattern(vocabulary, of_json, seed):
    draw = random.Random(seed)
    texts = ["".join(drawn(draw) for _ in range(draw.randint(1, 4))) for _ in range(25)]
    schemas = [{"type": "array", "items": {"type": "string", "pattern": f"^{text}$"}} for text in [*texts, *PATTERNS]]
    for schema in schemas:
        places = Places(schema, 16)
        assert places.after(places.start, b'["').phase == "pattern"
    assert check(schemas, vocabulary, 6) > 0.2
    assert check(schemas, of_json, 6) > 0.2


@pytest.mark.parametrize("seed", range(3))
def test_the_same_tokens_may_come_at_the_same_place_of_a_number(vocabulary, of_json, seed):
    draw = random.Random(seed)
    schemas = [{"type": "integer"}, {"type": "number"}]
    for _ in range(30):
        least, most = sorted(draw.choice([1, -1]) * draw.randint(0, 10 ** draw.randint(0, 7)) for _ in range(2))
        bounds = {"minimum": least, "maximum": most, "exclusiveMinimum": least - 1, "exclusiveMaximum": most + 1}
        chosen = draw.sample(sorted(bounds), draw.randint(1, 4))
        schemas.append({"type": "integer", **{name: bounds[name] for name in chosen}})
    schemas = [{"type": "array", "items": schema, "minItems": 2} for schema in schemas] + schemas
    for schema in schemas:
        places = Places(schema, 16)
        began = places.after(places.start, b"[") if schema["type"] == "array" else places.start
        assert any((place := places.after(began, sign)) and place.phase == "number" for sign in (b"-", b"1"))
    assert check(schemas, vocabulary, 8) > 0.2
    assert check(schemas, of_json, 8) > 0.2


@pytest.mark.parametrize("most", [2, 3])
def test_the_same_tokens_may_come_within_a_character(vocabulary, of_json, most):
    """All that begins one of several bytes, and escapes, near a string's end."""
    schema = {"type": "array", "items": {"type": "string", "maxLength": most}}
    assert check([schema] * 4, vocabulary, 60) > 0.2
    assert check([schema], of_json, 60) > 0.2


@pytest.mark.slow
def test_the_same_tokens_may_come_at_the_same_place_of_many_schemas(vocabulary, of_json):
    draw = random.Random(12)
    schemas = [SIGNS, *SCHEMAS[::3], *(root_schema(draw)[0] for _ in range(100))]
    assert check(schemas, vocabulary, 20) > 0.3
    assert check(schemas, of_json, 10) > 0.2


NAME = {"type": "string", "minLength": 2, "maxLength": 6}
LIST = {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3}
PAIR = {"type": "object", "properties": {"a": NAME, "b": LIST}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("schema", [NAME, LIST, PAIR])
def test_who_forgets_numbers_and_names_is_found_out(vocabulary, monkeypatch, schema):
    monkeypatch.setattr(Places, "key", lambda self, place, last: (place.phase, place.raw, last))
    assert faults(schema, vocabulary, random.Random(3), 40)[0]


def test_who_forgets_the_last_token_is_found_out(of_json, monkeypatch):
    assert faults(SIGNS, of_json, random.Random(3), 40)[0] == []
    monkeypatch.setattr(Places, "key", lambda self, place, last: place)
    assert faults(SIGNS, of_json, random.Random(3), 40)[0]


def key(schema, text, longest=16):
    places = Places(schema, longest)
    place = places.after(places.start, text.encode())
    return None if place is None else places.key(place, 7)


def same(schema, first, second):
    places = Places(schema, 16)
    keys = [places.key(places.after(places.start, text.encode()), 7) for text in (first, second)]
    assert None not in keys
    return keys[0] == keys[1]


def test_what_a_text_says_is_no_matter_but_how_long_it_is():
    assert same(PAIR, '{"a":"xyz', '{"a":"é\\n✓')
    assert not same(PAIR, '{"a":"xyz', '{"a":"xy')
    assert same({"type": "string"}, '"xyz', '"')
    assert same({"type": "string", "maxLength": 50}, '"xyz', '"')  # no token is that long
    assert not same({"type": "string", "pattern": "x"}, '"xyz', '"xyy')
    assert not same({"type": "string"}, '"x\\', '"x')
    assert same(PAIR, '{"a":"xyz"', '{"a" : "ab"')
    price = {"type": "array", "items": {"type": "number"}}
    assert same(price, "[12.5", "[-3.25")
    assert not same(price, "[12.5", "[12")
    count = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}}
    assert same(count, "[17", "[42")
    assert not same(count, "[17", "[170")
    assert not same(count, "[0", "[1")
    huge = {"type": "array", "items": {"type": "integer", "maximum": 10**19 - 1}}
    assert not same(huge, "[17", "[42")  # llguidance has it as 10**19


def test_a_value_that_is_whole_is_no_matter():
    assert same(PAIR, '{"a":"xyz","b":[', '{"a":"ab", "b": [')
    assert not same(PAIR, '{"a":"xyz","b":[null', '{"a":"xyz","b":[null,null')
    either = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"enum": ["x", 2.5]}]}}
    assert same(either, '[1,2.5,"x",', "[-17 ,3,12,")
    assert not same(either, "[1", "[2")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": [{"type": "null"}, {"type": "integer"}]},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "integer"}},
        {"type": "array", "contains": {"type": "null"}},
        {"type": "array", "maxItems": 3.0},
        {"type": ["array", "null"]},
        {"allOf": [{"type": "array"}]},
        {"$ref": "#anchor"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#/$defs/a%20b", "$defs": {"a%20b": {"type": "array"}}},
    ],
)
def test_of_what_is_not_understood_the_whole_text_counts(schema):
    assert not same(schema, "[null,null", "[null, null")


def test_an_object_that_must_have_what_it_does_not_list_is_not_understood():
    schema = {"type": "object", "properties": {"a": {}}, "required": ["a", "b", "c"]}
    assert not same(schema, '{"a":1,"b":1', '{"a":2,"c":1')
    assert same(schema | {"required": ["a"]}, '{"a":1,"b":1,"d":1,', '{"a":2,"c":2,')


def test_long_values_that_are_kept_as_they_are_have_no_key():
    digits = "1" * module.MAX_RAW
    even = {"type": "integer", "multipleOf": 2}
    assert key(even, digits) is not None
    assert key(even, digits + "1") is None
    assert key({"type": "array", "items": even}, f"[{digits}1,") is not None


def test_references_and_choices_lead_to_what_they_name():
    tree = {"$defs": {"node": PAIR | {"properties": PAIR["properties"] | {"left": {"$ref": "#/$defs/node"}}}}}
    tree["$ref"] = "#/$defs/node"
    assert same(tree, '{"a":"xyz","left":{"a":"xy', '{"a":"abc","left":{"a":"zz')
    assert same({"anyOf": [{"type": "null"}, NAME]}, '"xyz', '"abc')
    assert not same({"anyOf": [{"$ref": "#"}]}, '"xyz', '"abc')  # there is no end to it
    assert not same({"anyOf": [NAME, {"type": "string", "pattern": "x"}]}, '"xyz', '"abc')


def test_a_name_is_a_schemas_as_it_spells_it_and_in_no_other_way():
    schema = {
        "type": "object",
        "properties": {"größe": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
    }
    assert not same(schema, '{"größe":', '{"gr\\u00f6\\u00dfe":')
    assert same(schema, '{"x":', '{"gr\\u00f6\\u00dfe":')
    long = {"type": "object", "properties": {"n" * (module.MAX_RAW + 1): {"type": "integer"}}}
    assert not same(long, '{"a":1', '{"b":1')  # it is not understood


def test_a_name_without_an_end_takes_no_room():
    places = Places({"type": "object"}, 16)
    place = places.start
    for _ in range(3):
        place = places.after(place, b'{"' + b"n" * 500)
        assert places.key(place, 7) is None and len(place.raw) <= module.MAX_RAW
        place = places.after(place, b'":')
        assert places.key(place, 7) is not None


def test_an_answer_that_goes_too_deep_is_followed_no_further():
    places = Places({"type": "array"}, 16)
    place = places.after(places.start, b"[" * module.MAX_OPEN)
    assert place is not None and places.key(place, 7) is not None
    assert places.after(place, b"[") is None
    assert places.after(places.after(place, b"]"), b",[") is not None


@pytest.mark.parametrize(
    "text",
    [
        'start: "a"',
        "start: %json true",
        "start: %json {}",
        'start: %json {"x-guidance":{"whitespace_pattern":"\\n[ ]*|[ ]"}}',
        'start: %json {"type":"null"} | "a"',
        "start: %json " + "[" * 100_000,
    ],
)
def test_what_is_no_schema_read_in_our_way_has_no_places(text):
    assert places_of("%llguidance {}\n" + text, 16) is None


@pytest.mark.parametrize("strict", [True, False])
def test_every_schema_has_places(strict):
    assert places_of(source_of(Constraint("json_schema", "true", strict), {}), 16) is not None
