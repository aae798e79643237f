"""The options of `jaxinfer serve` for what it keeps on disk: files and batches."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.options import GroupedOption
from jaxinfer.cli.protection import size
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


def _option(declarations: list[str], env: str, help: str, **settings: Any) -> GroupedOption:  # noqa: A002 click's word
    option = GroupedOption(declarations, envvar=f"JAXINFER_{env}", help=help, **settings)
    option.group = "Files and batches"
    return option


_COUNT: dict[str, Any] = {"type": click.IntRange(1), "metavar": "N"}
_SIZE: dict[str, Any] = {"callback": size, "metavar": "N"}

OPTIONS: tuple[click.Option, ...] = (
    _option(["--files-dir"], "FILES_DIR", "Take /v1/files and /v1/batches, and keep them here.", metavar="DIR"),
    _option(["max_file_bytes", "--max-file-bytes"], "MAX_FILE_BYTES", "Of one upload.  [200M]", **_SIZE),
    _option(["max_files", "--max-files-per-key"], "MAX_FILES_PER_KEY", "Files of one tenant.  [1000]", **_COUNT),
    _option(
        ["max_bytes", "--max-files-bytes-per-key"],
        "MAX_FILES_BYTES_PER_KEY",
        "Of them together, with what its batches have answered.  [4G]",
        **_SIZE,
    ),
    _option(
        ["max_batches", "--max-batches-per-key"],
        "MAX_BATCHES_PER_KEY",
        "Batches of one tenant, those that have ended included.  [100]",
        **_COUNT,
    ),
    _option(["max_rows", "--max-batch-rows"], "MAX_BATCH_ROWS", "Of one batch.  [50000]", **_COUNT),
    _option(
        ["max_age_s", "--max-file-age-s"],
        "MAX_FILE_AGE_S",
        "How long files, and batches that have ended, are kept.  [2592000]",
        type=click.FloatRange(0.0, min_open=True),
        metavar="X",
    ),
)
