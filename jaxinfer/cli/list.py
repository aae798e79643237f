"""`jaxinfer list`: the models on this machine."""

from typing import Any

import click

from jaxinfer.bench.report import columns_of
from jaxinfer.cli.checklist import reading
from jaxinfer.cli.disk import CACHE_OPTION, check_cache, demo_folder, fit_words, free_memory, type_words
from jaxinfer.cli.options import GroupedCommand
from jaxinfer.config import size_words

HEAD = ("NAME", "SIZE", "TYPE", "FITS")


def run(download_dir: str | None) -> int:
    """Print a line for each."""
    check_cache(download_dir)
    with reading("the models on this machine"):
        found = rows(download_dir)
    click.echo(columns_of(HEAD, found))
    return 0


def rows(download_dir: str | None) -> list[tuple[str, str, str, str]]:
    """Name, size, type and whether it fits, of the demo and of each model in the cache."""
    from jaxinfer.checkpoint.cached import cached_models
    from jaxinfer.checkpoint.contents import CONFIG, read_json

    free = free_memory()
    demo = demo_folder()
    size = sum(path.stat().st_size for path in demo.glob("*.safetensors"))
    found = [("demo", size_words(size), type_words(read_json(demo / CONFIG)), fit_words(size, free))]
    for model in cached_models(download_dir):
        if model.is_partial:
            fits = f"incomplete: `jaxinfer pull {model.id}` goes on"
        elif is_known(model.config):
            fits = fit_words(model.weight_bytes, free)
        else:
            fits = f"no: `jaxinfer show {model.id}` says why"
        found.append((model.id, size_words(model.num_bytes), type_words(model.config), fits))
    return found


def is_known(config: dict[str, Any]) -> bool:
    """Whether a config.json, {} where none can be read, is that of a model which can be served."""
    from jaxinfer.models.registry import family_for

    try:
        family_for(config).config_from_hf(config)
    except Exception:  # a family may be a stranger's: whatever it raises, `show` tells, and others are still listed
        return False
    return True


command = GroupedCommand(
    "list",
    run,
    [CACHE_OPTION],
    help="Show the models on this machine: the bundled demo and those in Hugging Face's cache. Each line has a model's "
    "size and type, and whether the weights fit into the memory that is free now.",
)
