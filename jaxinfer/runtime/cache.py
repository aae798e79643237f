"""Compiled executables on disk, so that a second start neither traces nor compiles.

Loading an executable can run code, so the directory is ours alone: created 0700, its owner checked, and nobody else
allowed to write to it. A file that is cut short or altered is a miss. No jax here.
"""

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jaxinfer.errors import ConfigError

logger = logging.getLogger(__name__)

_DIGEST_BYTES = 32
_SUFFIX = ".executable"
_PARTIAL = f"{_SUFFIX}.partial"  # of a file that is being written
PARTIAL_S = 86400.0  # then whoever wrote it was killed
MAX_BYTES = 4 * 2**30


def default_cache_dir() -> Path:
    """Where compiled steps go unless compile_cache_dir says otherwise."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "jaxinfer" / "executables"


class ExecutableCache:
    """Payloads by key in one directory; the oldest leave when they take more than `max_bytes` together.

    Invariant: a payload returned by `load` is byte for byte one that `store` was given, by this user.
    """

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        """Create the directory if need be. Raises ConfigError if others own it or may write to it; OSError."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(directory)
        self.directory = directory
        self._max_bytes = max_bytes

    def load(self, key: str) -> bytes | None:
        """The payload stored under `key`, or None."""
        path = self._path(key)
        try:
            content = path.read_bytes()
            os.utime(path)  # so that the oldest files are those longest unused
        except OSError:
            return None
        digest, payload = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() != digest:
            logger.warning("compile cache: %s is damaged; compiling again", path)
            return None
        return payload

    def store(self, key: str, payload: bytes) -> None:
        """Keep the payload; a disk that will not take it costs a warning and the next start's time, nothing else."""
        try:
            with tempfile.NamedTemporaryFile(dir=self.directory, suffix=_PARTIAL, delete_on_close=False) as file:
                file.write(hashlib.sha256(payload).digest() + payload)
                file.close()
                os.replace(file.name, self._path(key))  # what has its name no longer stays; else it goes
            self._prune()
        except OSError as error:
            logger.warning("compile cache: %s cannot be written (%s); the next start compiles again", key, error)

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_SUFFIX}"

    def _prune(self) -> None:
        for partial, status in self._files(_PARTIAL):
            if time.time() - status.st_mtime > PARTIAL_S:
                partial.unlink(missing_ok=True)
        files = [(status, path) for path, status in self._files(_SUFFIX)]
        files.sort(key=lambda item: item[0].st_mtime)
        excess = sum(status.st_size for status, _ in files) - self._max_bytes
        for status, path in files:
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= status.st_size

    def _files(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        """Those that end so; what another process takes away meanwhile is none."""
        for path in self.directory.glob(f"*{suffix}"):
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()


def open_cache(setting: str | None) -> ExecutableCache | None:
    """The cache that EngineConfig.compile_cache_dir asks for: None is the user's own directory, "" is off.

    Raises ConfigError for a directory that is not private, or that was named and cannot be made.
    """
    if setting == "":
        return None
    directory = default_cache_dir() if setting is None else Path(setting).expanduser()
    try:
        return ExecutableCache(directory)
    except OSError as error:
        message = f"compile_cache_dir must be a directory that can be written, got {directory} ({error.strerror})"
        if setting is not None:
            raise ConfigError(f'{message}; name another, or "" to do without') from error
        logger.warning("%s; every start compiles anew. Set compile_cache_dir to change that", message)
        return None


def _check_private(directory: Path) -> None:
    status = directory.stat()
    if status.st_uid != os.getuid():
        fact = f"{directory} belongs to user {status.st_uid}, not to you ({os.getuid()})"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        fact = f"others may write to {directory} (mode {stat.S_IMODE(status.st_mode):o})"
    else:
        return
    raise ConfigError(
        f"compile_cache_dir must be yours alone, since loading a compiled step can run code, but {fact}; "
        f"name another directory, or empty it and run `chmod 700 {directory}`"
    )
