"""Files of rows and files of answers: what is torn, huge, quoted or in another encoding costs at most its own row."""

import csv
import gzip
import io
import json
import sys
from collections import Counter

import pytest

from jaxinfer.errors import BatchError, ConfigError, InvalidRequest
from jaxinfer.offline import jsonl
from jaxinfer.offline.csv_table import open_text, read_csv
from jaxinfer.offline.formats import count_statuses, digest_of, open_source, write_output
from jaxinfer.offline.jsonl import read_jsonl
from jaxinfer.offline.names import format_of
from jaxinfer.offline.records import COLUMNS, Record

AWKWARD = 'one, "two"\r\nthree\n= é\U0001f600 \x00'


def lines(content: bytes) -> list[tuple[int, object]]:
    return [(raw.number, raw.content) for raw in read_jsonl(io.BytesIO(content))]


def table(content: bytes) -> list[tuple[int, object]]:
    return [(raw.number, raw.content) for raw in read_csv(open_text(io.BytesIO(content)))]


def test_a_line_is_a_row_and_a_blank_one_is_none():
    assert lines(b'\xef\xbb\xbf{"a": 1}\n\n  \r\n{}\r\nlast') == [(1, b'{"a": 1}\n'), (4, b"{}\r\n"), (5, b"last")]
    assert lines(b"") == lines(b"\xef\xbb\xbf") == []


def test_a_line_too_long_to_hold_is_one_bad_row(monkeypatch):
    monkeypatch.setattr(jsonl, "MAX_ROW_BYTES", 100)
    found = lines(b"x" * 99 + b"\n" + b"y" * 100000 + b"\nz\n" + b"w" * 100)
    assert [number for number, _ in found] == [1, 2, 3, 4]
    assert [isinstance(content, InvalidRequest) for _, content in found] == [False, True, False, True]


def test_csv_cells_keep_every_character():
    written = io.StringIO()
    csv.writer(written).writerows([["prompt", "max_tokens"], [AWKWARD, "5"], ["12", ""]])
    assert table(written.getvalue().encode()) == [(1, {"prompt": AWKWARD, "max_tokens": 5}), (2, {"prompt": "12"})]


def test_bad_csv_rows_are_rows_and_do_not_shift_the_others():
    found = table(b'prompt,seed\na,1\nb\n\nc,"2" x\nd,4,5\ne,5\nf,"never closed')
    assert [number for number, _ in found] == [1, 2, 3, 4, 5, 6]
    assert [content for _, content in found if isinstance(content, dict)] == [
        {"prompt": "a", "seed": 1},
        {"prompt": "e", "seed": 5},
    ]
    assert {content.code for _, content in found if isinstance(content, InvalidRequest)} == {"invalid_csv"}


def test_nan_in_a_csv_cell_is_a_gap_but_where_text_is_meant():
    (_, first), (_, second) = table(b'prompt,seed,top_p,stop,logit_bias\nNaN,nan,NaN,nan,"{""5"": NaN}"\na,1,0.5,,\n')
    assert (first["prompt"], first["stop"], second) == ("NaN", "nan", {"prompt": "a", "seed": 1, "top_p": 0.5})
    assert set(first) == {"prompt", "stop", "logit_bias"}  # whose NaN is its row's fault


def test_bytes_that_are_no_utf_8_cost_one_row():
    (_, first), (_, second) = table(b"\xef\xbb\xbfprompt\n\xff\xfe\nb\n")
    assert not first["prompt"].isascii() and second == {"prompt": "b"}


@pytest.mark.parametrize("header", [b"", b"text,seed\na,1\n", b"prompt,seed,seed\na,1,2\n", b'"prompt\n'])
def test_a_csv_header_must_be_one(header):
    with pytest.raises(BatchError, match="CSV file"):
        table(header)


def test_a_packed_file_is_read_and_a_torn_one_named(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    content = b"".join(b'{"prompt": "%d"}\n' % number for number in range(5000))
    path.write_bytes(gzip.compress(content))
    source = open_source(path, "jsonl.gz")
    assert sum(1 for _ in source.rows) == 5000 and source.share() == 1.0
    source.close()
    path.write_bytes(gzip.compress(content)[:-2000])
    torn = open_source(path, "jsonl.gz")
    with pytest.raises(BatchError, match="whole gzip file"):
        list(torn.rows)
    torn.close()


RECORDS = [
    Record(1, 200, json.dumps(dict.fromkeys(COLUMNS) | {"row": 1, "status": 200, "text": AWKWARD}).encode()),
    Record(2, 400, json.dumps(dict.fromkeys(COLUMNS) | {"row": 2, "status": 400, "error": "no"}).encode()),
]


def test_answers_are_written_whole_in_each_format(tmp_path):
    path = tmp_path / "out"
    for kind in ("jsonl", "jsonl.gz"):
        write_output(iter(RECORDS), path, kind)
        content = path.read_bytes() if kind == "jsonl" else gzip.decompress(path.read_bytes())
        assert content == b"".join(record.line + b"\n" for record in RECORDS)
    write_output(iter(RECORDS), path, "csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == [AWKWARD, ""] and [row["error"] for row in rows] == ["", "no"]


def test_statuses_are_counted_in_each_format(tmp_path):
    path = tmp_path / "out"
    openai = Record(3, 404, b'{"id":"a","custom_id":null,"response":{"status_code":404,"body":{"status":200}}}')
    for kind, records in (("jsonl", [*RECORDS, openai]), ("jsonl.gz", [*RECORDS, openai]), ("csv", RECORDS)):
        write_output(iter(records), path, kind)
        assert count_statuses(path, kind) == Counter(record.status for record in records)
        write_output(iter([]), path, kind)
        assert not count_statuses(path, kind)


@pytest.mark.parametrize(
    ("kind", "content"),
    [("jsonl", b"precious"), ("jsonl", b'{"prompt": "hi"}\n'), ("jsonl", b'{"status": "200"}\n'), ("jsonl", b"{}\n\n")]
    + [("jsonl.gz", b"{}"), ("jsonl.gz", gzip.compress(b'{"status":200}\n', mtime=0)[:-9])]
    + [("csv", b""), ("csv", b"row\n1\n"), ("csv", b"row,status\n1\n"), ("csv", b"row,status\n1,good\n")]
    + [("csv", b'row,status\n1,"200\n')],
)
def test_what_is_no_batch_s_output_is_not_taken_for_one(tmp_path, kind, content):
    path = tmp_path / "out"
    path.write_bytes(content)
    with pytest.raises(BatchError, match="must be a batch's answers"):
        count_statuses(path, kind)


def test_an_output_that_cannot_be_written_stays_as_it_was(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")

    def failing():
        yield RECORDS[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(BatchError, match="No space left"):
        write_output(failing(), path, "csv")
    assert path.read_text() == "old"


def test_the_format_is_told_by_name_or_by_flag():
    found = [format_of(name, None, "--f") for name in ("a.jsonl", "A.CSV", "b.ndjson", "c.parquet", "d.jsonl.gz", "-")]
    assert found == ["jsonl", "csv", "jsonl", "parquet", "jsonl.gz", "jsonl"]
    assert format_of("a.txt", "csv", "--f") == "csv"
    with pytest.raises(ConfigError, match=r"got 'a\.txt'; rename it or give --f"):
        format_of("a.txt", None, "--f")


def test_a_file_is_told_from_another_by_size_and_ends(tmp_path):
    path = tmp_path / "rows"
    digests = set()
    for content in (b"a" * 10, b"a" * 11, b"b" + b"a" * 10, b"a" * 3_000_000 + b"c", b"a" * 3_000_000 + b"d"):
        path.write_bytes(content)
        digests |= {digest_of(path), digest_of(path)}
    assert len(digests) == 5


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'jaxinfer\[parquet\]'"):
        open_source(path, "parquet")
