"""Programs under test: starting a server, and what Linux says of its processes in /proc."""

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVE = ("-c", "from jaxinfer.cli import main; main()", "serve")  # as `jaxinfer serve`, with this tree's packages
START_S = 280.0  # a hang ends; a machine that does much else at once may take its time


def environment(**variables: str) -> dict[str, str]:
    """Of a program with this tree's packages, without a GPU."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    return os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"} | variables


def run_on_four_devices(*arguments: object) -> None:
    """Run Python with four virtual CPU devices, in a process of its own since XLA reads once how many it has.

    A program that fails is an AssertionError with what it printed.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    variables = {"XLA_FLAGS": flags.strip(), "JAX_NUMPY_DTYPE_PROMOTION": "strict"}
    command, settings = [sys.executable, *map(str, arguments)], dict(cwd=ROOT, env=environment(**variables))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False, **settings)
    assert ran.returncode == 0, ran.stderr


@contextlib.contextmanager
def serving(log: Path, *command: object, **variables: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server's process and port, once it says how to try it; killed afterwards. log: takes what it prints.

    command: arguments of Python's; the port must be 0.
    """
    arguments = [sys.executable, *map(str, command)]
    with log.open("wb") as stderr, subprocess.Popen(arguments, stderr=stderr, env=environment(**variables)) as process:
        try:
            deadline = time.monotonic() + START_S
            while "try it" not in (said := log.read_text()):
                assert process.poll() is None and time.monotonic() < deadline, said
                time.sleep(0.02)
            found = re.search(r"listen +https?://\S+:(\d+)", said)
            assert found is not None, said
            yield process, int(found[1])
        finally:
            process.kill()


def children_of(pid: int) -> set[str]:
    """Those that any of its threads has spawned."""
    found: set[str] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            found.update(file.read_text().split())
    return found


def family(pid: int) -> list[int]:
    """A process, its children and theirs."""
    return [pid, *(each for child in children_of(pid) for each in family(int(child)))]


LISTENS = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}


def sockets(pid: int) -> list[tuple[str, str, bool]]:
    """Those of a process by which something may come or go over a network: the protocol, its own address as Linux
    writes it, and whether it takes what anybody sends there. Raises OSError when the process has ended.
    """
    own = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            own.add(os.readlink(path))
    found = []
    for name, listens in LISTENS.items():
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            found += [(name, local, state == listens)] if f"socket:[{inode}]" in own else []
    return found


def listening(pid: int) -> list[str]:
    """The addresses, as Linux writes them, at which a process accepts what comes over a network."""
    return [f"{name} {local}" for name, local, listens in sockets(pid) if listens]


def seconds_of_processor(pid: int) -> float:
    """That a process has used, all its threads together."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What a process holds. kib: memory that is its own, in use or swapped out."""

    pid: int
    kib: int
    files: int
    threads: int


def forget_peak(pid: int) -> int:
    """Let the peak of its memory be counted from now on. Returns what it has now, in KiB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_kib(pid)


def peak_kib(pid: int) -> int:
    """The most memory that it has had at once since it began, or since `forget_peak`."""
    found = re.search(r"^VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def footprint(pid: int) -> Footprint:
    """Raises OSError when the process has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(re.findall(r"^(RssAnon|VmSwap|Threads):\s+(\d+)", status, re.MULTILINE))
    if len(fields) < 3:
        raise ProcessLookupError(f"process {pid} is being reaped")
    kib = int(fields["RssAnon"]) + int(fields["VmSwap"])
    return Footprint(pid, kib, len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"]))
