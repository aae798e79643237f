"""Detokenizer: token ids in, text out, as soon as it is certain.

For every way of cutting the ids into calls, joined `feed`s + `flush` == Tokenizer.decode(all ids), or what these add to
a text that goes on. What was given out is never taken back, half a character is held back, and the cost of a token does
not depend on what came before it. Of a decoder that is none of `Pieces`, a token may change text that was given out:
the change is then left out of the text.
"""

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

from jaxinfer.text.rust import panics_as_exceptions

if TYPE_CHECKING:
    from jaxinfer.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one sequence. skip_special_tokens: leave tokens like `<|im_end|>` out of the text.    goes_on: text
    stands before it, so that a space in front is kept; a decoder that does not work token by token may drop it.
    whole: an unfinished character at the end is left out, as of all texts of a request that has a grammar; of a
    decoder of `Pieces`, which every grammar needs.
    """

    def __init__(
        self, tokenizer: "Tokenizer", *, skip_special_tokens: bool = True, goes_on: bool = False, whole: bool = False
    ) -> None:
        self._inner = (
            _Stream(tokenizer, skip_special_tokens)
            if tokenizer.piece_table(skip_special_tokens) is None
            else _Bytes(tokenizer, skip_special_tokens, goes_on, whole)
        )

    def feed(self, ids: Sequence[int]) -> str:
        """The text that became certain with these ids. Raises LibraryPanic where the file's decoder fails on them."""
        return self._inner.feed(ids)

    def flush(self) -> str:
        """What was held back, at the end of the sequence: an unfinished character becomes U+FFFD, or nothing."""
        return self._inner.flush()


class _Bytes:
    """Joins the tokens' bytes; UTF-8 itself says where a character ends."""

    def __init__(self, tokenizer: "Tokenizer", skip_special_tokens: bool, goes_on: bool, whole: bool) -> None:
        table, pieces = tokenizer.piece_table(skip_special_tokens), tokenizer.pieces
        assert table is not None and pieces is not None
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")(pieces.errors)
        self._strip = 0 if goes_on else pieces.strip  # spaces still to be dropped from the start
        self._at_start = pieces.first_differs and not goes_on
        self._whole = whole

    def feed(self, ids: Sequence[int]) -> str:
        if self._at_start:
            return self._feed_first(ids)
        table = self._table
        text = self._utf8.decode(b"".join([table[token_id] for token_id in ids]))
        return self._stripped(text) if self._strip else text

    def flush(self) -> str:
        text = "" if self._whole else self._utf8.decode(b"", True)
        return self._stripped(text) if self._strip else text

    def _feed_first(self, ids: Sequence[int]) -> str:
        for i, token_id in enumerate(ids):
            piece = self._table.first(token_id)
            if piece is not None:
                self._at_start = False
                return self._utf8.decode(piece) + self.feed(ids[i + 1 :])
        return ""

    def _stripped(self, text: str) -> str:
        while text and self._strip:
            if text[0] != " ":
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text


class _Stream:
    """Any other decoder, through the library's DecodeStream, whose traps are guarded here.

    It drops what is pending at the end, and gives up with "Invalid prefix" where a token changes the text before it.
    """

    def __init__(self, tokenizer: "Tokenizer", skip_special_tokens: bool) -> None:
        self._backend, self._skip = tokenizer.backend, skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._ids: list[int] = []
        self._num_shown = 0  # how many of them the text given out covers
        self._given: list[str] = []

    def feed(self, ids: Sequence[int]) -> str:
        return "".join([self._step(token_id) for token_id in ids])

    def flush(self) -> str:
        """One decode of everything, here only: it tells what the stream still owes."""
        whole, given = self._decode(self._ids), "".join(self._given)
        return whole[len(given) :] if whole.startswith(given) else self._decode(self._ids[self._num_shown :])

    def _step(self, token_id: int) -> str:
        self._ids.append(token_id)
        try:
            with panics_as_exceptions():
                text = self._stream.step(self._backend, token_id)
        except Exception as error:
            if "Invalid prefix" not in str(error):
                raise
            self._stream = DecodeStream(skip_special_tokens=self._skip)
            with panics_as_exceptions():
                text = self._stream.step(self._backend, token_id)
        if not text:
            return ""
        self._num_shown = len(self._ids)
        self._given.append(text)
        return text

    def _decode(self, ids: list[int]) -> str:
        with panics_as_exceptions():
            return self._backend.decode(ids, skip_special_tokens=self._skip)
