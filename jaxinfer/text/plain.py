"""Encoding text in which control tokens cannot be spelt."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import tokenizers
from tokenizers import AddedToken

from jaxinfer.errors import CheckpointError, InvalidRequest
from jaxinfer.text.rust import LibraryPanic, panics_as_exceptions


def encode_one(backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """Token ids; `encode` would hold the GIL all the while (0.7 s for 600,000 characters), the batch call does not.

    Raises InvalidRequest for a text that the library fails on.
    """
    with panics_as_refusals():
        return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


_REFUSALS = {
    "prompt": "a text must be one that the model's tokenizer can encode, and it fails on this one. Change the text",
    "tokens": "token ids must be ones that the model's tokenizer can decode, and it fails on these. Change the ids",
}


@contextmanager
def panics_as_refusals(param: Literal["prompt", "tokens"] = "prompt") -> Iterator[None]:
    """Turns the library's panic at a text, say where a pattern of the model's file backtracks, into InvalidRequest."""
    try:
        with panics_as_exceptions():
            yield
    except LibraryPanic as panic:
        message = f"{_REFUSALS[param]}, or serve the model with another --tokenizer."
        raise InvalidRequest(message, param=param) from panic


class PlainEncoder:
    """The same tokenizer, sharing its vocabulary, except that control tokens have secret names that nobody can type."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        control_tokens: dict[str, int],
        secret: str,
        unknown_id: int | None,
        around: tuple[list[int], list[int]],
    ) -> None:
        """secret: what a control token's name begins with.    around: what `add_special_tokens` puts around a text."""
        self._backend = tokenizers.Tokenizer(backend.model)
        if backend.normalizer is not None:
            self._backend.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self._backend.pre_tokenizer = backend.pre_tokenizer
        self._true_ids: dict[int, int] = {}  # ids of this tokenizer that mean another one
        self._add(backend.get_added_tokens_decoder(), control_tokens, secret)
        own = {token_id for token_id in control_tokens.values() if backend.model.id_to_token(token_id) is not None}
        self._leaks = frozenset(own - {unknown_id})
        self._before, self._after = around

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`, in which only secret names are control tokens."""
        ids = encode_one(self._backend, text, False)
        if self._leaks and not self._leaks.isdisjoint(ids):
            leaked = next(token_id for token_id in ids if token_id in self._leaks)
            raise InvalidRequest(
                f"this model's tokenizer cannot write {self._backend.id_to_token(leaked)!r} as ordinary text. "
                "Take it out of the message.",
                param="messages",
            )
        if self._true_ids:
            ids = [self._true_ids.get(token_id, token_id) for token_id in ids]
        return [*self._before, *ids, *self._after] if add_special_tokens else ids

    def _add(self, added: dict[int, AddedToken], control_tokens: dict[str, int], secret: str) -> None:
        """All in one call: each call builds the search for all that were added so far."""
        ids = sorted(added)
        tokens = [added[token_id] for token_id in ids]  # copies of the library's
        contents = [token.content for token in tokens]
        names = [secret + content if content in control_tokens else content for content in contents]
        for token, name in zip(tokens, names, strict=True):
            token.content = name
        self._backend.add_tokens(tokens)
        own_ids = list(map(self._backend.token_to_id, names))
        if own_ids == ids:
            return
        for own_id, token_id, content in zip(own_ids, ids, contents, strict=True):
            if own_id == token_id:
                continue
            if own_id is None or self._backend.model.id_to_token(own_id) is not None:
                raise CheckpointError(
                    f"the ids of tokenizer.json must have no gaps, but {content!r} has {token_id}. "
                    "Save the tokenizer again with transformers."
                )
            self._true_ids[own_id] = token_id


def added_around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """What `add_special_tokens` puts before and after a text, such as a BOS. Raises CheckpointError."""
    try:
        around, alone = encode_one(backend, "a", True), encode_one(backend, "a", False)
    except InvalidRequest as refusal:
        raise CheckpointError(
            'tokenizer.json must have rules by which the tokenizers library can encode a text, and it fails on "a". '
            "Use a tokenizer.json that you trust, with --tokenizer."
        ) from refusal
    for start in range(len(around) - len(alone) + 1):
        if around[start : start + len(alone)] == alone:
            return around[:start], around[start + len(alone) :]
    raise CheckpointError(
        "the post_processor of tokenizer.json must put special tokens around a text and leave it alone, but encoding "
        f'"a" gives {around} with them and {alone} without. Save the tokenizer again with transformers.'
    )
