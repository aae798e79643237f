"""`jaxinfer pull`: download a model, so that no later start waits for it."""

import contextlib
import sys
from collections.abc import Iterator

import click

from jaxinfer.cli.checklist import QUIET_OPTION, screen_for
from jaxinfer.cli.disk import CACHE_OPTION, MODEL_ARGUMENT
from jaxinfer.cli.options import GroupedCommand
from jaxinfer.config import size_words
from jaxinfer.errors import CheckpointError


def run(model: str, revision: str | None, download_dir: str | None, quiet: bool) -> int:
    """Download what is missing and say where it is."""
    from jaxinfer.checkpoint.resolve import local_folder, resolve

    if local_folder(model, law="a hub id, as in 'Qwen/Qwen3-0.6B'") is not None:
        what = "the bundled demo" if model == "demo" else "a folder of this machine"
        raise CheckpointError(f"nothing to download: {model!r} is {what}; `jaxinfer chat {model}` runs it")
    screen = screen_for(sys.stderr, {"quiet": quiet})
    with contextlib.closing(screen), hub_bars(shown=not quiet):
        found = resolve(
            model, revision=revision, download_dir=download_dir, check_config=_check_config, on_progress=screen.say
        )
    if not quiet:
        size = size_words(sum(path.stat().st_size for path in found.weight_files))
        click.echo(f"{model} is here: {size} of weights in {found.folder}")
    return 0


@contextlib.contextmanager
def hub_bars(*, shown: bool) -> Iterator[None]:
    """Whether the hub's library draws its progress bars while the block runs."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    was_shown = not are_progress_bars_disabled()
    if not shown:
        disable_progress_bars()
    try:
        yield
    finally:
        if was_shown:
            enable_progress_bars()


def _check_config(raw: dict[str, object]) -> None:
    """Refuse a model that cannot be run before its weights are downloaded. Raises CheckpointError."""
    from jaxinfer.models.registry import family_for

    family_for(raw).config_from_hf(raw)


command = GroupedCommand(
    "pull",
    run,
    [
        MODEL_ARGUMENT,
        click.Option(["--revision"], metavar="NAME", help="Branch, tag or commit.  [the newest]"),
        CACHE_OPTION,
        QUIET_OPTION,
    ],
    help="Download MODEL, a Hugging Face id. A download that broke off goes on where it stopped. Files that are here "
    "already are not downloaded again.",
)
