"""Export format: a prefix, its pages and its snapshot, as bytes that another engine of the same model can take.

MAGIC, the header's length (u32, little-endian), the header (msgpack), then page after page of each table, one table
after the other, then the snapshot. What the bytes of a page and of a snapshot are is the device's business. A header
names its version, model and groups, and is refused by name where another one reads it. Keys are made of its tokens
anew, so that what is found by them is what they say.
"""

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from jaxinfer.cache.prefix import PageKey, chain, root_key
from jaxinfer.cache.spec import CacheLayout
from jaxinfer.errors import ConfigError

MAGIC, VERSION = b"jaxinfer cache\n", 1
_LENGTH = struct.Struct("<I")


class ExportHeader(msgspec.Struct):
    version: int
    model: str  # fingerprint of config, weights and dtype
    groups: list[Any]  # of the layout
    page_size: int  # tokens
    salt: str
    tokens: list[int]  # of whole pages
    digest: bytes  # of the last page
    firsts: list[int]  # by table, the first page that is there: a window has let go of those before
    has_snapshot: bool  # of the state behind all tokens

    @property
    def num_pages(self) -> int:
        """Of all tables."""
        return sum(len(self.tokens) // self.page_size - first for first in self.firsts)


def write_header(
    model: str, layout: CacheLayout, salt: str, tokens: Sequence[int], firsts: Sequence[int], *, has_snapshot: bool
) -> bytes:
    """Everything before the pages. tokens: of one page at least."""
    *_, last = chain(root_key(salt), tokens, size := layout.page_size)
    whole, groups = list(tokens[: len(tokens) // size * size]), msgspec.to_builtins(layout.groups)
    header = ExportHeader(VERSION, model, groups, size, salt, whole, last.digest, list(firsts), has_snapshot)
    encoded = msgspec.msgpack.encode(header)
    return MAGIC + _LENGTH.pack(len(encoded)) + encoded


def read_header(data: bytes, model: str, layout: CacheLayout) -> tuple[ExportHeader, list[PageKey], int]:
    """The header, the keys of its pages, and where in `data` the pages begin. Raises ConfigError."""
    start = len(MAGIC) + _LENGTH.size
    if not data.startswith(MAGIC) or len(data) < start:
        raise ConfigError("an exported prefix must begin with its format's name, this does not; export it again")
    end = start + _LENGTH.unpack_from(data, len(MAGIC))[0]
    try:
        version = msgspec.msgpack.decode(data[start:end])["version"]
        _agree("version", version, VERSION)
        header = msgspec.msgpack.decode(data[start:end], type=ExportHeader)
    except (msgspec.DecodeError, TypeError, KeyError) as error:
        raise ConfigError(f"an exported prefix must have a readable header, got {error}; export it again") from error
    _agree("model", header.model, model)
    _agree("page_size", header.page_size, layout.page_size)
    _agree("groups", header.groups, msgspec.msgpack.decode(msgspec.msgpack.encode(layout.groups)))
    _agree("number of tables", len(header.firsts), len(layout.windows))
    keys = list(chain(root_key(header.salt), header.tokens, header.page_size))
    _agree("digest", header.digest, keys[-1].digest if keys else b"")
    size = header.num_pages * layout.page_bytes + header.has_snapshot * layout.row_bytes
    _agree("bytes behind the header", len(data) - end, size)
    return header, keys, end


def _agree(name: str, given: object, wanted: object) -> None:
    if given != wanted:
        raise ConfigError(f"an exported prefix must have {name} {wanted!r} here, got {given!r}; export it again")
