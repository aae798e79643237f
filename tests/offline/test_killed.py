"""A job killed with -9 before any call that changes a file, and resumed: never torn, and an older output is never taken
for its own.
"""

import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from jaxinfer.offline.batch import BatchJob, open_batch
from jaxinfer.offline.formats import count_statuses
from jaxinfer.offline.names import Format
from jaxinfer.offline.records import COLUMNS, Record

CHANGING = {"open", "flock", "truncate", "write", "flush", "fsync", "replace", "unlink", "close"}
ARROW_S = {"write_table", "close"}  # its functions in Python; what they call writes where no profiler sees it
ROWS = "".join(json.dumps({"prompt": f"row {number}"}) + "\n" for number in (1, 2))
ANSWERS = [
    Record(number, 200, json.dumps(dict.fromkeys(COLUMNS) | {"row": number, "status": 200, "text": "a, b"}).encode())
    for number in (1, 2)
]
OLD = b"an older job's\n"
FACTS = {"seed": 1}


def work(folder: Path, ending: str, **flags: bool) -> None:
    """A whole job but for the model."""
    with open_batch(BatchJob(input=str(folder / "in.jsonl"), output=str(folder / f"out.{ending}"), **flags)) as job:
        if job.is_finished:
            return
        assert job.journal is not None
        job.journal.describe(FACTS)
        for answer in ANSWERS:
            if not job.journal.has(answer.number):
                job.journal.put(answer)
        job.publish()


def work_until(call: int, folder: Path, ending: str, flags: dict[str, bool]) -> None:
    """Be killed before so many calls that change a file have been made."""
    if ending == "parquet":
        importlib.import_module("pyarrow.parquet")  # now: an import opens and closes files too
    left = call

    def watch(frame: FrameType, event: str, what: Any) -> None:
        nonlocal left
        code = frame.f_code
        is_arrow_s = event == "call" and code.co_name in ARROW_S and "pyarrow" in code.co_filename
        if is_arrow_s or (event == "c_call" and what.__name__ in CHANGING):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    work(folder, ending, **flags)
    sys.setprofile(None)


def new_job(folder: Path, ending: str) -> None:
    """Nothing is there."""


def replacing_job(folder: Path, ending: str) -> None:
    (folder / f"out.{ending}").write_bytes(OLD)


def half_a_job(folder: Path, ending: str) -> None:
    """One that replaces an output was ended after its first answer, in the middle of its second."""
    output = folder / f"out.{ending}"
    output.write_bytes(OLD)
    with open_batch(BatchJob(input=str(folder / "in.jsonl"), output=str(output), overwrite=True)) as job:
        assert job.journal is not None
        job.journal.describe(FACTS)
        job.journal.put(ANSWERS[0])
        with job.journal.path.open("ab") as file:
            file.write(b"0123 2 200 {")


@pytest.fixture(params=["jsonl", "csv", pytest.param("parquet", marks=pytest.mark.slow)])
def ending(request) -> Format:
    if request.param == "parquet":
        request.getfixturevalue("arrow")
    return request.param


def begun(folder: Path, prepare: Callable[[Path, str], None], ending: str) -> Path:
    """A folder with an input and what was there before."""
    folder.mkdir()
    (folder / "in.jsonl").write_text(ROWS)
    prepare(folder, ending)
    return folder


@pytest.mark.parametrize(
    ("prepare", "flags"), [(new_job, {}), (replacing_job, {"overwrite": True}), (half_a_job, {"resume": True})]
)
def test_killed_before_any_call_it_is_resumed_to_the_same_output(tmp_path, prepare, flags, ending):
    name = f"out.{ending}"
    work(begun(tmp_path / "whole", new_job, ending), ending)
    new = (tmp_path / "whole" / name).read_bytes()
    assert count_statuses(tmp_path / "whole" / name, ending) == {200: len(ANSWERS)}
    start = begun(tmp_path / "start", prepare, ending)
    old = OLD if (start / name).exists() else None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    seen: set[tuple[bool, bool, bool]] = set()  # whether there were the whole output, the journal, the output half made
    has_begun, exitcode, call = False, -signal.SIGKILL, 0
    while exitcode == -signal.SIGKILL:
        folder = shutil.copytree(start, tmp_path / str(call))
        output, partial = folder / name, folder / f"{name}.partial"
        process = context.Process(target=work_until, args=(call, folder, ending, flags))
        process.start()
        process.join()
        exitcode = process.exitcode
        found = output.read_bytes() if output.exists() else None
        assert found in (old, new), f"call {call}"
        seen.add((found == new, partial.exists(), (folder / f"{name}.new").exists()))
        assert partial.exists() or found == new or not has_begun, f"call {call}: it left no trace"
        has_begun = has_begun or partial.exists()
        work(folder, ending, resume=True)
        assert output.read_bytes() == (new if has_begun or old is None else old), f"call {call}"
        assert sorted(path.name for path in folder.iterdir()) == ["in.jsonl", name], f"call {call}"
        call += 1
    assert exitcode == 0 and has_begun
    assert {(False, True, False), (False, True, True), (True, True, False)} <= seen, "not each step of publishing"
