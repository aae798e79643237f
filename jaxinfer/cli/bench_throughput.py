"""`jaxinfer bench throughput`: one LLM.generate call over many requests."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.bench import REPORT_OPTIONS, Counts, publish
from jaxinfer.cli.checklist import Checklist
from jaxinfer.cli.options import EngineCommand, check_start
from jaxinfer.config import Resolved
from jaxinfer.engine.interrupts import ended_by_ctrl_c

if TYPE_CHECKING:
    from jaxinfer.bench.report import Report


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Time every load and print the report."""
    check_start(resolved.config)

    def make(checklist: Checklist) -> "Report":
        with ended_by_ctrl_c():
            from jaxinfer.bench import throughput

        return throughput.run(resolved, params["loads"], params["tries"], checklist, checklist.say)

    return publish(make, params)


command = EngineCommand(
    "throughput",
    run,
    [
        click.Option(
            ["--loads"],
            type=Counts("REQUESTS:IN:OUT", "64:512:256"),
            metavar="N:IN:OUT,...",
            help="Requests, prompt and output tokens of each call.  [what takes some seconds, at least max-num-seqs]",
        ),
        click.Option(
            ["--tries"],
            type=click.IntRange(1),
            default=1,
            metavar="N",
            help="Calls of each size; the best counts.  [1]",
        ),
        *REPORT_OPTIONS,
    ],
    help="Time one LLM.generate call over many requests of MODEL, by default the bundled demo.",
)
