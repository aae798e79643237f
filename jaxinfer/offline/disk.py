"""Small files on disk that are there whole or not at all, and a folder that one process has for itself."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from jaxinfer.errors import ConfigError, file_fault

LOCK = "lock"  # in a folder that is a server's
NEW = ".new"  # what a file that is being written ends in


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path`, and survives a power cut, when this ends well."""
    new = path.with_name(path.name + NEW)
    try:
        with new.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class OwnFolder:
    """A folder that this process has for itself, until it is closed. Made for this user alone if it is not there."""

    def __init__(self, path: Path, flag: str) -> None:
        """flag: that named it. Raises ConfigError."""
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (path / LOCK).exists() and any(path.iterdir()):  # what we do not know in it would be deleted
                raise ConfigError(f"{flag} must be an empty folder or a server's own, {path} is neither; name another")
            self._lock = (path / LOCK).open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise ConfigError(
                f"{flag} must be one server's own, another one has {path}; name another folder"
            ) from error
        except OSError as error:
            raise ConfigError(f"{file_fault('write', path, error)}; name another folder for {flag}") from error

    def close(self) -> None:
        """Let other processes have it."""
        self._lock.close()
