"""How much of a text the scanner takes: never more than the beginning of a JSON object."""

import json

import pytest

from jaxinfer.text.tools.json_scanner import MAX_LITERAL_CHARS, JsonScanner, mended

LITERALS = [
    "true",
    "false",
    "null",
    "0",
    "-0",
    "10",
    "-1.5",
    "0.25e1",
    "1e9",
    "1E+9",
    "2e-07",
    "0." + "1" * (MAX_LITERAL_CHARS - 2),
]
WRONG = {  # how much of it may begin a literal
    "None": 0,
    "oops": 0,
    "True": 0,
    "+1": 0,
    ".5": 0,
    "NaN": 0,
    "nil": 1,
    "-Infinity": 1,
    "--1": 1,
    "01": 1,
    "-01": 2,
    "0x1f": 1,
    "1.e5": 2,
    "1..2": 2,
    "1e5.0": 3,
    "1e+-2": 3,
    "truex": 4,
    "tru": 3,
    "-": 1,
    "1.": 2,
    "1e": 2,
    "nullnull": 4,
    "1e999": 5,
    "1e-999": 6,
    "1" * (MAX_LITERAL_CHARS + 1): MAX_LITERAL_CHARS,
}


def taken_of(text: str, size: int) -> tuple[str, JsonScanner]:
    """What is taken of a text that comes in pieces of this size."""
    scanner, taken = JsonScanner(), ""
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        taken += piece[: scanner.feed(piece, 0, 0)]
    return taken, scanner


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("close", ["}", " }", "\n}"])
def test_a_literal_is_taken_whole(close, size):
    for literal in LITERALS:
        for text in (f'{{"a": {literal}{close}', f'{{"a":[{literal},{literal}]{close}'):
            assert isinstance(json.loads(text), dict)
            taken, scanner = taken_of(text, size)
            assert (taken, scanner.bad, scanner.has_ended) == (text, False, True)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("wrong", "most"), WRONG.items(), ids=[wrong[:9] for wrong in WRONG])
def test_what_is_no_literal_is_taken_while_it_may_begin_one(wrong, most, size):
    for text in (f'{{"a": {wrong}}}', f'{{"a": [1, {wrong}, 2]}}'):
        before = text[: text.index(wrong, 5)]
        taken, scanner = taken_of(text, size)
        assert (taken, scanner.bad) == (before + wrong[:most], True)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_what_is_written_is_json_whatever_was_taken(size):
    text = '{"a\tb": ["x\n\r\x00\\n", [1 , ], {"c": {},\n}, ] ,}'
    scanner = JsonScanner()
    written = ""
    for start in range(0, len(text), size):
        scanner.feed(text[start : start + size], 0, 0)
        written += scanner.written()
    assert written == r'{"a\tb": ["x\n\r\u0000\n", [1  ], {"c": {}' + "\n} ] }"
    assert json.loads(written) == {"a\tb": ["x\n\r\x00\n", [1], {"c": {}}]}


def test_values_of_any_kind_are_mended_and_others_left():
    mended_of = {
        '"a\nb"': '"a\\nb"',
        " [1,] ": " [1]",
        '{"a": 1, }': '{"a": 1 }',
        "[1": "[1",
        "[1,]x": "[1,]x",
        "12": "12",
    }
    assert {text: mended(text) for text in mended_of} == mended_of
