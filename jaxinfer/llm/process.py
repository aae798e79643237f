"""The engine in a process of its own: what `serve` uses. A crash there is an on_failure here, and nothing else."""

import contextlib
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

from jaxinfer import children
from jaxinfer.config import EngineConfig
from jaxinfer.engine.sequence import Message
from jaxinfer.errors import DeviceLost, EngineError, JaxInferError
from jaxinfer.llm.events import OnEvent, ignore
from jaxinfer.llm.transport import Handshake, NewTransport, OnFailure, OnOutputs
from jaxinfer.llm.types import Stats
from jaxinfer.llm.wire import Channel, FromEngine, Profile, Profiled, Start, ToEngine

CHILD = "jaxinfer.llm.child"
CLOSE_S = 5.0  # for the child to end after its socket has
PROFILE_S = 120.0  # to write a trace

Spawned = tuple["subprocess.Popen[bytes]", "Channel[ToEngine, FromEngine]"]


@contextlib.contextmanager
def starting(config: EngineConfig, child: Sequence[str] = (CHILD,)) -> Iterator[NewTransport]:
    """An engine of these settings that starts now, so that it imports while its owner does: the first one made has it,
    which is replica 0 of several.

    child: as for EngineProcess.    Raises OSError where the system has no process or socket to give.
    """
    early = [_spawn(config, child)]

    def new_transport(config: EngineConfig, on_event: OnEvent) -> EngineProcess:
        return EngineProcess(config, on_event, child, early.pop() if early else None)

    try:
        yield new_transport
    finally:
        for unused in early:
            EngineProcess(config, ignore, child, unused).close()


class EngineProcess:
    """A child process with an engine. Invariant: on_failure is called at most once, and only after start returned."""

    restartable = True

    def __init__(
        self, config: EngineConfig, on_event: OnEvent, child: Sequence[str] = (CHILD,), spawned: Spawned | None = None
    ) -> None:
        """child: the module that calls llm.child.main, and its arguments after the socket's number.

        spawned: such a child that was given config and starts already.
        """
        self._config = config
        self._on_event = on_event
        self._arguments = child
        self._stats = Stats()
        self._heard_s = time.monotonic()
        self._profiled: queue.Queue[Profiled] = queue.Queue()
        self._spawning = threading.Lock()  # held to spawn the child or to forbid it
        self._closing = False
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: Channel[ToEngine, FromEngine]
        if spawned is not None:
            self._child, self._channel = spawned

    def start(
        self, on_outputs: OnOutputs, on_failure: OnFailure, *, whole: bool = False, replica: int = 0
    ) -> Handshake:
        with self._spawning:
            if self._closing:
                raise _interrupted()
            if self._child is None:
                self._child, self._channel = _spawn(self._config, self._arguments, whole, replica)
        try:
            handshake = self._wait_until_ready()
            thread = threading.Thread(
                target=self._receive, args=(on_outputs, on_failure), name="jaxinfer-outputs", daemon=True
            )
            thread.start()
        except BaseException:
            self._end()
            raise
        self._thread = thread
        return handshake

    @property
    def pid(self) -> int:
        """Of the child."""
        assert self._child is not None, "a child has a pid once it has started"
        return self._child.pid

    def post(self, message: Message) -> None:
        self._channel.post(ToEngine.of(message))

    def stats(self) -> Stats:
        return self._stats

    def profile(self, folder: str | None) -> None:
        self._profiled = queue.Queue()  # an answer that came too late is none to this question
        if not self._channel.post(ToEngine(profile=Profile(folder))):
            raise EngineError("the engine process has ended")
        try:
            answer = self._profiled.get(timeout=PROFILE_S)
        except queue.Empty:
            raise EngineError(f"the engine must answer for a trace in {PROFILE_S:g} s, it did not") from None
        if answer.error:
            raise EngineError(answer.error)

    def heard_s(self) -> float:
        return self._heard_s

    def close(self) -> None:
        with self._spawning:
            self._closing = True
        if self._child is not None:
            self._child.terminate()  # for one that still imports: it reads no socket yet; later it ignores this
            self._end()
        if self._thread is not None:
            self._thread.join()

    def _wait_until_ready(self) -> Handshake:
        while (news := self._channel.receive()) is not None:
            self._heard_s = time.monotonic()
            if news.event is not None:
                self._on_event(news.event)
            elif news.handshake is not None:
                return news.handshake
            elif news.failure is not None:
                raise news.failure.error
        raise _interrupted() if self._closing else self._end()

    def _receive(self, on_outputs: OnOutputs, on_failure: OnFailure) -> None:
        error: JaxInferError | None = None
        try:
            while error is None and (news := self._channel.receive()) is not None:
                error = self._take(news, on_outputs)  # its last message, though it may take minutes to end
        except EngineError as unreadable:
            error = unreadable
        self._profiled.put(Profiled("the engine process has ended"))  # whoever waits need not any longer
        if not self._closing:
            died = self._end()
            on_failure(error or died)

    def _take(self, news: FromEngine, on_outputs: OnOutputs) -> JaxInferError | None:
        """Pass on what the engine says; the error if it says that it fails."""
        self._heard_s = time.monotonic()  # there is news after each step, ten times a second at most, or when idle
        self._stats = news.stats or self._stats
        if news.event is not None:
            self._on_event(news.event)
        if news.outputs:
            on_outputs(news.outputs)
        if news.profiled is not None:
            self._profiled.put(news.profiled)
        return news.failure.error if news.failure is not None else None

    def _end(self) -> EngineError:
        """Close the socket and reap the child; the error says how it ended."""
        assert self._child is not None, "what was started is ended"
        self._channel.close()
        try:
            code = self._child.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        cure = "its last lines on stderr say why"
        if code < 0:  # a driver that finds its context poisoned may abort or crash where others raise
            return DeviceLost(f"the engine process must not be killed, signal {-code} ended it; {cure}")
        return EngineError(f"the engine process ended with exit code {code}; {cure}")


def _spawn(config: EngineConfig, child: Sequence[str], whole: bool = False, replica: int = 0) -> Spawned:
    process, ours = children.start(*child)
    channel: Channel[ToEngine, FromEngine] = Channel(ours, FromEngine)
    channel.post(ToEngine(start=Start(config, whole, replica)))
    return process, channel


def _interrupted() -> EngineError:
    return EngineError("the start was interrupted")
