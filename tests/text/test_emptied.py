"""An added token that becomes empty is found, whatever normalizes it, and tokens that cannot are not normalized."""

import json
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from jaxinfer.errors import CheckpointError
from jaxinfer.text.emptied import check_emptied
from jaxinfer.text.rust import LibraryPanic, panics_as_exceptions

STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": True}
KINDS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")
CHARS = st.sampled_from("aAb<> \u00a0\t\x01\x7f\u0301\u0338\u00e9\u200b\u2581\ufffd\u0130=~")
PATTERNS = st.one_of(
    st.builds(lambda text: {"String": text}, st.text(CHARS, min_size=1, max_size=2)),
    st.builds(
        lambda text: {"Regex": text},
        st.sampled_from(
            [
                "a",
                "b+",
                "a|<",
                ".",
                r"\s",
                r"\S+",
                "(?=a)",
                r"\s+$",
                "^ {2,}| +",
                r"[^\w\s]",
                "[~=]+",
                r"\W*",
                "[^\x00-\x7f]",
            ]
        ),
    ),
)
STEPS = st.lists(
    st.one_of(
        st.sampled_from([STRIP, {**BERT, "lowercase": True}, *({"type": kind} for kind in KINDS)]),
        st.builds(lambda text: {"type": "Prepend", "prepend": text}, st.text(CHARS, min_size=1, max_size=2)),
        st.builds(
            lambda p, new: {"type": "Replace", "pattern": p, "content": new}, PATTERNS, st.text(CHARS, max_size=2)
        ),
    ),
    max_size=4,
)


def backend_with(normalizer: dict[str, Any] | None) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(json.loads(Tokenizer(models.BPE()).to_str()) | {"normalizer": normalizer}))


@given(STEPS, st.lists(st.text(CHARS, min_size=1, max_size=4), max_size=6))
def test_a_token_is_refused_where_the_library_makes_it_empty(steps: list[dict[str, Any]], tokens: list[str]) -> None:
    rule = {"type": "Sequence", "normalizers": steps}
    backend = backend_with(rule)
    try:
        with panics_as_exceptions():
            empty = [token for token in tokens if not backend.normalizer.normalize_str(token)]
    except LibraryPanic:  # a bug of the library's, in replacing what was replaced by nothing
        reject()
    if not empty:
        check_emptied(backend, rule, tokens)
        return
    with pytest.raises(CheckpointError) as refusal:
        check_emptied(backend, rule, tokens)
    assert repr(empty[0]) in str(refusal.value)


def test_without_a_normalizer_no_token_becomes_empty() -> None:
    check_emptied(backend_with(None), None, [" ", ""])
