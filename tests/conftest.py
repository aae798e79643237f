"""What all tests share: no implicit dtype promotion, and one folder for what their engines compile."""

import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")


@pytest.fixture(scope="session")
def executables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engines of this run keep what they compiled, for the files and processes that come after them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "executables"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def pytest_configure() -> None:
    """Let Ctrl-C be one: a shell starts what it runs in the background with SIGINT ignored, and children inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
