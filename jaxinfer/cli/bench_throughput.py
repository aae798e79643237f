"""`jaxinfer bench throughput`: one LLM.generate call over many requests."""

import sys
from collections.abc import Mapping
from typing import Any

import click

from jaxinfer.cli.bench import REPORT_OPTIONS, Counts, publish
from jaxinfer.cli.checklist import Checklist, screen_for
from jaxinfer.cli.options import EngineCommand, check_start
from jaxinfer.config import Resolved


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Time every load and print the report."""
    check_start(resolved.config)
    with Checklist(screen_for(sys.stderr, params)) as checklist:
        from jaxinfer.bench import throughput

        return publish(
            lambda: throughput.run(resolved, params["loads"], params["tries"], checklist, checklist.say), params
        )


command = EngineCommand(
    "throughput",
    run,
    [
        click.Option(
            ["--loads"],
            type=Counts("REQUESTS:IN:OUT"),
            metavar="N:IN:OUT,...",
            help="Requests, prompt and output tokens of each call; else as many requests as take some seconds.",
        ),
        click.Option(
            ["--tries"], type=click.IntRange(1), default=1, metavar="N", help="Calls of each; the best counts.  [1]"
        ),
        *REPORT_OPTIONS,
    ],
    help="Time one LLM.generate call over many requests of MODEL, by default the bundled demo.",
)
