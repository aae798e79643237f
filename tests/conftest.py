"""What all tests share: no implicit dtype promotion, and one folder for what their engines compile."""

import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")


@pytest.fixture(scope="session")
def executables() -> Path:
    """Where the engines of tests keep what they compiled, for the files, processes and runs that come after them.

    It stays for the next run, which finds nothing if its code, machine or versions are others: the keys hold them.
    """
    folder = Path(__file__).resolve().parents[1] / ".pytest_cache" / "executables"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def pytest_configure() -> None:
    """Let Ctrl-C be one: a shell starts what it runs in the background with SIGINT ignored, and children inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
