"""Charts of a report's tables as inline SVG: bars, or lines where the rows are points of a sweep. No jax."""

import dataclasses
import html
import math
from collections.abc import Sequence
from typing import TypeGuard

from jaxinfer.bench.report import Table, Value, shown

WIDTH, LEFT, TOP, FLOOR = 760, 64, 40, 242
LETTER, TURN = 7, math.radians(18)  # the width of one, and how far names are turned if one is longer than its room
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
    columns = [table.columns[0], *chart.columns]
    rows = [[row[column] for column in columns] for row in table.as_dicts()]
    rows = [row for row in rows if any(map(is_number, row[1:]))]
    most = max((value for row in rows for value in row[1:] if is_number(value)), default=0.0)
    if most <= 0:
        return ""
    step = (WIDTH - LEFT - 8) / len(rows)
    names = [str(row[0]) for row in rows]
    is_turned = any(len(name) * LETTER >= step for name in names)
    left, below = _beyond(names, step) if is_turned else (0.0, 28.0)
    box, label = (-left, 0, WIDTH + left, FLOOR + below), html.escape(", ".join(chart.columns))
    parts = [
        f'<svg viewBox="{" ".join(f"{edge:.0f}" for edge in box)}" role="img" aria-label="{label}">',
        *_grid(most, chart.unit),
        *(_marks(rows, most, step, chart.is_line)),
    ]
    for number, name in enumerate(names):
        x, y = LEFT + step * (number + 0.5), FLOOR + 16
        parts.append(_turned(x, y, name) if is_turned else _text(x, y, name, "middle"))
    for number, column in enumerate(chart.columns):
        x = LEFT + number * (WIDTH - LEFT) / len(chart.columns)
        parts.append(f'<rect x="{x:.0f}" y="8" width="10" height="10" fill="{COLORS[number % len(COLORS)]}"/>')
        parts.append(_text(x + 14, 17, column, "start"))
    return "\n".join([*parts, "</svg>"])


def _beyond(names: Sequence[str], step: float) -> tuple[float, float]:
    """How far turned names of the rows reach beyond the left edge and below the floor."""
    lengths = [len(name) * LETTER for name in names]
    left = max(length * math.cos(TURN) - LEFT - step * (number + 0.5) for number, length in enumerate(lengths))
    return max(0.0, left), 28 + max(lengths) * math.sin(TURN)


def is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float)


def _height(value: float, most: float) -> float:
    return (FLOOR - TOP) * value / most


def _grid(most: float, unit: str) -> list[str]:
    parts = []
    for quarter in range(5):
        y = FLOOR - _height(quarter / 4, 1.0)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}" stroke="#8884"/>')
        parts.append(_text(LEFT - 6, y + 4, shown(most * quarter / 4), "end"))
    return [*parts, _text(LEFT, TOP - 5, unit, "start")]


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
            y = FLOOR - up
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


def _text(x: float, y: float, text: str, anchor: str, turned: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{html.escape(text)}</text>'


def _turned(x: float, y: float, text: str) -> str:
    """One that ends here, from further down."""
    return _text(x, y, text, "end", f' transform="rotate({-math.degrees(TURN):.0f} {x:.1f} {y:.1f})"')
