"""What is told of a start: that a model serves only once its tokenizer and its template were found fit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxinfer.llm import async_llm
from jaxinfer.llm.events import Announcer, Event

KINDS = ["load", "compile", "serving", "compile", "ready"]


@pytest.mark.parametrize("released", range(6))
def test_nothing_is_told_from_serving_on_until_the_text_side_is_fit(released):
    told: list[str] = []
    announce = Announcer(lambda event: told.append(event.kind))
    for number, kind in enumerate(KINDS):
        if number == released:
            announce.release()
        announce(Event(kind))
        assert told == KINDS[: number + 1 if number >= released else min(number + 1, 2)]
    announce.release()
    assert told == KINDS


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
