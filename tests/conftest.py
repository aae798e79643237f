"""What all tests share: no implicit dtype promotion, one folder for what their engines compile, who goes first."""

import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")


LONG = (
    "cli/test_batch.py",
    "test_package.py",
    "docs/test_commands.py",
    "test_notebooks.py",
    "llm/test_structured.py",
    "clients/test_clients.py",
    "server/test_endurance.py",
    "soak/test_soak.py",
)
"""Files that take minutes, begun before all others, so that none keeps one process busy alone at the end."""


@pytest.fixture(scope="session")
def executables() -> Path:
    """Where the engines of tests keep what they compiled, for the files, processes and runs that come after them.

    It stays for the next run, which finds nothing if its code, machine or versions are others: the keys hold them.
    """
    folder = Path(__file__).resolve().parents[1] / ".pytest_cache" / "executables"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@pytest.fixture
def forward_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take forced tokens together also where it would not be worth it, so that few rows meet what may come of it."""
    monkeypatch.setattr("jaxinfer.engine.fast_forward.least_saved", lambda num_rows: 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    rank = {here / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(LONG)))


def pytest_configure() -> None:
    """Let Ctrl-C be one: a shell starts what it runs in the background with SIGINT ignored, and children inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
