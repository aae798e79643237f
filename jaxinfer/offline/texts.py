"""Texts from files: a .txt is one, a row of a .jsonl or .csv each."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from jaxinfer.errors import ConfigError
from jaxinfer.files import check_file

SUFFIXES = (".txt", ".jsonl", ".csv")
MAX_TEXT_BYTES = 2**30  # of a .txt file, which is one text
MAX_CELL_CHARS = 2**27  # csv's own limit of 131,072 is less than a long document


def check_text_file(path: Path) -> None:
    """Refuse what read_texts could not begin to read. Raises ConfigError."""
    if path.suffix.lower() not in SUFFIXES and path.exists():
        raise ConfigError(f"texts must be in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} files, got {path}; rename it")
    check_file(path, most_bytes=MAX_TEXT_BYTES if path.suffix.lower() == ".txt" else None)


def read_texts(path: Path, column: str) -> Iterator[str]:
    """The texts of a file in order, one in memory at a time. column: of rows. Raises ConfigError naming the line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            match path.suffix.lower():
                case ".txt":
                    yield file.read()
                case ".jsonl":
                    for number, line in enumerate(file, 1):
                        if line.strip():
                            yield _cell(json.loads(line), column, f"{path}, line {number}")
                case ".csv":
                    csv.field_size_limit(MAX_CELL_CHARS)
                    rows = csv.DictReader(file)
                    for row in rows:
                        yield _cell(row, column, f"{path}, line {rows.line_num}")
    except OSError as error:
        raise ConfigError(f"texts must be in a file that can be read, {path}: {error.strerror}; mend that") from error
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} must be {path.suffix.lower()[1:]} in UTF-8, {error}; mend it") from error


def _cell(row: object, column: str, place: str) -> str:
    value = row.get(column) if isinstance(row, dict) else None
    if not isinstance(value, str):
        fact = f"has {', '.join(map(str, row)) or 'nothing'}" if isinstance(row, dict) else "is no object"
        raise ConfigError(f"{place}: each row must have a text under {column!r}, this one {fact}; --column names it")
    return value
