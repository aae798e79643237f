"""The cache on disk: private, whole or not there, bounded."""

import errno
import os
from pathlib import Path

import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.runtime.cache import ExecutableCache, default_cache_dir, open_cache


def test_what_was_stored_is_loaded(tmp_path: Path) -> None:
    cache = ExecutableCache(tmp_path / "new" / "folder")
    cache.store("a", b"payload")
    assert cache.load("a") == b"payload"
    assert cache.load("b") is None
    assert ExecutableCache(tmp_path / "new" / "folder").load("a") == b"payload"


def test_the_folder_and_its_files_are_for_their_owner_only(tmp_path: Path) -> None:
    cache = ExecutableCache(tmp_path / "cache")
    cache.store("a", b"payload")
    assert cache.directory.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in cache.directory.iterdir())


@pytest.mark.parametrize("spoil", ["cut", "flip", "empty"])
def test_a_damaged_file_is_a_miss(tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture) -> None:
    cache = ExecutableCache(tmp_path / "cache")
    cache.store("a", b"payload")
    (path,) = cache.directory.iterdir()
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-1], "flip": content[:-1] + b"?", "empty": b""}[spoil])
    assert cache.load("a") is None
    assert "damaged" in caplog.text


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"yours alone.*mode {mode:o}.*chmod 700"):
        ExecutableCache(tmp_path)


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=rf"belongs to user {owner}, not to you \({owner + 1}\)"):
        ExecutableCache(tmp_path)


def test_the_longest_unused_leave_when_room_runs_out(tmp_path: Path) -> None:
    cache = ExecutableCache(tmp_path / "cache", max_bytes=3 * (100 + 32))
    for age, key in enumerate("abc"):
        cache.store(key, key.encode() * 100)
        os.utime(cache.directory / f"{key}.executable", (age, age))
    cache.load("a")
    cache.store("d", b"d" * 100)
    assert [key for key in "abcd" if cache.load(key)] == ["a", "c", "d"]


def test_a_disk_that_takes_nothing_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ExecutableCache(tmp_path / "cache")
    cache.directory.rmdir()
    cache.store("a", b"payload")
    assert cache.load("a") is None
    assert "cannot be written" in caplog.text


def test_a_full_disk_keeps_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = ExecutableCache(tmp_path / "cache")
    monkeypatch.setattr(os, "replace", full)
    cache.store("a", b"payload")
    assert list(cache.directory.iterdir()) == []


def test_what_a_killed_process_left_half_written_leaves_after_a_day_and_nothing_else_does(tmp_path: Path) -> None:
    cache = ExecutableCache(tmp_path / "cache")
    old, new, foreign = (cache.directory / name for name in ("x.executable.partial", "y.executable.partial", "tmp_z"))
    for path in (old, new, foreign):
        path.write_bytes(b"half")
    for path in (old, foreign):
        os.utime(path, (0, 0))
    cache.store("a", b"payload")
    assert set(cache.directory.iterdir()) == {new, foreign, cache.directory / "a.executable"}


class TestOpen:
    def test_the_empty_text_is_off(self) -> None:
        assert open_cache("") is None

    def test_none_is_the_users_own_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        cache = open_cache(None)
        assert cache is not None
        assert cache.directory == default_cache_dir() == tmp_path / "jaxinfer" / "executables"

    def test_a_named_folder_that_cannot_be_made_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match=r"compile_cache_dir must be a directory.*name another"):
            open_cache(str(tmp_path / "file" / "cache"))

    def test_an_own_folder_that_cannot_be_made_is_done_without(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert open_cache(None) is None
        assert "every start compiles anew" in caplog.text
