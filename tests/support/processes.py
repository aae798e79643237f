"""The processes of programs under test, by Linux's /proc."""

from pathlib import Path


def children_of(pid: int) -> set[str]:
    """Those that any of its threads has spawned."""
    return {child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()}
