"""Export format: a prefix, its pages and its snapshot, as bytes that another engine of the same model can take.

MAGIC; the version (u32), the length of the header (u32) and of everything (u64), little-endian; the header (msgpack);
page after page of each table, one table after the other; the snapshot, where layers are recurrent; a digest of all
that is before it. What the bytes of a page and of a snapshot are is the device's business. A header names its model,
page size and groups, and is refused by name where another one reads it. Keys are made of its tokens anew, so that what
is found by them is what they say.
"""

import itertools
import struct
from collections.abc import Buffer, Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple

import msgspec

from jaxinfer.cache.prefix import PageKey, chain, root_key
from jaxinfer.cache.spec import CacheLayout
from jaxinfer.errors import ConfigError

MAGIC, VERSION = b"jaxinfer cache\n", 1
_HEAD = struct.Struct("<IIQ")
_SEAL_BYTES = 16


class ExportHeader(msgspec.Struct):
    model: str  # digest of config, weights and dtype
    groups: list[Any]  # of the layout
    page_size: int  # tokens
    salt: str
    tokens: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]  # of whole pages, one at least
    digest: bytes  # of the last page
    firsts: list[int]  # by table, the first page that is there: a window has let go of those before


class Exported(NamedTuple):
    """What was read.

    keys: of the prefix' pages.    pages: the bytes of each, by table.    snapshot: the bytes of the state behind all
    tokens, none where no layer is recurrent.
    """

    keys: list[PageKey]
    pages: list[list[memoryview]]
    snapshot: memoryview


def write_export(
    model: str, layout: CacheLayout, salt: str, tokens: Sequence[int], firsts: Sequence[int], contents: Iterable[bytes]
) -> bytes:
    """tokens: of whole pages, one at least.    contents: of the pages of each table, then of the snapshot, if any."""
    *_, last = chain(root_key(salt), tokens, layout.page_size)
    groups = msgspec.to_builtins(layout.groups)
    header = ExportHeader(model, groups, layout.page_size, salt, list(tokens), last.digest, list(firsts))
    encoded, contents = msgspec.msgpack.encode(header), list(contents)
    total = len(MAGIC) + _HEAD.size + len(encoded) + sum(map(len, contents)) + _SEAL_BYTES
    parts = [MAGIC, _HEAD.pack(VERSION, len(encoded), total), encoded, *contents]
    seal = blake2b(digest_size=_SEAL_BYTES)
    for part in parts:
        seal.update(part)
    return b"".join([*parts, seal.digest()])


def read_export(data: Buffer, model: str, layout: CacheLayout, firsts_at: Callable[[int], list[int]]) -> Exported:
    """What write_export wrote for this model and layout. Raises ConfigError.

    data: the parts of what is returned are views of it.
    firsts_at: by a number of tokens, the first page of each table that is needed to go on from there.
    """
    view, start = memoryview(data).cast("B"), len(MAGIC) + _HEAD.size
    if view[: len(MAGIC)] != MAGIC or len(view) < start:
        raise ConfigError("an exported prefix must begin with its format's name, this does not; export it again")
    version, header_bytes, total = _HEAD.unpack_from(view, len(MAGIC))
    _agree("version", version, VERSION)
    _agree("number of bytes", len(view), total)
    if blake2b(view[:-_SEAL_BYTES], digest_size=_SEAL_BYTES).digest() != view[-_SEAL_BYTES:]:
        raise ConfigError("an exported prefix must be as it was written, its last digest differs; export it again")
    header, start, end = _header(view[start : start + header_bytes]), start + header_bytes, len(view) - _SEAL_BYTES
    _agree("model", header.model, model)
    _agree("page_size", header.page_size, layout.page_size)
    _agree("groups", header.groups, msgspec.msgpack.decode(msgspec.msgpack.encode(layout.groups)))
    keys = list(chain(root_key(header.salt), header.tokens, layout.page_size))
    _agree("number of tokens", len(header.tokens), max(1, len(keys)) * layout.page_size)
    _agree("digest", header.digest, keys[-1].digest)
    _agree("first pages", header.firsts, firsts_at(len(header.tokens)))
    counts = [len(keys) - first for first in header.firsts]
    size = sum(counts) * layout.page_bytes + layout.row_bytes
    _agree("number of bytes of pages", end - start, size)
    pages = (view[at : at + layout.page_bytes] for at in range(start, end - layout.row_bytes, layout.page_bytes))
    by_table = [list(itertools.islice(pages, count)) for count in counts]
    return Exported(keys, by_table, view[end - layout.row_bytes : end])


def _header(encoded: memoryview) -> ExportHeader:
    try:
        return msgspec.msgpack.decode(encoded, type=ExportHeader)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"an exported prefix must have a readable header, got {error}; export it again") from error


def _agree(name: str, given: object, wanted: object) -> None:
    if given != wanted:
        raise ConfigError(f"an exported prefix must have {name} {wanted!r} here, got {given!r}; export it again")
