"""Compiling ahead of time: in threads, from the cache where it can be, and counting what is compiled afterwards."""

import contextlib
import dataclasses
import functools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

import jax
from jax.sharding import SingleDeviceSharding

from jaxinfer.checkpoint.memory import available_device_bytes
from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.errors import EngineError
from jaxinfer.models.config import DType
from jaxinfer.runtime import programs
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.lowering import Lowerers
from jaxinfer.runtime.programs import Program
from jaxinfer.runtime.step import Model, Params

logger = logging.getLogger(__name__)

type OnProgress = Callable[[str, int, int, float, bool], None]  # name, done, total, seconds, cached
type OnRun = Callable[[str, int, int], None]  # name, done, total
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
_JAX_CACHE_EVENT = "/jax/compilation_cache/cache_hits"  # of JAX's own cache, told in the thread that compiles
_MAX_LOWERERS = 5
_MAX_THREADS = 8  # that load and compile: with more, XLA's own threads take the processor from the one that lowers
_NO_MEMORY = "RESOURCE_EXHAUSTED"  # what the error of XLA's begins with
_alone = threading.Lock()  # of who compiles once more what the memory did not suffice for beside others


class _JaxCache(threading.local):
    """hits: how many of this thread's compilations were taken from JAX's own cache (JAX_COMPILATION_CACHE_DIR)."""

    hits = 0


_jax_cache = _JaxCache()


def _count_hit(event: str, **_: str | int) -> None:
    _jax_cache.hits += event == _JAX_CACHE_EVENT


jax.monitoring.register_event_listener(_count_hit)  # once: threads that come and go would lose each other's events


@dataclasses.dataclass(frozen=True)
class Built:
    """A program ready to run. seconds: what compiling or loading it took.    cached: it came from the cache."""

    program: Program
    executable: jax.stages.Compiled
    seconds: float
    cached: bool


def build_all(
    waves: Sequence[Sequence[Program]],
    device: jax.Device,
    cache: ExecutableCache | None,
    common: str,
    lowerers: Lowerers,
    most_chained: int = _MAX_THREADS,
) -> Generator[Built, None, None]:
    """Build programs in threads, one wave after the other, and yield each as it is done.

    common: what all keys of the cache share (programs.fingerprint).    lowerers: ended with this.    most_chained:
    compiled at once. The first failure is raised. The first wave is traced and lowered here, by one thread: that holds
    the GIL, and more threads at it would only keep each other from compiling. Other steps are meanwhile by the
    lowerers, if there are any. What of the first wave is in the cache is yielded before anything else is begun: it
    serves, and has the processors to itself until it has run.
    """
    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
    here, elsewhere = (ThreadPoolExecutor(max(1, n), thread_name_prefix="lower") for n in (1, lowerers.count))
    begun, places = {}, threading.Semaphore(most_chained)
    try:
        loaded = {p.key: pool.submit(_load, p, device, cache, common) for p in waves[0]}
        yield from filter(None, [loading.result() for loading in loaded.values()])
        waves = [[p for p in waves[0] if not loaded[p.key].result()], *waves[1:]]
        loaded |= {p.key: pool.submit(_load, p, device, cache, common) for wave in waves[1:] for p in wave}
        for number, wave in enumerate(waves):
            for program in wave:
                if lowerers.count and number and isinstance(program.key, Decode | ExtendBucket):
                    lower = functools.partial(_lower_elsewhere, lowerers, here)
                    begun[program.key] = elsewhere.submit(_begin, program, loaded[program.key], lower)
                else:
                    begun[program.key] = here.submit(_begin, program, loaded[program.key], Program.lower)
        for wave in waves:
            futures = [pool.submit(_finish, program, begun[program.key], cache, common, places) for program in wave]
            for future in as_completed(futures):
                yield future.result()
    finally:
        for executor in (elsewhere, here, pool):
            executor.shutdown(wait=False, cancel_futures=True)
        lowerers.close()  # who waits for one gives up
        for executor in (elsewhere, here, pool):
            executor.shutdown()


def prepare_kernels(model: Model, limits: Limits, dtype: DType, device: jax.Device, cache: ExecutableCache) -> None:
    """Have the kernels compiled of chains that serve first, of those in the cache.

    They need neither weights nor Python's lock: of 1.5B's start 1.7 s that pass beside others (H100's host).
    """
    common = programs.fingerprint(model, device)
    listed = programs.without_arrays(model, limits, dtype, SingleDeviceSharding(device))
    for program in programs.waves(listed, limits)[0]:
        if program.is_chained and (payload := cache.load(program.digest(common))) is not None:
            with contextlib.suppress(RuntimeError):  # which whoever loads the program is told of as well
                programs.prepare_kernels(payload)


def num_lowerers(device: jax.Device) -> int:
    """Processes that lower for a device: on a CPU there is little to lower, and a process takes 3 s and 0.4 GB."""
    return min(_MAX_LOWERERS, (os.cpu_count() or 1) // 3) if device.platform == "gpu" else 0


def num_chained(device: jax.Device, params: Params) -> int:
    """How many chained steps may be compiled at once.

    XLA has little to compile of them, so all come to the LM head together, whose product is timed with a copy of its
    weights: 1.2 GiB each for 8B.
    """
    if device.platform != "gpu" or not device.memory_stats():
        return _MAX_THREADS
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
    return max(1, min(_MAX_THREADS, available_device_bytes(device) // largest))


def build(program: Program, device: jax.Device, cache: ExecutableCache | None, common: str) -> Built:
    """Load one program from the cache, or compile and store it, in the thread that calls."""
    return _load(program, device, cache, common) or _compile(program, _timed(Program.lower, program), cache, common)


type _Lower = Callable[[Program], jax.stages.Lowered]
type _Lowered = tuple[jax.stages.Lowered, float]  # and the seconds it took


def _load(program: Program, device: jax.Device, cache: ExecutableCache | None, common: str) -> Built | None:
    began = time.perf_counter()
    payload = cache.load(program.digest(common)) if cache else None
    if payload is None:
        return None
    try:
        executable = program.deserialize(payload, device)
    except Exception as error:  # whatever another build of jaxlib makes of old bytes
        logger.warning("compile cache: %s cannot be loaded (%s); compiling it again", program.name, error)
        return None
    return Built(program, executable, time.perf_counter() - began, cached=True)


def _timed(lower: _Lower, program: Program) -> _Lowered:
    began = time.perf_counter()
    return lower(program), time.perf_counter() - began


def _lower_elsewhere(lowerers: Lowerers, here: ThreadPoolExecutor, program: Program) -> jax.stages.Lowered:
    try:
        return lowerers.lower(program)
    except EngineError as error:
        lowered = here.submit(program.lower)  # RuntimeError once the start is given up, which ends the process too
        logger.warning("%s; it is lowered here", error)
        return lowered.result()


def _compile(program: Program, lowered: _Lowered, cache: ExecutableCache | None, common: str) -> Built:
    began, hits_before = time.perf_counter(), _jax_cache.hits
    try:
        executable = program.compile(lowered[0])
    except jax.errors.JaxRuntimeError as error:
        if _NO_MEMORY not in str(error):
            raise
        logger.warning("%s: too little memory to time its products beside others; compiling it again", program.name)
        with _alone:
            executable = program.compile(lowered[0])
    if cache and _jax_cache.hits > hits_before:  # serialized once more it would lack its code: load, and not run
        logger.info("compile cache: %s was in JAX's own cache, and is not kept in ours", program.name)
    elif cache:
        _store(cache, program, executable, common)
    return Built(program, executable, lowered[1] + time.perf_counter() - began, cached=False)


def _store(cache: ExecutableCache, program: Program, executable: jax.stages.Compiled, common: str) -> None:
    """Another model of this process may have had the same program, and have run it: JAX gives it out again then, and
    XLA for CPUs does not serialize a sort that has run."""
    try:
        payload = program.serialize(executable)
    except jax.errors.JaxRuntimeError as error:
        logger.info("compile cache: %s is not kept, since XLA says: %s", program.name, error)
        return
    cache.store(program.digest(common), payload)


def _begin(program: Program, loading: Future[Built | None], lower: _Lower) -> Built | _Lowered:
    """The program as it was loaded, or lowered."""
    return loading.result() or _timed(lower, program)


def _finish(
    program: Program,
    beginning: Future[Built | _Lowered],
    cache: ExecutableCache | None,
    common: str,
    places: threading.Semaphore,
) -> Built:
    begun = beginning.result()
    if isinstance(begun, Built):
        return begun
    with places if program.is_chained else contextlib.nullcontext():
        return _compile(program, begun, cache, common)


class CompileCounter:
    """Counts what is compiled on its owner's behalf from `start` on; none is expected then. `close` stops listening.

    A notebook's own programs are compiled in the same process, and in the same thread: what is not compiled within a
    call of the owner's methods is nobody's fault.
    """

    def __init__(self, owner: object) -> None:
        self.count = 0
        self._owner = weakref.ref(owner)  # JAX holds the listener, and must not hold the owner's arrays with it
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
        if event == _COMPILE_EVENT and self._is_owners():
            self.count += 1
            logger.warning("compiled after ready, in %.2f s: a shape that warm-up does not know", seconds)

    def _is_owners(self) -> bool:
        """Whether a method of the owner's waits for what was just compiled; JAX tells of it in the same thread."""
        owner, frame = self._owner(), sys._getframe()
        while owner is not None and frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code.co_varnames[:1] == ("self",) and frame.f_locals.get("self") is owner:
                return True
        return False
