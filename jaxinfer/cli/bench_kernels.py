"""`jaxinfer bench kernels`: each kernel alone."""

from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.bench import QUIET_REPORT_OPTIONS, publish
from jaxinfer.cli.checklist import Checklist
from jaxinfer.cli.options import GroupedCommand
from jaxinfer.engine.interrupts import ended_by_ctrl_c

if TYPE_CHECKING:
    from jaxinfer.bench.report import Report


def run(**params: Any) -> int:
    """Time the kernels and print the report."""

    def make(checklist: Checklist) -> "Report":
        with ended_by_ctrl_c():
            from jaxinfer.bench import kernels

        return kernels.run(params["device"], kernels.tuning_of(params["tuning"]), checklist.say, checklist)

    return publish(make, params)


command = GroupedCommand(
    "kernels",
    run,
    [
        click.Option(
            ["--device"],
            type=click.Choice(["auto", "cpu", "cuda"]),
            default="auto",
            metavar="auto|cpu|cuda",
            help="auto: the first NVIDIA GPU if there is a driver, otherwise the CPU.  [auto]",
        ),
        click.Option(
            ["--tuning"],
            default="",
            metavar="NAME=N,...",
            help="Tuning of Mosaic's decode attention, as in stages=2.",
        ),
        *QUIET_REPORT_OPTIONS,
    ],
    help="Time each kernel at real shapes, cold, beside XLA's own version.",
)
