"""`jaxinfer show`: what is known of a model on this machine, without a start or a download."""

from pathlib import Path
from typing import Any

import click

from jaxinfer.cli.checklist import reading, show_table
from jaxinfer.cli.disk import (
    CACHE_OPTION,
    MODEL_ARGUMENT,
    demo_folder,
    find_cached,
    fit_words,
    free_memory,
    type_words,
)
from jaxinfer.cli.options import GroupedCommand
from jaxinfer.config import size_words
from jaxinfer.errors import CheckpointError, ConfigError


def run(model: str, download_dir: str | None) -> int:
    """Print the facts."""
    with reading("the model"):
        facts = rows(_folder_of(model, download_dir))
    click.echo(model)
    show_table(facts, indent="  ")
    return 0


def _folder_of(model: str, download_dir: str | None) -> Path:
    from jaxinfer.checkpoint.contents import CONFIG
    from jaxinfer.checkpoint.resolve import local_folder

    if model == "demo":
        return demo_folder()
    if (folder := local_folder(model)) is not None:
        return folder
    cached = find_cached(model, download_dir, f"`jaxinfer pull {model}` downloads it")
    if cached.snapshot is None:
        raise CheckpointError(f"the download of {model} has not ended; `jaxinfer pull {model}` goes on")
    if not (cached.snapshot / CONFIG).exists():
        raise CheckpointError(f"{model} is in the cache without {CONFIG}; `jaxinfer pull {model}` fetches it")
    return cached.snapshot


def rows(folder: Path) -> list[tuple[str, str]]:
    """What config.json, the tokenizer's files and the weights of a folder say. Raises CheckpointError."""
    from jaxinfer.checkpoint.resolve import Part, resolve
    from jaxinfer.text.chat_template import ChatTemplate

    needs: tuple[Part, ...] = ("config",)
    config = resolve(str(folder), needs=needs).config
    template = ChatTemplate.from_folder(folder)
    fault = fault_of(folder, config)
    shape = (f"{config[key]:,} {word}" for key, word in SHAPE.items() if isinstance(config.get(key), int))
    return [
        ("type", type_words(config)),
        *([("served", f"cannot be served: {fault}")] if fault else []),
        ("shape", ", ".join(shape)),
        ("weights", weight_words(folder, is_servable=fault is None)),
        ("chat template", "yes" if template.exists else "none: use run --raw, /v1/completions or --chat-template"),
        ("tools", "yes" if template.reads_tools else "no"),
        ("folder", str(folder)),
    ]


def fault_of(folder: Path, config: dict[str, Any]) -> str | None:
    """Why no start takes the settings or the tokenizer of a folder; None where one does."""
    from jaxinfer.checkpoint.resolve import Part, resolve
    from jaxinfer.models.registry import family_for
    from jaxinfer.protocol.sampling import GenerationDefaults
    from jaxinfer.text.tokenizer import Tokenizer

    needs: tuple[Part, ...] = ("tokenizer",)
    try:
        family_for(config).config_from_hf(config)
        GenerationDefaults.from_generation_config(resolve(str(folder), needs=needs).generation_config)
        Tokenizer.from_folder(folder)
    except (CheckpointError, ConfigError) as error:
        return str(error)
    return None


def weight_words(folder: Path, *, is_servable: bool) -> str:
    """How large the weights are and whether they fit, or what is wrong with them."""
    from jaxinfer.checkpoint.resolve import Part, resolve
    from jaxinfer.checkpoint.safetensors_file import SafetensorsFile

    needs: tuple[Part, ...] = ("weights",)
    try:
        files = resolve(str(folder), needs=needs).weight_files
        for path in files:
            SafetensorsFile(path)
    except CheckpointError as error:
        return f"cannot be loaded: {error}"
    size = sum(path.stat().st_size for path in files)
    return size_words(size) + (f"; fits: {fit_words(size, free_memory())}" if is_servable else "")


SHAPE = {
    "num_hidden_layers": "layers",
    "hidden_size": "wide",
    "vocab_size": "tokens in the vocabulary",
    "max_position_embeddings": "positions",
}

command = GroupedCommand(
    "show",
    run,
    [MODEL_ARGUMENT, CACHE_OPTION],
    help="Show what is known of MODEL on this machine. Nothing is downloaded. `jaxinfer plan MODEL` shows what "
    "MODEL needs.",
)
