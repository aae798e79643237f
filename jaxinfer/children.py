"""Programs of ours beside this one. Each imports what this process does and nothing of the folder it is started in."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping


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
    with theirs:
        try:
            with _ctrl_c_blocked():
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
    return process, ours


def start_with_pipes(module: str) -> "subprocess.Popen[bytes]":
    """`python -m MODULE` with pipes to its standard input and output. Raises OSError.

    It begins with SIGINT blocked: whoever started it ends it, also by being gone if it calls `end_with_parent`.
    """
    command, pipe = python("-m", module), subprocess.PIPE
    with _ctrl_c_blocked():
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment())


@contextlib.contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """For a program that starts within. A Ctrl-C that comes before the program says what it does about it waits,
    instead of ending its imports.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_with_parent() -> None:
    """End this process, at any moment, when its standard input is a pipe that nobody can write any more: the program
    that started it is gone, however that ended.
    """
    pipe = select.poll()
    pipe.register(sys.stdin, 0)  # a hang-up is told all the same, and what is there to read is left

    def watch() -> None:
        pipe.poll()
        os._exit(0)

    threading.Thread(target=watch, name="jaxinfer-parent", daemon=True).start()


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
