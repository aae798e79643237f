"""Standard streams that are closed, full or read by nobody: one line and one exit code for every verb."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from jaxinfer.cli import streams
from jaxinfer.server.app import create_app
from tests.cli.conftest import Outcome
from tests.cli.test_main import CALL, PATH
from tests.server.fakes import FakeLLM
from tests.server.http import live

FULL = "error: cannot write to standard output: No space left on device; make room, or send it elsewhere"
CLOSED = "error: cannot write to standard output: it is closed; send it elsewhere, as with > FILE"


def read_by_nobody() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


ENDINGS = {
    "full": (lambda: os.open("/dev/full", os.O_WRONLY), 8, FULL),
    "closed": (lambda: os.open(os.devnull, os.O_RDONLY), 8, CLOSED),
    "no reader": (read_by_nobody, 141, ""),
}
VERBS = [
    ["--help"],
    ["help", "run"],
    ["version"],
    ["--version"],
    [],
    ["ps"],
    ["bench"],
    ["plan", "--list"],
    ["run", "demo", "hi", "--own-engine"],
]


@pytest.fixture(params=ENDINGS)
def onto(request, cli, monkeypatch) -> Callable[..., tuple[Outcome, int, str]]:
    """Run the command line with a standard output that fails: how it ended, and how it has to."""
    opened, code, sentence = ENDINGS[request.param]

    def run(*args: str) -> tuple[Outcome, int, str]:
        descriptor = opened()
        monkeypatch.setattr(sys, "stdout", streams.guarded(descriptor))
        try:
            return cli(*args), code, sentence
        finally:
            sys.stdout.flush()  # as Python does at its end: nothing is tried again
            os.close(descriptor)

    return run


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_output_that_cannot_be_written_is_one_line_and_a_code_and_a_pipe_that_ends_is_silent(onto, model, words):
    outcome, code, sentence = onto(*words)
    assert outcome.code == code
    assert (outcome.last_line == sentence) if sentence else ("error" not in outcome.err), outcome.err
    assert "Traceback" not in outcome.err and "Errno" not in outcome.err


def test_a_server_s_answer_that_cannot_be_written_is_not_the_server_s_fault(onto, model):
    with live(create_app(FakeLLM())) as port:
        outcome, code, sentence = onto("run", "--url", f"http://127.0.0.1:{port}", "hi")
    assert outcome.code == code
    assert (outcome.last_line == sentence) if sentence else (outcome.err == ""), outcome.err


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [(">&-", 8, CLOSED), ("> /dev/full", 8, FULL), ("2>&- <&-", 0, ""), (">&- 2>&- <&-", 8, "")],
)
def test_the_program_itself_says_so(ending, code, said):
    words = [sys.executable, "-c", CALL, "version"]
    done = subprocess.run(["sh", "-c", f'"$@" {ending}', "sh", *words], env=PATH, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (code, said)


def test_a_closed_standard_input_is_an_empty_one_and_no_file_takes_its_place():
    program = "import os, sys; from jaxinfer.cli.streams import guard_streams; guard_streams(); "
    program += "print(repr(sys.stdin.read()), sys.stdin.isatty(), os.open('/', 0) > 2)"
    words = ["sh", "-c", '"$@" <&- 2>&-', "sh", sys.executable, "-c", program]
    assert subprocess.run(words, env=PATH, capture_output=True, text=True).stdout == "'' False True\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8:surrogateescape", "latin-1"])
def test_a_character_that_standard_output_has_not_is_written_as_its_escape(tmp_path, encoding):
    odd = "\udcff\ud800 \U0001f600"
    report = {"verb": odd, "tables": {odd: [{odd: odd}]}, "facts": {odd: odd}, "notes": [odd]}
    (tmp_path / "report.json").write_text(json.dumps(report))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [odd], "model_type": odd}))
    for words in (["bench", "show", str(tmp_path / "report.json")], ["show", str(tmp_path)]):
        program = [sys.executable, "-c", CALL, *words]
        done = subprocess.run(program, env={**PATH, "PYTHONIOENCODING": encoding}, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        assert odd.encode(encoding.partition(":")[0], "backslashreplace") in done.stdout
