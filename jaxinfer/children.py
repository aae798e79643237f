"""Programs of ours beside this one. Each imports what this process does and nothing of the folder it is started in."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping


def python(*arguments: str) -> list[str]:
    """The command of a Python program. -P: what lies in the current folder is nobody's module."""
    return [sys.executable, "-P", *arguments]


def environment() -> dict[str, str]:
    """This process's, in which the same packages are found, also those of a tree that was never installed."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def start(
    module: str, *arguments: str, variables: Mapping[str, str] | None = None, new_session: bool = False
) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """`python -m MODULE FD ARGUMENTS...`, FD being its end of a socket pair, and our end. Raises OSError.

    It begins with SIGINT blocked.    variables: of its environment, beside ours.    new_session: a signal of the
    terminal is not for it.
    """
    ours, theirs = socket.socketpair()
    # a Ctrl-C that comes before the program says what it does about it waits, instead of ending its imports
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with theirs:
        try:
            process = subprocess.Popen(
                python("-m", module, str(theirs.fileno()), *arguments),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment() | dict(variables or {}),
                start_new_session=new_session,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return process, ours


def send(end: socket.socket, message: bytes) -> None:
    """A message to the other end. Raises OSError."""
    end.sendall(len(message).to_bytes(4) + message)


def receive(end: socket.socket) -> bytes:
    """The next message. Raises OSError when none comes."""
    return _read(end, int.from_bytes(_read(end, 4)))


def _read(end: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = end.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("the other end is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
