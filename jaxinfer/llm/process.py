"""The engine in a process of its own: what `serve` uses. A crash there is an on_failure here, and nothing else."""

import os
import socket
import subprocess
import sys
import threading

from jaxinfer.config import EngineConfig
from jaxinfer.engine.sequence import Message
from jaxinfer.errors import EngineError, JaxInferError
from jaxinfer.llm.events import OnEvent
from jaxinfer.llm.transport import Handshake, OnFailure, OnOutputs
from jaxinfer.llm.types import Stats
from jaxinfer.llm.wire import Channel, FromEngine, ToEngine

CHILD = ["-P", "-m", "jaxinfer.llm.child"]  # -P: what lies in the current folder is nobody's module
CLOSE_S = 5.0  # for the child to end after its socket has


class EngineProcess:
    """A child process with an engine. Invariant: on_failure is called at most once, and only after start returned."""

    restartable = True

    def __init__(self, config: EngineConfig, on_event: OnEvent) -> None:
        self._config = config
        self._on_event = on_event
        self._stats = Stats()
        self._closing = False

    def start(self, on_outputs: OnOutputs, on_failure: OnFailure) -> Handshake:
        ours, theirs = socket.socketpair()
        command = [sys.executable, *CHILD, str(theirs.fileno())]
        # the child must find the same packages, also in a tree that was never installed
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs:
            self._child = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment
            )
        self._channel: Channel[ToEngine, FromEngine] = Channel(ours, FromEngine)
        self._channel.send(ToEngine(start=self._config))
        handshake = self._wait_until_ready()
        self._thread = threading.Thread(
            target=self._receive, args=(on_outputs, on_failure), name="jaxinfer-outputs", daemon=True
        )
        self._thread.start()
        return handshake

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._child.pid

    def post(self, message: Message) -> None:
        self._channel.send(ToEngine.of(message))

    def stats(self) -> Stats:
        return self._stats

    def close(self) -> None:
        self._closing = True
        self._end()
        self._thread.join()

    def _wait_until_ready(self) -> Handshake:
        while (news := self._channel.receive()) is not None:
            if news.event is not None:
                self._on_event(news.event)
            elif news.handshake is not None:
                return news.handshake
            elif news.failure is not None:
                self._end()
                raise news.failure.error
        raise self._end()

    def _receive(self, on_outputs: OnOutputs, on_failure: OnFailure) -> None:
        error: JaxInferError | None = None
        while (news := self._channel.receive()) is not None:
            self._stats = news.stats or self._stats
            if news.event is not None:
                self._on_event(news.event)
            if news.outputs:
                on_outputs(news.outputs)
            if news.failure is not None:
                error = news.failure.error
        if not self._closing:
            died = self._end()
            on_failure(error or died)

    def _end(self) -> EngineError:
        """Close the socket and reap the child; the error says how it ended."""
        self._channel.close()
        try:
            code = self._child.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return EngineError(f"the engine process {how}; its last lines on stderr say why")
