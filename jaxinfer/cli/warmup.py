"""`jaxinfer warmup`: compile every step into the cache, so that the next start finds them there."""

import dataclasses
import sys
import time
from collections.abc import Mapping
from typing import Any

import click

from jaxinfer.cli.checklist import VOLUME_OPTIONS, Checklist, screen_for
from jaxinfer.cli.options import EngineCommand, check_start
from jaxinfer.cli.session import opening
from jaxinfer.config import Resolved, counted
from jaxinfer.engine.interrupts import ended_by_ctrl_c
from jaxinfer.errors import ConfigError
from jaxinfer.llm.events import Event


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Compile, print a line for each step, and say where they went."""
    if resolved.config.compile_cache_dir == "":
        raise ConfigError("warmup fills the compile cache, compile_cache_dir is '' (none); name a folder")
    # a compiled step depends on the shapes of the weights alone, so none are read or downloaded
    config = dataclasses.replace(resolved.config, load_format="dummy")
    check_start(config)
    compiled: list[Event] = []
    began_s = time.monotonic()
    with Checklist(screen_for(sys.stderr, params)) as checklist:
        for line in opening(resolved):
            checklist.say(line)
        with ended_by_ctrl_c():
            from jaxinfer.llm.build import start_core  # takes seconds, in which something must be shown

        def listen(event: Event) -> None:
            if event.kind == "compile" and event.detail:
                compiled.append(event)
            checklist(event)

        core = start_core(config, listen)
        core.warming.result()
    core.close()
    for line in report(compiled):
        click.echo(line)
    click.echo(f"{counted(len(compiled), 'step')} in {time.monotonic() - began_s:.1f} s")
    return 0


def report(compiled: list[Event]) -> list[str]:
    """A table: step, seconds, whether it was in the cache."""
    rows = [("step", "seconds", "from cache")]
    rows += [(event.detail, f"{event.seconds:.2f}", "yes" if event.cached else "no") for event in compiled]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [f"{name:<{widths[0]}}  {seconds:>{widths[1]}}  {hit}" for name, seconds, hit in rows]


command = EngineCommand(
    "warmup",
    run,
    VOLUME_OPTIONS,
    help="Compile every step of MODEL into the cache; no weights are needed. Prints a table of steps.",
)
