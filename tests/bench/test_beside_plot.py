"""benchmarks/beside_plot.py: the pictures and tables of the pages are made of the committed figures alone."""

import json
import re
import tomllib

import pytest

from benchmarks import beside_plot
from benchmarks.beside_plot import FIGURES, PICTURES, ROOT, marked, pictures, tables

FOUND = json.loads(FIGURES.read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README, PERFORMANCE = ((ROOT / name).read_text() for name in ("README.md", "docs/performance.md"))


def test_the_pictures_are_those_that_python_benchmarks_beside_plot_py_draws(tmp_path, monkeypatch, capsys):
    """`python benchmarks/beside_plot.py`"""
    monkeypatch.setattr(beside_plot, "PICTURES", tmp_path)
    beside_plot.main()
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in PICTURES.iterdir()}
    assert "| 1 x (128 in, 128 out) |" in capsys.readouterr().out


def test_the_page_has_every_table_of_the_figures():
    for table in "\n".join(tables(FOUND)).split("\n\n"):
        assert table in PERFORMANCE


@pytest.mark.parametrize("page", [README, PERFORMANCE], ids=["README.md", "docs/performance.md"])
def test_the_conditions_stand_beside_the_figures_in_each_page_that_shows_them(page):
    assert FOUND["conditions"] in " ".join(page.split())


def test_who_cannot_see_the_plot_reads_its_figures():
    (words,) = re.findall(r"!\[([^\]]*)\]\(docs/pictures/beside-vllm.svg\)", README)
    plot = dict(pictures(FOUND, PROJECT))["beside-vllm.svg"]
    shown = re.findall(r">([\d,]+)</text>", plot)
    assert len(shown) == 8 and re.findall(r"\b\d[\d,]*\d\b(?! streams)(?!B)", re.sub(r"1\.5B|8B", "", words)) == shown


def test_a_figure_of_ours_that_is_worse_is_bold():
    assert (marked("5", True), marked("5", False)) == ("**5**", "5")
    assert "228, **812**; 5,888 | 435, 788; 5,235" in PERFORMANCE
    bold = [line for line in tables(FOUND) if "**" in line]
    worse = [row for row in FOUND["sampling"] if row["jaxinfer"] < row["vLLM"]]
    assert len(bold) == len(worse) + 1
