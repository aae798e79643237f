"""How much longer a tokenizer's own rules may make a text: bounded, since the file that holds them is a stranger's."""

import base64
import binascii
import itertools
import math
from collections.abc import Mapping
from typing import Any

from jaxinfer.errors import CheckpointError
from jaxinfer.text.linear import steps_of

MAX_GROWTH = 128  # characters for one, in the worst case; Unicode's own worst is 18, sentencepiece's with spaces 99
MAX_NORMALIZED_CHARS = 16 << 20  # of a text after normalising; a million tokens need 5 M
MAX_ADDED_TOKENS = 1024  # around a text; a model that translates adds three
MOST = 1 << 32  # beyond which no growth is computed
# characters that one may become: Unicode's worst cases, and four bytes for ByteLevel
_GROWTH = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12, "ByteLevel": 4}
# Of several in a row, each text is of the same letters and marks: taking apart what is apart adds nothing
_FORMS = {"NFC": 4, "NFD": 4, "Lowercase": 4, "NFKC": 18, "NFKD": 18}
SPLIT_GROWTH = {"ByteLevel": 4, "Metaspace": 2}  # of pre-tokenizers: a piece may be one character, and get a space


def check_growth(
    normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None, decoder: dict[str, Any] | None
) -> int:
    """Characters that one character may become in the normalizer. Raises CheckpointError beyond MAX_GROWTH."""
    for name, step in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)):
        growth = growth_of(step, SPLIT_GROWTH if name == "pre_tokenizer" else _GROWTH)
        if growth > MAX_GROWTH:
            raise CheckpointError(
                f"the {name} of tokenizer.json must make a text at most {MAX_GROWTH} times longer, this one can make "
                f"it {_said(growth)} times longer. Use a tokenizer.json that you trust, with --tokenizer."
            )
    return growth_of(normalizer)


def check_added(post_processor: dict[str, Any] | None) -> None:
    """Raises CheckpointError for one that puts more than MAX_ADDED_TOKENS around a text, or repeats the text."""
    copies, added = added_by(post_processor)
    if copies > 1 or added > MAX_ADDED_TOKENS:
        what = f"repeat it {_said(copies)} times" if copies > 1 else f"add {_said(added)}"
        raise CheckpointError(
            f"the post_processor of tokenizer.json must add at most {MAX_ADDED_TOKENS} tokens to a text and not repeat "
            f"it, this one can {what}. Use a tokenizer.json that you trust, with --tokenizer."
        )


def growth_of(step: Any, growths: Mapping[str, int] = _GROWTH) -> int:
    """The most characters that a step, or a sequence of them, makes of one; of more than MOST, MOST.

    growths: of one character, by the type of the step; 1 where it is not named.
    """
    match step:
        case (
            {"type": "Sequence", "normalizers": list()}
            | {"type": "Sequence", "pretokenizers": list()}
            | {"type": "Sequence", "decoders": list()}
        ):
            return _growth_of_all(list(steps_of(step)), growths)
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1, -(-len(new) // len(old)))
        case {"type": "Replace", "content": str(new)}:  # a pattern may match before and after every character
            return 1 + 2 * len(new)
        case {"type": "Prepend", "prepend": str(new)}:
            return 1 + len(new)
        case {"type": "Precompiled", "precompiled_charsmap": str(charsmap)}:
            return _longest_replacement(charsmap)
        case {"type": str(kind)}:
            return growths.get(kind, 1) + (step.get("add_prefix_space") is True and kind in growths)
    return 1


def _growth_of_all(steps: list[Any], growths: Mapping[str, int]) -> int:
    """Of steps one after another: the product, and of forms of Unicode in a row what the largest may make."""
    growth = 1
    for is_form, run in itertools.groupby(steps, lambda step: isinstance(step, dict) and step.get("type") in _FORMS):
        several = list(run)
        product = math.prod(min(growth_of(step, growths), MOST) for step in several)
        most = max(_FORMS[step["type"]] for step in several) if is_form else MOST
        growth = min(growth * min(product, most), MOST)
    return growth


def added_by(post_processor: Any) -> tuple[int, int]:
    """How often a post-processor repeats a text, and how many tokens it adds; of more than MOST, MOST."""
    match post_processor:
        case {"type": "Sequence", "processors": list(steps)}:
            copies, added = 1, 0
            for times, more in map(added_by, steps):
                copies, added = min(copies * times, MOST), min(added * times + more, MOST)
            return copies, added
        case {"type": "TemplateProcessing", "single": list(single), "special_tokens": dict(tokens)}:
            sizes = {name: len(token["ids"]) for name, token in tokens.items()}
            names = [piece["SpecialToken"]["id"] for piece in single if "SpecialToken" in piece]
            return max(1, len(single) - len(names)), min(sum(sizes[name] for name in names), MOST)
        case {"type": "BertProcessing" | "RobertaProcessing"}:
            return 1, 2
    return 1, 0


def _said(count: int) -> str:
    return f"more than {MOST - 1}" if count >= MOST else f"{count}"


def _longest_replacement(charsmap: str) -> int:
    """Of sentencepiece's table: the size of a trie in four bytes, the trie, then texts that end in a zero."""
    try:
        table = base64.b64decode(charsmap)
    except binascii.Error:
        return 1  # the library refuses it
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *map(len, texts.split(b"\0")))
