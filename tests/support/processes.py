"""The processes of programs under test, by Linux's /proc."""

import dataclasses
import os
import re
from pathlib import Path


def children_of(pid: int) -> set[str]:
    """Those that any of its threads has spawned."""
    return {child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()}


def listening(pid: int) -> list[str]:
    """The addresses, as Linux writes them, at which a process accepts what comes over a network."""
    own = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    found = []
    for name, states in (("tcp", {"0A"}), ("tcp6", {"0A"}), ("udp", {"07"}), ("udp6", {"07"})):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            found += [f"{name} {local}"] if state in states and f"socket:[{inode}]" in own else []
    return found


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What a process holds. kib: memory that is its own, in use or swapped out."""

    pid: int
    kib: int
    files: int
    threads: int


def footprint(pid: int) -> Footprint:
    """Raises OSError when the process has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(re.findall(r"^(RssAnon|VmSwap|Threads):\s+(\d+)", status, re.MULTILINE))
    if len(fields) < 3:
        raise ProcessLookupError(f"process {pid} is being reaped")
    kib = int(fields["RssAnon"]) + int(fields["VmSwap"])
    return Footprint(pid, kib, len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"]))
