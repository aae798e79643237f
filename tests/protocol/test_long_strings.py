"""Bodies with long strings: what is read piece by piece is what is read whole, and what is wrong is told the same."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol import body
from jaxinfer.protocol.body import parse_body
from jaxinfer.protocol.long_strings import LONG_BYTES, put_back, take_out

ALPHABETS = ["ab", 'a"\\', "aé\n\t", "a世", "😀", '😀x"\\\u0000ü世\u2028', '{}[],:"\\u']


def long_text(alphabet: str, seed: int = 0) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=2 * LONG_BYTES))


@pytest.mark.parametrize("ensure_ascii", [True, False])
@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_it_is_what_was_sent_wherever_the_pieces_are_cut(alphabet, ensure_ascii):
    for shift in (0, 1, 4, 9):
        text = "x" * shift + long_text(alphabet, shift)
        tree = {"a": text, "b": [1, "short", {"c": text[::-1]}], 'q"\\': "" if shift else text[:LONG_BYTES]}
        raw = json.dumps(tree, ensure_ascii=ensure_ascii).encode()
        skeleton, strings = take_out(raw)
        assert len(skeleton) < LONG_BYTES and len(strings) >= 2, "they were taken out"
        assert put_back(json.loads(skeleton), strings) == tree and not strings
        assert parse_body(raw) == tree


TEXT = json.dumps(long_text('aü"'))[1:-1].encode()
FAULTS = {
    "a control character": b'{"a": "%b\n"}',
    "half a pair": b'{"a": "%b\\ud83d"}',
    "the other half": b'{"a": "%b\\ude00 "}',
    "an escape that is none": b'{"a": "%b\\x"}',
    "an escape cut short": b'{"a": "%b\\u12"}',
    "no end": b'{"a": "%b',
    "an end in an escape": b'{"a": "%b\\',
    "no UTF-8": b'{"a": "%b\xff"}',
    "half a character": b'{"a": "%b\xe4\xb8"}',
    "only continuations": b'{"a": "%b' + b"\x80" * 2 * LONG_BYTES + b'"}',
    "something after it": b'{"a": "%b"} x',
    "a comma too many": b'{"a": "%b",}',
    "a name given twice": b'{"a": "%b", "a": 1}',
    "a long name given twice": b'{"%b": 1, "%b": 2}',
    "no number": b'{"a": "%b", "b": NaN}',
    "a text": b'"%b"',
    "a list": b'["%b"]',
    "too deep": b'{"a": ["%b", ' + b"[" * 70 + b"]" * 70 + b"]}",
    "too many values": b'{"a": "%b", "b": [' + b"1," * 2**18 + b"1]}",
}


def refusal_of(read: Callable[[bytes], Any], raw: bytes) -> tuple[str, str | None, str | None]:
    with pytest.raises(InvalidRequest) as refusal:
        read(raw)
    return str(refusal.value), refusal.value.param, refusal.value.code


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_beside_or_in_a_long_string_is_told_as_if_it_were_read_whole(name):
    raw = FAULTS[name].replace(b"%b", TEXT)
    assert refusal_of(parse_body, raw) == refusal_of(body._parse, raw)


def test_a_place_is_told_as_it_was_sent():
    raw = b'{"a": "%b",\n "b": }' % TEXT
    with pytest.raises(InvalidRequest, match="at line 2, column 7"):
        parse_body(raw)


def test_a_byte_order_mark_before_it_is_passed_over():
    raw = b'{"a": "%b"}' % TEXT
    assert parse_body(b"\xef\xbb\xbf" + raw) == parse_body(raw) == json.loads(raw)


def test_a_long_name_is_a_name():
    assert list(parse_body(b'{"%b": 1}' % TEXT)) == [json.loads(b'"%b"' % TEXT)]


def test_many_short_strings_are_left_to_json():
    tree = {"a": ["x"] * 20_000, "b": "y" * 2 * LONG_BYTES}
    raw = json.dumps(tree).encode()
    assert take_out(raw) == (raw, {}) and parse_body(raw) == tree
