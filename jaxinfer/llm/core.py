"""Core: a built engine and what it says of itself. No jax here: a dry run has a core too."""

import dataclasses
import gc
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from jaxinfer.config import EngineConfig, Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.llm.events import OnEvent
from jaxinfer.llm.types import ModelInfo, Stats
from jaxinfer.runtime.plan import DeviceFacts, Runner
from jaxinfer.text.grammar.compiler import Compiler, Compiles


class OwnedRunner(Runner, Protocol):
    """A runner as its owner sees it."""

    @property
    def compiles_after_ready(self) -> int: ...

    def facts(self) -> DeviceFacts:
        """Safe from any thread."""

    def profile(self, folder: str | None) -> None:
        """Begin a trace of the device into `folder`; None ends it. Safe from any thread."""

    def close(self) -> None:
        """Free what it holds."""


@dataclasses.dataclass
class Core:
    """Whoever steps the engine owns all of it; no text is known here."""

    engine: Engine
    runner: OwnedRunner
    info: ModelInfo
    limits: Limits
    folder: Path  # of the checkpoint
    warming: "Future[None]"  # done when every step is compiled and nothing will be compiled any more
    grammars: Compiler | None = None  # the engine's, if it has one

    def stats(self) -> Stats:
        """Safe from any thread; the numbers need not be of one instant."""
        engine = self.engine.stats()
        shared = {field.name: getattr(engine, field.name) for field in dataclasses.fields(engine)}
        runner, grammars = self.runner, Compiles() if self.grammars is None else self.grammars.counts()
        compiled = runner.compiles_after_ready
        return Stats(**shared, compiles_after_ready=compiled, device=runner.facts(), grammars=grammars)

    def close(self) -> None:
        """Free the device memory."""
        self.runner.close()
        gc.unfreeze()  # what build.start_core froze
        if self.grammars is not None:
            self.grammars.close()


# Builds an engine that can carry any plan. Raises CheckpointError, ConfigError or DeviceError.
StartCore = Callable[[EngineConfig, OnEvent], Core]
