"""Logprobs as clients read them: OpenAI's objects of chat and of completions, vLLM's of prompts.

They are the log-softmax of the model's own logits, before temperature, penalties, bias and masks. JSON has no infinity:
what is less than LEAST is written as LEAST.

An answer's objects are put together from JSON that is kept of each token, and all numbers of one token are encoded by
one call: a server that streams 20 logprobs with each token writes half a million entries a second.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import add
from typing import Any, Literal, overload

import msgspec

LEAST = -9999.0
KEPT_TOKENS = 2**15  # whose JSON is kept: 11 MB for each kind of answer

_encode = msgspec.json.Encoder().encode


class TokenLogprob(msgspec.Struct, gc=False):
    """One token of an answer or a prompt. token: the bytes it adds to a text, special tokens spelt out.

    logprob, rank: None for the first token of a prompt. rank: 1 is the most likely.
    top_*: of the most likely tokens, falling: their ids, their bytes, their logprobs.
    """

    token_id: int
    token: bytes
    logprob: float | None
    rank: int | None
    top_ids: Sequence[int] = ()
    top_tokens: Sequence[bytes] = ()
    top_logprobs: Sequence[float] = ()


class TopTokens(Sequence[bytes]):
    """The bytes of many tokens, which are looked up when they are read: most answers' are written once or never."""

    __slots__ = ("_bytes_of", "_ids")

    def __init__(self, ids: Sequence[int], bytes_of: Callable[[int], bytes]) -> None:
        self._ids, self._bytes_of = ids, bytes_of

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[bytes]:
        return map(self._bytes_of, self._ids)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "TopTokens": ...
    def __getitem__(self, index: int | slice) -> "bytes | TopTokens":
        if isinstance(index, slice):
            return TopTokens(self._ids[index], self._bytes_of)
        return self._bytes_of(self._ids[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


class LogprobsWriter:
    """The `logprobs` objects of one choice, piece by piece: completions count the characters before each token."""

    def __init__(self, kind: Literal["chat", "completion"]) -> None:
        self._kind = kind
        self._offset = 0

    def write(self, entries: Iterable[TokenLogprob]) -> msgspec.Raw:
        """The object for the next tokens of the choice, as JSON."""
        if self._kind == "chat":
            return msgspec.Raw(b'{"content":[%b],"refusal":null}' % b",".join(map(_chat_entry, entries)))
        texts, logprobs, tops, offsets = [], [], [], []
        for entry in entries:
            text, key, num_chars = _text_key(entry.token)
            own, *values = _numbers(entry)
            texts.append(text)
            logprobs.append(own)
            tops.append(b"null" if entry.logprob is None else _by_text(key, own, entry.top_tokens, values))
            offsets.append(self._offset)
            self._offset += num_chars
        parts = b",".join(texts), b",".join(logprobs), b",".join(tops), _encode(offsets)
        return msgspec.Raw(b'{"tokens":[%b],"token_logprobs":[%b],"top_logprobs":[%b],"text_offset":%b}' % parts)


def chat_entries(entries: Iterable[TokenLogprob]) -> list[msgspec.Raw]:
    """The entries of chat's `content`, each as JSON."""
    return [msgspec.Raw(_chat_entry(entry)) for entry in entries]


def prompt_logprobs(entries: list[TokenLogprob]) -> list[dict[str, Any] | None]:
    """vLLM's list: null for the first token, then the token's own entry and the most likely ones, by id."""
    return [None if entry.logprob is None else _by_id(entry) for entry in entries]


def token_text(token: bytes) -> str:
    """A token as text; one that is no whole characters is spelt out, as OpenAI does."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _numbers(entry: TokenLogprob) -> list[bytes]:
    """The JSON of the token's own logprob and of the most likely ones'."""
    values = [value if value > LEAST else LEAST for value in entry.top_logprobs]  # as _finite, at a fifth of its price
    return _encode([_finite(entry.logprob), *values])[1:-1].split(b",")


@lru_cache(KEPT_TOKENS)
def _text_key(token: bytes) -> tuple[bytes, bytes, int]:
    """A token's text, the same as a key with its colon, and how many characters begin in the token."""
    text = _encode(token_text(token))
    return text, text + b":", sum(byte & 0xC0 != 0x80 for byte in token)


@lru_cache(KEPT_TOKENS)
def _chat_token(token: bytes) -> tuple[bytes, bytes]:
    """A token's object in chat before its logprob and after, without its last brace."""
    return b'{"token":%b,"logprob":' % _encode(token_text(token)), b',"bytes":%b' % _encode(list(token))


def _chat_entry(entry: TokenLogprob) -> bytes:
    own, *values = _numbers(entry)
    head, tail = _chat_token(entry.token)
    pairs = zip(map(_chat_token, entry.top_tokens), values, strict=True)
    tops = b"},".join([top_head + value + top_tail for (top_head, top_tail), value in pairs])
    return b'%b%b%b,"top_logprobs":[%b%b]}' % (head, own, tail, tops, b"}" if values else b"")


def _by_text(key: bytes, own: bytes, tokens: Sequence[bytes], values: list[bytes]) -> bytes:
    """An object of the most likely tokens and the token itself."""
    keys = [_text_key(token)[1] for token in tokens]
    if len(set(keys)) < len(keys):  # of equals the likeliest, where the last of them stands
        backwards = dict(zip(reversed(keys), reversed(values), strict=True))
        keys, values = list(reversed(backwards)), list(reversed(backwards.values()))
    if key not in keys:
        keys, values = [*keys, key], [*values, own]
    return b"{%b}" % b",".join(map(add, keys, values))


def _by_id(entry: TokenLogprob) -> dict[str, Any]:
    tops = zip(entry.top_ids, entry.top_tokens, entry.top_logprobs, strict=True)
    ranked = [(entry.rank, entry.token_id, entry.token, entry.logprob)]
    ranked += [(rank, *top) for rank, top in enumerate(tops, 1)]
    return {
        str(token_id): {"logprob": _finite(logprob), "rank": rank, "decoded_token": token_text(token)}
        for rank, token_id, token, logprob in ranked
    }


def _finite(logprob: float | None) -> float | None:
    if logprob is None:
        return None
    return logprob if logprob > LEAST else LEAST  # NaN is not greater either
