"""`jaxinfer ps`: this user's running servers on this machine."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jaxinfer.cli.options import GroupedCommand

if TYPE_CHECKING:
    from jaxinfer.server.presence import Presence

PATIENCE_S = 2.0
HEAD = ("ADDRESS", "MODEL", "PID", "UP", "STATE", "RUNNING", "WAITING", "PAGES")


def run() -> int:
    """Print a line for each."""
    rows = list(_rows())
    for line in aligned([HEAD, *rows]) if rows else ["no server of yours is running here"]:
        click.echo(line)
    return 0


def _rows() -> Iterator[tuple[str, ...]]:
    from jaxinfer.server.presence import sockets

    for path in sockets():
        try:
            found = ask(path)
        except ConnectionRefusedError:  # its process is gone, and could not tidy up
            path.unlink(missing_ok=True)
        except (TimeoutError, BlockingIOError):  # the second when many have asked in vain
            yield "?", "?", path.stem, "?", f"no answer in {PATIENCE_S:g} s", "?", "?", "?"
        else:
            if found is not None:
                yield row(found)


def ask(path: Path) -> "Presence | None":
    """What the server behind a socket says; None when it ends just now. Raises ConnectionRefusedError, TimeoutError."""
    import msgspec

    from jaxinfer.server.presence import Presence

    answer = b""
    with contextlib.suppress(FileNotFoundError, ConnectionResetError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        while part := connection.recv(65536):
            answer += part
    return msgspec.json.decode(answer, type=Presence) if answer else None


def row(found: "Presence") -> tuple[str, ...]:
    """One server's line."""
    pages = f"{found.pages_owned}/{found.pages_total}" if found.pages_total else "-"
    up = duration(found.uptime_s)
    counts = str(found.running), str(found.waiting)
    return (found.url, found.model, str(found.pid), up, found.status, *counts, pages)


def duration(seconds: float) -> str:
    """The two largest parts: 3d 4h, 5m 6s."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size or parts or unit == "s":
            parts.append(f"{left // size}{unit}")
        left %= size
    return " ".join(parts[:2])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """In columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


command = GroupedCommand(
    "ps",
    run,
    help="Show your running servers on this machine: where, what, since when, and how busy.",
)
