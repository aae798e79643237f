"""Logprobs on the wire: JSON that any parser reads, bytes that are the tokens' own, offsets that rise."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.protocol.logprobs import LEAST, LogprobsWriter, TokenLogprob, TopLogprob, prompt_logprobs, token_text
from jaxinfer.protocol.responses import encode_json

VALUES = st.sampled_from([-math.inf, math.nan, 0.0, -1.5, -1e30]) | st.floats(max_value=0)
ENTRIES = st.lists(
    st.builds(
        TokenLogprob,
        st.integers(0, 99),
        st.binary(max_size=4),
        VALUES,
        st.integers(1, 99),
        st.lists(st.builds(TopLogprob, st.integers(0, 99), st.binary(max_size=2), VALUES), max_size=5),
    ),
    max_size=4,
)


def never(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("kind", ["chat", "completion"])
@given(entries=ENTRIES)
def test_whatever_the_model_says_is_strict_json(kind, entries):
    for found in (LogprobsWriter(kind).write(entries), prompt_logprobs(entries)):
        assert json.loads(encode_json(found), parse_constant=never) == found


def test_what_json_cannot_say_is_the_least_logprob():
    entry = TokenLogprob(1, b"a", -math.inf, 9, [TopLogprob(1, b"a", -math.inf), TopLogprob(2, b"b", math.nan)])
    found = LogprobsWriter("chat").write([entry])["content"][0]
    assert [found["logprob"], *(top["logprob"] for top in found["top_logprobs"])] == [LEAST] * 3 == [-9999.0] * 3


def test_the_bytes_are_the_tokens_own_where_the_text_cannot_be():
    halves = [TokenLogprob(i, part, -1.0, 1, []) for i, part in enumerate((b"\xc3", b"\xa9", b"x"))]
    found = LogprobsWriter("chat").write(halves)["content"]
    assert bytes(byte for entry in found for byte in entry["bytes"]).decode() == "éx"
    assert [entry["token"] for entry in found] == ["bytes:\\xc3", "bytes:\\xa9", "x"]
    assert token_text("é".encode()) == "é"


def test_offsets_go_on_from_piece_to_piece_and_count_characters():
    writer = LogprobsWriter("completion")
    pieces = [[b"ab", b"\xc3"], [b"\xa9"], [b" c", "🙂".encode(), b"d"]]
    offsets = [writer.write([TokenLogprob(0, t, -1.0, 1, []) for t in piece])["text_offset"] for piece in pieces]
    assert offsets == [[0, 2], [3], [3, 5, 6]]


def test_the_token_itself_is_among_the_most_likely_and_equal_spellings_keep_the_likeliest():
    top = [TopLogprob(1, b"a", -0.1), TopLogprob(2, b"b", -0.2), TopLogprob(3, b"a", -0.3)]
    found = LogprobsWriter("completion").write([TokenLogprob(9, b"z", -7.0, 50, top)])
    assert found["top_logprobs"] == [{"a": -0.1, "b": -0.2, "z": -7.0}]
    assert list(prompt_logprobs([TokenLogprob(9, b"z", -7.0, 50, top)])[0]) == ["9", "1", "2", "3"]
    first = TokenLogprob(9, b"z", None, None, [])
    assert LogprobsWriter("completion").write([first])["token_logprobs"] == [None]
    assert prompt_logprobs([first]) == [None]
