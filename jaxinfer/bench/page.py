"""A report as one HTML file that needs nothing else: no script, no network, its charts inline. No jax."""

import html
from collections.abc import Sequence

from jaxinfer.bench.chart import Chart, as_svg
from jaxinfer.bench.report import Report, shown

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #8884; text-align: right; vertical-align: top; }
th { border-bottom-width: 2px; }
th:first-child, td:first-child, .facts td { text-align: left; }
svg { width: 100%; height: auto; margin: .5rem 0 1.5rem; }
svg text { font-size: 12px; fill: currentColor; }
"""


def as_html(report: Report, charts: Sequence[Chart]) -> str:
    """The same facts, tables and notes as the Markdown, each table followed by its charts."""
    title = html.escape(report.verb)
    blocks = [f"<h1>{title}</h1>", _rows("facts", [], report.all_facts())]
    for table in report.tables:
        cells = [[shown(value) for value in row] for row in table.rows]
        blocks += [f"<h2>{html.escape(table.title)}</h2>", _rows("", table.columns, cells)]
        blocks += [as_svg(chart, table) for chart in charts if chart.table == table.title]
    blocks += ["<ul>", *(f"<li>{html.escape(note)}</li>" for note in report.notes), "</ul>"]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "\n".join(block for block in blocks if block)
    top = f'<!doctype html>\n<html lang="en">\n<head>{head}<style>{STYLE}</style></head>'
    return f"{top}\n<body>\n{body}\n</body></html>\n"


def _rows(kind: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f'<table class="{kind}">' if kind else "<table>"]
    if columns:
        lines.append("<tr>" + "".join(f"<th>{html.escape(column)}</th>" for column in columns) + "</tr>")
    lines += ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])
