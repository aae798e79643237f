"""`jaxinfer batch` from its command line: exit codes, pipes, what it says, and being killed again and again."""

import contextlib
import itertools
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from jaxinfer.cli.batch import how_to_go_on
from jaxinfer.offline.journal import Journal
from jaxinfer.offline.records import Record

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".clients"
CALL = [sys.executable, "-c", "from jaxinfer.cli import main; main()", "batch"]
DRY = ("--dry-run", "--max-num-seqs", "16")
# As small as its rows allow: it is started a dozen times
DEMO = (
    "demo",
    "--dtype",
    "float32",
    "--device",
    "cpu",
    "--max-num-seqs",
    "16",
    "--max-model-len",
    "32",
    "--max-num-batched-tokens",
    "64",
)
NUM_ROWS, NUM_BAD = 2000, 40


def environment() -> dict[str, str]:
    paths = [ROOT, ROOT / "kernels", CLIENTS / "pyarrow"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "JAX_PLATFORMS": "cpu"}


def batch(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*CALL, *DRY, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, env=environment(), timeout=240)


def rows(count: int, num_bad: int, temperature: float = 1.0) -> list[dict[str, object]]:
    """Plain rows of drawn answers; the bad ones are spread over all, each wrong in one of four ways."""
    bad = [{"temperature": 7}, {"prompt": None}, {"n": 3}, {"max_tokens": 10**7}]
    found: list[dict[str, object]] = []
    for i in range(count):
        row: dict[str, object] = {"custom_id": f"row-{i}", "prompt": f'row {i}, "one"\nline', "max_tokens": 3}
        is_bad = num_bad and i % (count // num_bad) == 7
        found.append(row | (bad[i // 50 % 4] if is_bad else {"temperature": temperature}))
    return found


def jsonl(found: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in found)


def test_a_pipe_in_and_a_pipe_out():
    done = batch("-i", "-", "-o", "-", "--max-tokens", 2, stdin=jsonl(rows(5, 0)))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert [(row["row"], row["custom_id"], row["status"]) for row in answers] == [
        (i + 1, f"row-{i}", 200) for i in range(5)
    ]
    assert [row["completion_tokens"] for row in answers] == [3] * 5  # a row's own word counts
    said = done.stderr.decode()
    assert "done     5 rows: 5 answered, 0 errors" in said and "output   -" in said


def test_exit_codes_tell_the_ends_apart(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows(50, 1)))
    both = ("-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")
    done = batch(*both)
    assert done.returncode == 7 and b"errors   1 row with 400 invalid_value" in done.stderr
    written = (tmp_path / "out.jsonl").read_bytes()
    again = batch(*both)
    assert again.returncode == 6 and b"--overwrite" in again.stderr.splitlines()[-1]
    assert batch(*both, "--resume", "--overwrite").returncode == 2
    resumed = batch(*both, "--resume")
    assert resumed.returncode == 7 and b"nothing is left of its job" in resumed.stderr
    assert b"done     50 rows: 49 answered, 1 error\n" in resumed.stderr
    assert batch("-i", tmp_path / "none.jsonl", "-o", tmp_path / "new.jsonl").returncode == 6
    assert (tmp_path / "out.jsonl").read_bytes() == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def shown_on_a_terminal(command: list[str]) -> tuple[int, str]:
    """The exit code, and all that a terminal of 100 columns got from standard error."""
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(theirs, (30, 100))
        plain = {"TERM": "xterm", "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}  # whatever those of the tests are
        with subprocess.Popen(command, env=environment() | plain, stdout=subprocess.DEVNULL, stderr=theirs) as process:
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more
                while piece := os.read(ours, 65536):
                    shown += piece
        return process.returncode, shown.decode()
    finally:
        os.close(ours)


def test_a_terminal_shows_how_far_it_is_how_fast_and_for_how_long_still(tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(rows(600, 0)))  # 3 tokens each, 16 at a time: more than a second of steps
    command = [*CALL, *DRY, "--dry-run-step-ms", "15", "--window", "32", "-i", str(source), "-o", str(output)]
    returncode, shown = shown_on_a_terminal(command)
    assert returncode == 0, shown
    line = r"batch    \[([#.]{10})\] +(\d+)%, ([\d,]+) rows, ([\d,.]+) rows/s, [\d,.]+ tok/s(?:, (\d+:\d\d) left)?"
    found = re.findall(line, shown)
    between = [(int(share), float(rate.replace(",", "")), left) for _, share, _, rate, left in found]
    assert any(0 < share < 100 and rate > 0 and left for share, rate, left in between), shown
    assert all(abs(10 * bar.count("#") - int(share)) <= 10 for bar, share, *_ in found)
    assert "\x1b[" in shown  # it is drawn over, not a line each time
    assert "done     600 rows: 600 answered, 0 errors" in shown


WITHOUT_CTRL_C = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # as in a shell's background job


@pytest.mark.parametrize(
    ("number", "code", "begin"),
    [(signal.SIGINT, 130, []), (signal.SIGTERM, -15, []), (signal.SIGTERM, -15, WITHOUT_CTRL_C)],
    ids=["ctrl-c", "sigterm", "sigterm where ctrl-c is ignored"],
)
def test_ctrl_c_and_sigterm_say_how_to_go_on(tmp_path, number, code, begin):
    source, output, journal = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "out.jsonl.partial"))
    source.write_bytes(jsonl(rows(1000, 0)))
    command = [*begin, *CALL, *DRY, "--dry-run-step-ms", "10", "-i", str(source), "-o", str(output)]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 20:
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code and not output.exists() and b"Traceback" not in said, said
    assert re.search(rb"stopped  \d+ answers are in \S+out.jsonl.partial; the same command with --resume", said), said
    again = batch("-i", source, "-o", output, "--resume")
    assert again.returncode == 0 and b"resumed  " in again.stderr


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        (0, "nothing was answered; the same command begins anew"),
        (1, "1 answer is in {}; the same command with --resume instead of --overwrite goes on"),
        (2000, "2,000 answers are in {}; the same command with --resume instead of --overwrite goes on"),
    ],
)
def test_an_interrupted_job_names_only_a_journal_that_stays(tmp_path, answered, said):
    journal = Journal(tmp_path / "out.jsonl", resume=False, overwrite=True)
    if answered:
        journal.describe({"seed": 1})
    for number in range(1, answered + 1):
        journal.put(Record(number, 200, b"{}"))
    told = how_to_go_on(journal, overwrite=True)
    journal.close()
    assert told == said.format(journal.path)
    assert journal.path.exists() == bool(answered)


def table(path: Path, *columns: str) -> list[list[object]]:
    """Columns of an output, read in a process that may have pyarrow."""
    code = """
import csv, json, sys
path, columns = sys.argv[1], sys.argv[2:]
if path.endswith(".csv"):
    rows = list(csv.DictReader(open(path, newline="")))
elif path.endswith(".parquet"):
    import pyarrow.parquet
    rows = pyarrow.parquet.read_table(path).to_pylist()
else:
    rows = [json.loads(line) for line in open(path)]
print(json.dumps([[str(row[name] or "") for name in columns] for row in rows]))
"""
    command = [sys.executable, "-c", code, str(path), *columns]
    found: list[list[object]] = json.loads(subprocess.check_output(command, env=environment(), timeout=60))
    return found


def convert(source: Path, path: Path) -> None:
    """The rows of a JSONL file as a table."""
    code = """
import csv, json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
names = ["custom_id", "prompt", "max_tokens", "temperature", "n"]
if sys.argv[2].endswith(".csv"):
    writer = csv.DictWriter(open(sys.argv[2], "w", newline=""), names)
    writer.writeheader()
    writer.writerows(rows)
else:
    import pyarrow, pyarrow.parquet
    whole = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    pyarrow.parquet.write_table(whole, sys.argv[2], row_group_size=300)
"""
    subprocess.run([sys.executable, "-c", code, str(source), str(path)], env=environment(), timeout=60, check=True)


def killed(command: list[str], journal: Path, after: int, pause_s: float) -> bool:
    """Run until the journal has so many lines, then a moment longer, then kill -9. Returns whether it still ran."""
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < after):
            time.sleep(0.005)
        time.sleep(pause_s)
        process.send_signal(signal.SIGKILL)
    return process.returncode == -signal.SIGKILL


def killed_again_and_again(command: list[str], output: Path, journal: Path, num_kills: int) -> None:
    """Kill one job so often, at random moments. A run that ended before its kill is undone, and all begun anew.

    The last moments are left to tests/offline/test_killed.py, which kills before each call that publishes.
    """
    chance, num_landed = random.Random(), 0
    while num_landed < num_kills:
        for after in sorted(chance.randrange(NUM_ROWS * 19 // 20) for _ in range(num_kills - num_landed)):
            if killed(command, journal, after, chance.random() / 20) and not output.exists():
                num_landed += 1
            else:
                output.unlink()
                journal.unlink(missing_ok=True)
                num_landed = 0
                break
    assert journal.exists() and not output.exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("ending", "model", "num_kills"), [("jsonl", DEMO, 3), ("csv", DRY, 7), ("parquet", DRY, 2)])
def test_killed_again_and_again_and_resumed_every_row_is_there_once(
    tmp_path, ending, model, num_kills, executables, monkeypatch
):
    """The demo computes its answers: a resumed job's batches are others than the whole one's, its texts are not. A dry
    run starts in a third of the time: most kills are there. Twice is enough for a reader to go on in the middle of its
    file, and again.
    """
    monkeypatch.setenv("JAXINFER_COMPILE_CACHE_DIR", str(executables))
    assert ending != "parquet" or (CLIENTS / "pyarrow" / ".installed").exists(), "there is no pyarrow; run make clients"
    source, whole, output = (tmp_path / f"{name}.{ending}" for name in ("in", "whole", "out"))
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows(NUM_ROWS, NUM_BAD, temperature=2.0)))
    if ending != "jsonl":
        convert(tmp_path / "in.jsonl", source)
    both = [*CALL, *model, "-i", str(source)]
    assert subprocess.run([*both, "-o", str(whole)], env=environment(), timeout=240).returncode == 7

    journal = tmp_path / f"out.{ending}.partial"
    slowly = () if model == DEMO else ("--dry-run-step-ms", "2")
    command = [*both, *slowly, "-o", str(output), "--resume"]
    killed_again_and_again(command, output, journal, num_kills)
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=240)
    assert done.returncode == 7 and b"resumed  " in done.stderr, done.stderr

    columns = ("row", "custom_id", "status", "text", "error", "finish_reason")
    found = table(output, *columns)
    assert [row[0] for row in found] == [str(number) for number in range(1, NUM_ROWS + 1)]
    assert found == table(whole, *columns)
    refused = [row for row in found if row[2] != "200"]
    assert len(refused) == NUM_BAD and all(row[4] for row in refused)
    assert all(row[5] and not row[4] for row in found if row[2] == "200")
    assert len({row[3] for row in found}) > NUM_ROWS / 2  # texts worth comparing
    assert not journal.exists()


def openai_rows(count: int) -> list[dict[str, object]]:
    """Chats and completions of drawn answers by turns, every tenth of which is bad."""
    bodies = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 2}),
        ("/v1/completions", {"prompt": "7 plus 5 is", "logprobs": 1}),
    ]
    found: list[dict[str, object]] = []
    for i in range(count):
        url, body = bodies[i % 2]
        more = {"max_tokens": 4, "temperature": 7 if i % 10 == 3 else 1.0}
        found.append({"custom_id": f"row-{i}", "method": "POST", "url": url, "body": body | more})
    return found


def openai_answers(path: Path) -> dict[str, tuple[object, ...]]:
    """By custom_id, which is there once: what the same row is always answered."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    answers = {
        row["custom_id"]: (
            row["id"],
            row["response"]["status_code"],
            row["response"]["body"].get("choices"),
            row["error"],
        )
        for row in found
    }
    assert len(answers) == len(found)
    return answers


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_while_the_model_is_loaded_and_later_openai_s_rows_are_answered_once_in_any_order(tmp_path):
    source, whole, output = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
    journal = tmp_path / "out.jsonl.partial"
    source.write_bytes(jsonl(openai_rows(600)))
    assert batch("-i", source, "-o", whole).returncode == 7
    output.write_text("of an older job\n")
    command = [*CALL, *DRY, "--dry-run-step-ms", "5", "-i", str(source), "-o", str(output), "--unordered"]
    with subprocess.Popen([*command, "--overwrite"], env=environment(), stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not journal.exists():
            time.sleep(0.001)
        process.kill()
    assert process.returncode == -signal.SIGKILL and journal.read_bytes() == b""
    assert killed([*command, "--resume"], journal, 200, 0)
    assert output.read_text() == "of an older job\n" and journal.read_bytes().count(b"\n") < 600
    done = subprocess.run([*command, "--resume"], env=environment(), capture_output=True, timeout=240)
    assert done.returncode == 7 and b"resumed  " in done.stderr, done.stderr
    assert b"done     600 rows: 540 answered, 60 errors" in done.stderr
    assert openai_answers(output) == openai_answers(whole) and len(openai_answers(whole)) == 600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl", "whole.jsonl"]


MANY_ROWS = 100_000
# Bytes, steadily: none grew 0 to 4.5 MiB, a leak of 57 a row 4 to 6, of 110 (an output's row that is kept) 8 to 12
MOST_GROWN, MOST_AT_ONCE, MOST_PUBLISHING = 7 * 2**20, 50 * 2**20, 25 * 2**20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_rows_take_no_more_memory_at_the_end_than_at_the_beginning(tmp_path):
    source, output, journal = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "out.jsonl.partial"))
    with source.open("w") as file:
        for i in range(MANY_ROWS):
            file.write(f'{{"prompt": "row {i:07}", "max_tokens": 1}}\n')
    # steps as long as a device's: those that take no time are of a row or two, and cost as much as steps of hundreds
    command = [*CALL, "--dry-run", "--dry-run-step-ms", "20", "-i", str(source), "-o", str(output)]
    samples: list[tuple[int, int, int]] = []  # bytes of the journal, resident bytes of the program and of its engine
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            held = resident(process.pid)
            with contextlib.suppress(FileNotFoundError):  # not begun yet, or the output is there
                samples.append((journal.stat().st_size, *held))  # after: what is not whole yet has its engine
            time.sleep(0.05)
        assert process.returncode == 0, process.stderr and process.stderr.read()
    with output.open() as file:
        numbers = [int(line[7 : line.index(",")]) for line in file]  # {"row":N,
    assert numbers == list(range(1, MANY_ROWS + 1))
    steadily, at_once, publishing = grown(samples)
    figures = f"KiB: {steadily // 2**10:,} steadily, {at_once // 2**10:,} at once, {publishing // 2**10:,} at the end"
    assert steadily < MOST_GROWN and at_once < MOST_AT_ONCE and publishing < MOST_PUBLISHING, figures


def grown(samples: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    """How many bytes the program and its engine grew in all tenths of the journal but the first, where they start, and
    the one in which they grew most; in that one; and the program, while the output is made of the whole journal, when
    its engine is gone.
    """
    whole = samples[-1][0]
    answering = [(size, own + engine) for size, own, engine in samples if size < whole]
    most = [max((held for size, held in answering if size * 10 <= whole * tenth), default=0) for tenth in range(1, 11)]
    assert most[0] and len(answering) > 100, f"{len(answering)} samples are too few to judge"
    *steps, at_once = sorted(later - earlier for earlier, later in itertools.pairwise(most))
    before = max(own for size, own, _ in samples if size < whole)
    return sum(steps), at_once, max(own for size, own, _ in samples if size == whole) - before


def test_memory_that_grows_between_its_samples_is_found():
    flat = [(size, 100, 200) for size in range(1001)]
    assert grown(flat) == (0, 0, 0)
    early = [(size, 1, 1) if size < 50 else (size, own, engine) for size, own, engine in flat]
    assert grown([*early, (1000, 100, 0)]) == (0, 0, 0), "it is starting; at the end its engine is gone"
    assert grown([(size, own + size, engine) for size, own, engine in flat]) == (799, 100, 1)
    assert grown([(size, own, engine + 30 * (size == 300)) for size, own, engine in flat]) == (0, 30, 0)
    assert grown([(size, own + 30 * (size == 1000), engine) for size, own, engine in flat]) == (0, 0, 30)


def resident(pid: int) -> tuple[int, int]:
    """Bytes of a process, and of its children and theirs; 0 for one that has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    own = next((line for line in status.splitlines() if line.startswith("VmRSS")), "VmRSS: 0 kB")
    return int(own.split()[1]) * 1024, sum(sum(resident(int(child))) for child in children)


@pytest.mark.parametrize("words", [["in.jsonl"], ["org/tiny-1B", "in.jsonl"], ["org/tiny-1B", "-i", "in.jsonl"]])
def test_the_file_of_rows_may_be_a_word(cli, model, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"prompt": "hi"}\n')
    assert cli("batch", *words, "-o", "out.jsonl", "--max-tokens", "8", "-q").err == ""
    assert model.configs[0].model == ("demo" if len(words) == 1 else "org/tiny-1B")
    assert (tmp_path / "out.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["demo"], "batch needs a file of rows, got none"),
        ([], "batch needs a file of rows, got none"),
        (["demo", "a.jsonl", "-i", "b.jsonl"], "there must be one file of rows, got a.jsonl and --input b.jsonl"),
        (["none.jsonl"], "file not found: none.jsonl"),
    ],
)
def test_a_batch_without_one_file_of_rows_is_refused(cli, model, tmp_path, monkeypatch, words, fault):
    monkeypatch.chdir(tmp_path)
    assert cli("batch", *words, "-o", "out.jsonl").last_line.startswith(f"error: {fault}")
    assert model.made == []
