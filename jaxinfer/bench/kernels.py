"""Each kernel alone and cold, at real shapes, beside XLA's own version: time, rate, share of what the device gives.

A chain of launches works on another layer and other pages each time, 200 MB and more in turn where the batch allows,
so that no launch finds its keys in the cache. On a GPU the time is the profiler's; elsewhere, and in the column of the
chain, the clock's. Where the Mosaic kernels cannot run, XLA's versions are timed alone and the report says so.
"""

import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.bench import machine
from jaxinfer.bench.latency import Say
from jaxinfer.bench.report import Report, Table, Value
from jaxinfer.bench.trace import device_events, trace_into
from jaxinfer.errors import ConfigError
from jaxinfer.runtime.device import select_device
from jaxinfer_kernels import decode_attention, mosaic_decode
from jaxinfer_kernels.cases import DECODE, Decode
from jaxinfer_kernels.mosaic_decode_plan import Tuning

PAGE, LAYERS, COLD_BYTES, REPEATS = 64, 28, 2e8, 5
CPU_BYTES, CPU_LAYERS = 1e8, 4  # larger cases would take the processors minutes
HOPPER = "9.0"

type Arrays = tuple[jax.Array, ...]
type Attend = Callable[..., jax.Array]


def tuning_of(text: str) -> Tuning:
    """Of the form name=value,name=value with the fields of Tuning. Raises ConfigError."""
    known = {field.name for field in dataclasses.fields(Tuning)}
    pairs = [part.partition("=") for part in text.split(",") if part]
    if bad := [name for name, _, value in pairs if name not in known or not value.isdecimal()]:
        fact = f"got {bad[0]!r} in {text!r}; known are {', '.join(sorted(known))}"
        raise ConfigError(f"--tuning must be name=number,name=number, {fact}")
    fields: dict[str, Any] = {name: int(value) for name, _, value in pairs}
    return Tuning(**fields)


@dataclasses.dataclass(frozen=True)
class Timing:
    """Of one launch, in microseconds: on the device alone (None without a profiler for it), and in the chain."""

    device_us: float | None
    chain_us: float

    @property
    def best_us(self) -> float:
        return self.chain_us if self.device_us is None else self.device_us


def run(device: str, tuning: Tuning, say: Say) -> Report:
    """Time every kernel at every shape of jaxinfer_kernels.cases that this device can hold. tuning: of Mosaic's."""
    limits = machine.measure_limits(device)
    chosen = select_device(device)
    is_hopper = chosen.platform == "gpu" and str(getattr(chosen, "compute_capability", "")) == HOPPER
    notes = list(NOTES)
    if not is_hopper:
        notes.append(f"{chosen.device_kind} is no Hopper GPU: XLA's versions alone are timed, on smaller chains.")
    rows: list[tuple[Value, ...]] = []
    with jax.default_device(chosen):
        for case in DECODE:
            if not is_hopper and kv_bytes(case) > CPU_BYTES:
                continue
            rows.append(_decode_row(case, is_hopper, chosen.platform == "gpu", tuning, limits.bytes_per_s))
            say(f"{rows[-1][0]}: {rows[-1][1:3]} us")
    facts = [
        *machine.facts(limits),
        ("tuning", str(tuning)),
        ("chain", f"{layers(is_hopper)} layers, pages of {PAGE} tokens, bfloat16"),
    ]
    return Report("jaxinfer bench kernels", facts, [Table("decode attention", COLUMNS, rows)], notes)


NOTES = (
    "us: of one launch by the profiler on a GPU, by the clock elsewhere. GB/s: the bytes of keys and values over it; "
    "the share is of the bandwidth measured in this run. Launch in a chain: by the clock, with what stands between.",
)
COLUMNS = (
    "model, batch x context",
    "Mosaic us",
    "XLA us",
    "Mosaic GB/s",
    "of bandwidth %",
    "XLA GB/s",
    "XLA of bandwidth %",
    "Mosaic launch in a chain us",
    "XLA launch in a chain us",
)


def kv_bytes(case: Decode) -> int:
    """Of one layer: what a launch must read."""
    return 4 * case.batch * case.context * case.heads.kv_heads * case.heads.head_dim


def layers(is_hopper: bool) -> int:
    return LAYERS if is_hopper else CPU_LAYERS


def _decode_row(case: Decode, is_hopper: bool, is_gpu: bool, tuning: Tuning, bytes_per_s: float) -> tuple[Value, ...]:
    depth = layers(is_hopper)
    ours = functools.partial(mosaic_decode.decode_attention, tuning=tuning)
    xla = measure(case, decode_attention.decode_attention, depth, is_gpu, "")
    mosaic = measure(case, ours, depth, is_gpu, "mosaic") if is_hopper else None
    name = f"{case.heads.model}, {case.batch} x {case.context}"
    rates = [_rate(case, timing, bytes_per_s) for timing in (mosaic, xla)]
    chains = [timing.chain_us if timing else None for timing in (mosaic, xla)]
    return (name, mosaic.best_us if mosaic else None, xla.best_us, *rates[0], *rates[1], *chains)


def _rate(case: Decode, timing: Timing | None, bytes_per_s: float) -> tuple[float | None, float | None]:
    if timing is None:
        return None, None
    rate = kv_bytes(case) / timing.best_us * 1e6
    return rate / 1e9, rate / bytes_per_s * 100


def measure(case: Decode, attend: Attend, depth: int, is_gpu: bool, kernel: str) -> Timing:
    """Time a version of decode attention. kernel: part of its kernels' name, "" for all that the chain runs."""
    sets = turns(case, depth)
    arguments = arrays(case, sets, depth)
    run_chain = jax.jit(functools.partial(chain, attend, sets, depth)).lower(*arguments).compile()
    jax.block_until_ready(run_chain(*arguments))
    began = time.perf_counter()
    for _ in range(REPEATS):
        result = run_chain(*arguments)
    jax.block_until_ready(result)
    launches = depth * sets
    chain_us = (time.perf_counter() - began) / REPEATS / launches * 1e6
    if not is_gpu:
        return Timing(None, chain_us)
    with tempfile.TemporaryDirectory() as folder:
        with trace_into(folder):
            jax.block_until_ready(run_chain(*arguments))
        events = [event for event in device_events(folder) if kernel in event.name]
    return Timing(sum(event.duration_ns for event in events) / 1e3 / launches, chain_us)


def turns(case: Decode, depth: int) -> int:
    """How many sets of pages the chain works on in turn."""
    return int(np.clip(np.ceil(COLD_BYTES / (kv_bytes(case) * depth)), 1, 4))


def chain(attend: Attend, sets: int, depth: int, q: jax.Array, k: jax.Array, v: jax.Array, *rest: jax.Array) -> Arrays:
    """Each launch's result is the next one's query, so that none can run before the one ahead of it."""
    page_table, slots, lengths = rest
    for turn in range(sets):
        for layer in range(depth):
            q = attend(q, k, v, jnp.int32(layer), page_table, slots[turn], lengths)
    return (q,)


def arrays(case: Decode, sets: int, depth: int) -> Arrays:
    """q, k, v, page_table, slots, lengths: random, the pages of a row scattered."""
    heads, batch, width = case.heads, case.batch, -(-case.context // PAGE)
    rows = batch * sets
    keys = jax.random.split(jax.random.key(0), 3)
    pages = (depth, rows * width + 1, heads.kv_heads, PAGE, heads.head_dim)
    shapes: Sequence[tuple[int, ...]] = ((batch, heads.heads, heads.head_dim), pages, pages)
    random = [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)]
    ids = np.random.default_rng(0).permutation(np.arange(1, rows * width + 1)).reshape(rows, width)
    table = jnp.asarray(np.concatenate([np.zeros((1, width)), ids]), jnp.int32)
    slots = jnp.arange(1, rows + 1, dtype=jnp.int32).reshape(sets, batch)
    return *random, table, slots, jnp.full(batch, case.context, jnp.int32)
