"""`jaxinfer rm`: remove a model from the hub's cache."""

import os
import sys

import click

from jaxinfer.cli.disk import CACHE_OPTION, MODEL_ARGUMENT, find_cached
from jaxinfer.cli.options import GroupedCommand
from jaxinfer.config import size_words
from jaxinfer.errors import CheckpointError, ConfigError


def run(model: str, yes: bool, download_dir: str | None) -> int:
    """Show what would go, ask, remove. Returns 1 when the answer is no."""
    if model == "demo":
        raise CheckpointError("the demo is a part of jaxinfer, not of the cache; uninstall jaxinfer to remove it")
    if os.path.isdir(os.path.expanduser(model)):
        raise CheckpointError(f"{model} is a folder, and rm removes only from the hub's cache; remove it yourself")
    cached = find_cached(model, download_dir, "`jaxinfer list` shows what is there")
    refuse_in_use(model)
    what = f"{cached.id}, {size_words(cached.num_bytes)} in {cached.place}"
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"rm asks before it removes {what}, and there is no terminal; add --yes")
        if not click.confirm(f"remove {what}?", err=True):
            click.echo("nothing was removed", err=True)
            return 1
    cached.remove()
    click.echo(f"removed {what}")
    return 0


def refuse_in_use(model: str) -> None:
    """Raise ConfigError when a server of this user has the model, or may have it."""
    from jaxinfer.cli.servers import found_servers, serves

    for found in found_servers():
        if found.presence is None:
            raise ConfigError(f"rm must know that no server has {model}: {found.silence}")
        if serves(found.presence, model):
            which = f"{found.presence.url} (pid {found.presence.pid})"
            raise ConfigError(f"{model} is served at {which}; `jaxinfer stop {found.presence.url}` first")


command = GroupedCommand(
    "rm",
    run,
    [MODEL_ARGUMENT, click.Option(["-y", "--yes"], is_flag=True, help="Do not ask."), CACHE_OPTION],
    help="Remove MODEL from Hugging Face's cache. The verb shows what it will remove and asks. Folders are left alone.",
)
