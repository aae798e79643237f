"""The export format: what is written is read, and what is another's is refused by name."""

import dataclasses

import msgspec
import pytest

from jaxinfer.cache import export
from jaxinfer.cache.export import read_header, write_header
from jaxinfer.cache.prefix import chain, root_key
from jaxinfer.errors import ConfigError
from tests.engine.hybrid import make_layout

LAYOUT = make_layout(page_size=4, window=6, snapshots=3)
TOKENS = list(range(18))  # four pages and a half


def exported(model: str = "m", salt: str = "tenant", layout=LAYOUT, firsts=(0, 0, 0, 2, 2)) -> bytes:
    header = write_header(model, layout, salt, TOKENS, firsts, has_snapshot=True)
    return header + bytes((3 * 4 + 2 * 2) * layout.page_bytes + layout.row_bytes)


def test_what_is_written_is_read():
    header, keys, start = read_header(exported(), "m", LAYOUT)
    assert (header.tokens, header.firsts, header.num_pages, header.has_snapshot) == (
        TOKENS[:16],
        [0, 0, 0, 2, 2],
        16,
        True,
    )
    assert [key.digest for key in keys] == [key.digest for key in chain(root_key("tenant"), TOKENS, 4)]
    assert len(exported()) - start == 16 * LAYOUT.page_bytes + LAYOUT.row_bytes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (exported(model="other"), "model 'm' here, got 'other'"),
        (exported(layout=make_layout(4, window=7, snapshots=3)), "groups"),
        (exported(layout=dataclasses.replace(LAYOUT, page_size=2)), "page_size 4 here, got 2"),
        (exported(firsts=(0, 0)), "number of tables 5 here, got 2"),
        (exported()[:-1], "bytes behind the header"),
        (exported()[:30], "readable header"),
        (b"something else", "begin with its format's name"),
        (exported().replace(msgspec.msgpack.encode(TOKENS[:16]), msgspec.msgpack.encode([9, *TOKENS[1:16]])), "digest"),
    ],
)
def test_what_is_another_s_or_torn_is_refused_by_name(data, message):
    with pytest.raises(ConfigError, match=message):
        read_header(data, "m", LAYOUT)


def test_another_version_is_refused_before_anything_else_is_read(monkeypatch):
    monkeypatch.setattr(export, "VERSION", 2)
    newer = exported(model="other")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="version 1 here, got 2"):
        read_header(newer, "m", LAYOUT)
