"""The in-process transport: one engine, one thread that alone steps it."""

import logging
import threading
import time

from jaxinfer.config import EngineConfig
from jaxinfer.engine.engine import PROBE_AFTER_S
from jaxinfer.engine.sequence import Message
from jaxinfer.errors import EngineError
from jaxinfer.llm.core import Core, StartCore
from jaxinfer.llm.events import OnEvent
from jaxinfer.llm.transport import Handshake, OnFailure, OnOutputs
from jaxinfer.llm.types import Stats

log = logging.getLogger(__name__)


class EngineThread:
    """An engine in this process, stepped by a thread of its own. Invariant: only that thread calls the engine."""

    restartable = False

    def __init__(self, config: EngineConfig, on_event: OnEvent, start_core: StartCore) -> None:
        self._config = config
        self._on_event = on_event
        self._start_core = start_core
        self._core: Core | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closing = False

    def start(
        self, on_outputs: OnOutputs, on_failure: OnFailure, *, whole: bool = False, replica: int = 0
    ) -> Handshake:
        assert replica == 0, "replicas are processes of their own: JAX has but one of its devices in a process"
        core = self._core = self._start_core(self._config, self._on_event)
        if whole:
            core.warming.result()
        self._thread = threading.Thread(
            target=self._run, args=(core, on_outputs, on_failure), name="jaxinfer-engine", daemon=True
        )
        self._thread.start()
        core.warming.add_done_callback(lambda done: on_failure(error) if (error := done.exception()) else None)
        return Handshake(core.info, core.limits, str(core.folder))

    def post(self, message: Message) -> None:
        assert self._core is not None, "a transport is posted to only once it has started"
        self._core.engine.inbox.put(message)
        self._wake.set()

    def stats(self) -> Stats:
        assert self._core is not None, "a transport is asked only once it has started"
        return self._core.stats()

    def profile(self, folder: str | None) -> None:
        assert self._core is not None, "a transport is asked only once it has started"
        try:
            self._core.runner.profile(folder)
        except Exception as error:
            raise EngineError(f"{type(error).__name__}: {error}") from error

    def heard_s(self) -> float:
        return time.monotonic() - (0.0 if self._core is None else self._core.stats().last_step_age_s)

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, core: Core, on_outputs: OnOutputs, on_failure: OnFailure) -> None:
        try:
            while not self._closing or core.engine.has_work:
                self._wake.clear()  # before the inbox is read: a message that arrives later sets it again
                if outputs := core.engine.step():
                    on_outputs(outputs)
                if core.engine.has_work or self._closing:
                    continue
                if core.engine.awaits_grammar:
                    core.engine.wait(timeout_s=1.0)
                else:
                    self._wake.wait(PROBE_AFTER_S if core.engine.is_failing else None)
        except Exception as error:
            log.exception("the engine failed")
            on_failure(error)
