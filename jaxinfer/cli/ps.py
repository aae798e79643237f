"""`jaxinfer ps`: this user's running servers on this machine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from jaxinfer.bench.report import columns_of
from jaxinfer.cli.options import GroupedCommand
from jaxinfer.cli.servers import PATIENCE_S, found_servers

if TYPE_CHECKING:
    from jaxinfer.server.presence import Presence

HEAD = ("ADDRESS", "MODEL", "PID", "UP", "STATE", "RUNNING", "WAITING", "PAGES")


def run() -> int:
    """Print a line for each."""
    rows = list(_rows())
    click.echo(columns_of(HEAD, rows) if rows else "no server of yours is running here")
    return 0


def _rows() -> Iterator[tuple[str, ...]]:
    for found in found_servers():
        if found.presence is None:
            yield "?", "?", found.path.stem, "?", f"no answer in {PATIENCE_S:g} s", "?", "?", "?"
        else:
            yield row(found.presence)


def row(found: "Presence") -> tuple[str, ...]:
    """One server's line."""
    pages = f"{found.pages_owned}/{found.pages_total}" if found.pages_total else "-"
    up = duration(found.uptime_s)
    counts = str(found.running), str(found.waiting)
    names = ", ".join(found.names or (found.model,))
    return (found.url, names, str(found.pid), up, found.status, *counts, pages)


def duration(seconds: float) -> str:
    """The two largest parts: 3d 4h, 5m 6s."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size or parts or unit == "s":
            parts.append(f"{left // size}{unit}")
        left %= size
    return " ".join(parts[:2])


command = GroupedCommand(
    "ps",
    run,
    help="Show your running servers on this machine: where, what, since when, and how busy.",
)
