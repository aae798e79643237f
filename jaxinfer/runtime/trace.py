"""Tracing what a device does with jax.profiler, of which a process has one."""

from typing import Any

import jax


def options() -> Any:
    """jax.profiler's options for a trace of the device alone: Python's calls would slow the host down."""
    chosen = jax.profiler.ProfileOptions()
    chosen.python_tracer_level = 0
    chosen.host_tracer_level = 2  # XLA's operations on the CPU are host events of this level
    return chosen


def trace(folder: str | None) -> None:
    """Begin a trace that goes into `folder`; None ends the one under way and writes it."""
    if folder is None:
        jax.profiler.stop_trace()
    else:
        jax.profiler.start_trace(folder, profiler_options=options())
