"""A body whose names are many: what is wrong with it is found in a time that grows with its size, and no faster; one
of numbers, which is parsed by another program, says the same and is refused for the same.
"""

import json

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.body import parse_body
from tests.support.attempts import assert_below, processor_s

NAMES = b", ".join(b'"%d": 1' % number for number in range(60_000))


@pytest.mark.parametrize("raw", [b'{%b, "59999": 1}', b'{"a": {%b, "59999": 1}}'], ids=["of the body", "inside"])
def test_of_many_names_the_one_given_twice_is_found_at_once(raw):
    """One look through all of them for each took a minute, in which the server parsed no other large body."""

    def refused() -> None:
        with pytest.raises(InvalidRequest, match="must name each field once, got '59999' twice"):
            parse_body(raw % NAMES)

    assert_below(2, lambda: processor_s(refused), "the processor time of a refusal")


def test_it_is_the_first_of_those_given_twice():
    with pytest.raises(InvalidRequest, match="got 'b' twice") as refusal:
        parse_body(b'{"a": 1, "b": 1, "c": 1, "c": 2, "b": 2}')
    assert refusal.value.param == "b"


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt": [%s], "max_tokens": 4, "temperature": 1e-3, "stream_options": {"include_usage": true}}',
        '{"prompt": [[%s], [7, -0, -0.0, 18446744073709551616]], "note": "é \\u00e9 \\ud83d\\ude00"}',
        '{"prompt": [%s], "metadata": {"a": {"b": "a: b"}}, "messages": [{"role": "user"}]}',
    ],
)
def test_a_body_of_numbers_says_what_json_says(text):
    raw = text % ", ".join(map(str, range(500)))
    assert repr(parse_body(raw.encode())) == repr(json.loads(raw))


@pytest.mark.parametrize("number", ["1e309", "-1e400", "1e-400", "9" * 400])
def test_a_body_that_is_a_number_which_no_double_holds_is_shown_as_it_was_written(number: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_body(f" {number}\n".encode())
    assert str(refusal.value) == f"the body must be a JSON object, got {number[:40]}; send one"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"prompt": [%s], "n": 1, "n": 2}', "must name each field once, got 'n' twice"),
        ('{"prompt": [%s], "stream_options": {"a": 1, "a": 2}}', "must name each field once, got 'a' twice"),
        ('{"prompt": [%s], "messages": [{"a": 1, "a": 2}]}', "must name each field once, got 'a' twice"),
        ('{"prompt": [%s], "top_p": NaN}', "top_p is NaN, which is not a JSON number"),
        ('{"prompt": [%s, 01]}', "Expecting ',' delimiter"),
        ('{"prompt": [%s, 1], "a": "\\ud800"}', "half of a surrogate pair"),
        ('{"prompt": [%s], "a": ' + "[" * 65 + "]" * 65 + "}", "nests more than 64"),
        ('{"prompt": [%s], "a": ' + "[" * 9000 + "]" * 9000 + "}", "nests more than 64"),
        ('{"prompt": [%s], "a": ' + '{"a": ' * 9000 + "1" + "}" * 9000 + "}", "nests more than 64"),
        ("[%s]", "must be a JSON object"),
        ('{"prompt": [%s]} 1', "Extra data"),
        ('{"prompt": [%s, ' + "9" * 5000 + "]}", "must be a number that is finite as a double"),
    ],
)
def test_a_body_of_numbers_is_refused_like_any_other(text, fault):
    with pytest.raises(InvalidRequest, match=fault):
        parse_body((text % ", ".join(map(str, range(20_000)))).encode())
