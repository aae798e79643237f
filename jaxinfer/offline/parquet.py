"""Parquet, through pyarrow: a batch of rows in memory at a time, when reading and when writing."""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jaxinfer.errors import BatchError, ConfigError
from jaxinfer.offline.cells import Unreadable, check_names, present, whole
from jaxinfer.offline.records import COLUMNS, Record
from jaxinfer.offline.rows import Raw

ROWS_READ, ROWS_WRITTEN = 256, 16384
_BUFFER_BYTES = 2**20


class ParquetRows:
    """The rows of a file, once. Raises BatchError for what is no Parquet, ConfigError without pyarrow."""

    def __init__(self, path: Path) -> None:
        self._arrow, self._parquet = _pyarrow()
        try:  # without pre_buffer, or whole row groups would be read ahead
            self._file = self._parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        except (OSError, self._arrow.ArrowException) as error:
            fact = f"it cannot be read: {error}"
            raise BatchError(f"{path} must be a Parquet file, {fact}; write it again, or name its format") from error
        check_names(self._file.schema_arrow.names, "a Parquet file")
        self._num_read = 0

    def share(self) -> float:
        """How much of it has been read."""
        return self._num_read / (self._file.metadata.num_rows or 1)

    def __iter__(self) -> Iterator[Raw]:
        try:
            for batch in self._file.iter_batches(ROWS_READ):
                num_bytes = batch.nbytes // (batch.num_rows or 1)
                for columns in self._rows(batch):
                    self._num_read += 1
                    yield Raw(self._num_read, present(whole(columns)), num_bytes)
        except (OSError, self._arrow.ArrowException) as error:
            fault = f"it cannot be read after row {self._num_read}: {error}"
            raise BatchError(f"the input must be a whole Parquet file, {fault}; write it again") from error

    def _rows(self, batch: Any) -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = batch.to_pylist()
        except (ValueError, OverflowError, self._arrow.ArrowException):  # one cell among them: the others are good
            names = batch.schema.names
            rows = [dict(zip(names, map(self._cell, row), strict=True)) for row in zip(*batch.columns, strict=True)]
        return rows

    def _cell(self, scalar: Any) -> Any:
        try:
            return scalar.as_py()
        except (ValueError, OverflowError, self._arrow.ArrowException):
            return Unreadable(str(scalar.type))

    def close(self) -> None:
        self._file.close()


def read_column(path: Path, name: str) -> Iterator[Any]:
    """One column of what write_parquet wrote. Raises ValueError for what it did not."""
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_WRITTEN, columns=[name]):
                yield from batch.column(name).to_pylist()
    except (arrow.ArrowException, KeyError) as error:
        raise ValueError(str(error)) from error


def write_parquet(records: Iterable[Record], stream: BinaryIO) -> None:
    arrow, parquet = _pyarrow()
    types = {int: arrow.int64(), str: arrow.string()}
    schema = arrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    with parquet.ParquetWriter(stream, schema) as writer:
        for batch in itertools.batched(records, ROWS_WRITTEN):
            writer.write_table(arrow.Table.from_pylist([json.loads(record.line) for record in batch], schema))


def check_installed() -> None:
    """Raises ConfigError."""
    _pyarrow()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        fault = f"Parquet needs the package of the extra parquet, {error.name} is not installed"
        raise ConfigError(f"{fault}; run `pip install 'jaxinfer[parquet]'`") from error
    return pyarrow, pyarrow.parquet
