"""`jaxinfer bench suite`: another system's tables, made again on this machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.bench import REPORT_OPTIONS, publish
from jaxinfer.cli.checklist import Checklist
from jaxinfer.cli.options import EngineCommand
from jaxinfer.cli.values import TargetFile
from jaxinfer.config import Resolved
from jaxinfer.engine.interrupts import ended_by_ctrl_c
from jaxinfer.errors import ConfigError, file_fault

if TYPE_CHECKING:
    from jaxinfer.bench.chart import Chart
    from jaxinfer.bench.report import Report

SUITES = ("zedinfer", "paladin", "mini-infer", "vllm", "toggles")


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Make the suite's tables, print them, and write the page."""
    with ended_by_ctrl_c():
        from jaxinfer.bench import suite

    made: list[tuple[Report, Sequence[Chart]]] = []

    def make(checklist: Checklist) -> "Report":
        counts = params["shrink"], params["runs"]
        made.append(suite.run(params["suite"], resolved, *counts, checklist, checklist.say))
        return made[0][0]

    code = publish(make, params)
    page: Path | None = params["html_file"]
    if page is not None:  # after the report, which is not to be lost with it
        _write(page, *made[0])
    return code


def _write(page: Path, report: "Report", charts: "Sequence[Chart]") -> None:
    from jaxinfer.bench.page import as_html

    try:
        page.write_text(as_html(report, charts), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file_fault('write', page, error)} (--html); name another file") from error


command = EngineCommand(
    "suite",
    run,
    [
        click.Argument(["suite"], type=click.Choice(SUITES), metavar="zedinfer|paladin|mini-infer|vllm|toggles"),
        click.Argument(["model_argument"], required=False, metavar="[MODEL]"),
        click.Option(
            ["--shrink"],
            type=click.IntRange(1),
            default=1,
            metavar="N",
            help="Divide every length and number of requests by N, for a look on a slow machine.  [1]",
        ),
        click.Option(["--runs"], type=click.IntRange(1), default=3, metavar="N", help="Runs of each figure.  [3]"),
        click.Option(
            ["html_file", "--html"],
            type=TargetFile(),
            metavar="FILE",
            help="Also write a page with charts to FILE.",
        ),
        *REPORT_OPTIONS,
    ],
    model_argument=False,  # it comes after the suite
    help="Make another engine's published tables with MODEL, by default the bundled demo, or switch each optimisation "
    "off and on (toggles).",
)
