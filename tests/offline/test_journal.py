"""The journal: whatever moment a process ends at, each row is answered or not, and nobody else writes."""

import errno
import fcntl
import multiprocessing
import os
import random
import zlib

import pytest

from jaxinfer.errors import BatchError
from jaxinfer.offline.journal import Journal
from jaxinfer.offline.records import Record
from tests.support.full_disk import full_disk

RECORDS = [Record(2, 200, b'{"row":2}'), Record(1, 400, b'{"row":1,"error":"a b\\n"}'), Record(9, 200, b"{}")]
FACTS = {"seed": 1, "form": "plain"}


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.jsonl"


def journal(output, resume=False, overwrite=False) -> Journal:
    return Journal(output, resume=resume, overwrite=overwrite)


@pytest.fixture
def written(output):
    """The bytes of one with three records."""
    first = journal(output)
    first.describe(FACTS)
    for record in RECORDS:
        first.put(record)
    first.close()
    return first.path.read_bytes()


def test_what_was_put_is_there_when_it_is_opened_again(output, written):
    again = journal(output, resume=True)
    assert (again.facts, again.num_done, again.num_errors, again.num_cut_bytes) == (FACTS, 3, 1, 0)
    assert list(again.records()) == RECORDS
    assert [again.has(number) for number in (1, 2, 3, 8, 9, 10, 10**6)] == [
        True,
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    again.close()


def test_cut_anywhere_it_goes_on_after_its_last_whole_record(output, written):
    path = output.with_name("out.jsonl.partial")
    ends = [position + 1 for position, byte in enumerate(written) if byte == 10]
    for cut in range(len(written) + 1):
        path.write_bytes(written[:cut])
        again = journal(output, resume=True)
        whole = sum(end <= cut for end in ends)
        assert again.num_done == max(0, whole - 1), cut
        again.describe(FACTS)
        for record in RECORDS:
            if not again.has(record.number):
                again.put(record)
        again.close()
        assert path.read_bytes() == written, cut


def test_garbage_behind_the_last_record_is_cut(output, written):
    path = output.with_name("out.jsonl.partial")
    for tail in (bytes(4096), b"deadbeef 5 200 {}\n", b"\n", b"no checksum\n"):
        path.write_bytes(written + tail)
        again = journal(output, resume=True)
        assert (again.num_done, again.num_cut_bytes) == (3, len(tail))
        again.close()
        assert path.read_bytes() == written


def line_of(record: Record) -> bytes:
    content = b"%d %d %b" % (record.number, record.status, record.line)
    return b"%08x %b\n" % (zlib.crc32(content), content)


def damaged(line: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(line))
    return line[:at] + chance.choice([b"", b"\n", b"\n\n", b"\xff", line]) + line[at + 1 :]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("ordered", [True, False])
def test_damage_anywhere_loses_no_answer_of_another_line_and_no_row_has_two(output, ordered, seed):
    chance = random.Random(seed)
    rows = [Record(number, chance.choice([200, 400]), b'{"row":%d}' % number) for number in range(40)]
    put = rows if ordered else chance.sample(rows, 40)
    job = journal(output)
    for begin in range(0, 40, 10):
        job.describe(FACTS | {"ordered": ordered})
        for record in put[: begin + 10]:
            if not job.has(record.number):
                job.put(record)
        job.close()
        head, *lines = job.path.read_bytes().splitlines(keepends=True)
        for at in chance.sample(range(len(lines)), chance.randint(0, 3)):
            lines[at] = damaged(lines[at], chance)
        job.path.write_bytes(head + b"".join(lines + chance.sample(lines, 2)))
        after = {*job.path.read_bytes().splitlines(keepends=True)}
        whole = {record.number for record in rows if line_of(record) in after}
        job = journal(output, resume=True)
        assert {number for number in range(40) if job.has(number)} == whole
    for record in put:
        if not job.has(record.number):
            job.put(record)
    found = list(job.records())
    assert sorted(found, key=lambda record: record.number) == rows and (not ordered or found == rows)
    assert (job.num_done, job.num_errors) == (40, sum(record.status != 200 for record in rows))
    job.close()


def test_a_damaged_line_is_named_by_its_number(output, written):
    lines = written.splitlines(keepends=True)
    for bad, numbers in ((1, [2]), (2, [3]), (3, [])):
        content = b"".join(b"X" + line if at == bad else line for at, line in enumerate(lines))
        output.with_name("out.jsonl.partial").write_bytes(content)
        again = journal(output, resume=True)
        assert (again.num_done, again.damaged_lines, again.num_cut_bytes > 0) == (2, numbers, not numbers)
        again.close()


def test_what_is_no_journal_or_has_lost_its_first_line_is_not_resumed_and_stays(output, written):
    path = output.with_name("out.jsonl.partial")
    for content in (b"X" + written[1:], b"what somebody keeps there\n" * 1000):
        path.write_bytes(content)
        with pytest.raises(
            BatchError, match="first line is damaged; move it away, or give --overwrite instead of --resume$"
        ):
            journal(output, resume=True)
        assert path.read_bytes() == content


def test_what_was_answered_before_the_disk_was_full_stays(output):
    first = journal(output)
    first.describe(FACTS)
    with full_disk(2**16):
        with pytest.raises(BatchError, match="make room and resume"):
            for number in range(9):
                first.put(Record(number, 200, b"x" * 20_000))
        first.close()
    again = journal(output, resume=True)
    assert again.num_done == 3
    again.close()


def test_a_file_system_without_locks_is_named_as_such(output, monkeypatch):
    def refused(file: object, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(BatchError, match="file system must have locks"):
        journal(output)
    assert list(output.parent.iterdir()) == []


def test_a_last_line_that_ends_in_another_byte_is_not_whole(output, written):
    output.with_name("out.jsonl.partial").write_bytes(written[:-1] + b"X")
    again = journal(output, resume=True)
    assert again.num_done == 2
    again.close()


def test_a_journal_that_its_job_takes_away_while_it_is_opened_is_not_written_to(output, written, monkeypatch):
    path, lock, taken = output.with_name("out.jsonl.partial"), fcntl.flock, []

    def lock_late(file, how):
        if not taken:  # the job that had it ends between our open and our lock
            taken.append(path.rename(path.with_name("gone")))
            output.write_text("all")
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    again = journal(output, resume=True)
    assert again.is_finished and taken
    again.close()
    assert taken[0].read_bytes() == written


def test_nothing_is_overwritten_without_a_flag(output, written):
    with pytest.raises(BatchError, match="--resume to go on, or --overwrite"):
        journal(output)
    output.write_text("precious")
    with pytest.raises(BatchError, match="exists already, and .* of a job that replaces it"):
        journal(output)
    assert output.with_name("out.jsonl.partial").read_bytes() == written
    anew = journal(output, overwrite=True)
    assert (anew.facts, anew.num_done) == (None, 0)
    anew.close()
    assert output.read_text() == "precious"


def test_an_output_without_a_journal_is_a_finished_job(output):
    output.write_text("all")
    again = journal(output, resume=True)
    assert again.is_finished
    again.close()
    assert [path.name for path in output.parent.iterdir()] == ["out.jsonl"]


def test_an_empty_journal_beside_an_output_is_a_job_that_has_just_begun(output):
    output.write_text("old")
    for begin in ({"overwrite": True}, {"resume": True}):  # each is ended before it can say what it is
        begun = journal(output, **begin)
        assert not begun.is_finished
        begun.close()
        with pytest.raises(BatchError, match="of a job that replaces it; add --resume to go on"):
            journal(output)
    again = journal(output, resume=True)
    again.describe(FACTS)
    again.put(RECORDS[0])
    again.close()
    assert output.read_text() == "old"


def test_a_job_that_ends_before_it_says_what_it_is_leaves_nothing_where_there_is_no_output(output):
    for flags in ({}, {"resume": True}, {"overwrite": True}):
        journal(output, **flags).close()
        assert list(output.parent.iterdir()) == []


def test_another_job_is_not_resumed(output, written):
    again = journal(output, resume=True)
    with pytest.raises(BatchError, match="seed was 1 and is 2"):
        again.describe(FACTS | {"seed": 2})
    again.close()


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ({}, {"temperature": 0.5}, "--temperature was not set and is 0.5"),
        ({"top_p": 1.0}, {}, "--top-p was 1.0 and is not set"),
        ({"top_k": 1, "top_p": 1.0}, {"top_k": 2, "top_p": 1.0}, "--top-k was 1 and is 2"),
    ],
)
def test_another_default_is_told_by_its_flag(output, was, now, said):
    first = journal(output)
    first.describe(FACTS | {"defaults": was})
    first.close()
    again = journal(output, resume=True)
    with pytest.raises(BatchError, match=f", {said}; change it back or start anew"):
        again.describe(FACTS | {"defaults": now})
    again.close()


def test_a_row_is_answered_once(output, written):
    again = journal(output, resume=True)
    with pytest.raises(AssertionError, match="row 9"):
        again.put(RECORDS[2])
    again.close()


def hold(output, told, done):
    held = Journal(output, resume=True, overwrite=False)
    told.set()
    done.wait(60)
    os.kill(os.getpid(), 9)
    held.close()


def test_a_second_process_refuses_until_the_first_has_ended_however(output, written):
    context = multiprocessing.get_context("spawn")
    told, done = context.Event(), context.Event()
    first = context.Process(target=hold, args=(output, told, done))
    first.start()
    assert told.wait(60)
    for flags in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(BatchError, match="one job at a time"):
            journal(output, **flags)
    done.set()
    first.join(60)
    again = journal(output, resume=True)
    assert again.num_done == 3
    again.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(BatchError, match="folder not found: .*none; name another output"):
        journal(tmp_path / "none" / "out.jsonl")


@pytest.mark.parametrize(
    ("name", "said"),
    [("input", "the rows of the input have changed"), ("fingerprint", "jaxinfer's version, the model")],
)
def test_a_fact_that_is_a_hash_is_told_in_words(output, name, said):
    first = journal(output)
    first.describe({name: "a" * 64})
    first.close()
    again = journal(output, resume=True)
    with pytest.raises(BatchError, match=said) as error:
        again.describe({name: "b" * 64})
    assert "aaa" not in str(error.value) and "bbb" not in str(error.value)
    again.close()
