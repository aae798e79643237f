"""`jaxinfer bench kernels`: each kernel alone."""

import sys
from typing import Any

import click

from jaxinfer.cli.bench import REPORT_OPTIONS, publish
from jaxinfer.cli.checklist import Checklist, screen_for
from jaxinfer.cli.options import GroupedCommand


def run(**params: Any) -> int:
    """Time the kernels and print the report."""
    with Checklist(screen_for(sys.stderr, params)) as checklist:
        from jaxinfer.bench import kernels

        tuning = kernels.tuning_of(params["tuning"])
        return publish(lambda: kernels.run(params["device"], tuning, checklist.say, checklist), params)


command = GroupedCommand(
    "kernels",
    run,
    [
        click.Option(
            ["--device"],
            type=click.Choice(["auto", "cpu", "cuda"]),
            default="auto",
            metavar="auto|cpu|cuda",
            help="auto: the first NVIDIA GPU if there is a driver, else the CPU.  [auto]",
        ),
        click.Option(
            ["--tuning"], default="", metavar="NAME=N,...", help="Of Mosaic's decode attention, as in stages=2."
        ),
        *REPORT_OPTIONS,
    ],
    help="Time each kernel at real shapes, cold, beside XLA's own version.",
)
