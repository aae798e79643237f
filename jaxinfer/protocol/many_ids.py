"""Token ids or messages in such numbers that their body is refused unread: which are a prompt beyond the context."""

import contextlib
import itertools
import re
from collections.abc import Iterator

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.validate import too_long

# The fields of all routes that take token ids as prompts, or back to text
_PROMPT = re.compile(rb'"(prompt|input|text_1|text_2|tokens)"\s{0,64}:\s{0,64}\[')
_MAX_LISTS = 4096  # of one field; no route takes more
_CHUNK_BYTES = 2**16
_NUMBERS = b"0123456789-,. \t\r\n"


class TooManyValues(InvalidRequest):
    """A body with more values than are parsed. prompts: by field, how many numbers its longest list has, or how many
    messages it holds, each of which is a token at least.
    """

    def __init__(self, message: str, raw: bytes) -> None:
        super().__init__(message, code="invalid_json")
        self.prompts = {found[1].decode(): _longest(raw, found.end()) for found in _fields(raw)}
        if count := raw.count(b'"role"'):  # in a text its quotes are escaped
            name = "messages" if b'"messages"' in raw else "input"
            self.prompts[name] = max(count, self.prompts.get(name, 0))


@contextlib.contextmanager
def refused_as_prompts(max_model_len: int) -> Iterator[None]:
    """Let a body be refused as a prompt that is too long where it is one; the code says what a client can do."""
    try:
        yield
    except TooManyValues as error:
        for name, count in error.prompts.items():
            if count > max_model_len:
                fact = f"; {name} has {count}. Shorten it"
                raise too_long(max_model_len, fact, param=name, prompt_tokens=count, is_least=True) from error
        raise


def _fields(raw: bytes) -> Iterator[re.Match[bytes]]:
    return itertools.islice(_PROMPT.finditer(raw), 4)


def _longest(raw: bytes, begin: int) -> int:
    """How many numbers the list that begins there holds, or the longest of those in it; 0 where they are none."""
    most = 0
    for place, piece in enumerate(raw[begin:].split(b"[", _MAX_LISTS)):
        inner, _, rest = piece.partition(b"]")
        most = max(most, _num_numbers(inner))
        if b"]" in rest or (not place and inner.strip()):  # the outer list has ended, or it is the only one
            break
    return most


def _num_numbers(text: bytes) -> int:
    """How many stand there between commas, 0 if there is anything else; chunk by chunk, for other threads' sake."""
    count = 1
    for start in range(0, len(text), _CHUNK_BYTES):
        piece = text[start : start + _CHUNK_BYTES]
        if piece.translate(None, _NUMBERS):
            return 0
        count += piece.count(b",")
    return count if text.strip() else 0
