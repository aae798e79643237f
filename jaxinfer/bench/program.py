"""A server as a program beside this one, ours with given settings or anybody's, measured over a socket. No jax."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from jaxinfer import children
from jaxinfer.bench.http_client import Target
from jaxinfer.bench.serve import LOOK_UP_S, MODELS, ask_once
from jaxinfer.config import SETTINGS, EngineConfig
from jaxinfer.errors import EngineError

CALL = "from jaxinfer.cli import main; main()"
PATIENCE_S = 3600.0  # a large model may be downloaded and compiled first
END_S = 60.0  # from SIGTERM to SIGKILL
POLL_S = 0.1
PORT = "{port}"
LAW = "the server of this benchmark must become ready"
OURS = "JAXINFER_"


@dataclasses.dataclass(frozen=True)
class ReadyServer:
    """A server that is ready. ready_s: how long that took."""

    url: str
    ready_s: float

    @property
    def target(self) -> Target:
        return Target(self.url, "")


@contextlib.contextmanager
def serving(config: EngineConfig, *flags: str) -> Iterator[ReadyServer]:
    """A server of this model on a port of its own, ended afterwards. flags: of serve, besides the engine's settings.

    Raises EngineError with its last line when it cannot serve.
    """
    command = children.python("-c", CALL, "serve", "--port", PORT, *flags)
    environment = without_ours() | settings_of(config)
    with tempfile.TemporaryDirectory() as folder, started(command, environment, Path(folder) / "log") as program:
        yield program


@contextlib.contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[ReadyServer]:
    """A server that a command starts, from when it is ready; ended afterwards.

    command: with {port} where it names its port.    log: the file for all that it prints.
    Raises EngineError with its last line when it cannot serve.
    """
    port, began_s = free_port(), time.monotonic()
    with log.open("wb") as output, contextlib.ExitStack() as stack:
        process = popen([word.replace(PORT, str(port)) for word in command], environment, output)
        stack.callback(end, process)
        target = Target(f"http://127.0.0.1:{port}")
        while not is_ready(target):
            if process.poll() is not None or time.monotonic() > began_s + PATIENCE_S:
                last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
                raise EngineError(f"{LAW}, its last line was: {last}")
            time.sleep(POLL_S)
        yield ReadyServer(target.base, time.monotonic() - began_s)


def popen(command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
    """A server in a session of its own, so that `end` finds its children. Raises EngineError."""
    none = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            command, stdin=none, stdout=output, stderr=output, env=dict(environment), start_new_session=True
        )
    except OSError as error:
        raise EngineError(f"{LAW}, {command[0]} could not be started: {error.strerror}") from error


def is_ready(target: Target) -> bool:
    """Whether a server's /health says so, or its /v1/models where there is no /health."""
    health = ask_once(target, "GET", "/health", limit_s=LOOK_UP_S)
    return not (ask_once(target, "GET", MODELS, limit_s=LOOK_UP_S) if health.status == 404 else health).error


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a server of a session of its own to end; kill it and its children if it does not."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def without_ours() -> dict[str, str]:
    """This process's environment for one that imports what it does, without any setting of jaxinfer's."""
    return {name: value for name, value in children.environment().items() if not name.startswith(OURS)}


def settings_of(config: EngineConfig) -> dict[str, str]:
    """The environment variables that say what a config says."""
    given = {}
    for name, setting in SETTINGS.items():
        value = getattr(config, name)
        if value != setting.default:
            given[f"{OURS}{name.upper()}"] = _as_text(value)
    return given


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
