"""Added tokens that a tokenizer's own normalizer makes empty: the library may look for an empty text without end.

To normalize a token takes the library as long as to add it, so tokens are normalized only where a step of the
normalizer may leave nothing of them.
"""

import re
from collections.abc import Sequence
from typing import Any

import tokenizers

from jaxinfer.errors import CheckpointError
from jaxinfer.text.linear import steps_of

_SIGN = re.compile("[!-~]")  # stays a letter or a sign in all steps of _KEEP_SIGNS
_KEEP_TEXTS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "ByteLevel"})
_KEEP_SIGNS = _KEEP_TEXTS | {"Strip", "StripAccents", "BertNormalizer", "Nmt"}  # these drop spaces, marks and controls
_SPACES = re.compile(r"(?:(?: |\\[snrt])(?:[+*?]|\{\d*,?\d*\})?|[\^$|])+")  # a pattern that matches nothing else


def check_emptied(backend: tokenizers.Tokenizer, normalizer: dict[str, Any] | None, contents: Sequence[str]) -> None:
    """contents: of the added tokens that are looked for in normalized text. Raises CheckpointError for an empty one."""
    if backend.normalizer is None:
        return
    steps = list(steps_of(normalizer))
    if all(map(_keeps_texts, steps)):
        contents = [content for content in contents if not content]
    elif all(map(_keeps_signs, steps)):
        contents = [content for content in contents if not _SIGN.search(content)]
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


def _keeps_signs(step: dict[str, Any]) -> bool:
    """Whether each text that has a letter or a sign still has one behind a step."""
    match step:
        case {"type": "Replace", "content": str(new)} if _SIGN.search(new):
            return True
        case {"type": "Replace", "pattern": {"String": str(old)}}:
            return old.isspace()
        case {"type": "Replace", "pattern": {"Regex": str(old)}}:
            return _SPACES.fullmatch(old) is not None
    return step.get("type") in _KEEP_SIGNS
