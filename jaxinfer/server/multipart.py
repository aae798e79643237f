"""A multipart/form-data body with one file, read as it comes: the file goes on in pieces, the other fields are small.

Source: RFC 7578. python-multipart finds the parts; Starlette's own reader would write the file elsewhere first.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import Request

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.fields import required
from jaxinfer.server.body import check_content

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FORM_FIELDS = 16
MAX_FORM_FIELD_BYTES = 1024
MAX_FILENAME_CHARS = 255
_PIECE_BYTES = 2**20  # written at a time, off the event loop
_DEFAULT_NAME = "file"


class UploadTarget(Protocol):
    """Where the file goes."""

    def take(self, num_bytes: int) -> None:
        """Count what is about to be written. Raises ApiError when it is too much."""

    def write(self, data: bytes) -> None:
        """Called in a thread."""


@dataclasses.dataclass(slots=True)
class UploadForm:
    """fields: all but the file, by name.    filename: as the client has it, without folders."""

    fields: dict[str, str]
    filename: str


async def read_form(request: Request, target: UploadTarget) -> UploadForm:
    """Read the whole body; its field `file` has gone to the target. Raises HTTPException 415 or ApiError."""
    kind, options = check_content(request)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        given = ascii(request.headers.get("content-type", "none")[:80])
        raise HTTPException(415, f"the content-type must be multipart/form-data with a boundary, got {given}")
    reader = _Reader()
    try:
        parser = MultipartParser(options[b"boundary"], reader.callbacks())
        await _read(request.stream(), parser, reader, target)
        parser.finalize()
    except FormParserError as error:
        raise _invalid(f"whole and well-formed, {error}") from error
    if not reader.is_ended:
        raise _invalid("whole, its end is missing")
    return reader.form()


async def _read(stream: AsyncIterator[bytes], parser: MultipartParser, reader: "_Reader", target: UploadTarget) -> None:
    async for data in stream:
        parser.write(data)
        if reader.num_pending >= _PIECE_BYTES:
            await _pass_on(reader, target)
    await _pass_on(reader, target)


async def _pass_on(reader: "_Reader", target: UploadTarget) -> None:
    piece = b"".join(reader.pending)
    reader.pending.clear()
    reader.num_pending = 0
    target.take(len(piece))
    await asyncio.to_thread(target.write, piece)


class _Reader:
    """What the parser's callbacks gather. Invariant: of the file only what has come since `pending` was emptied."""

    def __init__(self) -> None:
        self.pending: list[bytes] = []
        self.num_pending = 0
        self.is_ended = False
        self._name = ""  # of the part being read
        self._filename: str | None = None
        self._fields: dict[str, bytes] = {}
        self._header: list[bytes] = [b"", b""]
        self._disposition = b""

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._add_header(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._add_header(1, data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add,
            "on_end": self._end,
        }

    def form(self) -> UploadForm:
        """All of it. Raises InvalidRequest."""
        if self._filename is None:
            required({}, "file")
        try:
            fields = {name: value.decode() for name, value in self._fields.items()}
        except UnicodeDecodeError as error:
            raise _invalid("UTF-8 but for the file, a field is not") from error
        return UploadForm(fields, self._filename or _DEFAULT_NAME)

    def _begin(self) -> None:
        self._disposition = b""

    def _add_header(self, which: int, data: bytes) -> None:
        self._header[which] += data

    def _end_header(self) -> None:
        if self._header[0].lower() == b"content-disposition":
            self._disposition = self._header[1]
        self._header = [b"", b""]

    def _end_headers(self) -> None:
        kind, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        if kind != b"form-data" or not self._name:
            raise _invalid("made of parts that have a name, one has none")
        if self._name in self._fields or (self._name == "file" and self._filename is not None):
            raise _invalid(f"made of parts of different names, {ascii(self._name)[:80]} comes twice")
        if self._name == "file":
            self._filename = _plain_name(options.get(b"filename", b"").decode(errors="replace"))
            return
        if len(self._fields) == MAX_FORM_FIELDS:
            raise _invalid(f"at most {MAX_FORM_FIELDS} fields beside the file, got more")
        self._fields[self._name] = b""

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._name == "file":
            self.pending.append(data[start:end])
            self.num_pending += end - start
            return
        self._fields[self._name] += data[start:end]
        if len(self._fields[self._name]) > MAX_FORM_FIELD_BYTES:
            law = f"fields of at most {MAX_FORM_FIELD_BYTES} bytes beside the file"
            raise _invalid(f"{law}, {ascii(self._name)[:80]} has more")

    def _end(self) -> None:
        self.is_ended = True


def _plain_name(name: str) -> str:
    """Without folders, as some clients send them."""
    plain = PureWindowsPath(PurePosixPath(name).name).name or _DEFAULT_NAME
    if len(plain) > MAX_FILENAME_CHARS:
        law = f"a file's name must have at most {MAX_FILENAME_CHARS} characters, got {len(plain)}; shorten it"
        raise InvalidRequest(law, param="file", code="invalid_value")
    return plain


def _invalid(law: str) -> InvalidRequest:
    return InvalidRequest(f"the form must be {law}; send it again", code="invalid_multipart")
