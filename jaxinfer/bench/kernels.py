"""Each kernel alone and cold, at real shapes, beside XLA's own version: time, rate, share of what the device gives.

A chain of launches works on another layer and other pages each time, 200 MB and more in turn where a decode batch
allows, so that no launch finds its keys in the cache. On a GPU the time is the profiler's; elsewhere, and in the column
of the chain, the clock's. Ours are Mosaic's on Hopper and those in C++ on a CPU; where neither can run, XLA's are timed
alone and the report says so.
"""

import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.bench import kernels_cpu, machine
from jaxinfer.bench.latency import TRIES_S, Say
from jaxinfer.bench.machine import MachineLimits
from jaxinfer.bench.report import Report, Table, Value, shown
from jaxinfer.bench.trace import device_events, trace_into
from jaxinfer.errors import ConfigError
from jaxinfer.llm.events import Event, OnEvent, ignore
from jaxinfer.runtime.device import select_device
from jaxinfer_kernels import cpu
from jaxinfer_kernels.attention import cpu as cpu_attention
from jaxinfer_kernels.attention import sm90_decode, sm90_extend, xla_decode, xla_extend
from jaxinfer_kernels.attention.cases import DECODE, EXTEND, DecodeCase, ExtendCase, Heads
from jaxinfer_kernels.attention.sm90_decode_config import DecodeTuning
from jaxinfer_kernels.attention.sm90_extend import ExtendTuning
from jaxinfer_kernels.sm90 import HopperGpu

PAGE, LAYERS, COLD_BYTES, REPEATS = 64, 28, 2e8, 5
EXTEND_LAYERS = 4  # bound by arithmetic, so that the cache hardly matters
CPU_BYTES, CPU_FLOPS, CPU_LAYERS = 1e8, 1e10, 4  # larger cases would take the processors minutes

type Arrays = tuple[jax.Array, ...]
type Attend = Callable[..., jax.Array]


@dataclasses.dataclass(frozen=True)
class KernelDevice:
    """Where the kernels run."""

    is_gpu: bool
    hopper: HopperGpu | None
    limits: MachineLimits
    has_cpp: bool = False

    @property
    def ours(self) -> str:
        """What our kernels are, in the report."""
        return "C++" if self.has_cpp else "Mosaic"

    @property
    def layers(self) -> int:
        return LAYERS if self.hopper else CPU_LAYERS


@dataclasses.dataclass(frozen=True)
class Timing:
    """Of one launch, in microseconds: on the device alone (None without a profiler for it), and in the chain."""

    device_us: float | None
    chain_us: float

    @property
    def best_us(self) -> float:
        return self.chain_us if self.device_us is None else self.device_us


def tuning_of(text: str) -> DecodeTuning:
    """Of the form name=value,name=value with the fields of DecodeTuning. Raises ConfigError."""
    known = {field.name for field in dataclasses.fields(DecodeTuning)} - {"gpu"}
    pairs = [part.partition("=") for part in text.split(",") if part]
    if bad := [name for name, _, value in pairs if name not in known or not value.isdecimal()]:
        fact = f"got {bad[0]!r} in {text!r}; known are {', '.join(sorted(known))}"
        raise ConfigError(f"--tuning must be name=number,name=number, {fact}")
    fields: dict[str, Any] = {name: int(value) for name, _, value in pairs}
    return DecodeTuning(**fields)


def run(device: str, tuning: DecodeTuning, say: Say, on_event: OnEvent = ignore) -> Report:
    """Time every kernel at every shape of attention.cases that this device can hold. tuning: of the decode."""
    limits = machine.measure_limits(device, on_event)
    chosen, place = place_of(device, limits)
    notes = list(NOTES)
    if not place.hopper:
        timed = "of extend attention XLA's version alone is" if place.has_cpp else "XLA's versions alone are"
        notes.append(f"{chosen.device_kind} is no Hopper GPU: {timed} timed, the smaller cases only.")
    with jax.default_device(chosen):
        decode = [case for case in DECODE if place.hopper or kv_bytes(case) <= CPU_BYTES]
        extend = [case for case in EXTEND if place.hopper or flops(case) <= CPU_FLOPS]
        decode_rows = [functools.partial(decode_row, tuning, case, place) for case in decode]
        extend_rows = [functools.partial(extend_row, case, place) for case in extend]
        tell = functools.partial(told, ours=place.ours, say=say, on_event=on_event)
        tables = [
            Table("decode attention", columns("GB/s", place.ours), list(tell("decode attention", decode_rows))),
            Table("extend attention", columns("TFLOP/s", place.ours), list(tell("extend attention", extend_rows))),
        ]
        if place.has_cpp:
            makers = list(kernels_cpu.rows(limits.bytes_per_s, COLD_BYTES, REPEATS))
            tables.append(kernels_cpu.table(list(tell(kernels_cpu.TITLE, makers))))
    facts = [*machine.facts(limits), ("decode tuning", str(tuning)), ("pages", f"{PAGE} tokens, bfloat16")]
    return Report("jaxinfer bench kernels", facts, tables, notes)


def place_of(device: str, limits: MachineLimits) -> tuple[jax.Device, KernelDevice]:
    """EngineConfig.device's device and what it is. Raises DeviceError."""
    chosen = select_device(device)
    has_cpp = chosen.platform == "cpu" and cpu.best() is not None
    return chosen, KernelDevice(chosen.platform == "gpu", HopperGpu.of(chosen), limits, has_cpp)


NOTES = (
    "us: of one launch by the profiler on a GPU, by the clock elsewhere. GB/s: the bytes of keys and values over it; "
    "TFLOP/s: the products with what a causal mask leaves. Shares are of the limits measured in this run. Launch in a "
    f"chain: by the clock, with what stands between, {REPEATS} chains or as many as take {TRIES_S:g} s.",
)


def columns(unit: str, ours: str) -> tuple[str, ...]:
    times = (f"{ours} us", "XLA us", f"{ours} launch in a chain us", "XLA launch in a chain us")
    return ("model, rows x tokens", *times, f"{ours} {unit}", "of the limit %", f"XLA {unit}", "XLA of the limit %")


def told(
    kernel: str, makers: Sequence[Callable[[], Sequence[Value]]], *, ours: str, say: Say, on_event: OnEvent
) -> Iterator[Sequence[Value]]:
    """The rows of a kernel, each said as it comes: us a launch of each version that ran."""
    for done, make in enumerate(makers):
        on_event(Event("measure", kernel, done, len(makers)))
        row = make()
        versions = zip((ours, "XLA"), row[1:3], strict=True)
        times = ", ".join(f"{version} {shown(value)} us a launch" for version, value in versions if value is not None)
        say(f"{kernel}, {row[0]}: {times}")
        yield row


def kv_bytes(case: DecodeCase) -> int:
    """Of one layer: what a launch must read."""
    return 4 * case.batch * case.context * case.heads.kv_heads * case.heads.head_dim


def flops(case: ExtendCase) -> float:
    """Of one layer: both products of each query with the keys it may see."""
    seen = case.count * (case.context - case.count) + case.count * (case.count + 1) / 2
    return 4 * case.rows * case.heads.heads * case.heads.head_dim * seen


def decode_row(tuning: DecodeTuning, case: DecodeCase, place: KernelDevice) -> Sequence[Value]:
    sets = turns(case, place.layers)
    arguments = decode_arrays(case, sets, place.layers)
    if place.hopper:
        tuning = dataclasses.replace(tuning, gpu=place.hopper)
    heads = case.heads.heads, case.heads.kv_heads, case.heads.head_dim
    ours: Attend | None = functools.partial(sm90_decode.decode_attention, tuning=tuning) if place.hopper else None
    if place.has_cpp and cpu_attention.supported(*heads, PAGE, jnp.dtype(jnp.bfloat16)):
        ours = cpu_attention.decode_attention
    timings = both(ours, xla_decode.decode_attention, sets, place.layers, place, arguments)
    name = f"{case.heads.model}, {case.batch} x {case.context}"
    return row_of(name, timings, kv_bytes(case), 1e9, place.limits.bytes_per_s)


def extend_row(case: ExtendCase, place: KernelDevice) -> Sequence[Value]:
    arguments = extend_arrays(case, EXTEND_LAYERS)
    tuning = ExtendTuning(gpu=place.hopper) if place.hopper else ExtendTuning()
    ours = functools.partial(sm90_extend.extend_attention, tuning=tuning) if place.hopper else None
    timings = both(ours, xla_extend.extend_attention, 1, EXTEND_LAYERS, place, arguments)
    name = f"{case.heads.model}, {case.rows} x {case.count} of {case.context}"
    return row_of(name, timings, flops(case), 1e12, place.limits.flops)


def both(
    ours: Attend | None, xla: Attend, sets: int, depth: int, place: KernelDevice, arguments: Arrays
) -> tuple[Timing | None, Timing]:
    """The timing of our kernel, where there is one, and XLA's."""
    timing = measure(ours, sets, depth, place, arguments, "mosaic") if ours else None
    return timing, measure(xla, sets, depth, place, arguments, "")


def row_of(name: str, timings: tuple[Timing | None, Timing], work: float, unit: float, limit: float) -> Sequence[Value]:
    """work: bytes or operations of one launch."""
    times = [timing.best_us if timing else None for timing in timings]
    chains = [timing.chain_us if timing else None for timing in timings]
    rates: list[Value] = []
    for timing in timings:
        rate = work / timing.best_us * 1e6 if timing else None
        rates += [None, None] if rate is None else [rate / unit, rate / limit * 100]
    return [name, *times, *chains, *rates]


def measure(attend: Attend, sets: int, depth: int, place: KernelDevice, arguments: Arrays, kernel: str) -> Timing:
    """Time a version of attention. kernel: part of its kernels' name, "" for all that the chain runs."""
    run_chain = jax.jit(functools.partial(chain, attend, sets, depth)).lower(*arguments).compile()
    began = time.perf_counter()
    jax.block_until_ready(run_chain(*arguments))
    repeats = int(np.clip(TRIES_S / (time.perf_counter() - began), 1, REPEATS))
    began = time.perf_counter()
    for _ in range(repeats):
        result = run_chain(*arguments)
    jax.block_until_ready(result)
    launches = depth * sets
    chain_us = (time.perf_counter() - began) / repeats / launches * 1e6
    if not place.is_gpu:
        return Timing(None, chain_us)
    with tempfile.TemporaryDirectory() as folder:
        with trace_into(folder):
            jax.block_until_ready(run_chain(*arguments))
        events = [event for event in device_events(folder) if kernel in event.name]
    return Timing(sum(event.duration_ns for event in events) / 1e3 / launches, chain_us)


def turns(case: DecodeCase, depth: int) -> int:
    """How many sets of pages the chain works on in turn."""
    return int(np.clip(np.ceil(COLD_BYTES / (kv_bytes(case) * depth)), 1, 4))


def chain(attend: Attend, sets: int, depth: int, q: jax.Array, k: jax.Array, v: jax.Array, *rest: jax.Array) -> Arrays:
    """Each launch's result is the next one's query, so that none can run before the one ahead of it."""
    page_table, slots, *rows = rest
    for turn in range(sets):
        for layer in range(depth):
            q = attend(q, (k, v, jnp.int32(layer)), (page_table, slots[turn], *rows))
    return (q,)


def decode_arrays(case: DecodeCase, sets: int, depth: int) -> Arrays:
    """q, k, v, page_table, slots, lengths."""
    pages, table, slots = paged(case.heads, sets, case.batch, case.context, depth)
    return query(case.heads, case.batch), *pages, table, slots, jnp.full(case.batch, case.context, jnp.int32)


def extend_arrays(case: ExtendCase, depth: int) -> Arrays:
    """q, k, v, page_table, slots, query_starts, counts, lengths."""
    pages, table, slots = paged(case.heads, 1, case.rows, case.context, depth)
    starts = jnp.arange(case.rows, dtype=jnp.int32) * case.count
    counts, lengths = (jnp.full(case.rows, each, jnp.int32) for each in (case.count, case.context))
    return query(case.heads, case.rows * case.count), *pages, table, slots, starts, counts, lengths


def query(heads: Heads, tokens: int) -> jax.Array:
    return drawn(jax.random.key(0), (tokens, heads.heads, heads.head_dim))


def paged(
    heads: Heads, sets: int, batch: int, context: int, depth: int
) -> tuple[list[jax.Array], jax.Array, jax.Array]:
    """Random keys and values, a page table in which the pages of a row are scattered, and the rows of each set."""
    rows, width = batch * sets, -(-context // PAGE)
    shape = (depth, rows * width + 1, heads.kv_heads, PAGE, heads.head_dim)
    keys = jax.random.split(jax.random.key(1), 2)
    ids = np.random.default_rng(0).permutation(np.arange(1, rows * width + 1)).reshape(rows, width)
    table = jnp.asarray(np.concatenate([np.zeros((1, width)), ids]), jnp.int32)
    slots = jnp.arange(1, rows + 1, dtype=jnp.int32).reshape(sets, batch)
    return [drawn(key, shape) for key in keys], table, slots


def drawn(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Normal numbers, a million of them in turn: to draw each took a CPU longer than what is timed with them."""
    return jnp.resize(jax.random.normal(key, (2**20,), jnp.bfloat16), shape)
