"""The page of a report: whole, readable without anything else, charts beneath the tables they are of."""

import dataclasses
import math
import re
from html.parser import HTMLParser

from jaxinfer.bench.chart import Chart, as_svg
from jaxinfer.bench.page import as_html
from jaxinfer.bench.report import Report, Table

TABLE = Table("speed", ("shape", "tok/s", "ms"), [("1x128", 5.0, None), ("<4x128>", 10.0, 2.5), ("8", None, None)])
REPORT = Report("bench <x>", [("commit", "abc & co")], [TABLE], ["one note"])
BARS, LINE = Chart("speed", ("tok/s", "ms"), "tok/s"), Chart("speed", ("tok/s",), "tok/s", is_line=True)
VOID = {"meta", "line", "rect", "circle", "polyline", "br"}


class Reader(HTMLParser):
    """Every tag is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)


def test_a_page_is_whole_and_asks_for_nothing():
    page = as_html(REPORT, [BARS, LINE])
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert reader.seen.count("svg") == 2 and reader.seen.count("table") == 2
    assert not {"script", "link", "img", "iframe"} & set(reader.seen)
    assert not re.search(r"https?:|src=|url\(", page)
    assert "bench &lt;x&gt;" in page and "&lt;4x128&gt;" in page and "abc &amp; co" in page


def test_bars_are_as_high_as_their_figures():
    heights = [float(height) for height in re.findall(r'height="([\d.]+)" fill', as_svg(BARS, TABLE)) if height != "10"]
    assert heights[1] == 2 * heights[0]  # 10 and 5 tok/s; the third is 2.5 ms
    assert heights[2] * 4 == heights[1]
    assert "<title>1x128: 5</title>" in as_svg(BARS, TABLE)


def test_a_line_has_a_point_for_each_figure_and_rows_without_are_left_out():
    svg = as_svg(LINE, TABLE)
    assert svg.count("<circle") == 2 and svg.count("<polyline") == 1
    assert as_svg(LINE, Table("speed", TABLE.columns, [("8", None, None)])) == ""


def test_what_a_chart_counts_in_stands_between_its_legend_and_its_figures_where_no_name_is():
    table = Table("speed", TABLE.columns, [(f"a name too long for its place {i}", 1.0, 1.0) for i in range(9)])
    svg = as_svg(dataclasses.replace(BARS, unit="longest ms"), table)
    y = {text: float(at) for at, text in re.findall(r'y="([\d.]+)"[^>]*>([^<]+)</text>', svg)}
    top = min(float(at) for at in re.findall(r'<line x1="[\d.]+" y1="([\d.]+)"', svg))
    assert y["tok/s"] < y["longest ms"] < top < y["a name too long for its place 0"]


def test_names_that_are_turned_aside_are_whole():
    """Whatever a name reaches of the picture is in it: 7 a letter, from its end to its beginning, down and left."""
    for names in (["short", "b"], ["a name too long for its place " * 2, "b", *(f"row {i}" for i in range(9))]):
        svg = as_svg(BARS, Table("speed", TABLE.columns, [(name, 1.0, 1.0) for name in names]))
        left, top, width, height = map(float, re.search(r'viewBox="([^"]+)"', svg)[1].split())
        assert (left, top, left + width) == (min(left, 0), 0, 760)
        turned = re.findall(r'rotate\(-18 ([\d.]+) ([\d.]+)\)">([^<]+)<', svg)
        assert len(turned) == (0 if len(names) == 2 else len(names))  # all or none
        assert (left < 0) == (len(names) > 2)
        for x, y, text in turned:
            assert float(x) - 7 * len(text) * math.cos(math.radians(18)) >= left - 1
            assert float(y) + 7 * len(text) * math.sin(math.radians(18)) <= height
