"""A job killed with -9 before any call that changes a file, and resumed: never torn, and an older output is never taken
for its own.
"""

import json
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from jaxinfer.offline.batch import Batch, open_batch
from jaxinfer.offline.records import Record

CHANGING = {"open", "flock", "truncate", "write", "flush", "fsync", "replace", "unlink", "close"}
ROWS = "".join(json.dumps({"prompt": f"row {number}"}) + "\n" for number in (1, 2))
ANSWERS = [Record(number, 200, b'{"row":%d,"status":200}' % number) for number in (1, 2)]
OLD, NEW = b"an older job's\n", b"".join(answer.line + b"\n" for answer in ANSWERS)
FACTS = {"seed": 1}


def work(folder: Path, **flags: bool) -> None:
    """A whole job but for the model."""
    with open_batch(Batch(input=str(folder / "in.jsonl"), output=str(folder / "out.jsonl"), **flags)) as job:
        if job.is_finished:
            return
        assert job.journal is not None
        job.journal.describe(FACTS)
        for answer in ANSWERS:
            if not job.journal.has(answer.number):
                job.journal.put(answer)
        job.publish()


def work_until(call: int, folder: Path, flags: dict[str, bool]) -> None:
    """Be killed before so many calls that change a file have been made."""
    left = call

    def watch(_: FrameType, event: str, what: Any) -> None:
        nonlocal left
        if event == "c_call" and what.__name__ in CHANGING:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    work(folder, **flags)
    sys.setprofile(None)


def new_job(folder: Path) -> None:
    """Nothing is there."""


def replacing_job(folder: Path) -> None:
    (folder / "out.jsonl").write_bytes(OLD)


def half_a_job(folder: Path) -> None:
    """One that replaces an output was ended after its first answer, in the middle of its second."""
    (folder / "out.jsonl").write_bytes(OLD)
    with open_batch(Batch(input=str(folder / "in.jsonl"), output=str(folder / "out.jsonl"), overwrite=True)) as job:
        assert job.journal is not None
        job.journal.describe(FACTS)
        job.journal.put(ANSWERS[0])
        with job.journal.path.open("ab") as file:
            file.write(b"0123 2 200 {")


@pytest.mark.parametrize(
    ("prepare", "flags"), [(new_job, {}), (replacing_job, {"overwrite": True}), (half_a_job, {"resume": True})]
)
def test_killed_before_any_call_it_is_resumed_to_the_same_output(tmp_path, prepare, flags):
    start = tmp_path / "start"
    start.mkdir()
    (start / "in.jsonl").write_text(ROWS)
    prepare(start)
    old = OLD if (start / "out.jsonl").exists() else None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    seen: set[tuple[bool, bool, bool]] = set()  # whether there were the whole output, the journal, the output half made
    has_begun, exitcode, call = False, -signal.SIGKILL, 0
    while exitcode == -signal.SIGKILL:
        folder = shutil.copytree(start, tmp_path / str(call))
        output, partial = folder / "out.jsonl", folder / "out.jsonl.partial"
        process = context.Process(target=work_until, args=(call, folder, flags))
        process.start()
        process.join()
        exitcode = process.exitcode
        found = output.read_bytes() if output.exists() else None
        assert found in (old, NEW), f"call {call}"
        seen.add((found == NEW, partial.exists(), (folder / "out.jsonl.new").exists()))
        assert partial.exists() or found == NEW or not has_begun, f"call {call}: it left no trace"
        has_begun = has_begun or partial.exists()
        work(folder, resume=True)
        assert output.read_bytes() == (NEW if has_begun or old is None else old), f"call {call}"
        assert sorted(path.name for path in folder.iterdir()) == ["in.jsonl", "out.jsonl"], f"call {call}"
        call += 1
    assert exitcode == 0 and has_begun
    assert {(False, True, False), (False, True, True), (True, True, False)} <= seen, "not each step of publishing"
