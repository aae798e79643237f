"""Logprobs on the wire: JSON that any parser reads, bytes that are the tokens' own, offsets that rise."""

import codecs
import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.protocol.logprobs import (
    LEAST,
    LogprobsWriter,
    TokenLogprob,
    chat_entries,
    prompt_logprobs,
    token_text,
)
from jaxinfer.protocol.responses import AnswerEnvelope, encode_json
from tests.support.logprobs import token_logprob

VALUES = st.sampled_from([-math.inf, math.nan, 0.0, -1.5, -(2.0**99)]) | st.floats(max_value=0, width=32)
LINE_END = "\u2028".encode()
TOKENS = st.binary(max_size=4) | st.sampled_from([b"%d", b"a", b'"', "\u2028é".encode()])


def entry(token: bytes, logprob: float | None = -1.0, *top: tuple[int, bytes, float]) -> TokenLogprob:
    return token_logprob(9, token, logprob, None if logprob is None else 50, top)


def falling(top: list[tuple[int, bytes, float]]) -> list[tuple[int, bytes, float]]:
    """The most likely first; where one is no number, all are."""
    if any(math.isnan(value) for _, _, value in top):
        return [(token_id, token, math.nan) for token_id, token, _ in top]
    return sorted(top, key=lambda one: -one[2])


TOP = st.lists(st.tuples(st.integers(0, 99), TOKENS, VALUES), max_size=5, unique_by=lambda top: top[0]).map(falling)
ENTRIES = st.lists(st.builds(lambda token, own, top: entry(token, own, *top), TOKENS, st.none() | VALUES, TOP))


def never(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def read(raw: bytes) -> Any:
    return json.loads(bytes(raw), parse_constant=never)


def finite(value: float | None) -> float | None:
    return value if value is None or value > LEAST else LEAST


def chat_object(entries: list[TokenLogprob]) -> dict[str, Any]:
    """OpenAI's object of chat."""

    def one(token: bytes, logprob: float | None) -> dict[str, Any]:
        return {"token": token_text(token), "logprob": finite(logprob), "bytes": list(token)}

    content = [
        one(e.token, e.logprob) | {"top_logprobs": list(map(one, e.top_tokens, e.top_logprobs))} for e in entries
    ]
    return {"content": content, "refusal": None}


def completion_object(entries: list[TokenLogprob]) -> dict[str, Any]:
    """OpenAI's object of completions."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    whole = (len(utf8.decode(e.token)) for e in entries)  # characters
    tops: list[dict[str, float | None] | None] = []
    for e in entries:
        backwards = {token_text(t): finite(v) for t, v in reversed([*zip(e.top_tokens, e.top_logprobs, strict=True)])}
        by_text = dict(reversed(backwards.items()))
        by_text.setdefault(token_text(e.token), finite(e.logprob))
        tops.append(None if e.logprob is None else by_text)
    return {
        "tokens": [token_text(e.token) for e in entries],
        "token_logprobs": [finite(e.logprob) for e in entries],
        "top_logprobs": tops,
        "text_offset": list(itertools.accumulate(whole, initial=0))[:-1],
    }


@given(entries=ENTRIES)
def test_the_json_is_that_of_the_object_that_openai_has(entries):
    assert bytes(LogprobsWriter("chat").write(entries)) == encode_json(chat_object(entries))
    assert encode_json(chat_entries(entries)) == encode_json(chat_object(entries)["content"])
    assert bytes(LogprobsWriter("completion").write(entries)) == encode_json(completion_object(entries))


@given(entries=ENTRIES)
def test_a_prompts_logprobs_are_strict_json(entries):
    found = prompt_logprobs(entries)
    assert json.loads(encode_json(found), parse_constant=never) == found


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_logprobs_beside_text_with_line_ends_stay_on_one_line(kind):
    frame = (
        AnswerEnvelope(kind, "1", 0, "m", "f")
        .frames()
        .text(0, "", logprobs=LogprobsWriter(kind).write([entry(LINE_END)]))
    )
    assert len(frame.decode().splitlines()) == 2  # the frame and the empty line behind it
    assert frame.count(b'"\\u2028"') == 1 + (kind == "completion")  # the token; there also among the most likely


def test_what_json_cannot_say_is_the_least_logprob():
    said = entry(b"a", -math.inf, (1, b"a", -math.inf), (2, b"b", math.nan))
    found = read(LogprobsWriter("chat").write([said]))["content"][0]
    assert [found["logprob"], *(top["logprob"] for top in found["top_logprobs"])] == [LEAST] * 3 == [-9999.0] * 3


def test_the_bytes_are_the_tokens_own_where_the_text_cannot_be():
    halves = [entry(part) for part in (b"\xc3", b"\xa9", b"x")]
    found = read(LogprobsWriter("chat").write(halves))["content"]
    assert bytes(byte for one in found for byte in one["bytes"]).decode() == "éx"
    assert [one["token"] for one in found] == ["bytes:\\xc3", "bytes:\\xa9", "x"]
    assert token_text("é".encode()) == "é"


def test_offsets_go_on_from_piece_to_piece_and_count_characters():
    writer = LogprobsWriter("completion")
    pieces = [[b"ab", b"\xc3"], [b"\xa9"], [b" c", "🙂".encode(), b"d"]]
    offsets = [read(writer.write([entry(token) for token in piece]))["text_offset"] for piece in pieces]
    assert offsets == [[0, 2], [2], [3, 5, 6]]


def test_the_token_itself_is_among_the_most_likely_and_equal_spellings_keep_the_likeliest():
    said = entry(b"z", -7.0, (1, b"a", -0.25), (2, b"b", -0.5), (3, b"a", -0.75))
    found = read(LogprobsWriter("completion").write([said]))
    assert found["top_logprobs"] == [{"a": -0.25, "b": -0.5, "z": -7.0}]
    assert list(prompt_logprobs([said])[0]) == ["9", "1", "2", "3"]
    first = entry(b"z", None)
    assert read(LogprobsWriter("completion").write([first]))["token_logprobs"] == [None]
    assert prompt_logprobs([first]) == [None]
