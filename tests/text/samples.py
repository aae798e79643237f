"""Tokenizers of every kind that the engine may meet, trained here in a blink, and texts that are hard to stream."""

import functools
import random

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from jaxinfer.text.tokenizer import Tokenizer

HARD_TEXTS = (
    "plain words, 12 of them",
    "日本語の文章と한국어 문장, ไทย और हिन्दी",
    "family 👩‍👩‍👧‍👦 flag 🏴󠁧󠁢󠁥󠁮󠁧󠁿 thumbs 👍🏽 heart ❤️‍🔥",
    "e\u0301 combining, \u202eright to left\u202c, \u200bzero width\ufeff",
    "  leading and trailing  \n\n\ttabs\r\n",
    "a literal \ufffd is legal",
    "<think>\nhm\n</think>\n\n<tool_call>\n{}\n</tool_call>",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff \x00 \x7f",
)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISIBLE = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

_CORPUS = [text for text in HARD_TEXTS[:5] for _ in range(3)] + [
    "the quick brown fox jumps over the lazy dog and the dog does not mind",
    "user assistant system: what is the answer? the answer is forty two.",
    "im_start im_end tool_call think stop STOP </s> END. \n\nHuman: one two three",
]


def byte_level_backend() -> Backend:
    """Qwen's kind: byte-level BPE, NFC, control tokens beyond the vocabulary, some of them not special."""
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.NFC()
    split = Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(split, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(_CORPUS, trainer)
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in VISIBLE])
    return backend


def llama2_backend() -> Backend:
    """Llama-2's kind: sentencepiece BPE with byte fallback, a space put before the text and stripped at the end."""
    backend = _spm_backend()
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def metaspace_backend() -> Backend:
    """The same vocabulary with Metaspace on both ends."""
    backend = _spm_backend()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    return backend


def gemma_backend() -> Backend:
    """Byte fallback without a space in front, and blank added tokens."""
    backend = _spm_backend()
    backend.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("\n\n\n", normalized=False)])
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def suffix_backend() -> Backend:
    """A decoder that does not work token by token: a word's end is a suffix, and the last one's is dropped."""
    backend = Backend(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(_CORPUS, trainer)
    return backend


def _spm_backend() -> Backend:
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    letters = sorted({char for text in _CORPUS for char in text if char.isascii() or char in "日本한"} - {" ", "\n"})
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*first, *letters, "▁▁"]))}
    merges: list[tuple[str, str]] = [("▁", "▁")]
    for word in ("▁the", "▁and", "▁answer", "▁is", "ing", "END", "stop"):
        for i in range(1, len(word)):
            pair = (word[:i], word[i])
            if word[: i + 1] not in vocab:
                vocab[word[: i + 1]] = len(vocab)
                merges.append(pair)
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL[1:]])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in VISIBLE])
    return backend


def split(pattern: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: dict[str, str], content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _published(*patterns: str) -> dict[str, object]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*map(split, patterns), level]}


_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANK = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}?"
_O200K = rf"{_CASED}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_BLANK}"
_DEEPSEEK = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _BLANK
)
LINEAR = {
    "gpt-2": _published(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    "llama-3": _published(
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_BLANK}"
    ),
    "qwen-3": _published(rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_BLANK}"),
    "o200k": _published(_O200K),
    "deepseek-v3": _published(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK),
    "bailing": _published(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "falcon": _published(r"[\p{P}\$\+<=>\^~\|`]+", "[0-9][0-9][0-9]"),
    "gemma-4": _published(r"[^\n]+|[\n]+"),
}
"""Pre-tokenizers as published, by model, of which each pattern takes time in proportion to a text."""
NONLINEAR = {
    "deepseek-llm": _published(
        "[\r\n]",
        "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u0370-\u0373\u0400-\u0481]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}",
    ),
    "superbpe": _published(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "tiny-aya": _published(r"\d{1,3}(?=(?:\d{3})*\b)", _O200K),
}
"""Those with a pattern that takes the square of some texts."""
PRE_TOKENIZERS = LINEAR | NONLINEAR

BACKENDS = {
    "byte-level": byte_level_backend,
    "llama-2": llama2_backend,
    "metaspace": metaspace_backend,
    "gemma": gemma_backend,
    "suffix": suffix_backend,
}


@functools.cache
def tokenizer(kind: str) -> Tokenizer:
    """One of BACKENDS as the engine loads it."""
    config = {"eos_token": "<|im_end|>", "bos_token": None}
    return Tokenizer(BACKENDS[kind]().to_str().encode(), config)


def random_ids(kind: str, rng: random.Random, most: int = 60) -> list[int]:
    """Any ids, with runs of text between them, as a confused model would write them."""
    text, ids = tokenizer(kind), []
    for _ in range(rng.randrange(1, 6)):
        if rng.random() < 0.5:
            ids += text.encode(rng.choice(HARD_TEXTS))
        else:
            ids += [rng.randrange(text.vocab_size + 3) for _ in range(rng.randrange(8))]
    return ids[:most]
