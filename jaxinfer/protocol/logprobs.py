"""Logprobs as clients read them: OpenAI's objects of chat and of completions, vLLM's of prompts.

They are the log-softmax of the model's own logits, before temperature, penalties, bias and masks. JSON has no infinity:
what is less than LEAST is written as LEAST.

A server that streams 20 logprobs with each token writes half a million entries a second. JSON of
tokens is not kept: where the most likely ones are of all the vocabulary, looking it up took four times as long as
making it does.
"""

import codecs
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Literal

import msgspec

LEAST = -9999.0

_encode = msgspec.json.Encoder().encode


class TokenLogprob(msgspec.Struct, gc=False):
    """One token of an answer or a prompt. token: the bytes it adds to a text, special tokens spelt out.

    logprob, rank: None for the first token of a prompt. rank: 1 is the most likely.
    raw_ids, raw_logprobs: of the most likely tokens, falling: i32[K] and f32[K], little-endian, which are read when an
    answer is written.    bytes_of: of a token what it adds to a text.
    """

    token_id: int
    token: bytes
    logprob: float | None
    rank: int | None
    raw_ids: bytes = b""
    raw_logprobs: bytes = b""
    bytes_of: Callable[[int], bytes] | None = None

    @property
    def top_ids(self) -> tuple[int, ...]:
        return _reads("i", len(self.raw_ids))(self.raw_ids)

    @property
    def top_logprobs(self) -> tuple[float, ...]:
        return _reads("f", len(self.raw_logprobs))(self.raw_logprobs)

    @property
    def top_tokens(self) -> list[bytes]:
        """Their bytes."""
        return [] if self.bytes_of is None else list(map(self.bytes_of, self.top_ids))


class _ChatToken(msgspec.Struct, gc=False):
    token: str
    logprob: float | None
    bytes: list[int]


class _ChatEntry(_ChatToken, gc=False):
    top_logprobs: list[_ChatToken]


class _Completion(msgspec.Struct, gc=False):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class LogprobsWriter:
    """The `logprobs` objects of one choice, piece by piece: completions count whole characters before each token."""

    def __init__(self, kind: Literal["chat", "completion"]) -> None:
        self._kind = kind
        self._offset = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, entries: Sequence[TokenLogprob]) -> msgspec.Raw:
        """The object for the next tokens of the choice, as JSON."""
        if self._kind == "chat":
            return msgspec.Raw(_encode({"content": list(map(_chat_entry, entries)), "refusal": None}))
        texts, offsets = _texts([entry.token for entry in entries]), []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._utf8.decode(entry.token))
        values = [_finite(entry.logprob) for entry in entries]
        tops = list(map(_by_text, entries, texts))
        return msgspec.Raw(_encode(_Completion(texts, values, tops, offsets)))


def chat_entries(entries: Iterable[TokenLogprob]) -> list[msgspec.Raw]:
    """The entries of chat's `content`, each as JSON."""
    return [msgspec.Raw(_encode(_chat_entry(entry))) for entry in entries]


def prompt_logprobs(entries: list[TokenLogprob]) -> list[dict[str, Any] | None]:
    """vLLM's list: null for the first token, then the token's own entry and the most likely ones, by id."""
    return [None if entry.logprob is None else _by_id(entry) for entry in entries]


@lru_cache(4096)
def token_text(token: bytes) -> str:
    """A token as text; one that is no whole characters is spelt out, as OpenAI does."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


@lru_cache(64)
def _reads(kind: Literal["i", "f"], size: int) -> Callable[[bytes], tuple[Any, ...]]:
    """Reads an array of so many bytes: i32 or f32."""
    return Struct(f"<{size // 4}{kind}").unpack


def _texts(tokens: Sequence[bytes]) -> list[str]:
    """As token_text, of many at half its price."""
    try:
        return [token.decode() for token in tokens]
    except UnicodeDecodeError:
        return list(map(token_text, tokens))


def _tops(entry: TokenLogprob) -> Sequence[float | None]:
    """The most likely tokens' logprobs as JSON can say them. They fall: the last is the least, or NaN as all are."""
    values = entry.top_logprobs
    return values if not values or values[-1] > LEAST else list(map(_finite, values))


def _chat_entry(entry: TokenLogprob) -> _ChatEntry:
    tokens = entry.top_tokens
    tops = list(map(_ChatToken, _texts(tokens), _tops(entry), map(list, tokens)))
    return _ChatEntry(token_text(entry.token), _finite(entry.logprob), list(entry.token), tops)


def _by_text(entry: TokenLogprob, text: str) -> dict[str, float | None] | None:
    """The most likely tokens and the token itself, whose text this is."""
    if entry.logprob is None:
        return None
    texts, values = _texts(entry.top_tokens), _tops(entry)
    found = dict(zip(texts, values, strict=True))
    if len(found) < len(texts):  # of equals the likeliest, where the last of them stands
        backwards = dict(zip(reversed(texts), reversed(values), strict=True))
        found = dict(reversed(backwards.items()))
    if text not in found:
        found[text] = _finite(entry.logprob)
    return found


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
