"""The command line in this process, over a model that is scripted."""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxinfer.cli import main, options
from jaxinfer.config import EngineConfig
from jaxinfer.errors import JaxInferError
from jaxinfer.llm import async_llm
from jaxinfer.llm.events import Event, OnEvent
from tests.server.fakes import FakeLLM, Script, hello

EVENTS = (
    Event("resolve", "reading the settings of tiny"),
    Event("plan", rows=(("weights", "1.2 GiB"), ("KV pages", "512 of 16 tokens"))),
    Event("load", done=500_000_000, total=1_000_000_000, seconds=0.25),
    Event("load", done=1_000_000_000, total=1_000_000_000, seconds=0.5),
    Event("compile", "decode 1", done=1, total=2, seconds=0.4),
    Event("compile", "decode 2", done=2, total=2, seconds=0.1, cached=True),
    Event("ready", seconds=3.25),
)


@dataclasses.dataclass
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.err.rstrip("\n").rpartition("\n")[2]


@dataclasses.dataclass
class Model:
    """What AsyncLLM will be: its script and facts, an error to start with; then the configs it was made with."""

    script: Script = hello
    info: dict[str, object] = dataclasses.field(default_factory=dict)
    start_error: BaseException | None = None
    configs: list[EngineConfig] = dataclasses.field(default_factory=list)
    made: list[FakeLLM] = dataclasses.field(default_factory=list)
    closed: int = 0

    @property
    def llm(self) -> FakeLLM:
        return self.made[-1]


@pytest.fixture
def known_names(monkeypatch) -> None:
    """No hub is asked whether it has a name, for tests whose engine is made up too."""
    monkeypatch.setattr(options, "check_hub_name", lambda *_: None)


@pytest.fixture
def model(monkeypatch, tmp_path, known_names) -> Model:
    """No server of this user's other work is found while it is there."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    model = Model()

    class StartedLLM(FakeLLM):
        """FakeLLM with a start and an end."""

        def __init__(
            self, config: EngineConfig, on_event: OnEvent, new_transport: object = None, num_replicas: int = 1
        ) -> None:
            super().__init__(model.script, status="starting", **model.info)
            self._on_event = on_event
            model.configs.append(config)
            model.made.append(self)

        async def start(self) -> None:
            if model.start_error is not None:
                raise model.start_error
            for event in EVENTS:
                self._on_event(event)
            self.status = "ready"

        async def close(self) -> None:
            model.closed += 1

    monkeypatch.setattr(async_llm, "AsyncLLM", StartedLLM)
    return model


@pytest.fixture
def cli(capfd, monkeypatch, tmp_path) -> Callable[..., Outcome]:
    """Run the command line with these arguments and this text piped in, "" being none."""

    def run(*args: str, stdin: str | None = None) -> Outcome:
        path = tmp_path / "stdin"
        path.write_text(stdin or "")
        with open(path if stdin is not None else "/dev/null") as stream, pytest.raises(SystemExit) as end:
            monkeypatch.setattr("sys.stdin", stream)
            main(list(args))
        captured = capfd.readouterr()
        return Outcome(end.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder for sockets; pytest's own paths are too long for one."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


class Refused(JaxInferError):
    exit_code = 7
