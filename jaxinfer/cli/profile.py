"""`jaxinfer profile`: a trace of chosen steps, as a table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.bench import REPORT_OPTIONS, publish
from jaxinfer.cli.checklist import Checklist
from jaxinfer.cli.options import EngineCommand, check_start, count_option
from jaxinfer.cli.values import TargetFolder
from jaxinfer.config import Resolved
from jaxinfer.engine.interrupts import ended_by_ctrl_c

if TYPE_CHECKING:
    from jaxinfer.bench.report import Report


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Trace the steps and print the report."""
    check_start(resolved.config)

    def make(checklist: Checklist) -> "Report":
        with ended_by_ctrl_c():
            from jaxinfer.bench import profile

        wanted = profile.ProfileRequest(
            params["batch_size"], params["prompt_length"], params["steps"], params["prefill"]
        )
        return profile.run(resolved, wanted, params["trace"], checklist, checklist.say)

    return publish(make, params)


command = EngineCommand(
    "profile",
    run,
    [
        count_option("--batch-size", 1, "Requests together."),
        count_option("--prompt-length", 128, "Tokens of each prompt."),
        count_option("--steps", 32, "Decode steps to trace, or calls with --prefill."),
        click.Option(["--prefill"], is_flag=True, help="Trace the computing of prompts instead of decoding."),
        click.Option(
            ["--trace"],
            type=TargetFolder(),
            metavar="FOLDER",
            help="Keep the trace in FOLDER, for XProf or Perfetto.",
        ),
        *REPORT_OPTIONS,
    ],
    help="Trace steps of MODEL, by default the bundled demo: device time by kernel, host time by phase.",
)
