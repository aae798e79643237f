"""Spelling: tokens for a text that must come as it is, whatever the tokenizer makes of texts that users write.

A tokenizer may change a text before it splits it (to NFC, to lower case, with a space in front) and takes the names of
control tokens out of it. What a grammar forces, or a request forbids, may not change: the
tokens spelt here add the bytes of the text and no others.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import tokenizers

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.linear import MAX_STEPS, is_linear, pattern_of, steps_of
from jaxinfer.text.plain import encode_one
from jaxinfer.text.tokenizer import Tokenizer

MAX_TOKEN_BYTES = 1024  # llguidance fails on a longer one: no spelling has it, and no grammar allows it
MAX_WINDOW = 16  # bytes of a token, where tokens are found one by one
MAX_KEPT, MAX_KEPT_BYTES = 4096, 128  # texts whose tokens are kept, and how long these are at most
_UTF8_BYTES = frozenset(range(0xF5)) - {0xC0, 0xC1}
_LOSSY = "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit"  # drop what they split at
_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}


class Spelling:
    """Tokens for a text, as an answer would hold them: they add its bytes and no others, wherever they stand.

    special: ids of which no text is made.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises InvalidRequest for a tokenizer whose decoder does not work token by token."""
        table = tokenizer.piece_table(skip_special_tokens=False)
        if table is None:
            raise unusable("its decoder does not work token by token")
        self.special = frozenset({*tokenizer.special_ids, *tokenizer.control_tokens.values()})
        self._table, self._all_ids = table, tokenizer.ids
        self._backend = _faithful(tokenizer)
        # a schema's names come again in every answer, and their tokens take as long to find as half a mask
        self._kept = lru_cache(MAX_KEPT)(self._find)

    def piece(self, token_id: int) -> bytes:
        """What a token adds to a text; nothing where it is none of a spelling."""
        piece = b"" if token_id in self.special else self._table[token_id]
        return piece if len(piece) <= MAX_TOKEN_BYTES else b""

    def __call__(self, text: bytes) -> list[int]:
        """The ids of tokens whose bytes are the text's, which is UTF-8; none where no tokens spell it."""
        return list(self._kept(text) if len(text) <= MAX_KEPT_BYTES else self._find(text))

    def _find(self, text: bytes) -> Sequence[int]:
        try:
            ids = encode_one(self._backend, text.decode(), False)
        except InvalidRequest:  # a pattern of the model's file fails on it; llguidance would take this for a panic
            return self._spell(text)
        if b"".join(map(self.piece, ids)) == text:
            return ids
        return self._spell(text)  # of what is the decoder's sign for a space, for one

    def _spell(self, text: bytes) -> list[int]:
        """From left to right, the longest token each time."""
        ids, start = [], 0
        while start < len(text):
            pieces = (text[start : start + size] for size in range(MAX_WINDOW, 0, -1))
            piece = next((piece for piece in pieces if piece in self._ids), None)
            if piece is None:
                return []
            ids.append(self._ids[piece])
            start += len(piece)
        return ids

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        pieces = ((self.piece(token_id), token_id) for token_id in self._all_ids())
        return {piece: token_id for piece, token_id in pieces if 0 < len(piece) <= MAX_WINDOW}


class Speller:
    """What llguidance needs of a tokenizer: the bytes of each token, and tokens for bytes.

    tokens: by id, a control token's its name; what has no token, as the rest of wider logits, or too long a name, has
    one of its own.
    special_token_ids: of which no text is made.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """vocab_size: the width of the logits.

        Raises InvalidRequest for a tokenizer in which not every text can be spelt.
        """
        self._spelling = Spelling(tokenizer)
        if tokenizer.vocab_size > vocab_size:
            raise unusable(f"its ids go up to {tokenizer.vocab_size - 1}, the model has logits for {vocab_size}")
        if eos_token_ids and max(eos_token_ids) >= vocab_size:
            raise unusable(f"the answer's end is token {max(eos_token_ids)}, the model has logits for {vocab_size}")
        self.eos_token_id = next(iter(eos_token_ids), tokenizer.eos_token_id or 0)
        self.bos_token_id = tokenizer.bos_token_id
        names = [tokenizer.backend.id_to_token(token_id) for token_id in range(vocab_size)]
        special = {*self._spelling.special, *(token_id for token_id, name in enumerate(names) if name is None)}
        self.tokens = [b"" if token_id in special else self._spelling.piece(token_id) for token_id in range(vocab_size)]
        if missing := sorted(_UTF8_BYTES.difference(*(piece for piece in self.tokens if len(piece) == 1))):
            raise unusable(f"it has no token for the byte {missing[0]:#04x}")
        for token_id in special:
            name = (names[token_id] or "").encode()
            self.tokens[token_id] = name if 0 < len(name) < MAX_TOKEN_BYTES else f"<[{token_id}]>".encode()
        self.special_token_ids = sorted(special)

    def __call__(self, text: bytes) -> list[int]:
        """The ids of tokens whose bytes are the text's, which is UTF-8."""
        return self._spelling(text)


def unusable(why: str) -> InvalidRequest:
    law = "structured output needs a tokenizer that fits its model and spells every text byte by byte"
    return InvalidRequest(f"{law}, this model's does not: {why}", code="unsupported_parameter")


def _faithful(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The same model without added tokens, behind those steps that change no text which the decoder does not change
    back, and that take no longer than in proportion to it: nobody ends them."""
    normalizer = _normalizer(tokenizer.normalizer, tokenizer.decoder)
    pre_tokenizer = _pre_tokenizer(tokenizer.pre_tokenizer)
    if len([*steps_of(normalizer), *steps_of(pre_tokenizer)]) > MAX_STEPS:
        normalizer = pre_tokenizer = None
    file = _EMPTY | {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
    made = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(file))
    made.model = tokenizer.backend.model
    return made


def _normalizer(step: dict[str, Any] | None, decoder: dict[str, Any] | None) -> dict[str, Any] | None:
    match step:
        case {"type": "Sequence", "normalizers": list(steps)}:
            kept = [one for one in (_normalizer(each, decoder) for each in steps) if one is not None]
            return {"type": "Sequence", "normalizers": kept} if kept else None
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return step if _replaces(decoder, new, old) else None
        case {"type": "ByteLevel"}:
            return step
    return None


def _replaces(decoder: dict[str, Any] | None, old: str, new: str) -> bool:
    match decoder:
        case {"type": "Sequence", "decoders": list(steps)}:
            return any(_replaces(step, old, new) for step in steps)
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
            return (pattern, content) == (old, new)
    return False


def _pre_tokenizer(step: dict[str, Any] | None) -> dict[str, Any] | None:
    if step is None or step["type"] in _LOSSY or not is_linear(pattern_of(step) or ""):
        return None
    match step:
        case {"type": "Sequence", "pretokenizers": list(steps)}:
            kept = [one for one in map(_pre_tokenizer, steps) if one is not None]
            return {"type": "Sequence", "pretokenizers": kept} if kept else None
        case {"type": "ByteLevel"}:
            return step | {"add_prefix_space": False}
        case {"type": "Metaspace", "replacement": str(sign)}:
            split = step.get("split", True)
            return {"type": "Metaspace", "replacement": sign, "prepend_scheme": "never", "split": split}
        case {"type": "Split" | "Punctuation", "behavior": "Removed"}:
            return step | {"behavior": "Isolated"}
    return step
