"""Programs of ours beside this one. Each imports what this process does and nothing of the folder it is started in."""

import os
import sys


def python(*arguments: str) -> list[str]:
    """The command of a Python program. -P: what lies in the current folder is nobody's module."""
    return [sys.executable, "-P", *arguments]


def environment() -> dict[str, str]:
    """This process's, in which the same packages are found, also those of a tree that was never installed."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
