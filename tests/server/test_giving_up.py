"""The whole program when its engine cannot be kept alive: clients are told, and it ends with a code (A42)."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from jaxinfer.engine.failures import STEP_FAILED
from jaxinfer.errors import EngineError
from jaxinfer.llm.async_llm import DEADLY, FAILED
from jaxinfer.llm.replicas import MAX_FAILURES
from jaxinfer.testing.faults import Fault
from tests.server.http import error_of
from tests.server.streams import ask_all
from tests.support.processes import children_of, serving

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def program(folder: Path, *faults: Fault) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """serve_faulty.py over a dry run, whose engine starts in no time; and its port. It writes `folder`/log."""
    told = folder / "faults"
    told.write_bytes(msgspec.json.encode(faults))
    command = "-m", "tests.server.serve_faulty", told, "", "demo", "--dry-run", "--port", "0"
    with serving(folder / "log", *command) as served:
        yield served


def check_the_end(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    """Everyone is refused, four more engines were tried and no more, the code and the last line say that it failed."""
    for method, path in (("GET", "/health"), ("GET", "/ready"), ("POST", "/v1/completions")):
        refused = httpx2.request(method, f"http://127.0.0.1:{port}{path}", json={"prompt": "x"})
        assert (refused.status_code, error_of(refused)["code"]) == (503, "failed")
    assert process.wait(20) == EngineError.exit_code == 5
    shown = Path(folder, "log").read_text()
    attempts = re.findall(r"starting it again, attempt (\d) of 4", shown)
    assert attempts == [str(i) for i in range(1, MAX_FAILURES)]
    assert shown.splitlines()[-1].startswith("error: the ")


def test_a_device_that_carries_out_nothing_ends_the_server_and_everyone_is_told(tmp_path):
    with program(tmp_path, Fault("run", times=None)) as (process, port):
        assert httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200
        answers = ask_all(port, [{"prompt": [i], "max_tokens": 20, "stream": i > 7} for i in range(16)])
        assert {answer.status for answer in answers} == {500}
        messages = {answer.error["message"] for answer in answers}
        assert FAILED in messages and messages <= {FAILED, STEP_FAILED, DEADLY}
        check_the_end(process, port, tmp_path)


def test_an_engine_that_keeps_dying_ends_the_streams_that_have_begun_with_an_error_event(tmp_path):
    with program(tmp_path) as (process, port):
        (child,) = children_of(process.pid)
        frames = itertools.count(1)

        def crash() -> None:
            if next(frames) == 50:
                Path(tmp_path, "faults").write_bytes(msgspec.json.encode([Fault("kill", times=None)]))
                os.kill(int(child), signal.SIGSEGV)

        answers = ask_all(port, [{"prompt": [i], "max_tokens": 2000} for i in range(8)], crash)
        assert {answer.status for answer in answers} == {200}
        assert all(answer.error["message"] in (FAILED, DEADLY) and answer.texts[0] for answer in answers)
        check_the_end(process, port, tmp_path)
