"""The text side of a model: no jax, so that another process than the engine's can own it."""

import dataclasses
from pathlib import Path

from jaxinfer.config import EngineConfig
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TextSide:
    """Both are safe from any thread."""

    tokenizer: Tokenizer
    template: ChatTemplate


def load_text(config: EngineConfig, folder: Path) -> TextSide:
    """The tokenizer and template of a checkpoint, or of config.tokenizer. Raises CheckpointError."""
    source = Path(config.tokenizer) if config.tokenizer is not None else folder
    return TextSide(Tokenizer.from_folder(source), ChatTemplate.from_folder(source))
