"""`jaxinfer sanity`: are models what they should be on this machine?"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.bench import REPORT_OPTIONS, publish
from jaxinfer.cli.checklist import Checklist
from jaxinfer.cli.options import EngineCommand
from jaxinfer.config import Resolved
from jaxinfer.engine.interrupts import ended_by_ctrl_c

if TYPE_CHECKING:
    from jaxinfer.bench.report import Report


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Print a row for each model. Returns the code of the first that cannot be run, else 1 where a check fails."""
    models = params["models"] or (resolved.config.model,)

    def make(checklist: Checklist) -> "Report":
        with ended_by_ctrl_c():
            from jaxinfer.bench import sanity  # takes seconds, in which something must be shown

        return sanity.run(resolved, models, params["prompt"], checklist, checklist.say)

    return publish(make, params)


command = EngineCommand(
    "sanity",
    run,
    [
        click.Argument(["models"], nargs=-1, metavar="[MODEL]..."),
        click.Option(["--prompt"], default="Hello! Who are you?", metavar="TEXT", help="Question for each model."),
        *REPORT_OPTIONS,
    ],
    model_argument=False,
    help="Load each MODEL, by default the bundled demo: time to ready, prefill and decode, an answer, and checks.",
)
