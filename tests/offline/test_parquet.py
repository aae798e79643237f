"""Parquet: columns of any type become rows or a row's own fault, and never end the job. pyarrow: `make clients`."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.errors import BatchError
from jaxinfer.offline.batch import BatchJob
from jaxinfer.offline.formats import count_statuses, open_source, write_output
from jaxinfer.offline.records import Record
from jaxinfer.offline.rows import form_of
from tests.offline.test_batch import do, read

pytestmark = pytest.mark.slow  # not that they were: pyarrow is there for the full tier only
SAID = [{"role": "user", "content": "hi", "name": None}]


@pytest.fixture
def written(arrow, tmp_path):
    """Write a table of these columns to in.parquet."""

    def write(**columns: Any) -> Path:
        path = tmp_path / "in.parquet"
        arrow.parquet.write_table(arrow.table(columns), path)
        return path

    return write


def bodies(path: Path) -> list[Any]:
    source = open_source(path, "parquet")
    try:
        found = list(source.rows)
    finally:
        source.close()
    assert [raw.number for raw in found] == list(range(1, len(found) + 1)) and source.share() == 1
    assert all(form_of(raw) == "plain" for raw in found)
    return [raw.content for raw in found]


def test_a_damaged_page_is_said_to_be_one(written):
    path = written(prompt=["hi"] * 9)
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 8 + content[12:])
    with pytest.raises(BatchError, match="the input must be a whole Parquet file"):
        bodies(path)


def test_lists_structs_and_nulls_are_what_json_has_of_them(arrow, written):
    assert bodies(written(messages=[SAID, SAID * 2], stop=[None, ["a"]], seed=[None, 3.0])) == [
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi"}] * 2, "stop": ["a"], "seed": 3},
    ]
    for kind in (arrow.uint16(), arrow.int64(), arrow.float64()):
        (row,) = bodies(written(prompt=arrow.array([[5, 6]], arrow.list_(kind))))
        assert row == {"prompt": [5, 6]} and all(type(token) is int for token in row["prompt"])
    assert bodies(written(prompt=arrow.array(["a", None, "a"]).dictionary_encode())) == [
        {"prompt": "a"},
        {},
        {"prompt": "a"},
    ]


def test_nan_in_a_column_of_fractions_is_a_gap(dry, arrow, written, tmp_path):
    nan = float("nan")
    columns = {"temperature": [nan, 0.5], "seed": arrow.array([7.0, nan], arrow.float32())}
    assert bodies(written(prompt=["a", "nan"], **columns)) == [
        {"prompt": "a", "seed": 7},
        {"prompt": "nan", "temperature": 0.5},
    ]
    source = written(prompt=[[1.0, nan]])  # in a list it is none
    do(dry, BatchJob(input=str(source), output=str(tmp_path / "out.jsonl")))
    assert [row["status"] for row in read(tmp_path / "out.jsonl")] == [400]


def test_decimals_are_numbers(written):
    columns = {"temperature": [Decimal("0.25")], "max_tokens": [Decimal("5.00")], "seed": [Decimal(2**60 + 1)]}
    (row,) = bodies(written(prompt=["a"], **columns))
    assert row == {"prompt": "a", "temperature": 0.25, "max_tokens": 5, "seed": 2**60 + 1}
    assert (type(row["temperature"]), type(row["max_tokens"])) == (float, int)


def columns_nobody_reads(arrow) -> dict[str, Any]:
    """Of two rows, the second of which no Python type can hold."""
    bad_text = arrow.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])), arrow.py_buffer(b"a\xff")
    return {
        "at": arrow.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2),
        "at_ns": arrow.array([1000, 1], arrow.timestamp("ns")),
        "took_ns": arrow.array([1000, 1], arrow.duration("ns")),
        "far": arrow.array([0, 2**50], arrow.timestamp("ms")),
        "somewhere": arrow.array([0, 1], arrow.timestamp("us", tz="Mars/Phobos")),
        "raw": arrow.array([b"a", b"\xff"]),
        "bad_text": arrow.Array.from_buffers(arrow.string(), 2, [None, *bad_text]),
        "pairs": arrow.array([[("a", 1)], []], arrow.map_(arrow.string(), arrow.int64())),
    }


def test_columns_that_nobody_reads_harm_no_row(dry, arrow, written, tmp_path):
    columns = columns_nobody_reads(arrow)
    source = written(prompt=["one", "two"], max_tokens=[2, 2], **columns)
    tally = do(dry, BatchJob(input=str(source), output=str(tmp_path / "out.jsonl")))
    assert [row["status"] for row in read(tmp_path / "out.jsonl")] == [200, 200]
    assert set(tally.unknown) == set(columns)


def test_a_cell_that_its_field_cannot_take_is_its_row_s_fault(dry, arrow, written, tmp_path):
    columns = columns_nobody_reads(arrow)
    for name, field in [("bad_text", "prompt"), ("raw", "prompt"), ("raw", "custom_id"), ("pairs", "logit_bias")] + [
        (name, field) for name in ("at", "at_ns", "took_ns", "far", "somewhere") for field in ("prompt", "seed")
    ]:
        source = written(**{"prompt": ["one", "two"], "max_tokens": [2, 2]} | {field: columns[name]})
        do(dry, BatchJob(input=str(source), output=str(tmp_path / "out.jsonl"), overwrite=True))
        statuses = [row["status"] for row in read(tmp_path / "out.jsonl")]
        assert statuses[0 if name == "pairs" else 1] == 400, (name, field)
        assert set(statuses) <= {200, 400}, (name, field)


def test_a_torn_file_is_named(written):
    path = written(prompt=["a"] * 1000)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BatchError, match="must be a Parquet file"):
        open_source(path, "parquet")


def test_statuses_are_counted_and_what_has_none_is_no_output(arrow, written, tmp_path):
    path = tmp_path / "out.parquet"
    plain = {"row": 1, "custom_id": None, "text": "a", "finish_reason": "stop", "prompt_tokens": 1} | {
        "completion_tokens": 1,
        "error": None,
    }
    lines = [json.dumps(plain | {"status": status}) for status in (200, 400, 200)]
    write_output((Record(1, 200, line.encode()) for line in lines), path, "parquet")
    assert count_statuses(path, "parquet") == {200: 2, 400: 1}
    with pytest.raises(BatchError, match="must be a batch's answers"):
        count_statuses(written(prompt=["a"]), "parquet")
    path.write_bytes(b"precious")
    with pytest.raises(BatchError, match="must be a batch's answers"):
        count_statuses(path, "parquet")
