"""Tokenizers of every kind that changes a text before it splits it, and texts that such tokenizers change."""

from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from jaxinfer.text.tokenizer import Tokenizer

END, NAMED = "<|end|>", "<think>"
TEXTS = {
    "letters with marks": "nai\u0308ve cafe\u0301",
    "singletons": "\u212b\u2126\u212a",
    "composition exclusions": "\u0958\u0928\u093c",
    "compatibility ideographs": "\uf900\ufa19",
    "letters of Hangul": "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "compatibility letters": "\ufb01\u00bd\uff21\u2460",
    "capitals": "ÄPFEL Straße İ",
    "spaces around": "  a  b  ",
    "lines": "a\n\n b\t\r\nc\u00a0\u3000d",
    "the sign for a space": "a\u2581b \u2581",
    "names of control tokens": f"{END}a {NAMED} b",
    "quotes": "\u201ca\u2019s\u201d ``b''",
    "beyond the first plane": "\U0001f469\u200d\U0001f680\U0002f800",
    "marks alone": "\u0301\u0327\u0327\u0301",
    "controls": "a\u200b\u00ad\ufeffb",
}
_WORDS = ("na", "nai", "\u00ef", "caf", "caf\u00e9", "\ud55c", "\uae00", "fi", "th", "ink", "\u00c5", "  ", "a\n")

NORMALIZERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "NFC": normalizers.NFC,
    "NFD": normalizers.NFD,
    "NFKC": normalizers.NFKC,
    "NFKD": normalizers.NFKD,
    "Lowercase": normalizers.Lowercase,
    "Strip": normalizers.Strip,
    "StripAccents": lambda: normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    "Prepend": lambda: normalizers.Prepend("x"),
    "Replace": lambda: normalizers.Replace("a", "o"),
    "Replace of an expression": lambda: normalizers.Replace(Regex(r"\s+"), " "),
    "BertNormalizer": normalizers.BertNormalizer,
    "Nmt": normalizers.Nmt,
}
PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "ByteLevel": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "ByteLevel with a space in front": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
    "Whitespace": lambda: _behind(pre_tokenizers.Whitespace()),
    "WhitespaceSplit": lambda: _behind(pre_tokenizers.WhitespaceSplit()),
    "BertPreTokenizer": lambda: _behind(pre_tokenizers.BertPreTokenizer()),
    "CharDelimiterSplit": lambda: _behind(pre_tokenizers.CharDelimiterSplit("a")),
    "Split that removes": lambda: _behind(pre_tokenizers.Split(" ", "removed")),
    "Split that removes the rest": lambda: _behind(pre_tokenizers.Split(Regex(r"\w+"), "removed", invert=True)),
    "Punctuation that removes": lambda: _behind(pre_tokenizers.Punctuation("removed")),
    "Digits": lambda: _behind(pre_tokenizers.Digits(individual_digits=True)),
}


def _behind(first: Any) -> Any:
    return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def byte_level(normalizer: Any = None, pre_tokenizer: Any = None) -> Tokenizer:
    """A byte-level BPE."""
    pre_tokenizer = pre_tokenizer or PRE_TOKENIZERS["ByteLevel"]()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = ["".join(piece for piece, _ in spell.pre_tokenize_str(word)) for word in _WORDS]
    return _made(*_merged(alphabet, words), normalizer, pre_tokenizer, decoders.ByteLevel())


def byte_fallback(normalizer: Any = None, pre_tokenizer: Any = None, *, strips: bool = False) -> Tokenizer:
    """As sentencepiece makes them, with a sign for a space. strips: its decoder drops a space in front."""
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)] + sorted({*"".join(_WORDS), "\u2581", *"abcdeths"} - {" "})
    words = [word.replace(" ", "\u2581") for word in (*_WORDS, " a", " th")]
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if strips else []
    return _made(*_merged(alphabet, words), normalizer, pre_tokenizer, decoders.Sequence(steps), byte_fallback=True)


def _merged(alphabet: list[str], words: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary in which these words come together sign by sign."""
    vocab, merges = {sign: number for number, sign in enumerate(alphabet)}, []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append((word[: end - 1], word[end - 1]))
    return vocab, merges


def _made(vocab: Any, merges: Any, normalizer: Any, pre_tokenizer: Any, decoder: Any, **model: Any) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, **model))
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoder
    backend.add_special_tokens([AddedToken(END, rstrip=True)])
    backend.add_tokens([AddedToken(NAMED, normalized=False), AddedToken("\n\n", lstrip=True, normalized=False)])
    return Tokenizer(backend.to_str().encode())


def _spaces(*before: Any) -> Any:
    return normalizers.Sequence([*before, normalizers.Replace(" ", "\u2581")])


KINDS: dict[str, Callable[[], Tokenizer]] = {
    **{f"bytes, {name}": lambda make=make: byte_level(make()) for name, make in NORMALIZERS.items()},
    **{f"bytes, {name}": lambda make=make: byte_level(None, make()) for name, make in PRE_TOKENIZERS.items()},
    "bytes by a normalizer": lambda: byte_level(normalizers.ByteLevel(), pre_tokenizers.Digits()),
    "fallback, spaces replaced": lambda: byte_fallback(_spaces()),
    "fallback, a space in front": lambda: byte_fallback(_spaces(normalizers.Prepend("\u2581")), strips=True),
    "fallback, NFKC": lambda: byte_fallback(_spaces(normalizers.NFKC())),
    "fallback, Lowercase and Strip": lambda: byte_fallback(_spaces(normalizers.Lowercase(), normalizers.Strip())),
    "fallback, Metaspace": lambda: byte_fallback(normalizers.NFC(), pre_tokenizers.Metaspace(), strips=True),
    "fallback, nothing for spaces": lambda: byte_fallback(),
}
