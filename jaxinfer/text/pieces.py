"""What each token id adds to the text, as bytes: the tokenizer file's decoder, compiled into a table.

The decoders of language models (byte-level BPE, sentencepiece style, Metaspace) act on one token at a time, so that a
text is the concatenation of its tokens' bytes. A decoder of another kind gives no `Pieces`: see detokenizer.py.
"""

import codecs
import dataclasses
import re
from collections.abc import Callable
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9a-fA-F]{2})>")
# One U+FFFD for each byte that is no UTF-8, as sentencepiece decodes; "replace" would give one per broken character.
EACH_BYTE = "jaxinfer.each_byte"


def _each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(EACH_BYTE, _each_byte)


@dataclasses.dataclass(frozen=True)
class Pieces:
    """A decoder that works token by token.

    piece(token, first): the bytes of a token's spelling in the vocabulary; first: no token came before it.
    first_differs: whether `first` matters.    strip: spaces dropped from the start of the text.
    errors: how bytes that are no UTF-8 become U+FFFD, a codec error handler.
    """

    piece: Callable[[str, bool], bytes]
    first_differs: bool = False
    strip: int = 0
    errors: str = "replace"


def pieces_of(decoder: dict[str, Any] | None) -> Pieces | None:
    """The `decoder` section of a tokenizer.json as Pieces; None when it does not work token by token."""
    if decoder is None:
        return Pieces(lambda token, first: (token if first else " " + token).encode(), first_differs=True)
    match decoder:
        case {"type": "ByteLevel"} | {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}:
            return Pieces(_byte_level)
        case {"type": "Metaspace", "replacement": str(mark)}:
            return _metaspace(mark, decoder.get("prepend_scheme", "always") != "never")
        case {"type": "Sequence", "decoders": list(steps)}:
            return _sentencepiece(steps)
        case {"type": "Replace" | "ByteFallback" | "Fuse"}:
            return _sentencepiece([decoder])
    return None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


_BYTE_OF = _byte_alphabet()


def _byte_level(token: str, first: bool) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:  # an added token that is not spelt in the byte alphabet stands for itself
        return token.encode()


def _metaspace(mark: str, prefixed: bool) -> Pieces:
    def piece(token: str, first: bool) -> bytes:
        return token.replace(mark, "" if first and prefixed else " ").encode()

    return Pieces(piece, first_differs=prefixed)


def _sentencepiece(steps: list[dict[str, Any]]) -> Pieces | None:
    """Llama-2 style: Replace, ..., ByteFallback, Fuse, Strip at the start; each optional, in this order."""
    replace: list[tuple[str, str]] = []
    bytes_fall_back, strip, stage = False, 0, 0
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if stage == 0:
                replace.append((old, new))
            case {"type": "ByteFallback"} if stage == 0:
                bytes_fall_back, stage = True, 1
            case {"type": "Fuse"} if stage <= 1:
                stage = 2
            case {"type": "Strip", "content": " ", "start": int(strip), "stop": 0} if stage == 2:
                stage = 3
            case _:
                return None

    def piece(token: str, first: bool) -> bytes:
        for old, new in replace:
            token = token.replace(old, new)
        if bytes_fall_back and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return token.encode()

    return Pieces(piece, strip=strip, errors=EACH_BYTE if bytes_fall_back else "replace")
