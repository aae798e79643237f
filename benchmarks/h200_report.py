"""Hold a section's reports against benchmarks/targets.toml; called by benchmarks/h200.sh.

    python benchmarks/h200_report.py SECTION REPORTS OUT [OLD]

REPORTS holds what the verbs wrote, NAME.json and NAME.md; OLD is an earlier OUT/SECTION.json, to compare with. Prints
the rows, writes OUT/SECTION.md and OUT/SECTION.json, exits with 1 when a bar is missed or a figure is not there.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from jaxinfer.bench.report import Report, Table, Value

TARGETS = Path(__file__).parent / "targets.toml"


def main() -> None:
    section, reports, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    found = {path.stem: json.loads(path.read_text()) for path in sorted(reports.glob("*.json"))}
    groups = [group for group in tomllib.loads(TARGETS.read_text())["group"] if section in group["sections"]]
    rows = [judged(row, group, section, found) for group in groups for row in group["rows"]]
    table = Table("targets", ("row", "bar", "aim", "measured", "", "of the aim %"), rows)
    facts = list(next(iter(found.values()))["facts"].items()) if found else []
    summary = Report(f"h200 {section}", facts, [table])
    old = json.loads(Path(sys.argv[4]).read_text())["targets"] if len(sys.argv) > 4 else None
    whole = "\n".join([summary.as_markdown(old), *(path.read_text() for path in sorted(reports.glob("*.md")))])
    (out / f"{section}.md").write_text(whole)
    (out / f"{section}.json").write_text(json.dumps({"targets": json.loads(summary.as_json()), **found}, indent=1))
    print(summary.as_markdown(old))
    sys.exit(0 if rows and all(row[4] != "MISSED" for row in rows) else 1)


def judged(row: list[Any], group: dict[str, Any], section: str, found: dict[str, Any]) -> list[Value]:
    """A row of the table: what, bar, aim, measured, verdict, share of the aim."""
    what, names, bar, aim = row
    report = found.get(group["file"].format(section=section), {})
    names = [names] if isinstance(names, str) else names
    try:
        value, bar = figure(names, bar, group, report)
    except LookupError as missing:
        return [what, bar, aim or None, f"no {missing}", "MISSED", None]
    sign = 1 if group["better"] == "more" else -1
    verdict = "aim" if aim != "" and sign * (value - aim) >= 0 else "bar" if sign * (value - bar) >= 0 else "MISSED"
    share = None if not aim or not value else 100 * (value / aim) ** sign
    return [what, bar, aim if aim != "" else None, value, verdict, share]


def figure(names: list[str], bar: float, group: dict[str, Any], report: dict[str, Any]) -> tuple[float, float]:
    """The value and the bar it is held against. Raises LookupError when a figure is not in the report."""
    kind = group.get("is", "value")
    if kind == "fact":
        return float(report["facts"][names[0]]), bar
    table = report["tables"][group["table"]]
    rows = {str(next(iter(row.values()))): row for row in table}
    values = [float(rows[name][group["column"]]) for name in names]
    if kind == "slowdown":
        return (values[1] / values[0] - 1) * 100, bar
    if kind == "between":
        place, low, high = (int(name.split("x")[group["axis"]]) for name in names)
        line = values[1] + (values[2] - values[1]) * (place - low) / (high - low)
        return values[0] / line, bar
    if kind == "limit":
        return values[0], float(rows[names[0]][group["limit"]])
    return (min if group["better"] == "more" else max)(values), bar


if __name__ == "__main__":
    main()
