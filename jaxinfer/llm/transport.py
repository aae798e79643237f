"""What AsyncLLM needs of an engine, in a thread of this process (thread.py) or in a process of its own (process.py)."""

import dataclasses
from collections.abc import Callable
from typing import Protocol

from jaxinfer.config import EngineConfig, Limits
from jaxinfer.engine.sequence import Message, Output
from jaxinfer.llm.events import OnEvent
from jaxinfer.llm.types import ModelInfo, Stats

OnOutputs = Callable[[list[Output]], None]
OnFailure = Callable[[BaseException], None]


@dataclasses.dataclass(frozen=True)
class Handshake:
    """What an engine says of itself when it is ready. folder: of the checkpoint, for the text side."""

    info: ModelInfo
    limits: Limits
    folder: str


class Transport(Protocol):
    """One engine. on_outputs and on_failure are called from a thread of the transport's, never after close().

    restartable: after a failure another one like it may be started.
    """

    restartable: bool

    def start(
        self, on_outputs: OnOutputs, on_failure: OnFailure, *, whole: bool = False, replica: int = 0
    ) -> Handshake:
        """Build the engine and let it run; blocks until it can carry any plan.

        Raises JaxInferError, or OSError where the system refuses it a process or a socket.

        whole: until all is compiled, as for an engine that goes on where another ended: its executables are cached, and
        a plan that needs one before it is loaded would wait for a compilation.    replica: which of several alike it
        is, each of which takes another of the visible GPUs, in their order.
        """

    def post(self, message: Message) -> None:
        """Hand the engine a message, from any thread; dropped when the engine has failed."""

    def stats(self) -> Stats:
        """The latest counters."""

    def profile(self, folder: str | None) -> None:
        """Begin a trace of the engine's device into `folder`; None ends it. Blocks. Raises EngineError."""

    def heard_s(self) -> float:
        """When the engine last showed that it goes on (a step, progress of its start), by time.monotonic()."""

    def close(self) -> None:
        """End the engine. Whoever calls this has aborted every request before.

        While `start` runs in another thread, that ends too: at once in another process, in this one when it is built.
        """


NewTransport = Callable[[EngineConfig, OnEvent], Transport]
