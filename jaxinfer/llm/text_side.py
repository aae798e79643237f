"""The text side of a model: no jax, so that another process than the engine's can own it."""

import dataclasses
from pathlib import Path

from jaxinfer.checkpoint.resolve import DEMO_FOLDER, Part, resolve
from jaxinfer.config import EngineConfig
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.tokenizer import Tokenizer
from jaxinfer.text.trial import try_template


@dataclasses.dataclass(frozen=True)
class TextSide:
    """Both are safe from any thread."""

    tokenizer: Tokenizer
    template: ChatTemplate


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
