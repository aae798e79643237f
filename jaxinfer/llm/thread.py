"""The in-process transport: one engine, one thread that alone steps it, messages in and outputs out."""

import logging
import threading
from collections.abc import Callable

from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Message, Output

log = logging.getLogger(__name__)


class EngineThread:
    """Steps an engine whenever it has work. Invariant: nobody else calls the engine's methods after `start`."""

    def __init__(
        self, engine: Engine, on_outputs: Callable[[list[Output]], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self.engine = engine
        self._on_outputs = on_outputs
        self._on_failure = on_failure
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="jaxinfer-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, message: Message) -> None:
        """Hand the engine a message, from any thread."""
        self.engine.inbox.put(message)
        self._wake.set()

    def close(self) -> None:
        """Stop after the step under way; what is unfinished stays so."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wake.clear()  # before the inbox is read: a message that arrives later sets it again
                if outputs := self.engine.step():
                    self._on_outputs(outputs)
                if not self.engine.has_work:
                    self._wake.wait()
        except Exception as error:
            log.exception("the engine failed")
            self._on_failure(error)
