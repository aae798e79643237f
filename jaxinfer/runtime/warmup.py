"""Compiling ahead of time: in threads, from the cache where it can be, and counting what is compiled afterwards."""

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import jax

from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.programs import Program, serialize

logger = logging.getLogger(__name__)

type OnProgress = Callable[[str, int, int, float, bool], None]  # name, done, total, seconds, cached
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
_MAX_THREADS = 8  # tracing holds the GIL: more threads would only queue for it


@dataclasses.dataclass(frozen=True)
class Built:
    """A program ready to run. seconds: what compiling or loading it took.    cached: it came from the cache."""

    program: Program
    executable: jax.stages.Compiled
    seconds: float
    cached: bool


def build_all(
    programs: Sequence[Program], device: jax.Device, cache: ExecutableCache | None, common: str
) -> Iterator[Built]:
    """Build programs in threads, about in the order given, and yield each as it is done.

    common: what all keys of the cache share (programs.fingerprint). The first failure is raised.
    """
    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
    try:
        futures = [pool.submit(build, program, device, cache, common) for program in programs]
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def build(program: Program, device: jax.Device, cache: ExecutableCache | None, common: str) -> Built:
    """Load one program from the cache, or compile and store it."""
    began = time.perf_counter()
    digest = program.digest(common)
    payload = cache.load(digest) if cache else None
    if payload is not None:
        try:
            executable = program.deserialize(payload, device)
            return Built(program, executable, time.perf_counter() - began, cached=True)
        except Exception as error:  # whatever another build of jaxlib makes of old bytes
            logger.warning("compile cache: %s cannot be loaded (%s); compiling it again", program.name, error)
    executable = program.compile()
    if cache:
        cache.store(digest, serialize(executable))
    return Built(program, executable, time.perf_counter() - began, cached=False)


class CompileCounter:
    """Counts every compilation of this process from `start` on; none is expected then. `close` stops listening."""

    def __init__(self) -> None:
        self.count = 0
        self._listening = False

    def start(self) -> None:
        self.count = 0
        if not self._listening:
            jax.monitoring.register_event_duration_secs_listener(self._on_event)
            self._listening = True

    def close(self) -> None:
        if self._listening:
            jax.monitoring.unregister_event_duration_listener(self._on_event)
            self._listening = False

    def _on_event(self, event: str, seconds: float, **_: str | int) -> None:
        if event == _COMPILE_EVENT:
            self.count += 1
            logger.warning("compiled after ready, in %.2f s: a shape that warm-up does not know", seconds)
