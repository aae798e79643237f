"""The journal of a job: what it has answered so far, beside the output that it will become.

OUT.partial begins with what the job is, then has one line per answered row, each with a checksum. A line is there as a
whole or not at all: whatever follows the last good one, however the process ended, is cut off before the job goes on. A
damaged line before a good one is passed over, and its row answered anew, behind rows that follow it.

While OUT.partial is there, even an empty one, the job is not finished, and an output beside it is what it replaces. So
it is there before anything else is done, and goes when the output is in its place, or when there is none.
"""

import contextlib
import fcntl
import heapq
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jaxinfer.config import flag_of
from jaxinfer.errors import BatchError, file_fault
from jaxinfer.offline.disk import sync_folder
from jaxinfer.offline.records import Record

SUFFIX = ".partial"
type Facts = dict[str, Any]
HASHED = {  # facts that are hashes, and what it means that one is another
    "input": "the rows of the input have changed",
    "fingerprint": "jaxinfer's version, the model's config or how its weights are made has changed",
}


class Journal:
    """Invariant: while it is open no other process has it open, and each row has at most one record that counts."""

    def __init__(self, output: Path, *, resume: bool, overwrite: bool) -> None:
        """resume: go on with what is there, if anything is.    overwrite: lose it, and the output in the end.

        Raises BatchError when there is something that must not be lost, or another job has it.
        """
        self.output = output
        self.path = output.with_name(output.name + SUFFIX)
        self.facts: Facts | None = None  # of the job that is resumed
        self.num_done = self.num_errors = self.num_cut_bytes = 0
        self._open_file: BinaryIO | None = None
        self.damaged_lines: list[int] = []  # before the last good one, by number from 1
        self._done = bytearray()  # a bit for each row
        self._last_number = -1
        self._late: list[
            tuple[int, int]
        ] = []  # rows of an ordered job that stand behind later ones, each with its place
        self._repeats: set[int] = set()  # places of records whose rows have an earlier one
        self.is_finished = False  # whether the job that is to be resumed has become its output already
        self._may_replace = resume or overwrite  # an output that is there
        file = None
        while file is None:
            if not self._may_replace:
                self._check_output()
            if resume and not self.path.exists() and output.exists():
                self.is_finished = True
                return
            file = _open_alone(self.path)
        self._open_file = file
        try:
            self._begin(resume=resume, overwrite=overwrite)
        except BaseException:
            self.close()
            raise

    @property
    def _file(self) -> BinaryIO:
        assert self._open_file is not None, "a finished job has no journal"
        return self._open_file

    def _check_output(self) -> None:
        if not self.output.exists():
            return
        if self.path.exists():
            fact = f"{self.output} exists already, and {self.path} is of a job that replaces it"
            raise BatchError(f"{fact}; add --resume to go on, or --overwrite")
        raise BatchError(f"{self.output} exists already; move it away or add --overwrite")

    def _begin(self, *, resume: bool, overwrite: bool) -> None:
        if overwrite:
            self._empty()
        elif not resume:
            self._check_output()  # that no other job has made it meanwhile
            if self.num_bytes:
                fact = f"{self.path} has answers of one that did not end"
                raise BatchError(f"a new job must not overwrite another, {fact}; add --resume to go on, or --overwrite")
        end, damaged = 0, []
        for at, (record, place, after) in enumerate(_records(self._file), 1):
            if record is None:
                if at == 1:
                    break
                damaged.append(at)
                continue
            end = after
            self.damaged_lines += damaged
            damaged.clear()
            if at == 1:
                self.facts = json.loads(record.line)
            elif self.has(record.number):
                self._repeats.add(place)
            else:
                self._note(record, place)
        if self.facts is None and self._has_line():
            fact = f"{self.path} is none, or its first line is damaged"
            cure = "move it away, or give --overwrite instead of --resume"
            raise BatchError(f"a job's journal must say what the job is, {fact}; {cure}")
        self.num_cut_bytes = self._file.seek(0, os.SEEK_END) - end
        self._file.truncate(end)
        self._file.seek(end)

    def _has_line(self) -> bool:
        """Whether more is in it than the one that a job was writing when it ended."""
        self._file.seek(0)
        return self._file.readline().endswith(b"\n")

    def _empty(self) -> None:
        try:
            self._file.truncate(0)
            os.fsync(self._file.fileno())
            sync_folder(self.path.parent)  # a power cut, too, must not make an older output pass for this job's
        except OSError as error:
            raise BatchError(f"a job must be begun on disk, {self.path}: {error.strerror}; make room") from error

    @property
    def num_bytes(self) -> int:
        """Of what is in it."""
        return os.fstat(self._file.fileno()).st_size

    def describe(self, facts: Facts) -> None:
        """Say what the job is, or check that it is the one resumed. Raises BatchError."""
        facts = json.loads(json.dumps(facts))  # as they will be read
        if self.facts is None:
            self.facts = facts
            self._write(Record(0, 0, json.dumps(facts).encode()))
            return
        was, now = _by_name(self.facts), _by_name(facts)
        for name in {**now, **was}:
            if was.get(name) != now.get(name):
                before, after = (repr(each[name]) if name in each else "not set" for each in (was, now))
                fact = HASHED.get(name) or f"{name} was {before} and is {after}"
                raise BatchError(f"a job must be resumed as it began, {fact}; change it back or start anew")

    def has(self, number: int) -> bool:
        byte, bit = divmod(number, 8)
        return byte < len(self._done) and bool(self._done[byte] >> bit & 1)

    def put(self, record: Record) -> None:
        """Write it, so that it survives the end of this process."""
        assert not self.has(record.number), f"row {record.number} was answered before"
        place = self.num_bytes
        self._write(record)
        self._note(record, place)

    def records(self) -> Iterator[Record]:
        """All answers, in the order of their rows if the job is ordered, else as they were written."""
        late = sorted(self._late)
        apart = {0, *self._repeats, *(place for _, place in late)}  # at 0 is what the job is
        with self.path.open("rb") as file, self.path.open("rb") as other:
            on_time = (record for record, place, _ in _records(file) if record is not None and place not in apart)
            yield from heapq.merge(on_time, (_record_at(other, place) for _, place in late), key=_number)

    def remove(self) -> None:
        """The output is complete; nothing is left to resume."""
        self.path.unlink()

    def close(self) -> None:
        """Let other processes have it. An empty one goes, unless it says that an output is to be replaced."""
        if self._open_file is None:
            return
        is_needed = self.num_bytes or (self._may_replace and self.output.exists())
        if not is_needed and _is_at(self._file, self.path):
            self.path.unlink()
        with contextlib.suppress(OSError):  # of what could not be written, which _write has told of
            self._file.close()

    def _note(self, record: Record, place: int) -> None:
        if record.number > self._last_number:
            self._last_number = record.number
        elif self.facts is not None and self.facts.get("ordered"):
            self._late.append((record.number, place))
        byte, bit = divmod(record.number, 8)
        if byte >= len(self._done):
            self._done.extend(bytes(byte + 1 - len(self._done) + len(self._done) // 8))
        self._done[byte] |= 1 << bit
        self.num_done += 1
        self.num_errors += record.status != 200

    def _write(self, record: Record) -> None:
        content = b"%d %d %b" % (record.number, record.status, record.line)
        try:
            self._file.write(b"%08x %b\n" % (zlib.crc32(content), content))
            self._file.flush()
        except OSError as error:
            raise BatchError(f"answers must be written, {self.path}: {error.strerror}; make room and resume") from error


def _by_name(facts: Facts) -> Facts:
    """The defaults of rows by their flags, beside all else."""
    defaults = facts.get("defaults", {})
    return {name: value for name, value in facts.items() if name != "defaults"} | {
        flag_of(name): defaults[name] for name in defaults
    }


def _open_alone(path: Path) -> BinaryIO | None:
    """None: the job that had it has just ended and taken it away."""
    try:
        file = open(path, "a+b")  # noqa: SIM115 the journal closes it
    except OSError as error:
        raise BatchError(f"{file_fault('write', path, error)}; name another output") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        fact = f"{path} is another process's, which is still running"
        raise BatchError(f"an output must have one job at a time, {fact}; wait for it or choose another") from error
    except OSError as error:
        if not os.fstat(file.fileno()).st_size:
            path.unlink()
        file.close()
        fact = f"that of {path} has none: {error.strerror}"
        raise BatchError(f"the output's file system must have locks, {fact}; choose another folder") from error
    if _is_at(file, path):
        return file
    file.close()
    return None


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _records(file: BinaryIO) -> Iterator[tuple[Record | None, int, int]]:
    """Each line's record, None of a line that is not whole, with where it begins and ends."""
    file.seek(0)
    end = 0
    for line in file:
        begin, end = end, end + len(line)
        yield _parse(line), begin, end


def _record_at(file: BinaryIO, place: int) -> Record:
    file.seek(place)
    record = _parse(file.readline())
    assert record is not None, f"the record at {place} was whole"
    return record


def _number(record: Record) -> int:
    return record.number


def _parse(line: bytes) -> Record | None:
    checksum, _, content = line[:-1].partition(b" ")
    if line[-1:] != b"\n" or checksum != b"%08x" % zlib.crc32(content):
        return None
    number, status, rest = content.split(b" ", 2)
    return Record(int(number), int(status), rest)
