"""Whole jobs over a dry run: every row once, as the server would answer it, whatever ended the run before."""

import asyncio
import csv
import json
import os
import random
import sys
from pathlib import Path

import httpx2
import pytest

from jaxinfer.errors import BatchError, ConfigError, EngineError, InvalidRequest
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.offline.batch import BatchJob, OpenBatch, open_batch
from jaxinfer.offline.formats import open_source
from jaxinfer.offline.job import BatchRun, JobPlan
from jaxinfer.offline.rows import Raw
from jaxinfer.offline.tally import HAD_ERRORS, Tally
from jaxinfer.offline.window import MAX_HELD_BYTES
from jaxinfer.server.app import create_app
from tests.server.http import CHAT, COMPLETIONS

USER = {"role": "user", "content": "What is 7 plus 5?"}
BODIES = [
    (CHAT, {"messages": [USER], "max_tokens": 9, "temperature": 1.5, "seed": 4}),
    (CHAT, {"messages": [USER], "n": 3, "logprobs": True, "top_logprobs": 2, "seed": 1, "max_tokens": 4}),
    (COMPLETIONS, {"prompt": ["one", "two"], "n": 2, "echo": True, "seed": 2}),
    (COMPLETIONS, {"prompt": [5, 6, 7], "stop": ["e"], "max_tokens": 30, "seed": 3, "prompt_logprobs": 1}),
    (COMPLETIONS, {"prompt": "hi", "temperature": 3}),
    (COMPLETIONS, {"prompt": "hi", "model": "another"}),
    (CHAT, {"messages": [USER], "max_tokens": 10**6}),
    (CHAT, {"messages": [{"role": "robot", "content": "hi"}]}),
    (CHAT, {"messages": [USER], "lora_path": "x"}),
]


def openai_rows(bodies=BODIES) -> list[dict]:
    return [
        {"custom_id": f"id {position}", "method": "POST", "url": url, "body": body}
        for position, (url, body) in enumerate(bodies)
    ]


def plain_rows(count: int = 60) -> list[object]:
    """Every seventh is bad, each in its own way."""
    bad = [{"prompt": "hi", "n": 2}, "no object", {"prompt": "hi", "top_p": 7}, {"text": "hi"}]
    rows = [
        {"custom_id": f"r{i}", "prompt": f"row {i} says", "max_tokens": 3 + i % 5, "temperature": 1}
        for i in range(count)
    ]
    return [bad[i // 7 % 4] if i % 7 == 3 else row for i, row in enumerate(rows)]


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def do(dry, batch: BatchJob) -> Tally:
    with open_batch(batch) as job:
        if not job.is_finished:
            dry.run(job.run)
            job.publish()
        return job.tally


def test_an_answer_s_body_is_the_server_s(dry, tmp_path):
    source = write(tmp_path / "in.jsonl", openai_rows())
    do(dry, BatchJob(input=str(source), output=str(tmp_path / "out.jsonl")))

    async def serve(llm: AsyncLLM) -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(create_app(llm))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return [await client.post(url, json=body) for url, body in BODIES]

    found = read(tmp_path / "out.jsonl")
    statuses = set()
    for position, (row, response) in enumerate(zip(found, dry.run(serve), strict=True)):
        body, served = row["response"]["body"], response.json()
        assert (row["custom_id"], row["response"]["status_code"]) == (f"id {position}", response.status_code)
        for changing in ("id", "created"):
            assert (changing in body) == (changing in served)
            body.pop(changing, None), served.pop(changing, None)
        for usage in (body.get("usage"), served.get("usage")):
            usage and usage.pop("prompt_tokens_details")
        assert body == served
        assert (row["error"] is None) == (response.status_code == 200)
        statuses.add(response.status_code)
    assert statuses == {200, 400, 404}


def test_every_row_has_its_answer_in_its_place(dry, tmp_path):
    rows = plain_rows()
    source, output = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    tally = do(dry, BatchJob(input=str(source), output=str(output), window=4))
    found = read(output)
    assert [row["row"] for row in found] == list(range(1, len(rows) + 1))
    assert [row["status"] for row in found] == [400 if i % 7 == 3 else 200 for i in range(len(rows))]
    assert all((row["error"] is None) == (row["status"] == 200) for row in found)
    assert [row["custom_id"] for row in found if row["status"] == 200] == [
        row["custom_id"] for i, row in enumerate(rows) if i % 7 != 3
    ]
    assert (tally.num_rows, tally.num_errors, tally.exit_code) == (60, 9, HAD_ERRORS)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["in.jsonl", "out.jsonl"]


def test_unordered_answers_are_the_same_ones(dry, tmp_path):
    source = write(tmp_path / "in.jsonl", plain_rows())
    for ordered in (True, False):
        do(dry, BatchJob(input=str(source), output=str(tmp_path / f"{ordered}.jsonl"), ordered=ordered))
    first, second = read(tmp_path / "True.jsonl"), read(tmp_path / "False.jsonl")
    assert sorted(second, key=lambda row: row["row"]) == first
    assert second != first


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv"])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_run_that_ended_anywhere_is_resumed_to_the_same_output(dry, tmp_path, ending, ordered):
    source = write(tmp_path / "in.jsonl", plain_rows())
    whole, output = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    do(dry, BatchJob(input=str(source), output=str(whole), ordered=ordered))
    journal, chance = tmp_path / f"out.{ending}.partial", random.Random(8)

    async def half(llm: AsyncLLM, job: OpenBatch) -> None:
        running = asyncio.create_task(job.run(llm))
        while job.tally.num_rows < 20 and not running.done():
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    for _ in range(3):
        batch = BatchJob(input=str(source), output=str(output), ordered=ordered, resume=True)
        with open_batch(batch) as job:
            dry.run(lambda llm, job=job: half(llm, job))
        content = journal.read_bytes()
        journal.write_bytes(content[: -chance.randrange(1, len(content) // 2)])
    tally = do(dry, BatchJob(input=str(source), output=str(output), ordered=ordered, resume=True))
    assert tally.num_before > 0 and tally.num_before + tally.num_rows == 60 and tally.num_errors == 9
    if ordered:
        assert output.read_bytes() == whole.read_bytes()
    elif ending != "jsonl.gz":
        assert sorted(output.read_bytes().split(b"\n")) == sorted(whole.read_bytes().split(b"\n"))
    assert not journal.exists()


def test_a_damaged_line_costs_its_own_answer_and_the_summary_names_it(dry, tmp_path):
    source, output = write(tmp_path / "in.jsonl", plain_rows()), tmp_path / "out.jsonl"
    whole, journal = tmp_path / "whole.jsonl", tmp_path / "out.jsonl.partial"
    do(dry, BatchJob(input=str(source), output=str(whole)))
    with open_batch(BatchJob(input=str(source), output=str(output))) as job:
        dry.run(job.run)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:9], b"X" + lines[9], *lines[10:], lines[20], b"torn"]))
    tally = do(dry, BatchJob(input=str(source), output=str(output), resume=True))
    assert (tally.num_before, tally.num_rows) == (59, 1) and output.read_bytes() == whole.read_bytes()
    assert tally.notes == [
        f"repaired by a cut of 4 bytes behind the last whole line of {journal}",
        f"damaged  line 10 of {journal} had no whole answer; what only it had was answered anew",
    ]


def test_a_finished_job_is_left_alone_when_it_is_resumed(dry, tmp_path):
    source, output = write(tmp_path / "in.jsonl", plain_rows(3)), tmp_path / "out.jsonl"
    output.write_text("done")
    assert do(dry, BatchJob(input=str(source), output=str(output), resume=True)).num_rows == 0
    assert output.read_text() == "done"


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv"])
@pytest.mark.parametrize("rows", [plain_rows(20), openai_rows(), plain_rows(3)])
def test_a_finished_job_keeps_its_verdict_when_it_is_resumed(dry, tmp_path, ending, rows):
    source, output = write(tmp_path / "in.jsonl", rows), tmp_path / f"out.{ending}"
    first = do(dry, BatchJob(input=str(source), output=str(output)))
    with open_batch(BatchJob(input=str(source), output=str(output), resume=True)) as again:
        assert again.is_finished
        again.look_back()
    assert (again.tally.num_before, again.tally.num_errors) == (first.num_rows, first.num_errors)
    assert again.tally.exit_code == first.exit_code == (0 if len(rows) == 3 else HAD_ERRORS)


def test_a_job_whose_input_has_changed_is_not_resumed(dry, tmp_path):
    source, output = write(tmp_path / "in.jsonl", plain_rows(9)), tmp_path / "out.jsonl"
    with open_batch(BatchJob(input=str(source), output=str(output))) as job:
        dry.run(job.run)
    write(source, plain_rows(10))
    with pytest.raises(BatchError, match="the rows of the input have changed"):
        do(dry, BatchJob(input=str(source), output=str(output), resume=True))
    assert not output.exists() and len((tmp_path / "out.jsonl.partial").read_bytes().splitlines()) == 10


def test_a_table_s_rows_are_as_good_as_lines(dry, tmp_path):
    rows = [row for row in plain_rows() if isinstance(row, dict) and "prompt" in row and "n" not in row]
    names = ["custom_id", "prompt", "max_tokens", "temperature", "top_p"]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    write(tmp_path / "in.jsonl", rows)
    for ending in ("csv", "jsonl"):
        do(dry, BatchJob(input=str(tmp_path / f"in.{ending}"), output=str(tmp_path / f"from_{ending}.csv")))
    assert (tmp_path / "from_csv.csv").read_bytes() == (tmp_path / "from_jsonl.csv").read_bytes()


def test_openai_rows_become_columns_where_the_output_has_them(dry, tmp_path):
    source, output = write(tmp_path / "in.jsonl", openai_rows()), tmp_path / "out.csv"
    do(dry, BatchJob(input=str(source), output=str(output)))
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["custom_id"] for row in rows] == [f"id {position}" for position in range(len(BODIES))]
    assert [row["status"] for row in rows] == ["200", *["400"] * 4, "404", "400", "400", "400"]
    assert "write the row in OpenAI's form" in rows[1]["error"]


def test_a_stream_is_no_row(dry, tmp_path):
    source = write(tmp_path / "in.jsonl", openai_rows([(CHAT, {"messages": [USER], "stream": True})]))
    do(dry, BatchJob(input=str(source), output=str(tmp_path / "out.jsonl")))
    assert read(tmp_path / "out.jsonl")[0]["error"]["message"].startswith("stream must be false in a batch")


def test_a_session_s_turn_is_no_row(dry, tmp_path):
    bodies = [(CHAT, {"messages": [USER]} | more) for more in ({"session_id": "a"}, {"session_append": True})]
    source = write(tmp_path / "in.jsonl", openai_rows(bodies))
    do(dry, BatchJob(input=str(source), output=str(tmp_path / "out.jsonl")))
    said = [row["error"]["message"] for row in read(tmp_path / "out.jsonl")]
    assert all(message.startswith("session_id must be left out in a batch") for message in said)


def test_what_nobody_reads_is_named_in_the_summary(dry, tmp_path):
    source = write(tmp_path / "in.jsonl", [{"prompt": "hi", "temprature": 1}] * 3)
    tally = do(dry, BatchJob(input=str(source), output=str(tmp_path / "out.jsonl")))
    assert "warning  nobody reads these columns or fields: temprature (3)" in tally.lines("out.jsonl")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resume": True, "overwrite": True}, "drop one"),
        ({"resume": True, "output": "-"}, "name both"),
        ({"window": 0}, "at least 1"),
        ({"output": "-", "output_format": "csv"}, "-o - takes jsonl"),
        ({"input": "-", "input_format": "parquet"}, "-i - takes jsonl"),
        ({"output": "in.jsonl"}, "another file"),
        ({"output": "out.txt"}, "must end in"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_is_touched(tmp_path, monkeypatch, fields, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("{}")
    with (
        pytest.raises(ConfigError, match=message),
        open_batch(BatchJob(**{"input": "in.jsonl", "output": "o.jsonl"} | fields)),
    ):
        raise AssertionError("it was opened")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_an_output_that_cannot_be_made_is_refused_before_anything_is_computed(tmp_path, monkeypatch):
    source = write(tmp_path / "in.jsonl", plain_rows(3))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, overwrite in (("folder", True), ("pipe", True), ("pipe", False)):
        asked = BatchJob(input=str(source), output=str(tmp_path / name), output_format="jsonl", overwrite=overwrite)
        with pytest.raises(BatchError, match="the output must be a file"), open_batch(asked):
            raise AssertionError("it was opened")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="extra parquet"), open_batch(BatchJob(input=str(source), output="o.parquet")):
        raise AssertionError("it was opened")
    with pytest.raises(BatchError, match="the input must be a file, .* is a pipe or a device; give -i -"):
        open_source(tmp_path / "pipe", "jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "in.jsonl", "pipe"]


class Memory:
    """A sink that keeps its records; `seen` is called with each."""

    def __init__(self, seen=lambda record: None) -> None:
        self.records, self._seen = [], seen

    def has(self, number: int) -> bool:
        return False

    def put(self, record) -> None:
        self.records.append(record)
        self._seen(record)


def test_rows_are_read_only_as_there_is_room(dry):
    sink, furthest = Memory(), []

    def rows():
        for number in range(1, 200):
            furthest.append(number - len(sink.records))
            yield Raw(number, {"prompt": f"row {number}"}, 100)

    dry.run(lambda llm: BatchRun(llm, JobPlan(form="plain", window=10), sink, Tally()).run(rows()))
    assert len(sink.records) == 199 and max(furthest) == 11  # the one being read waits outside


def test_large_rows_are_held_few_at_a_time(dry):
    sink, held = Memory(), []

    def rows():
        for number in range(1, 30):
            held.append(number - len(sink.records))
            yield Raw(number, {"prompt": "hi"}, MAX_HELD_BYTES // 3)

    dry.run(lambda llm: BatchRun(llm, JobPlan(form="plain"), sink, Tally()).run(rows()))
    assert len(sink.records) == 29 and max(held) <= 4


def test_rows_that_begin_alike_compute_their_beginning_once(dry):
    shared = [list(range(start, start + 64)) for start in (10, 100, 200)]  # four pages each
    raws = [Raw(i + 1, {"prompt": [*shared[i % 3], i, 7], "max_tokens": 2}, 10) for i in range(48)]
    sink, tally = Memory(), Tally()
    dry.run(lambda llm: BatchRun(llm, JobPlan(form="plain"), sink, tally).run(raws))
    assert tally.usage.cached_tokens == (48 - 3) * 64


def test_an_engine_that_has_failed_ends_the_job_and_makes_no_answers(dry, monkeypatch):
    sink = Memory()

    async def broken(llm: AsyncLLM) -> None:
        monkeypatch.setattr(llm, "status", "failed")
        await BatchRun(llm, JobPlan(form="plain"), sink, Tally()).run([Raw(1, {"prompt": "hi"}, 10)])

    with pytest.raises(EngineError, match="failed"):
        dry.run(broken)
    assert sink.records == []
    monkeypatch.undo()


def test_progress_says_how_much_is_left():
    tally = Tally(num_rows=500, share_before=0.5)
    tally.began_s -= 10
    assert tally.progress(0.75) == "[#######...]  75%, 500 rows, 50.0 rows/s, 0.0 tok/s, 0:10 left"
    assert tally.progress(None).startswith("500 rows, 50.0 rows/s")
    assert tally.progress(1.0).startswith("[##########] 100%, 500 rows, ") and "left" not in tally.progress(1.0)


def test_progress_of_no_row_tells_no_speed():
    assert Tally(num_rows=0).progress(1.0) == "[..........]   0%, no row is answered yet"


def test_progress_counts_rows_that_are_answered_and_not_those_that_are_read():
    """Of half an input that is read, a quarter is answered; a run before this one had answered 100 rows."""
    tally = Tally(num_before=100, num_read=300)
    assert tally.progress(0.5) == "[#.........]  12%, 100 rows"
    tally.num_rows, tally.began_s = 100, tally.began_s - 10
    assert tally.progress(0.5) == "[##........]  25%, 200 rows, 10.0 rows/s, 0.0 tok/s, 1:00 left"


def test_a_tally_shows_itself_escaped():
    tally = Tally(num_rows=3, notes=["<i>a note</i>"])
    tally.refused(InvalidRequest("no", code="<b>"))
    tally.ignored(("<script>",))
    shown = tally._repr_html_()
    assert "<tr><th>rows</th><td>3</td></tr>" in shown and "<tr><th>errors</th><td>1</td></tr>" in shown
    assert "<th>400 &lt;b&gt;</th>" in shown and "nobody reads &lt;script&gt;" in shown and "&lt;i&gt;a note" in shown
