"""`jaxinfer bench VERB`: the verbs that measure. Each is a file beside this one, imported when it is asked for."""

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.checklist import QUIET_OPTION, START, VOLUME_OPTIONS, Checklist, screen_for
from jaxinfer.cli.values import TargetFile
from jaxinfer.cli.verbs import Verbs
from jaxinfer.errors import ConfigError, file_fault
from jaxinfer.llm.events import Event

if TYPE_CHECKING:
    from jaxinfer.bench.report import Report

VERBS = {
    "latency": "Time single batches through LLM.generate: first token, prefill and decode rates, host time.",
    "throughput": "Time one LLM.generate call over many requests.",
    "serve": "Load any OpenAI-compatible server from several processes.",
    "compare": "Ask two servers, or two settings, the same in turns: times in pairs, texts equal or not.",
    "suite": "Make the tables of other engines' documents, and switch each optimisation off and on.",
    "show": "Show a report that --json wrote, with --compare its differences to another.",
    "kernels": "Time each kernel alone, cold, beside XLA's own version.",
}


FILE_OPTIONS: tuple[click.Option, ...] = (
    click.Option(
        ["json_file", "--json"], type=TargetFile(), metavar="FILE", help="Also write the report to FILE, as JSON."
    ),
    click.Option(["--compare"], metavar="FILE", help="Show the differences to a report that --json wrote."),
)
REPORT_OPTIONS = (*FILE_OPTIONS, *VOLUME_OPTIONS)
QUIET_REPORT_OPTIONS = (*FILE_OPTIONS, QUIET_OPTION)  # of a verb that starts no engine


def publish(make: "Callable[[Checklist], Report]", params: Mapping[str, Any], first: Event = START) -> int:
    """Make a report and give it to standard output and to where FILE_OPTIONS say; a bad --compare is refused first.

    make: told where to show what goes on, which is `first` until it says more; a terminal shows that no more when the
    report begins. Returns its exit code.
    """
    with Checklist(screen_for(sys.stderr, params), first=first) as checklist:
        from jaxinfer.bench.report import read_json

        old = read_json(params["compare"]) if params["compare"] else None
        report = make(checklist)
    return give(report, old, params)


def give(report: "Report", old: dict[str, Any] | None, params: Mapping[str, Any]) -> int:
    """Give a report to standard output and to where FILE_OPTIONS say, with its differences to an old one. Returns its
    exit code.
    """
    target: Path | None = params["json_file"]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None  # a file and a pipe get Markdown
    is_brief = width is not None and not params.get("verbose", True)  # they keep all
    click.echo(report.as_markdown(old, is_brief=is_brief, width=width), nl=False)
    if target is not None:
        try:
            target.write_text(report.as_json(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{file_fault('write', target, error)} (--json); name another file") from error
    return report.exit_code


class Counts(click.ParamType[list[tuple[int, ...]]]):
    """Numbers above 0, separated by commas, each written `form`: N, BxP or N:IN:OUT. example: a value that is right."""

    name = "counts"

    def __init__(self, form: str, example: str) -> None:
        self._form, self._example = form, example
        self._separator = next((char for char in form if char in "x:"), "")
        self._parts = len(form.split(self._separator)) if self._separator else 1

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        found = [self._one(part.strip()) for part in value.split(",")]
        if None in found:
            several = "with commas between them"
            law = f"{self._form} of integers of at least 1, or several {several}" if self._separator else None
            law = law or f"integers of at least 1 {several}"
            self.fail(f"must be {law}, got {value!r}; write it as in {self._example}", param, ctx)
        return found

    def _one(self, text: str) -> tuple[int, ...] | None:
        numbers = text.split(self._separator) if self._separator else [text]
        whole = len(numbers) == self._parts and all(number.isdecimal() and int(number) > 0 for number in numbers)
        return tuple(map(int, numbers)) if whole else None


command = Verbs(
    "bench",
    verbs=VERBS,
    modules="jaxinfer.cli.bench_",
    help="Measure engines, servers and kernels. Each table names the machine that it was measured on. "
    "`jaxinfer bench VERB --help` shows the options of a verb.",
)
