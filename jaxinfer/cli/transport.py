"""Where a verb's engine runs and whether it has a model: --in-process and --dry-run."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.options import FiniteRange, check_start, server_option
from jaxinfer.config import EngineConfig
from jaxinfer.engine.interrupts import interrupts_held
from jaxinfer.errors import ConfigError

if TYPE_CHECKING:
    from jaxinfer.llm.transport import NewTransport


def transport_for(config: EngineConfig, params: Mapping[str, Any]) -> "AbstractContextManager[NewTransport]":
    """Where the engine runs and whether it has a model, as --in-process and --dry-run say. Raises as check_start does.

    While it is open: an engine of its own process starts at once, since both processes have seconds to import.
    """
    from functools import partial

    with interrupts_held():
        from jaxinfer.llm.process import CHILD, starting

    dry_run, step_ms = params["dry_run"], params["dry_run_step_ms"]
    if step_ms is not None and not dry_run:
        raise ConfigError(f"--dry-run-step-ms needs --dry-run, got {step_ms:g} without it; add it or drop this one")
    step_s = (step_ms or 0.0) / 1000
    checked = replace(config, load_format="dummy") if dry_run else config
    check_start(checked, needs_device=not dry_run, max_tokens=params.get("max_tokens"))
    if not params["in_process"]:
        with interrupts_held():
            from jaxinfer.llm.dry_run import MODULE

        return starting(config, (MODULE, str(step_s)) if dry_run else (CHILD,))
    with interrupts_held():
        from jaxinfer.llm.thread import EngineThread

        if dry_run:
            from jaxinfer.llm.dry_run import start_dry_run

            return nullcontext(partial(EngineThread, start_core=partial(start_dry_run, step_s=step_s)))
        from jaxinfer.llm.build import start_core

    return nullcontext(partial(EngineThread, start_core=start_core))


OPTIONS: tuple[click.Option, ...] = (
    server_option(
        "--in-process",
        "Run the engine in a thread of this process, for debugging: slower, and a crash ends both.",
        is_flag=True,
    ),
    server_option("--dry-run", "Make answers up: no weights, no device, no JAX; the rest is real.", is_flag=True),
    server_option("--dry-run-step-ms", "How long a step of a dry run takes.  [0]", type=FiniteRange(0.0), metavar="X"),
)
