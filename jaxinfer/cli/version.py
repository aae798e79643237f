"""`jaxinfer version`: the same as --version."""

import click

from jaxinfer.cli.options import GroupedCommand
from jaxinfer.version import __version__


def run() -> int:
    """Print it."""
    click.echo(f"jaxinfer {__version__}")
    return 0


command = GroupedCommand("version", run, help="Show the version.")
