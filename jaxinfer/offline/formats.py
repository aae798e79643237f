"""A file's rows as they are read, and answers as a file, in each format."""

import dataclasses
import gzip
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from jaxinfer.errors import BatchError, file_fault
from jaxinfer.offline import csv_table, parquet
from jaxinfer.offline.csv_table import open_text, read_csv, write_csv
from jaxinfer.offline.disk import replacing
from jaxinfer.offline.jsonl import read_jsonl, read_statuses, write_jsonl
from jaxinfer.offline.names import Format, check_stream
from jaxinfer.offline.parquet import ParquetRows, write_parquet
from jaxinfer.offline.records import Record
from jaxinfer.offline.rows import Raw

_ENDS_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Source:
    """rows: to be iterated over once.    share: how much of it has been read, 0 to 1, or None if nobody can tell."""

    rows: Iterator[Raw]
    share: Callable[[], float | None]
    close: Callable[[], None]


def open_source(path: Path, kind: Format) -> Source:
    """Raises BatchError, here or while its rows are read, for what is no such file."""
    check_regular(path, "input", "give -i - and what it has on stdin")
    try:
        file = path.open("rb")
    except OSError as error:
        raise BatchError(f"{file_fault('read', path, error)}; name another file of rows") from error
    if kind == "parquet":
        file.close()
        rows = ParquetRows(path)
        return Source(iter(rows), rows.share, rows.close)
    size = os.fstat(file.fileno()).st_size or 1
    if kind == "csv":
        text = open_text(file)
        try:
            return Source(read_csv(text), lambda: file.tell() / size, text.close)
        except BatchError:
            text.close()
            raise
    lines = _unpacked(file, path) if kind == "jsonl.gz" else read_jsonl(file)
    return Source(lines, lambda: file.tell() / size, file.close)


def check_regular(path: Path, what: str, cure: str) -> None:
    """Refuse what is there and no file, which is read once or not replaced. Raises BatchError."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe or a device"
        raise BatchError(f"the {what} must be a file, {path} is {kind}; {cure}")


def check_output(path: Path, kind: Format) -> None:
    """Refuse, before anything is computed, what write_output could not make. Raises BatchError, or ConfigError."""
    check_regular(path, "output", "name another, or -o - for a pipe")
    if kind == "parquet":
        parquet.check_installed()


def stream_source(stream: BinaryIO, kind: Format) -> Source:
    """Of a pipe. Raises ConfigError for what cannot be read without going back."""
    check_stream(kind, "-i -")
    return Source(read_jsonl(stream), lambda: None, lambda: None)


def _unpacked(file: BinaryIO, path: Path) -> Iterator[Raw]:
    try:
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield from read_jsonl(cast(BinaryIO, unpacked))
    except (OSError, EOFError, zlib.error) as error:
        raise BatchError(f"{path} must be a whole gzip file, it cannot be read: {error}; pack it again") from error


def digest_of(path: Path) -> str:
    """Of a file's size and its two ends: enough to tell that it is another, at any size."""
    size = path.stat().st_size
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        found.update(file.read(_ENDS_BYTES))
        file.seek(max(0, size - _ENDS_BYTES))
        found.update(file.read(_ENDS_BYTES))
    return found.hexdigest()[:16]


def count_statuses(path: Path, kind: Format) -> Counter[int]:
    """Of the answers in an output, all of which is read. Raises BatchError for what a batch has not written."""
    found: Counter[int] = Counter()
    try:
        if kind == "parquet":
            found.update(map(int, parquet.read_column(path, "status")))
        elif kind == "csv":
            with open_text(path.open("rb")) as text:
                found.update(map(int, csv_table.read_column(text, "status")))
        else:
            with gzip.open(path) if kind == "jsonl.gz" else path.open("rb") as file:
                found.update(read_statuses(file))
    except (OSError, EOFError, zlib.error, ValueError, TypeError) as error:
        fact = f"after {found.total():,} of them it cannot be read: {error}"
        raise BatchError(f"{path} must be a batch's answers, {fact}; move it away or begin anew") from error
    return found


def write_output(records: Iterable[Record], path: Path, kind: Format) -> None:
    """Make the file of all answers: it is there whole or, if this fails, as it was."""
    try:
        with replacing(path) as file:
            if kind == "jsonl.gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                    write_jsonl(records, cast(BinaryIO, packed))
            else:
                _WRITERS[kind](records, file)
    except OSError as error:
        raise BatchError(f"the output must be written, {path}: {error.strerror}; the answers are kept") from error


_WRITERS: dict[str, Callable[[Iterable[Record], BinaryIO], None]] = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "parquet": write_parquet,
}
