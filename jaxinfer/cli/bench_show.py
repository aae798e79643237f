"""`jaxinfer bench show`: a report of --json once more, and its differences to another. Nothing is measured."""

from typing import Any

import click

from jaxinfer.cli.bench import QUIET_REPORT_OPTIONS, give
from jaxinfer.cli.options import GroupedCommand
from jaxinfer.errors import ConfigError


def run(**params: Any) -> int:
    """Print the report with all its facts. Always 0: what was wrong was told when it was measured."""
    from jaxinfer.bench.report import as_saved, read_json

    old = read_json(params["compare"]) if params["compare"] else None
    report = as_saved(read_json(params["file"], "FILE"))
    if old is not None and old["verb"] != report.verb:
        law = f"--compare must name a report of `{report.verb}`, as {params['file']} is"
        raise ConfigError(f"{law}, got one of `{old['verb']}`; name two of one verb")
    return give(report, old, params)


command = GroupedCommand(
    "show",
    run,
    [click.Argument(["file"], metavar="FILE.json"), *QUIET_REPORT_OPTIONS],
    help="Show the report FILE.json that --json wrote; with --compare OLD.json each figure with its difference.",
)
