"""The formats of batch files and how a file's name tells its own."""

import os
from typing import Literal

from jaxinfer.errors import ConfigError

Format = Literal["jsonl", "jsonl.gz", "csv", "parquet"]
FORMATS: tuple[Format, ...] = ("jsonl", "jsonl.gz", "csv", "parquet")
ENDINGS: dict[str, Format] = {f".{name}": name for name in FORMATS} | {".ndjson": "jsonl", ".pq": "parquet"}


def format_of(name: str, given: str | None, flag: str) -> Format:
    """The format given, or the one that a file's name ends in. "-" is JSONL. Raises ConfigError."""
    if given is not None:
        return next(known for known in FORMATS if known == given)
    if name == "-":
        return "jsonl"
    for ending, known in ENDINGS.items():
        if name.lower().endswith(ending):
            return known
    if os.path.isdir(name):
        raise ConfigError(f"{name} must be a file of rows, it is a folder; name a file")
    raise ConfigError(f"a file's name must end in {', '.join(ENDINGS)}, got {name!r}; rename it or give {flag}")


def check_stream(kind: Format, flag: str) -> None:
    if kind != "jsonl":
        raise ConfigError(f"{flag} takes jsonl, got {kind}; name a file")
