"""A report: what was measured on which machine, as Markdown for people and JSON for the next comparison. No jax."""

import dataclasses
import json
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from jaxinfer.errors import ConfigError
from jaxinfer.files import read_text

type Value = str | int | float | None

MOST_PERCENT = 100.5  # a share above it is no rounding of 100
BEYOND = " (limit not trusted)"
NOT_TRUSTED = (
    "Limit not trusted: a share above 100 % means that this device's limit was measured too low, as it is while other "
    "programs use the device. Measure again on a quiet machine."
)
_LEAST_ROOM = 20  # characters for what is put into several lines; with less it stays in one


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of one kind. The first column names the row; names are unique within a table."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Value]]

    def as_dicts(self) -> list[dict[str, Value]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def is_beyond(self, column: str, value: Value) -> bool:
        """Whether a share of a measured limit is above it: the limit was then measured too low."""
        return "of " in column and column.endswith("%") and isinstance(value, int | float) and value > MOST_PERCENT


@dataclasses.dataclass(frozen=True)
class Report:
    """facts: (what, which) of the machine and the run.    notes: sentences that a reader must know.
    details: more facts, of the engine's start and its memory plan.

    exit_code: 0 where nothing that was checked is wrong, else that of errors.py, or 1.
    """

    verb: str
    facts: Sequence[tuple[str, str]]
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    exit_code: int = 0
    details: Sequence[tuple[str, str]] = ()

    def all_facts(self) -> list[tuple[str, str]]:
        """Each of them, the details last."""
        return [*self.facts, *self.details]

    def all_notes(self) -> list[str]:
        """The notes, and one more where a share is beyond its limit."""
        cells = ((table, *cell) for table in self.tables for row in table.as_dicts() for cell in row.items())
        beyond = any(table.is_beyond(column, value) for table, column, value in cells)
        return [*self.notes, *([NOT_TRUSTED] if beyond else [])]

    def as_json(self) -> str:
        tables = {table.title: table.as_dicts() for table in self.tables}
        whole = {"verb": self.verb, "facts": dict(self.all_facts()), "tables": tables, "notes": self.all_notes()}
        return json.dumps(whole, indent=1) + "\n"

    def as_markdown(
        self, old: Mapping[str, Any] | None = None, *, is_brief: bool = False, width: int | None = None
    ) -> str:
        """old: an earlier report's JSON; each figure it has too is followed by the difference.    is_brief: without
        details, which a terminal has no room for beside the tables.    width: of a terminal, which gets tables in
        columns and no Markdown.
        """
        lines_of = markdown_of if width is None else partial(columns_of, width=width)
        facts = self.all_facts()
        if is_brief and self.details:
            more = f"{len(self.details)} facts of the start: -v shows them, --json writes them"
            facts = [*self.facts, ("more", more)]
        blocks = [f"## {self.verb}", *([lines_of(("fact", ""), facts)] if facts else [])]
        for table in self.tables:
            name, rows = table.columns[0], (old or {}).get("tables", {}).get(table.title, [])
            before = {row.get(name): row for row in rows}
            cells = [_cells(table, row, before.get(row[name], {})) for row in table.as_dicts()]
            blocks += [f"### {table.title}", lines_of(table.columns, cells)]
        if old is not None:
            was = old.get("facts", {})
            blocks.append(f"In brackets: the difference to {was.get('commit', '?')} of {was.get('date', '?')}.")
        if notes := self.all_notes():
            lines = [f"- {note}" for note in notes]
            blocks.append("\n".join(lines if width is None else [_filled(line, width, "  ") for line in lines]))
        return "\n\n".join(blocks) + "\n"


_DIGITS = 308  # of an integer that a double holds for certain


class _Saved(msgspec.Struct):
    """What Report.as_json writes."""

    tables: dict[str, list[dict[str, str | int | float | None]]]
    verb: str = ""
    facts: dict[str, str] = {}
    notes: list[str] = []


def read_json(path: str, what: str = "--compare") -> dict[str, Any]:
    """An earlier report. what: named it. Raises ConfigError."""
    law = f"{what} must name a file that --json wrote"
    try:
        found = json.loads(read_text(path, what), parse_int=_integer)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{law}, got {path}: {error}; name one") from error
    try:
        saved = msgspec.convert(found, _Saved)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{law}, {path} holds something else; name one") from error
    for title, rows in saved.tables.items():
        if not all(row and row.keys() == rows[0].keys() for row in rows):
            raise ConfigError(f"{law}, {path} has rows of other columns, or of none, in {title!r}; name one")
    return msgspec.structs.asdict(saved)


def _integer(digits: str) -> float:
    """A figure that no double may hold is as good as infinite, and Python refuses to read very many digits."""
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def as_saved(found: Mapping[str, Any]) -> Report:
    """The report of read_json; tables without rows, whose columns are not kept, are left out."""
    tables = [
        Table(title, tuple(rows[0]), [tuple(row[name] for name in rows[0]) for row in rows])
        for title, rows in found["tables"].items()
        if rows
    ]
    notes = [note for note in found["notes"] if note != NOT_TRUSTED]  # which is told anew
    return Report(found["verb"], [*found["facts"].items()], tables, notes)


def shown(value: Value) -> str:
    """A figure with as many digits as mean something."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return value if isinstance(value, str) else f"{value:,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def percentile(values: Sequence[float], percent: float) -> float | None:
    """By linear interpolation; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _cells(table: Table, row: Mapping[str, Value], before: Mapping[str, Value]) -> list[str]:
    return [
        shown(value) + _difference(value, before.get(name)) + (BEYOND if table.is_beyond(name, value) else "")
        for name, value in row.items()
    ]


def _difference(new: Value, old: Value) -> str:
    numbers = isinstance(new, int | float) and isinstance(old, int | float)
    return f" ({(new / old - 1) * 100:+.1f} %)" if numbers and old and new != old else ""  # type: ignore[operator]


def markdown_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, for files and pipes."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def columns_of(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """A table, for a terminal.    width: of the terminal; where the table is wider, names of columns and what stands
    in the last one take several lines.
    """
    heads = [head] if all(head) else []  # of facts the head says nothing
    if width is not None and heads and sum(_widths([head, *rows])) + 2 * len(head) - 2 > width:
        heads = _stacked(head, rows)
    lines = [*heads, *rows]
    *others, _ = widths = _widths(lines)
    left = sum(others) + 2 * len(others)
    shown = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in lines]
    return "\n".join(shown if width is None else [_filled(line, width, " " * left) for line in shown])


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Of each column."""
    return [max(map(len, cells)) for cells in zip(*lines, strict=True)]


def _stacked(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The names of columns in lines, the last one full, that make no column wider than it must be."""
    least = [max(map(len, name.split()), default=1) for name in head]
    widths = _widths([[" " * size for size in least], *rows])
    parts = [textwrap.wrap(name, size) or [""] for name, size in zip(head, widths, strict=True)]
    height = max(map(len, parts))
    return [*zip(*([""] * (height - len(one)) + one for one in parts), strict=True)]


def _filled(line: str, width: int, indent: str) -> str:
    """In lines of at most `width`, all but the first behind an indent; spaces between columns stay."""
    if len(line) <= width or width - len(indent) < _LEAST_ROOM:
        return line
    first, rest = line[: len(indent)], line[len(indent) :]
    parts = textwrap.wrap(rest, width - len(indent), break_long_words=False, break_on_hyphens=False)
    return "\n".join([first + "".join(parts[:1]), *(indent + part for part in parts[1:])])
