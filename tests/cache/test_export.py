"""The export format: what is written is read, and what is another's or damaged is refused by name."""

import dataclasses
from hashlib import blake2b

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.cache import export
from jaxinfer.cache.export import MAGIC, read_export, write_export
from jaxinfer.cache.manager import CacheManager
from jaxinfer.cache.prefix import chain, root_key
from jaxinfer.errors import ConfigError
from tests.engine.device import make_limits
from tests.engine.hybrid import make_layout

LAYOUT = make_layout(page_size=4, window=6, snapshots=3)
MANAGER = CacheManager(make_limits(page_tables=5), LAYOUT, tile=8)
TOKENS = list(range(16))
FIRSTS = (0, 0, 0, 2, 2)
NESTED = msgspec.Raw(b"\x91" * 9000 + b"\x90")  # a list in a list in a list
HEAD = len(MAGIC) + 16  # where the header begins


def exported(model: str = "m", salt: str = "tenant", layout=LAYOUT, firsts=FIRSTS, tokens=TOKENS) -> bytes:
    pages = [bytes([i]) * layout.page_bytes for i in range(sum(len(tokens) // layout.page_size - f for f in firsts))]
    return write_export(model, layout, salt, tokens, firsts, [*pages, b"s" * layout.row_bytes])


def read(data: bytes) -> export.Exported:
    return read_export(data, "m", LAYOUT, MANAGER.firsts_at)


def header_of(data: bytes) -> dict:
    return msgspec.msgpack.decode(data[HEAD : HEAD + int.from_bytes(data[HEAD - 12 : HEAD - 8], "little")])


def with_header(data: bytes, header: object) -> bytes:
    """The same with another header, as a program that means harm would write it."""
    encoded, size = msgspec.msgpack.encode(header), len(msgspec.msgpack.encode(header_of(data)))
    body = data[HEAD + size : -16]
    total = HEAD + len(encoded) + len(body) + 16
    whole = data[: HEAD - 12] + len(encoded).to_bytes(4, "little") + total.to_bytes(8, "little") + encoded + body
    return whole + blake2b(whole, digest_size=16).digest()


def test_what_is_written_is_read():
    found = read(exported())
    assert [key.digest for key in found.keys] == [key.digest for key in chain(root_key("tenant"), TOKENS, 4)]
    assert [[page[0] for page in table] for table in found.pages] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13],
        [14, 15],
    ]
    assert {len(page) for table in found.pages for page in table} == {LAYOUT.page_bytes}
    assert bytes(found.snapshot) == b"s" * LAYOUT.row_bytes
    assert with_header(exported(), header_of(exported())) == exported()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (exported(model="other"), "model 'm' here, got 'other'"),
        (exported(layout=make_layout(4, window=7, snapshots=3)), "groups"),
        (exported(layout=dataclasses.replace(LAYOUT, page_size=2)), "page_size 4 here, got 2"),
        (exported(firsts=(0, 0)), r"first pages \[0, 0, 0, 2, 2\] here, got \[0, 0\]"),
        (exported(firsts=(0, 0, 0, 0, 2)), r"first pages \[0, 0, 0, 2, 2\] here"),
        (exported(tokens=[*TOKENS, 16]), "number of tokens 16 here, got 17"),
        (with_header(exported(), header_of(exported()) | {"tokens": []}), "number of tokens 4 here, got 0"),
        (with_header(exported(), header_of(exported()) | {"tokens": [9, *TOKENS[1:]]}), "digest"),
        (with_header(exported(), header_of(exported()) | {"salt": "other"}), "digest"),
        (with_header(exported(), header_of(exported()) | {"tokens": [-1, *TOKENS[1:]]}), "readable header"),
        (with_header(exported(), header_of(exported()) | {"groups": NESTED}), "readable header"),
        (with_header(exported()[:-16] + bytes(17), header_of(exported())), "number of bytes of pages"),
        (exported()[:-1], "number of bytes"),
        (exported()[:-20] + b"1" + exported()[-19:], "as it was written"),
        (exported()[:30], "begin with its format's name"),
        (b"something else", "begin with its format's name"),
        (b"", "begin with its format's name"),
    ],
)
def test_what_is_another_s_or_torn_is_refused_by_name(data, message):
    with pytest.raises(ConfigError, match=message):
        read(data)


def test_another_version_is_refused_before_anything_else_is_read(monkeypatch):
    monkeypatch.setattr(export, "VERSION", 2)
    newer = exported(model="other")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="version 1 here, got 2"):
        read(newer + b"and more")


@settings(max_examples=150)
@given(st.data())
def test_any_damage_is_refused(data):
    """Whatever is cut, changed or put in."""
    whole = exported()
    start = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, HEAD + 200))
    end = data.draw(st.integers(start, min(start + 40, len(whole))) | st.just(len(whole)))
    damaged = whole[:start] + data.draw(st.binary(max_size=40)) + whole[end:]
    if damaged != whole:
        with pytest.raises(ConfigError):
            read(damaged)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=9) | st.binary(max_size=16),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@settings(max_examples=40)
@given(st.sampled_from(sorted(header_of(exported()))), VALUES | st.lists(st.integers(0, 20), max_size=17))
def test_a_header_that_was_written_to_do_harm_is_refused_or_names_the_same_pages(field, value):
    try:
        found = read(with_header(exported(), header_of(exported()) | {field: value}))
    except ConfigError:
        return
    assert found == read(exported()), "what is taken in is what the tokens say"
