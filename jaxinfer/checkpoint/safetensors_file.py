"""One safetensors file, memory-mapped: 8 bytes of header length, a JSON header, the tensors' bytes without gaps.

Source: the format's README at huggingface/safetensors. The file may come from a stranger: nothing in its header is
believed before it is checked against the file's real size, and every tensor is a read-only view of the mapping.
"""

import dataclasses
import json
import math
import mmap
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import ml_dtypes
import numpy as np

from jaxinfer.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_TENSORS = 100_000  # above the largest checkpoint known to us, all of its 163 files together
MAX_RANK = 8

_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_BITS |= {"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32}
_BITS |= {"I64": 64, "U64": 64, "F64": 64, "C64": 64}

NUMPY_DTYPES: Mapping[str, np.dtype] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I32": np.dtype(np.int32),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
}
"""The stored types that parameters are read from; of which of them a leaf may be, its spec says."""


@dataclasses.dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: bytes start .. stop - 1 of `path`, row-major, little-endian."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.path.name}: tensor {shown(self.name)}"


class SafetensorsFile:
    """A validated file. `tensors` holds every entry, by name, in the order of their bytes.

    Raises CheckpointError, naming the file and the tensor, unless the tensors cover the data exactly once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            status = path.stat()
            # Looked at before it is opened: opening a pipe or a device could block or never end.
            if not stat.S_ISREG(status.st_mode):
                _refuse(path, "must be a regular file, it is not", "point to a folder of ordinary files")
            with path.open("rb") as file:
                self.tensors = _read_entries(path, file, status.st_size)
                self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            _refuse(path, f"must be readable, it is not: {error.strerror}", "change its mode or free some memory")

    def view(self, entry: TensorEntry) -> np.ndarray:
        """The tensor as a read-only array over the mapping: no byte is read before it is touched."""
        dtype = NUMPY_DTYPES[entry.dtype]
        count = entry.num_bytes // dtype.itemsize
        return np.frombuffer(self._mapping, dtype, count, entry.start).reshape(entry.shape)

    def will_need(self, entry: TensorEntry, rows: range) -> None:
        """Ask the kernel to start reading these rows from the disk."""
        self._advise(mmap.MADV_WILLNEED, entry, rows)

    def release(self, entry: TensorEntry, rows: range) -> None:
        """Give these rows' pages back: they count as this process's memory while they are mapped in."""
        self._advise(mmap.MADV_DONTNEED, entry, rows)

    def _advise(self, advice: int, entry: TensorEntry, rows: range) -> None:
        row_bytes = entry.num_bytes // (entry.shape[0] if entry.shape else 1)
        first, stop = entry.start + rows.start * row_bytes, entry.start + rows.stop * row_bytes
        first = first // mmap.PAGESIZE * mmap.PAGESIZE
        self._mapping.madvise(advice, first, stop - first)


def shown(name: str) -> str:
    """A stranger's name, fit for a terminal: quoted, control characters escaped, at most 120 characters."""
    return repr(name if len(name) <= 120 else name[:117] + "...")


def _read_entries(path: Path, file: BinaryIO, file_bytes: int) -> dict[str, TensorEntry]:
    header_bytes = _header_length(path, file.read(8), file_bytes)
    header = _parse_header(path, file.read(header_bytes))
    data_start = 8 + header_bytes
    return _entries(path, header, data_start, file_bytes - data_start)


def _header_length(path: Path, prefix: bytes, file_bytes: int) -> int:
    if prefix.startswith(b"version "):
        _refuse(path, "must hold tensors, got a git-lfs pointer", "run `git lfs pull` in its folder")
    if len(prefix) < 8:
        _refuse(path, f"must begin with 8 bytes of header length, the file has {file_bytes} bytes")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        _refuse(path, f"its header must take at most {MAX_HEADER_BYTES} bytes, it claims {length}")
    if 8 + length > file_bytes:
        _refuse(path, f"its header claims {length} bytes, the file ends after {file_bytes}: it is truncated")
    return length


def _parse_header(path: Path, encoded: bytes) -> dict[str, Any]:
    # Counted before parsing: a million empty entries would take Python 17 s and gigabytes.
    most = {b"{": MAX_TENSORS + 2, b"[": 2 * MAX_TENSORS + 2, b":": 8 * MAX_TENSORS}  # a tensor has 4 of the last
    if any(encoded.count(sign) > number for sign, number in most.items()):
        _refuse(path, f"its header must describe at most {MAX_TENSORS} tensors, it holds more")
    try:
        header = json.loads(encoded.decode("utf-8"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        _refuse(path, f"its header must be a JSON object with unique keys: {_reason(error)}")
    if not isinstance(header, dict):
        _refuse(path, f"its header must be a JSON object, got a {type(header).__name__}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse(path, "its __metadata__ must map strings to strings")
    return header


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {shown(key)} appears twice")
            seen.add(key)
    return unique


def _reason(error: ValueError | RecursionError) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def _entries(path: Path, header: Mapping[str, Any], data_start: int, data_bytes: int) -> dict[str, TensorEntry]:
    entries = [_entry(path, name, fields, data_start, data_bytes) for name, fields in header.items()]
    # Empty tensors share their offset with a neighbour; sorting by both ends puts them before it.
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    position = data_start
    for entry in entries:
        if entry.start != position:
            what = "overlaps the one before it" if entry.start < position else "leaves a hole before it"
            begins, ended = entry.start - data_start, position - data_start
            _refuse(path, f"tensor {shown(entry.name)} {what}: it starts at byte {begins} of the data, not {ended}")
        position = entry.stop
    if position != data_start + data_bytes:
        last = f"the last tensor, {shown(entries[-1].name)}, ends" if entries else "its tensors end"
        _refuse(path, f"{last} at byte {position - data_start} of the data, the file goes on to byte {data_bytes}")
    return {entry.name: entry for entry in entries}


def _entry(path: Path, name: str, fields: Any, data_start: int, data_bytes: int) -> TensorEntry:
    tensor = f"tensor {shown(name)}"
    if not isinstance(fields, dict) or fields.keys() != {"dtype", "shape", "data_offsets"}:
        _refuse(path, f"{tensor} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        _refuse(path, f"{tensor} must have a known dtype, got {shown(str(dtype))}")
    if not _are_sizes(shape) or len(shape) > MAX_RANK:
        _refuse(path, f"{tensor} must have a shape of at most {MAX_RANK} sizes, got {str(shape)[:120]}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, f"{tensor} must have data_offsets [begin, end], got {str(offsets)[:120]}")
    begin, end = offsets
    if end > data_bytes:
        _refuse(path, f"{tensor} ends at byte {end} of the data, the file at {data_bytes}: it is truncated or damaged")
    if math.prod(shape) * _BITS[dtype] != (end - begin) * 8:
        _refuse(path, f"{tensor} of dtype {dtype} and shape {shape} does not fill its {end - begin} bytes")
    return TensorEntry(name, path, dtype, tuple(shape), data_start + begin, data_start + end)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _refuse(path: Path, fault: str, cure: str = "download the file again") -> NoReturn:
    raise CheckpointError(f"{path.name}: {fault}; {cure} ({path})")
