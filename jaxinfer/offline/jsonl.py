"""JSONL: a JSON object a line. Blank lines are no rows; a row's number is its line's."""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.offline.records import Record
from jaxinfer.offline.rows import MAX_ROW_BYTES, Raw

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CHUNK_BYTES = 2**16


def read_jsonl(stream: BinaryIO) -> Iterator[Raw]:
    number = 0
    while line := stream.readline(MAX_ROW_BYTES):
        number += 1
        if len(line) == MAX_ROW_BYTES and not line.endswith(b"\n"):
            _skip_line(stream)
            yield Raw(number, too_large(), 0)
            continue
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if line.strip():
            yield Raw(number, line, len(line))


def too_large() -> InvalidRequest:
    law = f"a row must have less than {MAX_ROW_BYTES} bytes"
    return InvalidRequest(f"{law}, this one has more; split it", code="body_too_large")


def _skip_line(stream: BinaryIO) -> None:
    while (piece := stream.readline(_CHUNK_BYTES)) and not piece.endswith(b"\n"):
        continue


class _Response(msgspec.Struct):
    status_code: int


class _Answer(msgspec.Struct):
    """What an answer in either form says of its status; the rest of it is passed over."""

    status: int | None = None
    response: _Response | None = None


def read_statuses(stream: Iterable[bytes]) -> Iterator[int]:
    """Of the answers that write_jsonl wrote. Raises ValueError for what is none."""
    decode = msgspec.json.Decoder(_Answer).decode
    for line in stream:
        try:
            answer = decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error
        status = answer.response.status_code if answer.response is not None else answer.status
        if status is None:
            raise ValueError("it has no status")
        yield status


def write_jsonl(records: Iterable[Record], stream: BinaryIO) -> None:
    for record in records:
        stream.write(record.line + b"\n")
