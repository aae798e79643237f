"""Somebody who does what a page says, line by line, in a folder of their own."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.docs.pages import Block
from tests.support.processes import children_of, family

SERVE = re.compile(r"(?:make|(?:\.venv/bin/)?jaxinfer) serve\b(?!.* --help)")
STATE = ".state"  # what one command leaves in the environment for the next, as a terminal does
# As a shell in which a refusal over HTTP and a failure inside a pipe count as failures
SHELL = f"""set -o pipefail
curl() {{ command curl --silent --show-error --fail-with-body "$@"; }}
if [ -e {STATE} ]; then . ./{STATE}; fi
"""
# Of a machine for one person: most of what a reader waits for is the compiling of steps for many
SMALL = {"JAXINFER_MAX_NUM_SEQS": "4", "JAXINFER_MAX_NUM_BATCHED_TOKENS": "64"}
START_S, COMMAND_S, DRAIN_S = 400.0, 500.0, 60.0


class Reader:
    """Invariant: servers that were started run until `leave`; the n-th has a port that stands for the page's 800n."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._ports = [_free_port() for _ in range(2)]
        self._environment = dict(environment)
        self._servers: list[subprocess.Popen[bytes]] = []

    def enters(self, folder: Path, **variables: str) -> None:
        """Go on in another folder."""
        self.folder = folder
        self._environment |= variables

    def reads(
        self,
        block: Block,
        instead: Mapping[str, str] = MappingProxyType({}),
        leaving_out: Callable[[str], object] = lambda command: None,
    ) -> None:
        """Do what it says and see what it shows. instead: commands to give in the place of those of the page."""
        if block.language == "python":
            said = self._runs("python -", block.text)
        else:
            kept = (command for command in block.commands if not leaving_out(command))
            said = "".join(self.does(instead.get(command, command)) for command in kept)
        for line in (" ".join(line.split()) for line in block.shown.splitlines()):
            assert line in " ".join(said.split()), f"{block.page} shows {line!r}, but {block.text!r} printed {said!r}"

    def does(self, command: str) -> str:
        """One command; what it printed. A server is left running."""
        if not (self.folder / ".venv").exists():
            command = command.removeprefix(".venv/bin/")
        for number, port in enumerate(self._ports):
            command = command.replace(f":800{number}", f":{port}")
        began = time.monotonic()
        typed = "What is 7 plus 5?\n" if command.startswith("jaxinfer chat") else ""
        said = self._serves(command) if SERVE.match(command) else self._runs(command, typed)
        print(f"{time.monotonic() - began:6.1f} s  {command}")
        return said

    def leave(self) -> None:
        """End the servers as a supervisor does, which they must survive well; one that make runs is its child."""
        for server in self._servers:
            is_make_s = server.args[-1].endswith("exec make serve")
            os.kill(int(*children_of(server.pid)) if is_make_s else server.pid, signal.SIGTERM)
        codes = [server.wait(DRAIN_S) for server in self._servers]
        assert not any(codes), codes

    def kill(self) -> None:
        for server in self._servers:
            for pid in reversed(family(server.pid)):
                with contextlib.suppress(ProcessLookupError):  # it went with those below it
                    os.kill(pid, signal.SIGKILL)
            server.wait()

    def _runs(self, command: str, given: str = "") -> str:
        script = f"{SHELL}{command}\ncode=$?; export -p > {STATE}; exit $code"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert done.returncode == 0, (
            f"{command!r} ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
        )
        return done.stdout

    def _serves(self, command: str) -> str:
        log = self.folder / f"server-{len(self._servers)}.log"
        port = dict(enumerate(self._ports)).get(len(self._servers), 0)
        script = f"{SHELL}export JAXINFER_PORT={port}; exec {command.removesuffix('&')}"
        with log.open("wb") as taken:
            server = subprocess.Popen(["bash", "-c", script], cwd=self.folder, env=self._environment, stderr=taken)
        self._servers.append(server)
        deadline = time.monotonic() + START_S
        while "try it" not in (said := log.read_text()):
            assert server.poll() is None and time.monotonic() < deadline, f"{command!r}: {said[-3000:]}"
            time.sleep(0.1)
        return said


def program(folder: Path, name: str, command: str) -> Path:
    """A program that runs a command, with what it is given itself behind it."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path


def with_path(folder: Path, **variables: str) -> dict[str, str]:
    """This process's environment, with a folder in front of PATH, SMALL and these variables."""
    return os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"} | SMALL | variables


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
