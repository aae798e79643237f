"""`jaxinfer stop`: end a server of this user; its running answers are finished first."""

import os
import select
import signal
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from jaxinfer.cli.checklist import QUIET_OPTION, screen_for
from jaxinfer.cli.options import GroupedCommand
from jaxinfer.config import counted
from jaxinfer.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from jaxinfer.server.presence import Presence

TICK_S = 0.5


def run(target: str | None, quiet: bool) -> int:
    """Ask the server to end, and wait until it has."""
    found = chosen(target)
    if sys.platform != "linux":
        raise ConfigError(f"stop needs Linux, got {sys.platform}; run `kill {found.pid}`")
    which = f"{found.model} at {found.url} (pid {found.pid})"
    num_answers = found.running + found.waiting
    answers = f", after {counted(num_answers, 'answer')}" if num_answers else ""
    screen = screen_for(sys.stderr, {"quiet": quiet})
    try:
        process = os.pidfd_open(found.pid)  # the number could mean another process by the time it has ended
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
            screen.say(f"stopping {which}{answers}")
            while not select.select([process], [], [], TICK_S)[0]:
                screen.show(f"waiting for {which}; Ctrl-C leaves it to end by itself")
        finally:
            os.close(process)
    except ProcessLookupError:
        screen.say(f"{which} ended by itself")
    except PermissionError as error:
        raise EngineError(f"{which} may not be stopped by this user; ask its owner") from error
    finally:
        screen.close()
    if not quiet:
        click.echo(f"stopped {which}")
    return 0


def chosen(target: str | None) -> "Presence":
    """The one server that a name, an address or a port means. Raises ConfigError."""
    from jaxinfer.cli.servers import found_servers

    servers = list(found_servers())
    running = [found.presence for found in servers if found.presence is not None]
    matching = [found for found in running if target is None or means(target, found)]
    if len(matching) == 1:
        return matching[0]
    known = ", ".join(f"{found.model} at {found.url}" for found in running) or "none"
    if matching:
        raise ConfigError(f"stop needs one server, {len(matching)} match: {known}; name one by its address")
    if silent := [found.silence for found in servers if found.presence is None]:
        which = "" if target is None else f" is {target!r}"
        raise ConfigError(f"no server of yours that answers{which}, running: {known}; {'; '.join(silent)}")
    if target is None:
        raise ConfigError("no server of yours runs here; there is nothing to stop")
    cure = "name one of them" if running else "there is nothing to stop"
    raise ConfigError(f"no server of yours is {target!r}, running: {known}; {cure}")


def means(target: str, found: "Presence") -> bool:
    """Whether a text names a server: its model, its address with or without http:// and /v1, or its port."""
    from jaxinfer.cli.servers import serves

    parts = urlsplit(found.url)
    address = (
        target.rstrip("/").removesuffix("/v1").removeprefix(f"{parts.scheme}://").replace("localhost", "127.0.0.1")
    )
    return serves(found, target) or address == parts.netloc or target.removeprefix(":") == str(parts.port)


command = GroupedCommand(
    "stop",
    run,
    [click.Argument(["target"], required=False, metavar="[SERVER]"), QUIET_OPTION],
    help="Stop a server of yours on this machine. Running answers are finished first. SERVER is the server's model, "
    "address or port, as `jaxinfer ps` shows them. You may leave SERVER out if one server runs.",
)
