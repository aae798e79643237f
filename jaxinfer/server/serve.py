"""Serving an app on a port until SIGTERM or Ctrl-C, letting running answers finish first."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from jaxinfer.config import counted
from jaxinfer.errors import ConfigError, JaxInferError, PortInUse
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.running import Running
from jaxinfer.server.systemd import notify
from jaxinfer.server.tls import Tls
from jaxinfer.server.wire import BoundedProtocol

logger = logging.getLogger("jaxinfer.server")

_LINGER_S = 2.0
_SWITCH_S = 0.001  # until a thread that parses or tokenizes must let the event loop in; Python's own 5 ms are too long
_FLUSH_S = 5  # after the drain: how long slow readers may take for what is already written
_HURRY_S = 1.0  # after a second signal: how long running answers may take for their last event


def run_server(
    app: Starlette,
    host: str,
    port: int,
    drain_timeout_s: float = 30.0,
    start: Callable[[], Awaitable[None]] | None = None,
    on_bound: Callable[[str, int], None] | None = None,
    until_failed: Callable[[], Awaitable[None]] | None = None,
    tls: Tls | None = None,
) -> int:
    """Serve until a signal; returns the exit code: 0 after a drain, 1 when a second signal cut it short.

    The port is bound before anything else, so that clients get a 503 with Retry-After while `start`, run in the
    server's loop, loads the model; what it raises ends the server and is raised here. Port 0 takes a free one;
    on_bound is told which. until_failed: awaited beside the serving; what it raises ends the server _LINGER_S later,
    so that clients get their 503, and is raised here. tls: HTTPS instead of HTTP. Raises ConfigError when the port
    cannot be had.
    """
    listener = bind(host, port)
    if on_bound is not None:
        on_bound(host, listener.getsockname()[1])
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,  # longer than the 60 s of common proxies, so that they, not we, close idle connections
        timeout_graceful_shutdown=_FLUSH_S,
        backlog=2048,
        ssl_certfile=None if tls is None else tls.certfile,
        ssl_keyfile=None if tls is None else tls.keyfile,
    )
    sys.setswitchinterval(_SWITCH_S)
    server = _DrainingServer(config, app.state.llm, app.state.running, drain_timeout_s, start, until_failed)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
    if server.start_error is not None:
        raise server.start_error
    logger.info("stopped")
    return 1 if server.force_exit else 0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError when the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise wrong_host(host, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)  # now, not when the loop runs: early clients wait in the backlog
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(port) from error
        if error.errno == errno.EACCES:
            law = "port must be one that this user may open, mostly from 1024"
            raise ConfigError(f"{law}, got {port}: {error.strerror}; pass another --port") from error
        raise wrong_host(host, error) from error
    return listener


def wrong_host(host: str, error: OSError) -> ConfigError:
    """Of an address that is not of this machine."""
    cure = "pass --host 127.0.0.1 for this machine alone, or --host 0.0.0.0 for its network"
    return ConfigError(f"--host must be an address of this machine, got {host!r}: {error.strerror}; {cure}")


class _DrainingServer(uvicorn.Server):
    """uvicorn, but the first signal drains and goes on answering 503; the second ends every answer, and a third all."""

    def __init__(
        self,
        config: uvicorn.Config,
        llm: AsyncLLM,
        running: Running,
        drain_timeout_s: float,
        start: Callable[[], Awaitable[None]] | None,
        until_failed: Callable[[], Awaitable[None]] | None,
    ) -> None:
        super().__init__(config)
        self.start_error: BaseException | None = None
        self._llm = llm
        self._running = running
        self._drain_timeout_s = drain_timeout_s
        self._start = start
        self._until_failed = until_failed
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._hurrying: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self._start is not None:
            self._starting = asyncio.create_task(self._run_start(self._start))
        if self._until_failed is not None:
            self._watching = asyncio.create_task(self._watch(self._until_failed))

    async def _watch(self, until_failed: Callable[[], Awaitable[None]]) -> None:
        try:
            await until_failed()
        except JaxInferError as error:
            await asyncio.sleep(_LINGER_S)
            self.start_error = error
            self.should_exit = True

    async def _run_start(self, start: Callable[[], Awaitable[None]]) -> None:
        try:
            await start()
        except Exception as error:
            self.start_error = error
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's signal handler. It may run between any two bytecodes, so it only posts to the loop."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._on_signal, signal.Signals(sig).name)

    def _on_signal(self, name: str) -> None:
        if self._draining is None:
            under_way = self.server_state.tasks
            count = counted(len(under_way), "answer")
            rest = f" after {count}, within {self._drain_timeout_s:g} s; a second signal ends them now"
            logger.info("%s: stopping%s", name, rest if under_way else "")
            notify("STOPPING=1")
            self._draining = asyncio.create_task(self._drain())
        elif self._hurrying is None:
            logger.info("%s: ending the answers under way", name)
            self._hurrying = asyncio.create_task(self._hurry())
        else:
            self.should_exit = self.force_exit = True

    async def _hurry(self) -> None:
        """Abort what runs and let each answer say so, by an error."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HURRY_S):
                    self._running.cut_off()
                    await self._llm.drain(0.0)
                    self._running.refuse_unanswered()
                    while self.server_state.tasks:
                        await asyncio.sleep(0.01)
        finally:
            self.should_exit = self.force_exit = True

    async def _drain(self) -> None:
        try:
            if self._starting is not None and not self._starting.done():
                self._starting.cancel()  # nothing runs yet: there is nothing to wait for
            else:
                await self._llm.drain(self._drain_timeout_s, self._running.until_answered())
                self._running.refuse_unanswered()
        except Exception:
            logger.exception("draining failed; running answers are cut off")
        finally:
            self.should_exit = True
