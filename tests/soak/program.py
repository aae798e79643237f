"""`jaxinfer serve` with the demo on the CPU, as it is but for faults on order, and what Linux says of its processes."""

import contextlib
import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.faulty_child import Orders, faultless
from tests.support.processes import Footprint, children_of, footprint, serving


@dataclasses.dataclass(frozen=True)
class Program:
    """A server under test. port: where it listens.    orders: to its engine process, whichever that is."""

    process: subprocess.Popen[bytes]
    port: int
    orders: Orders

    def engine_pid(self) -> int | None:
        """None between two engines."""
        engines = [int(pid) for pid in children_of(self.process.pid) if not _tries_grammars(pid)]
        return engines[0] if len(engines) == 1 else None

    def server(self) -> Footprint:
        return footprint(self.process.pid)

    def engine(self) -> Footprint | None:
        pid = self.engine_pid()
        with contextlib.suppress(OSError):  # it may end between the two looks
            return footprint(pid) if pid else None
        return None


def _tries_grammars(pid: int | str) -> bool:
    """Whether this child is the one that grammars are tried in, or gone."""
    try:
        return b"jaxinfer.text.grammar.trial" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


@contextlib.contextmanager
def program(log: Path) -> Iterator[Program]:
    """The server, ready. log: the file that takes what it prints."""
    with faultless("real") as (*_, faults, orders):
        command = "-m", "tests.server.serve_faulty", faults, orders, "demo", "--port", "0"
        with serving(log, *command) as (process, port), contextlib.closing(Orders(orders)) as sender:
            yield Program(process, port, sender)
