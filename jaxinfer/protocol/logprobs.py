"""Logprobs as clients read them: OpenAI's objects of chat and of completions, vLLM's of prompts.

They are the log-softmax of the model's own logits, before temperature, penalties, bias and masks. JSON has no infinity:
what is less than LEAST is written as LEAST.
"""

import dataclasses
from typing import Any, Literal

LEAST = -9999.0


@dataclasses.dataclass(slots=True)
class TopLogprob:
    """One of the most likely tokens at a position."""

    token_id: int
    token: bytes
    logprob: float


@dataclasses.dataclass(slots=True)
class TokenLogprob:
    """One token of an answer or a prompt. token: the bytes it adds to a text, special tokens spelt out.

    logprob, rank: None for the first token of a prompt. rank: 1 is the most likely.    top: the most likely, falling.
    """

    token_id: int
    token: bytes
    logprob: float | None
    rank: int | None
    top: list[TopLogprob]


class LogprobsWriter:
    """The `logprobs` objects of one choice, piece by piece: completions count the characters before each token."""

    def __init__(self, kind: Literal["chat", "completion"]) -> None:
        self._kind = kind
        self._offset = 0

    def write(self, entries: list[TokenLogprob]) -> dict[str, Any]:
        """The object for the next tokens of the choice."""
        if self._kind == "chat":
            return {"content": [_chat_entry(entry) for entry in entries], "refusal": None}
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += sum(byte & 0xC0 != 0x80 for byte in entry.token)  # a character's first bytes
        return {
            "tokens": [token_text(entry.token) for entry in entries],
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "top_logprobs": [None if entry.logprob is None else _by_text(entry) for entry in entries],
            "text_offset": offsets,
        }


def prompt_logprobs(entries: list[TokenLogprob]) -> list[dict[str, Any] | None]:
    """vLLM's list: null for the first token, then the token's own entry and the most likely ones, by id."""
    return [None if entry.logprob is None else _by_id(entry) for entry in entries]


def token_text(token: bytes) -> str:
    """A token as text; one that is no whole characters is spelt out, as OpenAI does."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _chat_entry(entry: TokenLogprob) -> dict[str, Any]:
    top = [_chat_token(top.token, top.logprob) for top in entry.top]
    return _chat_token(entry.token, entry.logprob) | {"top_logprobs": top}


def _chat_token(token: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": token_text(token), "logprob": _finite(logprob), "bytes": list(token)}


def _by_text(entry: TokenLogprob) -> dict[str, float | None]:
    found = {token_text(top.token): _finite(top.logprob) for top in reversed(entry.top)}  # of equals the likeliest
    ordered = dict(reversed(found.items()))
    ordered.setdefault(token_text(entry.token), _finite(entry.logprob))
    return ordered


def _by_id(entry: TokenLogprob) -> dict[str, Any]:
    own = TopLogprob(entry.token_id, entry.token, entry.logprob if entry.logprob is not None else LEAST)
    ranked = [(entry.rank, own), *enumerate(entry.top, 1)]
    return {
        str(one.token_id): {"logprob": _finite(one.logprob), "rank": rank, "decoded_token": token_text(one.token)}
        for rank, one in ranked
    }


def _finite(logprob: float | None) -> float | None:
    if logprob is None:
        return None
    return logprob if logprob > LEAST else LEAST  # NaN is not greater either
