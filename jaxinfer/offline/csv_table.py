"""CSV with a header, in UTF-8. An empty cell is a field left out; a row's number counts records, not lines."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import BinaryIO, TextIO

from jaxinfer.errors import BatchError, InvalidRequest
from jaxinfer.offline.cells import check_names, from_text, present
from jaxinfer.offline.records import COLUMNS, Record
from jaxinfer.offline.rows import MAX_ROW_BYTES, Raw


def open_text(stream: BinaryIO) -> io.TextIOWrapper:
    """The characters of a CSV file; bytes that are none stay in their cell, and are its row's fault."""
    return io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")


def read_csv(text: TextIO) -> Iterator[Raw]:
    """Raises BatchError for a header that cannot be one."""
    csv.field_size_limit(MAX_ROW_BYTES)  # the module's own is 128 KiB
    reader = csv.reader(text, strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        law = "a CSV file must begin with a header, its first line cannot be read"
        raise BatchError(f"{law}: {error}; mend that line") from error
    check_names(header, "a CSV file's header")
    return _rows(reader, header)


def _rows(reader: "Iterator[list[str]]", header: list[str]) -> Iterator[Raw]:
    number = 0
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            number += 1
            fault = f"a row must be CSV as RFC 4180 has it: {error}"
            yield Raw(number, InvalidRequest(fault, code="invalid_csv"), 0)
            continue
        if not cells:
            continue
        number += 1
        if len(cells) != len(header):
            law = f"a row must have as many cells as the header, {len(header)}"
            yield Raw(
                number, InvalidRequest(f"{law}, got {len(cells)}; quote commas and line ends", code="invalid_csv"), 0
            )
            continue
        columns = {name: from_text(name, cell) for name, cell in zip(header, cells, strict=True) if cell}
        yield Raw(number, present(columns), sum(map(len, cells)))


def read_column(text: TextIO, name: str) -> Iterator[str]:
    """One column of what write_csv wrote. Raises ValueError for what it did not."""
    csv.field_size_limit(MAX_ROW_BYTES)
    reader = csv.reader(text, strict=True)
    try:
        place = next(reader, []).index(name)
        for cells in reader:
            yield cells[place]
    except (csv.Error, IndexError) as error:
        raise ValueError(str(error)) from error


def write_csv(records: Iterable[Record], stream: BinaryIO) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for record in records:
        columns = json.loads(record.line)
        writer.writerow([columns[name] for name in COLUMNS])
    text.flush()
    text.detach()
