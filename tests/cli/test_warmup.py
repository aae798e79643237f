"""`jaxinfer warmup`: a table of steps, no weights."""

import threading
from concurrent.futures import Future

import pytest

from jaxinfer.llm import build
from jaxinfer.llm.events import Event
from jaxinfer.llm.llm import LLM
from tests.cli.conftest import EVENTS
from tests.support.checkpoints import write_checkpoint


@pytest.fixture
def built(monkeypatch, known_names):
    """start_core without a model; what it was asked for, and whether it was closed."""
    calls = []

    class Core:
        def __init__(self, on_event) -> None:
            self.warming = Future()
            threading.Timer(0.05, self.finish, [on_event]).start()

        def finish(self, on_event) -> None:
            """As a start does: it returns when any plan can be carried, and compiles the rest in a thread."""
            for event in EVENTS[-2:]:
                on_event(event)
            self.warming.set_result(None)

        def close(self) -> None:
            assert self.warming.done(), "closed while it still compiles"
            calls.append("closed")

    def start_core(config, on_event):
        calls.append(config)
        for event in EVENTS[:-2]:
            on_event(event)
        return Core(on_event)

    monkeypatch.setattr(build, "start_core", start_core)
    return calls


def test_every_step_is_a_line_with_its_seconds_and_whether_it_was_there(cli, built):
    outcome = cli("warmup", "tiny", "--max-num-seqs", "2")
    lines = outcome.out.splitlines()
    assert outcome.code == 0
    assert lines[:3] == [
        "step      seconds  from cache",
        "decode 1     0.40  no",
        "decode 2     0.10  yes",
    ]
    assert lines[3].startswith("2 steps in ")


def test_no_weights_are_needed(cli, built):
    cli("warmup", "tiny")
    config, closed = built
    assert (config.model, config.load_format, closed) == ("tiny", "dummy", "closed")


def test_without_a_cache_there_is_nothing_to_warm(cli, built):
    outcome = cli("warmup", "--compile-cache-dir", "")
    assert outcome.code == 2
    assert outcome.last_line == "error: warmup fills the compile cache, --compile-cache-dir is '' (none); name a folder"
    assert built == []


def test_the_names_stay_apart_from_announcements(cli, built, monkeypatch):
    monkeypatch.setattr("tests.cli.test_warmup.EVENTS", (Event("compile", "", done=0, total=2), *EVENTS))
    assert cli("warmup", "tiny").out.splitlines()[-1].startswith("2 steps in ")


@pytest.mark.slow
def test_a_start_after_it_compiles_nothing(cli, tmp_path):
    folder, cache = write_checkpoint(tmp_path / "tiny"), str(tmp_path / "executables")
    outcome = cli("warmup", str(folder), "--max-num-seqs", "2", "--compile-cache-dir", cache)
    assert (outcome.code, outcome.out.splitlines()[-1].split()[0]) == (0, str(len(outcome.out.splitlines()) - 2))
    with LLM(str(folder), max_num_seqs=2, compile_cache_dir=cache) as llm:
        device = llm.stats().device
    assert (device.compiled, device.loaded) == (0, len(outcome.out.splitlines()) - 2)
