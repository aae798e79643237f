"""`jaxinfer ps` over servers that serve, start, hang and were killed."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from jaxinfer.bench.report import columns_of
from jaxinfer.cli import servers
from jaxinfer.cli.ps import duration
from jaxinfer.server import presence
from tests.server.fakes import FakeLLM
from tests.server.http import wait_until

ROOT = Path(__file__).parents[2]
CALL = [sys.executable, "-c", "from jaxinfer.cli import main; main()"]
NONE = "no server of yours is running here\n"
KEY = "sk-never-shown-0123456789"


@pytest.fixture
def home(monkeypatch) -> Iterator[Path]:
    """Where sockets are; pytest's own paths are too long for one."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder, "jaxinfer")


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A dry run, and its address."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
    command = [*CALL, "serve", "--dry-run", "--port", "0", "--api-key", KEY, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as process:
        try:
            url = next(match[1] for line in process.stderr if (match := re.match(r"listen   (http://\S+)", line)))
            yield process, url
        finally:
            process.kill()
            process.stderr.close()


def ready(url: str) -> bool:
    return httpx2.get(f"{url}/ready").status_code == 200


def lines(cli) -> list[list[str]]:
    """What ps prints below its head, by column."""
    outcome = cli("ps")
    assert (outcome.code, outcome.err) == (0, "")
    assert KEY not in outcome.out
    head, *rest = outcome.out.splitlines()
    assert re.split(r"\s{2,}", head) == ["ADDRESS", "MODEL", "PID", "UP", "STATE", "RUNNING", "WAITING", "PAGES"]
    return [re.split(r"\s{2,}", line) for line in rest]


def test_without_a_server_it_says_so(cli, home):
    assert cli("ps").out == NONE
    home.mkdir(mode=0o700)
    assert cli("ps").out == NONE


def test_servers_that_run_were_killed_or_hang_are_told_apart(cli, home):
    names = ("--served-model-name", "one", "--served-model-name", "other")
    with server(*names) as (first, url), server() as (second, other):
        wait_until(lambda: ready(url) and ready(other), timeout_s=30)
        found = {line[0]: line[1:] for line in lines(cli)}
        assert found.keys() == {url, other}
        model, pid, up, *rest = found[url]
        assert (model, pid) == ("one, other", str(first.pid)) and re.fullmatch(r"\d+s", up)
        assert rest[:3] == ["ready", "0", "0"] and re.fullmatch(r"0/[1-9]\d*", rest[3])
        os.kill(first.pid, signal.SIGKILL)
        first.wait(10)
        assert len(list(home.glob("*.sock"))) == 2, "it could not tidy up"
        assert [line[0] for line in lines(cli)] == [other]
        assert [path.stem for path in home.iterdir()] == [str(second.pid)]
        os.kill(second.pid, signal.SIGSTOP)
        hung = cli("ps")
        assert hung.err == f"waiting up to 2 s for the server with pid {second.pid}, which does not answer\n"
        assert re.split(r"\s{2,}", hung.out.splitlines()[1])[2:5] == [str(second.pid), "?", "no answer in 2 s"]
        os.kill(second.pid, signal.SIGCONT)
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0
        assert cli("ps").out == NONE and list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("verb", "code"), [(("ps",), 0), (("stop", "x"), 2), (("rm", "org/x", "--yes"), 2), (("run", "word", "hi"), 0)]
)
def test_whoever_waits_for_a_server_that_hangs_is_told_so_at_once(cli, model, home, monkeypatch, tmp_path, verb, code):
    monkeypatch.setattr(servers, "PATIENCE_S", 0.4)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home.parent))
    cache = tmp_path / "models--org--x"
    (cache / "snapshots" / "abc").mkdir(parents=True)
    (cache / "snapshots" / "abc" / "config.json").write_text("{}")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    home.mkdir(mode=0o700)
    where = ("--download-dir", str(tmp_path)) if verb[0] == "rm" else ()
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(home / "17.sock"))
        hung.listen()
        outcome = cli(*verb, *where)
        quiet = cli(*verb, "-q") if verb[0] in ("stop", "run") else None
    said = "waiting up to 0.4 s for the server with pid 17, which does not answer"
    assert (outcome.code, outcome.err.splitlines()[0]) == (code, said)
    assert quiet is None or said not in quiet.err


def announced(llm: FakeLLM, cli, *, serve_early: bool = False) -> list[list[str]]:
    """The lines of ps while `llm` is announced."""

    async def run() -> list[list[str]]:
        task = asyncio.create_task(presence.announce(llm, "http://here:1", 10.0, serve_early=serve_early))
        while not list(presence.sockets()):
            await asyncio.sleep(0.01)
        try:
            return await asyncio.to_thread(lines, cli)
        finally:
            task.cancel()

    return asyncio.run(run())


def test_a_server_that_answered_and_closes_late_has_answered(home):
    home.mkdir(mode=0o700, parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "1.sock"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(msgspec.json.encode(presence.Presence(1, "http://x", "tiny", 1.0, "ready")))
                time.sleep(2 * servers.SOON_S)

        thread = threading.Thread(target=answer)
        thread.start()
        found = servers.ask(home / "1.sock")
        thread.join()
    assert found is not None and found.model == "tiny"


@pytest.mark.parametrize("status", ["starting", "failed"])
def test_a_server_without_a_model_is_shown_with_what_is_known(cli, home, status):
    llm = FakeLLM(status=status)
    ((*known, up, shown, running, waiting, pages),) = announced(llm, cli)
    assert known == ["http://here:1", "demo", str(os.getpid())] and re.fullmatch(r"\d+s", up)
    assert (shown, running, waiting, pages) == (status, "0", "0", "-")


@pytest.mark.parametrize(("serve_early", "state"), [(False, "compiling"), (True, "serving")])
def test_a_server_that_refuses_until_all_is_compiled_does_not_serve(cli, home, serve_early, state):
    (shown,) = announced(FakeLLM(status="serving"), cli, serve_early=serve_early)
    assert shown[4] == state


def test_what_runs_and_waits_is_shown_and_that_it_stalls(cli, home):
    llm = FakeLLM()
    llm.running |= {"a", "b"}
    llm.stalled_s = 11.0
    ((*_, status, running, waiting, pages),) = announced(llm, cli)
    assert (status, running, waiting, pages) == ("stalled", "2", "1", "2/10")


def test_a_folder_that_others_could_fill_is_neither_used_nor_believed(cli, home, caplog):
    home.mkdir()
    home.chmod(0o777)
    asyncio.run(presence.announce(FakeLLM(), "http://here:1", 10.0))
    assert "will not show this server" in caplog.text
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(home / "1.sock"))
        planted.listen()
        assert cli("ps").out == NONE


def test_a_time_is_its_two_largest_parts():
    seconds = (0.4, 59.9, 60, 3661, 90_000, 864_000)
    assert [duration(s) for s in seconds] == ["0s", "59s", "1m 0s", "1h 1m", "1d 1h", "10d 0h"]
    assert columns_of(("A", "B"), [("long", "")]).splitlines() == ["A     B", "long"]
