"""How `jaxinfer ps` finds servers: each says what it does on a socket, in a folder that is its user's alone.

A socket takes connections as long as its process lives, and no longer, however that ended: one that refuses them is a
leftover.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from jaxinfer.llm.async_llm import AsyncLLM

logger = logging.getLogger("jaxinfer.server")


@dataclasses.dataclass(frozen=True, slots=True)
class Presence:
    """A server at one moment. status: of AsyncLLM, or "stalled", or "compiling" while requests are refused until all is
    compiled.    pages_*: 0 until the model is there.

    model: its first served name, once it is known; names has all.    source: the folder, with its whole path, or the
    id it is from.
    """

    pid: int
    url: str
    model: str
    uptime_s: float
    status: str
    running: int = 0
    waiting: int = 0
    pages_owned: int = 0
    pages_total: int = 0
    source: str = ""
    names: tuple[str, ...] = ()


def folder() -> Path:
    """Where the sockets of this user are; it need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "jaxinfer") if runtime else Path(tempfile.gettempdir(), f"jaxinfer-{os.getuid()}")


def is_ours(path: Path) -> bool:
    """Whether it is a folder that nobody else can have put anything into."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


async def announce(llm: AsyncLLM, url: str, stall_timeout_s: float, *, serve_early: bool = False) -> None:
    """Answer whoever connects, until this is cancelled. A folder that cannot be had costs a line in the log.

    serve_early: of ServerSettings.
    """
    began_s, path = time.monotonic(), folder() / f"{os.getpid()}.sock"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            found = _presence(llm, url, time.monotonic() - began_s, _status(llm, stall_timeout_s, serve_early))
            writer.write(msgspec.json.encode(found))
            await writer.drain()

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_ours(path.parent):
            raise PermissionError("it must be a folder of yours that others cannot enter")
        server = await asyncio.start_unix_server(answer, sock=_listen(path))
    except OSError as error:
        logger.warning("`jaxinfer ps` will not show this server, %s cannot be had: %s", path, error)
        return
    try:
        await server.serve_forever()
    finally:
        path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    """A socket that has its name only once it takes connections, lest it be taken for a leftover."""
    listener, unnamed = socket.socket(socket.AF_UNIX), path.with_suffix(".new")
    try:
        unnamed.unlink(missing_ok=True)
        listener.bind(str(unnamed))
        listener.listen()
        unnamed.rename(path)
    except BaseException:
        listener.close()
        raise
    return listener


def _status(llm: AsyncLLM, stall_timeout_s: float, serve_early: bool) -> str:
    if llm.stalled_s > stall_timeout_s:
        return "stalled"
    return "compiling" if llm.status == "serving" and not serve_early else llm.status


def _presence(llm: AsyncLLM, url: str, uptime_s: float, status: str) -> Presence:
    presence = Presence(os.getpid(), url, llm.config.model, uptime_s, status, source=_source(llm.config.model))
    if llm.status in ("starting", "failed"):
        return presence
    stats = llm.stats()
    return dataclasses.replace(
        presence,
        model=llm.info.served_names[0],
        names=llm.info.served_names,
        running=stats.running,
        waiting=stats.waiting,
        pages_owned=stats.pages_owned,
        pages_total=stats.pages_total,
    )


def _source(model: str) -> str:
    folder = os.path.expanduser(model)
    return os.path.realpath(folder) if model != "demo" and os.path.isdir(folder) else model


def sockets() -> Iterator[Path]:
    """Those in the folder, leftovers included."""
    if is_ours(folder()):
        yield from sorted(folder().glob("*.sock"))
