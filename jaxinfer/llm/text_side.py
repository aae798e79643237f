"""The text side of a model: no jax, so that another process than the engine's can own it."""

import dataclasses
from functools import cached_property
from pathlib import Path

from jaxinfer.checkpoint.resolve import DEMO_FOLDER, Part, resolve
from jaxinfer.config import EngineConfig
from jaxinfer.protocol.validate import too_long
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.tokenizer import Tokenizer
from jaxinfer.text.trial import try_template

_PIECE = 2**15  # characters
_NORMALIZED = 3  # bytes of text for one of its normal form, at most: a Hangul syllable may come as three letters


@dataclasses.dataclass(frozen=True)
class TextSide:
    """All of it is safe from any thread."""

    tokenizer: Tokenizer
    template: ChatTemplate

    def check_fits(self, num_bytes: int, max_model_len: int, param: str) -> None:
        """Raise InvalidRequest for a text that cannot fit, whatever its tokens: to count them could take a minute."""
        if num_bytes <= max_model_len or self._max_token_bytes is None:
            return
        most = max_model_len * self._max_token_bytes
        if num_bytes > most:
            fact = f", which are at most {most} bytes of text; yours has {num_bytes}. Shorten it"
            raise too_long(max_model_len, fact, param=param)

    @cached_property
    def _max_token_bytes(self) -> int | None:
        """How much of a text one token may stand for; None for a tokenizer that does not work token by token."""
        table = self.tokenizer.piece_table(skip_special_tokens=False)
        if table is None:
            return None
        return _NORMALIZED * max(len(table[token_id]) for token_id in range(self.tokenizer.vocab_size))


def num_bytes(text: str) -> int:
    """In UTF-8; whether it is valid is for the tokenizer to say."""
    if text.isascii():
        return len(text)
    pieces = (text[i : i + _PIECE] for i in range(0, len(text), _PIECE))  # one at a time, for other threads' sake
    return sum(len(piece.encode(errors="surrogatepass")) for piece in pieces)


def load_text(config: EngineConfig, folder: Path) -> TextSide:
    """The tokenizer and template of a checkpoint, or of config.tokenizer. Raises CheckpointError."""
    source = _source(config, folder)
    if source != DEMO_FOLDER:  # what strangers wrote is tried in a child with limits before it is run here
        try_template(source)
    return TextSide(Tokenizer.from_folder(source), ChatTemplate.from_folder(source))


def load_tokenizer(config: EngineConfig, folder: Path) -> Tokenizer:
    """The tokenizer alone."""
    return Tokenizer.from_folder(_source(config, folder))


def _source(config: EngineConfig, folder: Path) -> Path:
    parts: tuple[Part, ...] = ("tokenizer",)
    return resolve(config.tokenizer, needs=parts).folder if config.tokenizer is not None else folder
