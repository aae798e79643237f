"""A file that a user names is a regular one of a size that its purpose has, or is refused before it is read."""

import os

import pytest

from jaxinfer.bench.report import read_json
from jaxinfer.cli.conversation import read_saved
from jaxinfer.cli.protection import _pairs_of as read_keys
from jaxinfer.config import config_from_sources
from jaxinfer.errors import ConfigError
from jaxinfer.files import MAX_BYTES, check_file, read_file, read_text
from jaxinfer.offline.texts import check_text_file
from jaxinfer.server.tls import Tls
from jaxinfer.text.chat_template import ChatTemplate
from tests.support.attempts import Stopwatch

READERS = {
    "settings": lambda path: config_from_sources(str(path)),
    "keys": read_keys,
    "a conversation": read_saved,
    "a report": lambda path: read_json(str(path)),
    "a certificate": lambda path: Tls(str(path)),
    "a template": lambda path: ChatTemplate.from_folder(path.parent, path),
    "a text": lambda path: check_text_file(path),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["absent", "folder", "pipe", "device", "huge"])
def test_what_is_no_file_of_sensible_size_is_refused_at_once(tmp_path, read, kind):
    path = tmp_path / "named.txt"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "huge":
            path.touch()
            os.truncate(path, 2**41)  # a hole: no disk is used
    watch = Stopwatch()
    with pytest.raises(ConfigError) as refusal:
        read(path)
    assert watch.seconds() < 1
    said = {"absent": "file not found: ", "huge": " must have at most "}
    words = said.get(kind, f"must be a regular file, it is a {kind}")
    assert words in str(refusal.value) and str(path) in str(refusal.value)
    assert "; name " in str(refusal.value), "what to do"


def test_what_a_file_holds_is_bounded_by_what_is_read_too(tmp_path):
    with pytest.raises(ConfigError, match="must have at most 0 MiB"):
        read_file("/proc/self/maps", most_bytes=10)  # whose size is said to be 0
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfx")
    assert (read_file(tmp_path / "a"), read_text(tmp_path / "a")) == (b"\xef\xbb\xbfx", "x")
    (tmp_path / "a").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"cannot read .*a \(--flag\): it is no UTF-8 text; convert it"):
        read_text(tmp_path / "a", "--flag")
    with pytest.raises(ConfigError, match="null"):
        check_file("a\0b")
    check_file(tmp_path / "a", most_bytes=1)
    assert MAX_BYTES >= 2**20


def test_a_pipe_that_a_shell_has_opened_is_read_up_to_the_bound():
    for content, is_read in ((b"secret", True), (b"x" * 11, False)):
        out, into = os.pipe()
        os.write(into, content)
        os.close(into)
        if is_read:
            assert read_file(f"/dev/fd/{out}", most_bytes=10) == content
        else:
            with pytest.raises(ConfigError, match="must have at most"):
                read_file(f"/dev/fd/{out}", most_bytes=10)
        os.close(out)
