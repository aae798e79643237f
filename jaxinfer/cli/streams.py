"""The standard streams of the command line: what is closed, full or read by nobody is told once, for every verb."""

import errno
import io
import os
import sys
from collections.abc import Buffer

from jaxinfer.errors import OutputClosed, OutputError

_CLOSED = {0: os.O_WRONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}  # of /dev/null, by descriptor


class StandardOutput(io.FileIO):
    """A descriptor whose failed writes are errors of standard output, so that nobody takes them for errors of a server
    or of a file.
    """

    def write(self, content: Buffer, /) -> int:
        try:
            return super().write(content)
        except BrokenPipeError as error:
            raise OutputClosed("the program that reads standard output has ended") from error
        except OSError as error:
            fault = "it is closed" if error.errno == errno.EBADF else error.strerror
            cure = _CURES.get(error.errno or 0, _CURE)
            raise OutputError(f"cannot write to standard output: {fault}; {cure}") from error


_CURE = "send it elsewhere, as with > FILE"
_CURES = {errno.ENOSPC: "make room, or send it elsewhere", errno.EDQUOT: "make room, or send it elsewhere"}


def guard_streams() -> None:
    """Put a StandardOutput in the place of sys.stdout, and streams in the place of those that were closed.

    A closed standard input is an empty one, and nobody is told what goes to a closed standard error. A closed standard
    output keeps its descriptor, which otherwise the next file or socket would get.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _occupy_closed()
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 it lives as long as the program
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", errors="backslashreplace")  # noqa: SIM115 as above
    if sys.stdout is sys.__stdout__:
        sys.stdout = guarded(1)


def _occupy_closed() -> None:
    """Open /dev/null at each of the three descriptors that is closed, so that its use fails as that of a closed one."""
    for descriptor, mode in _CLOSED.items():
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, mode)  # the lowest that is free: this one
            assert opened == descriptor, f"descriptor {descriptor} is closed, /dev/null was opened as {opened}"


def guarded(descriptor: int) -> io.TextIOWrapper:
    """A text stream over a StandardOutput, with the encoding of Python's own. A character that the encoding has not,
    as half of a surrogate pair in a JSON file, is written as its escape, as on Python's standard error.
    """
    raw = StandardOutput(descriptor, "w", closefd=False)
    encoding = sys.stdout.encoding if sys.stdout is not None else None
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=raw.isatty())


def drop_output() -> None:
    """Forget what could not be written, so that Python does not try it again when it ends."""
    if isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stdout.buffer, io.BufferedWriter):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
