"""What is told of a start: that a model serves only once its tokenizer and its template were found fit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxinfer.llm import async_llm
from jaxinfer.llm.events import STAGES, Announcer, Event

KINDS = ["load", "compile", "serving", "compile", "run", "ready"]


@pytest.mark.parametrize("released", range(7))
def test_that_it_serves_is_not_told_until_the_text_side_is_fit_and_what_goes_on_is(released):
    told: list[str] = []
    announce = Announcer(lambda event: told.append(event.kind))
    for number, kind in enumerate(KINDS):
        if number == released:
            announce.release()
        announce(Event(kind))
        assert (told[-1] == kind) == (kind in STAGES or number >= released)
        if number >= released:
            assert sorted(told) == sorted(KINDS[: number + 1])
    announce.release()
    assert sorted(told) == sorted(KINDS) and told.index("serving") < told.index("ready")


def test_a_backtrace_of_the_library_never_lands_on_stderr():
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}
    file = {"version": "1.0", "added_tokens": [], "pre_tokenizer": pattern, "model": {"type": "BPE", "vocab": {}}}
    file["model"]["merges"] = []
    code = (
        "import contextlib, sys\n"
        "from jaxinfer.errors import InvalidRequest\n"
        "from jaxinfer.text.tokenizer import Tokenizer\n"
        "with contextlib.suppress(InvalidRequest): Tokenizer(sys.argv[1].encode()).encode('a' * 50)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, json.dumps(file)],
        env={"RUST_BACKTRACE": "1", "PYTHONPATH": str(Path(async_llm.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and "stack backtrace" not in run.stderr
