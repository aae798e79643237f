"""How much longer a tokenizer's own rules may make a text: bounded, since the file that holds them is a stranger's."""

import base64
import binascii
import math
from typing import Any

from jaxinfer.errors import CheckpointError

MAX_GROWTH = 128  # characters for one, in the worst case; Unicode's own worst is 18, sentencepiece's with spaces 99
MAX_NORMALIZED_CHARS = 16 << 20  # of a text after normalising; a million tokens need 5 M
# characters that one may become: Unicode's worst cases, and four bytes for ByteLevel
_GROWTH = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12, "ByteLevel": 4}


def check_growth(normalizer: dict[str, Any] | None, decoder: dict[str, Any] | None) -> int:
    """Characters that one character may become in the normalizer. Raises CheckpointError beyond MAX_GROWTH."""
    for name, step in (("normalizer", normalizer), ("decoder", decoder)):
        growth = growth_of(step)
        if growth > MAX_GROWTH:
            raise CheckpointError(
                f"the {name} of tokenizer.json must make a text at most {MAX_GROWTH} times longer, this one can make "
                f"it {growth} times longer. Use a tokenizer.json that you trust, with --tokenizer."
            )
    return growth_of(normalizer)


def growth_of(step: Any) -> int:
    """The most characters that a step, or a sequence of them, makes of one."""
    match step:
        case {"type": "Sequence", "normalizers": list(steps)} | {"type": "Sequence", "decoders": list(steps)}:
            return math.prod(map(growth_of, steps))
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1, -(-len(new) // len(old)))
        case {"type": "Replace", "content": str(new)}:  # a pattern may match before and after every character
            return 1 + 2 * len(new)
        case {"type": "Prepend", "prepend": str(new)}:
            return 1 + len(new)
        case {"type": "Precompiled", "precompiled_charsmap": str(charsmap)}:
            return _longest_replacement(charsmap)
        case {"type": str(kind)}:
            return _GROWTH.get(kind, 1)
    return 1


def _longest_replacement(charsmap: str) -> int:
    """Of sentencepiece's table: the size of a trie in four bytes, the trie, then texts that end in a zero."""
    try:
        table = base64.b64decode(charsmap)
    except binascii.Error:
        return 1  # the library refuses it
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *map(len, texts.split(b"\0")))
