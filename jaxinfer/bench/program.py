"""`jaxinfer serve` as a program beside this one, with given settings, to be measured over a socket. No jax."""

import contextlib
import dataclasses
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jaxinfer import children
from jaxinfer.bench.http_client import Target
from jaxinfer.config import SETTINGS, EngineConfig
from jaxinfer.errors import EngineError

CALL = "from jaxinfer.cli import main; main()"
PATIENCE_S = 3600.0  # a large model may be downloaded and compiled first
OURS = "JAXINFER_"


@dataclasses.dataclass(frozen=True)
class Program:
    """A server that is ready. ready_s: how long that took."""

    url: str
    ready_s: float

    @property
    def target(self) -> Target:
        return Target(self.url, "")


@contextlib.contextmanager
def serving(config: EngineConfig, *flags: str) -> Iterator[Program]:
    """A server of this model on a port of its own, ended afterwards. flags: of serve, besides the engine's settings.

    Raises EngineError with its last line when it cannot serve.
    """
    command = children.python("-c", CALL, "serve", "--port", "0", *flags)
    environment = without_ours() | settings_of(config)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, env=environment) as process:
            try:
                began = time.monotonic()
                url = _ready(process, log)
                yield Program(url, time.monotonic() - began)
            finally:
                process.terminate()


def without_ours() -> dict[str, str]:
    """This process's environment for one that imports what it does, without any setting of jaxinfer's."""
    return {name: value for name, value in children.environment().items() if not name.startswith(OURS)}


def settings_of(config: EngineConfig) -> dict[str, str]:
    """The environment variables that say what a config says."""
    given = {}
    for name, setting in SETTINGS.items():
        value = getattr(config, name)
        if value != setting.default:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            given[f"{OURS}{name.upper()}"] = text.lower() if isinstance(value, bool) else text
    return given


def _ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Its address, once everything is compiled."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        said = log.read_text(encoding="utf-8", errors="replace")
        if "try it" in said and (match := re.search(r"listen +(http://[^\s:]+:\d+)", said)):
            return match[1]
        if process.poll() is not None or time.monotonic() > deadline:
            last = said.strip().rpartition("\n")[2]
            raise EngineError(f"the server of this benchmark must become ready, its last line was: {last}")
        time.sleep(0.05)
