"""Tracing what a device does with jax.profiler, of which a process has one."""

from typing import Any

import jax


def trace(folder: str | None) -> None:
    """Begin a trace that goes into `folder`; None ends the one under way and writes it. Safe from any thread."""
    if folder is None:
        jax.profiler.stop_trace()
        return
    options: Any = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # its calls would slow the host down
    options.host_tracer_level = 2  # XLA's operations on the CPU are host events of this level
    jax.profiler.start_trace(folder, profiler_options=options)
