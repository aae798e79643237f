"""Which attention is the fastest: with `attention_backend: auto` a model's first start on a CPU times what can run.

The choice of backends.py is the first guess. It stays unless XLA's attention is clearly faster in a decode step: XLA's
median is then 10 % below the guess's fastest run. Implementations take turns, so that a burst of other work slows both.
Noise makes runs slower and never faster: the fastest run of the guess is close to its true time, and a busy machine can
hide that XLA is faster but hardly pretend it.

The times are kept in the cache of executables, under the facts that those depend on. Later starts decide by the same
times, so the choice changes only with the code, the versions, the device or the model. Without a cache every start
times anew.

A small model is not timed: to compile the two takes a CPU about 0.7 s, which is most of a small model's cached start,
and attention is the smallest part of its steps. A GPU is not: to compile them takes it 4.5 to 7.7 s (decision 0030).
"""

import dataclasses
import functools
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.config import EngineConfig
from jaxinfer.layers.attention import RawHeads
from jaxinfer.layers.batch import Batch
from jaxinfer.layers.products import Stacked
from jaxinfer.layers.spec import Attention
from jaxinfer.layers.store import Store
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.registry import Family
from jaxinfer.runtime import programs
from jaxinfer.runtime.backends import Backend, Backends, StepKernels, kernels_for
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.defaults import page_size_for
from jaxinfer.runtime.memory import backends_for
from jaxinfer.runtime.plan import BackendTime
from jaxinfer.runtime.step import Model
from jaxinfer_kernels.attention.api import kv_shape

logger = logging.getLogger(__name__)

LEAST_PARAMS = 100_000_000  # numbers of a model that is timed
MOST_S = 2.0  # for compiling and running all of them
DECODE_ROWS = 8  # of the decode step that is timed
LENGTH, CONTEXT = 400, 512  # tokens of each of its rows, and what its page table has room for
ROUNDS, REPEATS = 5, 8  # timed calls of each program, and layers that one call computes
CLEARLY = 0.9  # of the guess's time: XLA's is below it where XLA is chosen
KEY = Decode(DECODE_ROWS, None)


def fastest_backends(
    config: EngineConfig, model: ModelConfig, family: Family, device: jax.Device, cache: ExecutableCache | None
) -> Backends:
    """What runs each op. Attention is timed, or was, where the setting is auto and there is a choice.

    Raises ConfigError where the setting cannot be had.
    """
    guess = backends_for(config, model, device)
    is_choice = guess.decode_attention is Backend.CPU and bool(model.attentions)
    if config.attention_backend != "auto" or not is_choice or model.num_params < LEAST_PARAMS:
        return guess
    dtype, page_size = config.dtype_for(model.dtype), page_size_for(config, device.platform)
    facts = programs.fingerprint(Model(model, family, guess), device), dtype, page_size
    key = hashlib.sha256(f"attention times {facts}".encode()).hexdigest()
    kept = cache.load(key) if cache else None
    if kept is not None:
        return decided(guess, [BackendTime(**timing) for timing in json.loads(kept)])
    times = timed(guess, model, dtype, page_size, device)
    if cache:
        cache.store(key, json.dumps([dataclasses.asdict(timing) for timing in times]).encode())
    return decided(guess, times)


def decided(guess: Backends, times: Sequence[BackendTime]) -> Backends:
    """The guess, with XLA's attention where that is clearly faster.

    In steps with prompts too: the kernel is the same, and XLA computes the rest of their attention anyway.
    """
    ours = [timing.least_s for timing in times if timing.backend == guess.decode_attention]
    xla = [timing.median_s for timing in times if timing.backend == Backend.XLA]
    found = dataclasses.replace(guess, timings=tuple(times))
    if times and xla[0] < CLEARLY * ours[0]:
        return dataclasses.replace(found, decode_attention=Backend.XLA, extend_attention=Backend.XLA)
    return found


def timed(
    guess: Backends, model: ModelConfig, dtype: str, page_size: int, device: jax.Device
) -> tuple[BackendTime, ...]:
    """The times of the guess and of XLA, for the kind of attention that most layers have; () where MOST_S ran out."""
    until = time.perf_counter() + MOST_S
    xla = dataclasses.replace(guess, decode_attention=Backend.XLA, extend_attention=Backend.XLA)
    ((spec, _),) = Counter(one.mixer for one in model.layers if isinstance(one.mixer, Attention)).most_common(1)
    make = functools.partial(_Trial.make, model, spec, dtype, page_size, device)
    pool = ThreadPoolExecutor(2, thread_name_prefix="attention")
    try:
        making = [pool.submit(make, backends) for backends in (guess, xla)]
        if wait(making, until - time.perf_counter()).not_done:
            return _too_late()
        trials = [trial.result() for trial in making]
        for _ in range(1 + ROUNDS):  # in the first call, memory is touched for the first time
            if time.perf_counter() > until:
                return _too_late()
            for trial in trials:
                trial.run()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return tuple(trial.timing() for trial in trials)


def _too_late() -> tuple[BackendTime, ...]:
    logger.warning(
        "attention could not be timed in %.0f s, so the first guess stays; an empty compile_cache_dir tries again",
        MOST_S,
    )
    return ()


@dataclasses.dataclass
class _Trial:
    """The attention of one implementation in a decode step, compiled, and its times."""

    backend: str
    executable: jax.stages.Compiled
    carried: Any  # qkv and Store: each call's results are the next one's arguments
    given: tuple[Any, ...]  # the rest of the arguments
    seconds: list[float] = dataclasses.field(default_factory=list)

    @classmethod
    def make(
        cls,
        model: ModelConfig,
        spec: Attention,
        dtype: str,
        page_size: int,
        device: jax.Device,
        how: Backends,
    ) -> "_Trial":
        kernels = kernels_for(model, how, KEY)
        arguments = jax.device_put(arrays(spec, dtype, page_size), device)
        compute = functools.partial(attend_in_turn, spec, kernels)
        executable = jax.jit(compute, donate_argnums=(0, 1)).lower(*arguments).compile()
        return cls(how.decode_attention, executable, arguments[:2], arguments[2:])

    def run(self) -> None:
        began = time.perf_counter()
        self.carried = jax.block_until_ready(self.executable(*self.carried, *self.given))
        self.seconds.append((time.perf_counter() - began) / REPEATS)

    def timing(self) -> BackendTime:
        seconds = self.seconds[1:]
        return BackendTime(
            "decode_attention", self.backend, f"decode {DECODE_ROWS}", float(np.median(seconds)), min(seconds)
        )


def arrays(spec: Attention, dtype: str, page_size: int) -> tuple[Any, ...]:
    """What attend_in_turn takes after its first two, of rows that have pages of their own."""
    table = np.zeros((DECODE_ROWS + 1, -(-CONTEXT // page_size)), np.int32)
    table[1:] = np.arange(1, 1 + table[1:].size).reshape(table[1:].shape)
    slots, positions = np.arange(1, DECODE_ROWS + 1), np.full(DECODE_ROWS, LENGTH - 1)
    where = dict(
        tables=(table,),
        slots=slots,
        lengths=positions + 1,
        pages=(table[slots, positions // page_size],),
        offsets=positions % page_size,
    )
    pages = np.zeros(kv_shape(1, 1 + table[1:].size, page_size, spec.kv_heads, spec.head_dim), jnp.dtype(dtype))
    qkv = np.ones((DECODE_ROWS, spec.qkv_width), pages.dtype)
    norms = np.ones((2, 1, spec.head_dim), pages.dtype) if spec.qk_norm else None
    positions, where = jax.tree.map(lambda array: array.astype(np.int32), (positions, where))
    return qkv, Store((pages, pages.copy())), positions, where, norms


def attend_in_turn(
    spec: Attention,
    kernels: StepKernels,
    qkv: jax.Array,
    store: Store,
    positions: jax.Array,
    where: dict[str, Any],
    norms: jax.Array | None,
) -> tuple[jax.Array, Store]:
    """The attention of REPEATS layers, each of which waits for the one before: qkv and store as they leave them.

    qkv: [T, (N + 2K) * H].    positions: i32[T].    where: Batch's fields about pages.
    norms: [2, 1, H], the scales of q's and k's heads.
    """

    def layer(_: jax.Array, carry: tuple[jax.Array, Store]) -> tuple[jax.Array, Store]:
        qkv, store = carry
        batch = Batch(positions, positions, kernels.attention, kernels.products, count=DECODE_ROWS, **where)
        scales = None if norms is None else (Stacked(norms[0], 0), Stacked(norms[1], 0))
        out, store = kernels.attention(RawHeads(spec, qkv, batch, 0, 0, 0, scales), store)
        return jnp.concatenate([out.reshape(len(qkv), -1), qkv[:, spec.q_width :]], axis=1), store

    return jax.lax.fori_loop(0, REPEATS, layer, (qkv, store))
