"""`jaxinfer serve` with the demo on the CPU, as it is but for faults on order, and what Linux says of its processes."""

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.faulty_child import Orders
from tests.support.processes import Footprint, children_of, footprint

ROOT = Path(__file__).resolve().parents[2]
START_S = 300.0


@dataclasses.dataclass(frozen=True)
class Program:
    """A server under test. port: where it listens.    orders: to its engine process, whichever that is."""

    process: subprocess.Popen[bytes]
    port: int
    orders: Orders

    def engine_pid(self) -> int | None:
        """None between two engines."""
        pids = children_of(self.process.pid)
        return int(pids.pop()) if len(pids) == 1 else None

    def server(self) -> Footprint:
        return footprint(self.process.pid)

    def engine(self) -> Footprint | None:
        pid = self.engine_pid()
        with contextlib.suppress(OSError):  # it may end between the two looks
            return footprint(pid) if pid else None
        return None


@contextlib.contextmanager
def program(log: Path) -> Iterator[Program]:
    """The server, ready. log: the file that takes what it prints."""
    with tempfile.TemporaryDirectory() as folder:  # a socket's path must be short
        faults, orders = Path(folder, "faults"), Path(folder, "orders")
        faults.write_text("[]")
        command = [sys.executable, "-m", "tests.server.serve_faulty", faults, orders, "demo", "--port", "0"]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/kernels", "JAX_PLATFORMS": "cpu"}
        with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, env=environment) as process:
            try:
                yield Program(process, _wait_for_port(process, log), Orders(str(orders)))
            finally:
                process.kill()


def _wait_for_port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + START_S
    while "try it" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server must start, it said: {log.read_text()[-2000:]}")
        time.sleep(0.1)
    found = re.search(r"listen   http://\S+:(\d+)", log.read_text())
    assert found is not None
    return int(found[1])
