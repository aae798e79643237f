"""Verbs that find a server which still starts: they wait as long as it lives, and say for what."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from jaxinfer.bench import serve
from jaxinfer.bench.http_client import Target
from jaxinfer.bench.serve import progress_of
from jaxinfer.cli import checklist
from jaxinfer.llm.events import STAGES, TEXTS, Event
from jaxinfer.server.app import create_app
from jaxinfer.server.presence import Presence
from tests.cli.test_talker import announced
from tests.server.fakes import FakeLLM
from tests.server.http import live

REFUSAL = b'{"error": {"message": "the model is still loading; try again", "code": "starting"}}'
SHORT = ("--requests", "1", "--input-tokens", "8", "--output-tokens", "4", "--warm-up", "0", "--processes", "1")


@pytest.fixture(autouse=True)
def hurried(monkeypatch) -> None:
    monkeypatch.setattr(serve, "POLL_S", 0.05)
    monkeypatch.setattr(checklist, "SILENCE_S", 0.0)


@contextlib.contextmanager
def starting(status: str, seconds: float = 0.5) -> Iterator[tuple[FakeLLM, str]]:
    """A server that compiles so long, from the first answer on."""
    llm = FakeLLM(status=status)
    llm.progress = Event("compile", "decode 7", done=7, total=27)
    with live(create_app(llm)) as port:
        timer = threading.Timer(seconds, setattr, (llm, "status", "ready"))
        timer.start()
        yield llm, f"http://127.0.0.1:{port}"
        timer.join()


@pytest.mark.parametrize("status", ["starting", "serving"])
@pytest.mark.parametrize("verb", ["run hi", "chat", "connect", "bench serve"])
def test_a_server_that_starts_is_waited_for(cli, model, status, verb):
    with starting(status) as (_, url):
        outcome = cli(*verb.split(), "--url", url, *(SHORT if verb == "bench serve" else ()), stdin="hi\n")
    assert (outcome.code, model.made) == (0, []), outcome.err
    assert f"wait     {url}, compiling 7 of 27  (" in outcome.err


@pytest.mark.parametrize("status", ["starting", "compiling"])
def test_a_server_that_is_found_while_it_starts_is_waited_for(cli, model, short_tmp, monkeypatch, status):
    """Its served name is not known yet."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_tmp))
    with starting("starting") as (llm, url):
        found = Presence(1, url, "org/tiny-1B", 1.0, status, source="org/tiny-1B")
        with announced(found, short_tmp / "jaxinfer"):
            outcome = cli("run", "org/tiny-1B", "hi")
    assert (outcome.code, outcome.out, model.made, len(llm.calls)) == (0, "Hello\n", [], 1), outcome.err
    which = f"using the server at {url} (org/tiny-1B, pid {os.getpid()}), which still starts"
    assert outcome.err.startswith(f"{which}; --own-engine loads the model here\n")


def test_a_quiet_verb_waits_without_a_word(cli, model):
    with starting("serving") as (_, url):
        assert cli("run", "hi", "-q", "--url", url).err == ""


def test_the_wait_ends_with_the_server(cli, model):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse_twice() -> None:
            for _ in range(3):  # /v1/models, /load, /v1/models
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    head = b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n" % len(REFUSAL)
                    connection.sendall(head + REFUSAL)
            listener.close()

        thread = threading.Thread(target=refuse_twice)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        outcome = cli("run", "hi", "--url", url)
        thread.join()
    assert (outcome.code, model.made) == (5, [])
    assert f"wait     {url}, which still starts  (" in outcome.err
    last = f"error: the server at {url} ended before it was ready; see its log, then start it again"
    assert outcome.last_line == last


def test_ctrl_c_ends_the_wait(cli, model, monkeypatch):
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "time", SimpleNamespace(**{**vars(time), "sleep": interrupt}))
    with starting("serving", 0.1) as (_, url):
        outcome = cli("run", "hi", "--url", url)
    assert outcome.code == 130 and "Traceback" not in outcome.err


def test_a_server_that_has_failed_is_told_with_its_own_words(cli, model):
    with live(create_app(FakeLLM(status="failed"))) as port:
        outcome = cli("run", "hi", "--url", f"http://127.0.0.1:{port}")
    assert outcome.code == 5 and "the engine has failed and cannot answer" in outcome.last_line
    assert "--url" not in outcome.last_line


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (Event("load", "", 5 * 10**8, 10**9), "loading 0.50 of 1.00 GB"),
        (Event("compile", "decode 7", 7, 27), "compiling 7 of 27"),
        (Event("run", "decode 7", 7, 27), "running steps once more, 7 of 27"),
        (Event("wait", "engines are ready", 1, 4), "1 of 4 engines are ready"),
        (TEXTS, "which still starts"),
    ],
    ids=STAGES[:3] + ("wait", "read"),
)
def test_what_a_server_that_starts_does_is_told(event, said):
    with starting("starting", seconds=0.0) as (llm, url):
        llm.status, llm.progress = "starting", event
        assert progress_of(Target(url)) == said
