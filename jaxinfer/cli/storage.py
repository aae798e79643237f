"""The options of `jaxinfer serve` for what it keeps on disk: files and batches."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.options import COUNT, SECONDS, server_option
from jaxinfer.cli.protection import SIZE
from jaxinfer.errors import ConfigError

if TYPE_CHECKING:
    from jaxinfer.offline.files import KeptLimits

_LIMITS = ("max_file_bytes", "max_files", "max_bytes", "max_batches", "max_rows", "max_age_s")


def kept_limits(params: Mapping[str, Any]) -> "KeptLimits":
    """What the options allow. Raises ConfigError for limits without a folder."""
    from jaxinfer.offline.files import KeptLimits

    given = {name: params[name] for name in _LIMITS if params[name] is not None}
    if given and params["files_dir"] is None:
        raise ConfigError("limits of files and batches need --files-dir, got none; add it or leave them out")
    return KeptLimits(**given)


def files_folder(params: Mapping[str, Any]) -> Path | None:
    """Where files and batches are kept, if anywhere."""
    return None if params["files_dir"] is None else Path(params["files_dir"]).absolute()


_option = partial(server_option, group="Files and batches")

OPTIONS: tuple[click.Option, ...] = (
    _option("--files-dir", "Take /v1/files and /v1/batches, and keep them here.", metavar="DIR", in_short_help=True),
    _option("--max-file-bytes", "Most bytes of one upload.  [200M]", **SIZE),
    _option("--max-files-per-key", "Files of one tenant.  [1000]", name="max_files", **COUNT),
    _option(
        "--max-files-bytes-per-key",
        "Most bytes of one tenant's files, with the answers of its batches.  [4G]",
        name="max_bytes",
        **SIZE,
    ),
    _option(
        "--max-batches-per-key",
        "Batches of one tenant, those that have ended included.  [100]",
        name="max_batches",
        **COUNT,
    ),
    _option("--max-batch-rows", "Most rows of one batch.  [50000]", name="max_rows", **COUNT),
    _option(
        "--max-file-age-s",
        "How long files, and batches that have ended, are kept.  [2592000]",
        name="max_age_s",
        **SECONDS,
    ),
)
