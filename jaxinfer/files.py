"""Files that a user names: what is no regular file, or too large for its purpose, is refused before it is read."""

import os
import stat
from pathlib import Path

from jaxinfer.errors import ConfigError, file_fault

MAX_BYTES = 64 * 2**20  # of settings, keys, templates, prompts, a conversation: each is read whole
_OPEN = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


def check_file(path: str | Path, flag: str = "", most_bytes: int | None = MAX_BYTES) -> None:
    """Raise ConfigError unless a path names a regular file of at most `most_bytes`. Nothing is opened.

    flag: the option that named it.    most_bytes: None for a file that is read in pieces.
    """
    name = _named(path, flag)
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        raise ConfigError(f"file not found: {name}; name one that is there") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {name}: {reason}; name another file") from error
    if stat.S_ISFIFO(found.st_mode) and str(path).startswith(_OPEN):
        return  # what a shell makes of <(command); a named pipe may have nobody who writes
    if not stat.S_ISREG(found.st_mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(found.st_mode)), "a device")
        raise ConfigError(f"{name} must be a regular file, it is {kind}; name a file")
    if most_bytes is not None and found.st_size > most_bytes:
        sizes = f"{most_bytes / 2**20:,.0f} MiB, it has {found.st_size / 2**20:,.1f} MiB"
        raise ConfigError(f"{name} must have at most {sizes}; name a smaller file")


def read_file(path: str | Path, flag: str = "", most_bytes: int = MAX_BYTES) -> bytes:
    """What a regular file holds. Raises ConfigError as check_file does."""
    check_file(path, flag, most_bytes)
    try:
        with Path(path).open("rb") as file:
            content = file.read(most_bytes + 1)  # files of /proc have no size
    except OSError as error:
        raise ConfigError(f"{file_fault('read', _named(path, flag), error)}; name another file") from error
    if len(content) > most_bytes:
        raise ConfigError(f"{_named(path, flag)} must have at most {most_bytes / 2**20:,.0f} MiB; name a smaller file")
    return content


def read_text(path: str | Path, flag: str = "", most_bytes: int = MAX_BYTES) -> str:
    """A regular file's text in UTF-8, without a byte order mark. Raises ConfigError as check_file does."""
    try:
        return read_file(path, flag, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file_fault('read', _named(path, flag), error)}; convert it to UTF-8") from error


def check_target(path: str | Path, flag: str = "", *, is_new: bool = False) -> None:
    """Raise ConfigError unless a file can be written there later. Nothing is left, and what is there is not changed.

    By trying: permissions do not tell of a file system that takes no files, as /proc.    is_new: nothing may be there.
    """
    try:
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.unlink(path)
        except FileExistsError:
            if is_new:
                raise
            made = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads would be waited for
        os.close(made)
    except OSError as error:
        raise ConfigError(f"{file_fault('write', _named(path, flag), error)}; name another file") from error


def _named(path: str | Path, flag: str) -> str:
    return f"{path} ({flag})" if flag else f"{path}"
