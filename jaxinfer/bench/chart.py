"""Charts of a report's tables as inline SVG: bars, or lines where the rows are points of a sweep. No jax."""

import dataclasses
import html
from collections.abc import Sequence
from typing import TypeGuard

from jaxinfer.bench.report import Table, Value, shown

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 300, 64, 58, 34
COLORS = ("#2563eb", "#f59e0b", "#059669", "#dc2626", "#7c3aed", "#0891b2")


@dataclasses.dataclass(frozen=True)
class Chart:
    """Columns of one table, by its title, over its rows. is_line: the rows are points of a sweep, in order."""

    table: str
    columns: tuple[str, ...]
    unit: str
    is_line: bool = False


def as_svg(chart: Chart, table: Table) -> str:
    """A picture of a table's figures; rows without any are left out. "" when none is left."""
    names = [table.columns[0], *chart.columns]
    rows = [[row[name] for name in names] for row in table.as_dicts()]
    rows = [row for row in rows if any(map(is_number, row[1:]))]
    most = max((value for row in rows for value in row[1:] if is_number(value)), default=0.0)
    if most <= 0:
        return ""
    step = (WIDTH - LEFT - 8) / len(rows)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(", ".join(chart.columns))}">',
        *_grid(most, chart.unit),
        *(_marks(rows, most, step, chart.is_line)),
    ]
    for number, row in enumerate(rows):
        parts.append(_text(LEFT + step * (number + 0.5), HEIGHT - BOTTOM + 16, str(row[0]), "middle", step))
    for number, name in enumerate(chart.columns):
        left = LEFT + number * (WIDTH - LEFT) / len(chart.columns)
        parts.append(f'<rect x="{left:.0f}" y="8" width="10" height="10" fill="{COLORS[number % len(COLORS)]}"/>')
        parts.append(_text(left + 14, 17, name, "start"))
    return "\n".join([*parts, "</svg>"])


def is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float)


def _height(value: float, most: float) -> float:
    return (HEIGHT - BOTTOM - TOP) * value / most


def _grid(most: float, unit: str) -> list[str]:
    parts = []
    for quarter in range(5):
        y = HEIGHT - BOTTOM - _height(quarter / 4, 1.0)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}" stroke="#8884"/>')
        parts.append(_text(LEFT - 6, y + 4, shown(most * quarter / 4), "end"))
    return [*parts, _text(LEFT, HEIGHT - 8, unit, "start")]


def _marks(rows: Sequence[Sequence[Value]], most: float, step: float, is_line: bool) -> list[str]:
    """A bar for each figure, or a line through those of each column."""
    parts, series = [], len(rows[0]) - 1
    bar = step * 0.8 / series
    for column in range(series):
        color, points = COLORS[column % len(COLORS)], []
        for number, row in enumerate(rows):
            value = row[column + 1]
            if not isinstance(value, int | float):
                continue
            up, center = _height(value, most), LEFT + step * (number + 0.5)
            title = f"<title>{html.escape(f'{row[0]}: {shown(value)}')}</title>"
            y = HEIGHT - BOTTOM - up
            points.append(f"{center:.1f},{y:.1f}")
            if is_line:
                parts.append(f'<circle cx="{center:.1f}" cy="{y:.1f}" r="4" fill="{color}">{title}</circle>')
                continue
            x = LEFT + step * (number + 0.1) + bar * column
            size = f'x="{x:.1f}" y="{y:.1f}" width="{bar:.1f}" height="{up:.1f}"'
            parts.append(f'<rect {size} fill="{color}">{title}</rect>')
        if is_line:
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="2"/>')
    return parts


def _text(x: float, y: float, text: str, anchor: str, room: float | None = None) -> str:
    """room: what it is turned aside for if it is longer."""
    turned = "" if room is None or len(text) * 7 < room else f' transform="rotate(-18 {x:.1f} {y:.1f})"'
    if turned:
        anchor = "end"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{html.escape(text)}</text>'
