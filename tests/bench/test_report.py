"""Reports: Markdown for people, JSON for the next comparison."""

import json
import random

import pytest

from jaxinfer.bench.report import Report, Table, as_saved, percentile, read_json, shown
from jaxinfer.errors import ConfigError


def report(rate: float) -> Report:
    table = Table("speed", ("shape", "tok/s", "note"), [("1x128", rate, None), ("4x128", 10, "b")])
    return Report("bench", [("commit", "abc"), ("date", "today")], [table], ["a note"])


def test_a_table_is_markdown_with_its_head_and_notes():
    text = report(1234.5678).as_markdown()
    assert "| shape | tok/s | note |\n| --- | --- | --- |\n| 1x128 | 1,235 | - |\n| 4x128 | 10 | b |" in text
    assert "| commit | abc |" in text
    assert text.endswith("- a note\n")


def test_a_terminal_gets_columns_in_the_place_of_markdown():
    text = report(1234.5678).as_markdown(width=80)
    assert "\n\nshape  tok/s  note\n1x128  1,235  -\n4x128  10     b\n\n" in text
    assert "|" not in text and "\ncommit  abc\n" in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_terminal_gets_no_wider_lines_than_it_has(width):
    long = " ".join(f"w{i}" for i in range(60))
    columns = ("batch x prompt", *(f"{name} of all steps us" for name in ("drain", "pack", "wait", "text")))
    report = Report("bench", [("a fact", long)], [Table("speed", columns, [("1x128", 1.0, 2.0, 3.0, 4.0)])], [long])
    text = report.as_markdown(width=width)
    assert max(map(len, text.splitlines())) <= width
    assert " ".join(text.split()).count("w0 w1") == 2 and "a fact  w0" in text and "\n- w0" in text
    for name in columns:
        assert all(part in text for part in name.split())
    assert "\n1x128 " in text


def test_a_comparison_shows_the_difference_of_rows_and_columns_that_both_have():
    old = json.loads(report(1000.0).as_json())
    del old["tables"]["speed"][1]
    text = report(1100.0).as_markdown(old)
    assert "| 1x128 | 1,100 (+10.0 %) | - |" in text
    assert "| 4x128 | 10 | b |" in text
    assert "abc of today" in text


def test_a_share_above_its_limit_is_not_trusted_and_a_note_says_why():
    columns = ("shape", "of matmul rate %", "of bandwidth %", "goodput %")
    report = Report("bench", [], [Table("speed", columns, [("1x128", 161.9, 100.2, 300.0)])])
    assert "| 1x128 | 161.9 (limit not trusted) | 100.2 | 300.0 |" in report.as_markdown()
    assert report.as_markdown().endswith("Measure again on a quiet machine.\n")
    assert "limit was measured too low" in json.loads(report.as_json())["notes"][-1]
    assert Report("bench", [], [Table("speed", columns, [("1x128", 99.0, None, 1.0)])]).all_notes() == []


def test_a_report_in_brief_counts_its_details_and_json_has_them():
    brief = Report("bench", [("model", "demo")], [], details=[("weights", "1 GiB"), ("pages", "2 GiB")])
    assert "| more | 2 facts of the start: -v shows them, --json writes them |" in brief.as_markdown(is_brief=True)
    assert "weights" not in brief.as_markdown(is_brief=True) and "more" not in brief.as_markdown()
    assert json.loads(brief.as_json())["facts"] == {"model": "demo", "weights": "1 GiB", "pages": "2 GiB"}
    assert "more" not in report(5.0).as_markdown(is_brief=True)


def test_json_can_be_read_back(tmp_path):
    file = tmp_path / "report.json"
    file.write_text(report(5.0).as_json())
    assert read_json(str(file))["tables"]["speed"][0] == {"shape": "1x128", "tok/s": 5.0, "note": None}


def test_columns_of_a_saved_row_may_stand_in_another_order(tmp_path):
    file = tmp_path / "report.json"
    file.write_text('{"tables": {"x": [{"a": 1, "b": 2}, {"b": 4, "a": 3}]}}')
    assert as_saved(read_json(str(file))).tables[0].rows == [(1, 2), (3, 4)]


@pytest.mark.parametrize("digits", ["1" + "0" * 400, "1" + "0" * 5000, "1e400", "-1" + "0" * 400])
@pytest.mark.parametrize("old", ["2", "0.5", "-1" + "0" * 400])
def test_a_figure_beyond_a_double_is_infinity(tmp_path, digits, old):
    for name, figure in (("new", digits), ("old", old)):
        (tmp_path / name).write_text(f'{{"tables": {{"x": [{{"a": "b", "c": {figure}}}]}}}}')
    new, before = (read_json(str(tmp_path / name)) for name in ("new", "old"))
    assert "| b | inf" in as_saved(new).as_markdown(before).replace("-inf", "inf")


NO_COLUMNS = '{"tables": {"x": [{}]}}'
OTHER_COLUMNS = '{"tables": {"x": [{"a": 1, "b": 2}, {"a": 3}]}}'


@pytest.mark.parametrize("content", ["no json", "[1]", "{}", NO_COLUMNS, OTHER_COLUMNS])
def test_what_is_no_report_is_refused_with_its_name(tmp_path, content):
    file = tmp_path / "old.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"--compare must name a file that --json wrote.*old\.json"):
        read_json(str(file))


ODD = [
    "",
    " ",
    "a",
    " " * 300,
    "\n" * 300,
    "\t\r\x0b\x85\u2028",
    "word " * 60,
    "x" * 300,
    "\ud800",
    "-",
    "|",
    "of %",
    "\xa0" * 99,
]


@pytest.mark.parametrize("seed", range(40))
def test_every_saved_report_can_be_shown_at_every_width(tmp_path, seed):
    draw = random.Random(seed)
    figures = [*ODD, None, 0, -1, 0.0, 1e308, 10**307, float("inf"), float("nan")]

    def rows() -> list[dict[str, object]]:
        names = draw.sample(ODD, draw.randint(1, 5))
        return [{name: draw.choice(figures) for name in names} for _ in range(draw.randint(0, 4))]

    for at in ("new", "old"):
        tables = {draw.choice(ODD): rows() for _ in range(draw.randint(0, 3))}
        facts = {draw.choice(ODD): draw.choice(ODD) for _ in range(draw.randint(0, 3))}
        notes = draw.choices(ODD, k=draw.randint(0, 3))
        saved = {"verb": draw.choice(ODD), "facts": facts, "tables": tables, "notes": notes}
        (tmp_path / at).write_text(json.dumps({"tables": {}} if draw.random() < 0.1 else saved))
    new, old = (read_json(str(tmp_path / name)) for name in ("new", "old"))
    for width in (None, 1, 20, 24, 40, 80, 500):
        for before in (None, old, new):
            assert as_saved(new).as_markdown(before, width=width).startswith(f"## {new['verb']}")


def test_percentiles_are_interpolated():
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0, 2.0], 99) == pytest.approx(1.99)
    assert percentile([7.0], 90) == 7.0
    assert percentile([], 50) is None


@pytest.mark.parametrize(
    ("value", "text"), [(0.12345, "0.123"), (12.345, "12.3"), (123.45, "123.5"), (12345.6, "12,346"), (0, "0")]
)
def test_figures_have_the_digits_that_mean_something(value, text):
    assert shown(value) == text
