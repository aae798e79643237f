"""Added tokens that a tokenizer's own normalizer makes empty: the library may look for an empty text without end.

To normalize a token takes the library as long as to add it, so tokens are normalized only where a step of the
normalizer may leave nothing of them.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import normalizers

from jaxinfer.errors import CheckpointError
from jaxinfer.text.linear import CHAR, steps_of

_SIGNS = frozenset(map(chr, range(ord("!"), ord("~") + 1)))  # stay letters or signs in all steps of _KEEP_SIGNS
_KEEP_TEXTS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "ByteLevel"})
_KEEP_SIGNS = _KEEP_TEXTS | {"Strip", "StripAccents", "BertNormalizer", "Nmt"}  # these drop spaces, marks and controls
_SPACES = re.compile(r"(?:(?: |\\[snrt])(?:[+*?]|\{\d*,?\d*\})?|[\^$|])+")  # a pattern that matches nothing else
_ONE = re.compile(rf"{CHAR}[*+]?\+?")  # each character that it matches it also matches alone


def check_emptied(backend: tokenizers.Tokenizer, normalizer: dict[str, Any] | None, contents: Sequence[str]) -> None:
    """contents: of the added tokens that are looked for in normalized text. Raises CheckpointError for an empty one."""
    if backend.normalizer is None:
        return
    steps = list(steps_of(normalizer))
    if all(map(_keeps_texts, steps)):
        contents = [content for content in contents if not content]
    elif kept := _kept_signs(steps):
        contents = [content for content in contents if kept.isdisjoint(content)]
    normalize = backend.normalizer.normalize_str  # asked for once: each time makes an object
    if all(map(normalize, contents)):
        return
    empty = next(content for content in contents if not normalize(content))
    raise CheckpointError(
        "an added token of tokenizer.json must not become empty in its normalizer, "
        f"{empty[:40]!r} does. Set its normalized to false, or take it out."
    )


def _keeps_texts(step: dict[str, Any]) -> bool:
    """Whether a step makes no text empty."""
    return step.get("type") in _KEEP_TEXTS or (step.get("type") == "Replace" and bool(step.get("content")))


def _kept_signs(steps: Sequence[dict[str, Any]]) -> set[str]:
    """Letters and signs of which a text that has one still has one behind all steps."""
    composes = any(step.get("type") in ("NFC", "NFKC") for step in steps)
    kept, before = set(_SIGNS), set[str]()
    while kept != before:  # what a step writes may be what another takes
        before = set(kept)
        for step in steps:
            if step.get("type") != "Replace" or kept.isdisjoint(str(step.get("content"))):
                kept -= _touched(step, composes=composes)
    return kept


def _touched(step: dict[str, Any], *, composes: bool) -> set[str]:
    """Letters and signs that a step may take out of a text, or change; all, where its form does not tell. composes: it
    may find them in one character with a mark behind them.
    """
    match step:
        case {"type": "Replace", "pattern": {"String": str(old)}}:
            taken = set(unicodedata.normalize("NFKD", old))
        case {"type": "Replace", "pattern": {"Regex": str(old)}} if _SPACES.fullmatch(old):
            taken = set()
        case {"type": "Replace", "pattern": {"Regex": str(old)}} if _ONE.fullmatch(old) and not composes:
            alone = normalizers.Replace(tokenizers.Regex(old), "").normalize_str
            taken = {sign for sign in _SIGNS if not alone(sign)}
        case _:
            return set() if step.get("type") in _KEEP_SIGNS else set(_SIGNS)
    return taken | {sign.swapcase() for sign in taken}  # another step may change its case
