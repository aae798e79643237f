"""What `pull`, `list`, `show` and `rm` share: the cache they look into, and words for what is in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.servers import without_latest
from jaxinfer.config import nearest_name, size_words
from jaxinfer.errors import CheckpointError

if TYPE_CHECKING:
    from jaxinfer.checkpoint.cached import CachedModel

CACHE_OPTION = click.Option(
    ["--download-dir"],
    envvar="JAXINFER_DOWNLOAD_DIR",
    metavar="DIR",
    help="Folder in place of Hugging Face's cache.",
)
MODEL_ARGUMENT = click.Argument(
    ["model"], metavar="MODEL", callback=lambda ctx, param, value: value and without_latest(value)
)
MEMORY_SHARE = 0.9  # of what is free, as gpu_memory_utilization is by default


def type_words(config: Mapping[str, Any]) -> str:
    """Architecture, data type, and how it is quantized if it is."""
    from jaxinfer.models.quantization_config import quantization_words

    names = config.get("architectures")
    kind = names[0] if isinstance(names, list) and names else config.get("model_type", "?")
    dtype = config.get("torch_dtype") or config.get("dtype")
    return ", ".join(str(word) for word in (kind, dtype, quantization_words(config)) if word)


def free_memory() -> int:
    """Bytes for weights and pages: of the first visible GPU, else of the host."""
    from jaxinfer.checkpoint.memory import available_host_bytes
    from jaxinfer.runtime import nvidia

    gpus = nvidia.visible_gpus(nvidia.list_gpus())
    return int((gpus[0].free_bytes if gpus else available_host_bytes()) * MEMORY_SHARE)


def fit_words(weight_bytes: int, free_bytes: int) -> str:
    """Whether weights fit into memory beside pages for a sequence or two."""
    if weight_bytes <= free_bytes:
        return "yes"
    return f"no: {size_words(weight_bytes)} of {size_words(free_bytes)} free"


def check_cache(download_dir: str | None) -> None:
    """Raise CheckpointError for a folder of models that is not there."""
    if download_dir is not None and not Path(download_dir).expanduser().is_dir():
        raise CheckpointError(f"folder not found: {download_dir} (--download-dir); name one that is there")


def find_cached(model: str, download_dir: str | None, cure: str) -> "CachedModel":
    """The model of that name in the cache. cure: where no name there is like it. Raises CheckpointError."""
    from jaxinfer.checkpoint.cached import cached_models
    from jaxinfer.checkpoint.resolve import local_folder, refuse_family

    check_cache(download_dir)
    found = {cached.id: cached for cached in cached_models(download_dir)}
    if model not in found:
        local_folder(model)  # what can be no hub id is told so
        if near := nearest_name(model, found, 0.5):
            raise CheckpointError(f"{model} is not in the cache; did you mean {near!r}?")
        refuse_family(model, found)
        raise CheckpointError(f"{model} is not in the cache; {cure}")
    return found[model]


def demo_folder() -> Path:
    from jaxinfer.checkpoint.resolve import DEMO_FOLDER

    return DEMO_FOLDER
