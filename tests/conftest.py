"""What all tests share: dtype promotion, the folder of compiled programs, the order of files, the collector."""

import gc
import os
import signal
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

from tests.support.executables import executables_folder

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
# An example of 0.2 s is no fault where other work has the processor; pytest's own limit ends what hangs.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


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

NUM_SLOWEST = 20


@pytest.fixture(scope="session")
def executables() -> Path:
    """Where the engines of tests keep what they compiled, for the files, processes and runs that come after them.

    It stays for the next run, which finds nothing if its code, machine or versions are others: the keys hold them.
    """
    return executables_folder()


@pytest.fixture
def forward_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take forced tokens together also where it would not be worth it, so that few rows meet what may come of it."""
    monkeypatch.setattr("jaxinfer.engine.fast_forward.least_saved", lambda num_rows: 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    rank = {here / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(LONG)))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The collector passes over the tests and the modules that they import, and looks for new garbage less often.

    Its passes took a quarter of the time to collect the tests and a tenth of the time to run them.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the files that took most of the run."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) < NUM_SLOWEST:
        return
    terminalreporter.section(f"slowest {NUM_SLOWEST} of {len(seconds)} files, {seconds.total():.0f} s in all")
    for name, taken in seconds.most_common(NUM_SLOWEST):
        terminalreporter.write_line(f"{taken:7.1f} s  {name}")


def pytest_configure() -> None:
    """Let Ctrl-C be one: a shell starts what it runs in the background with SIGINT ignored, and children inherit it."""
    gc.disable()  # until the tests are collected: none of them is garbage
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
