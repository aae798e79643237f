"""This user's running servers on this machine, as `ps`, `stop`, `rm`, `chat` and `run` find them."""

import contextlib
import dataclasses
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jaxinfer.protocol.served_names import LATEST, spellings

if TYPE_CHECKING:
    from jaxinfer.server.presence import Presence

PATIENCE_S = 2.0
SOON_S = 0.3  # after which whoever waits is told for what


@dataclasses.dataclass(frozen=True, slots=True)
class FoundServer:
    """What is behind one socket. presence: None when it did not answer in time."""

    path: Path
    presence: "Presence | None"

    @property
    def silence(self) -> str:
        """What to do about a server that does not answer."""
        pid = self.path.stem
        cure = f"`kill -9 {pid}` if it is hung or stopped, else try again"
        return f"the server with pid {pid} has not answered in {PATIENCE_S:g} s; {cure}"


def found_servers() -> Iterator[FoundServer]:
    """Each server that lives; a socket that a killed server left is removed."""
    from jaxinfer.server.presence import sockets

    for path in sockets():
        try:
            presence = ask(path)
        except ConnectionRefusedError:  # its process is gone, and could not tidy up
            path.unlink(missing_ok=True)
        except (TimeoutError, BlockingIOError):  # the second when many have asked in vain
            yield FoundServer(path, None)
        else:
            if presence is not None:
                yield FoundServer(path, presence)


def presences() -> "list[Presence]":
    """The servers that answer."""
    return [found.presence for found in found_servers() if found.presence is not None]


def ask(path: Path) -> "Presence | None":
    """What the server behind a socket says; None when it ends just now. Raises ConnectionRefusedError, TimeoutError."""
    import msgspec

    from jaxinfer.server.presence import Presence

    answer, pid = b"", None
    with contextlib.suppress(FileNotFoundError, ConnectionResetError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SOON_S)
        connection.connect(str(path))
        pid = _pid_behind(connection)
        try:
            part = connection.recv(65536)
        except TimeoutError:
            say(f"waiting up to {PATIENCE_S:g} s for the server with pid {path.stem}, which does not answer")
            connection.settimeout(PATIENCE_S - SOON_S)
            part = connection.recv(65536)
        connection.settimeout(PATIENCE_S)
        while part:
            answer += part
            part = connection.recv(65536)
    if not answer:
        return None
    presence = msgspec.json.decode(answer, type=Presence)
    return presence if pid is None else dataclasses.replace(presence, pid=pid)


def say(line: str) -> None:
    """Unless the verb is to be quiet."""
    import click

    context = click.get_current_context(silent=True)
    if context is None or not context.params.get("quiet"):
        click.echo(line, err=True)


def _pid_behind(connection: socket.socket) -> int | None:
    """The process that listens, by the kernel's word; None where the system does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)  # Linux has it
    if option is None:
        return None
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return int(pid) or None  # 0: of another pid namespace


def serves(presence: "Presence", model: str) -> bool:
    """Whether a server has this model: by a name it is served under, with or without `:latest`, or by the folder or id
    it was loaded from.

    A folder of that name here is meant before a name: another folder's model may be served under it.
    """
    folder = os.path.realpath(os.path.expanduser(model))
    if model != "demo" and os.path.isdir(folder):
        return folder == presence.source
    names = (presence.model, *presence.names, presence.source)
    return any(each in names for each in spellings(model))


def without_latest(model: str) -> str:
    """The name of the demo without the tag that our routes for Ollama's clients add; every other name as it is."""
    return "demo" if model == f"demo{LATEST}" else model
