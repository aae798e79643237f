"""Time the decode attention of real shapes on this GPU, cold, beside its bar: the bytes of K and V over the bandwidth.

Each launch of a chain works on another layer and other pages, 200 MB and more in turn where the batch allows. Prints
the profiler's time of the kernel alone and the wall time of a launch inside the chain.

    PYTHONPATH=.:kernels python benchmarks/kernels_decode.py [--tuning block_tokens=128,stages=3]
"""

import argparse
import collections
import functools
import pathlib
import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer_kernels import mosaic_decode
from jaxinfer_kernels.cases import DECODE, Decode
from jaxinfer_kernels.mosaic_decode_plan import Tuning

PAGE, LAYERS, COLD_BYTES = 64, 28, 2e8
BANDWIDTH = 4.306e12  # bytes a second, device to device, H200, 2026-10
REPEATS = 5

type Arrays = tuple[jax.Array, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuning", default="", help="fields of Tuning, as name=value,name=value")
    fields = dict(field.split("=") for field in parser.parse_args().tuning.split(",") if field)
    tuning = Tuning(**{name: int(value) for name, value in fields.items()})
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {tuning}")
    print("| model | batch x context | kernel us | us a launch | GB/s | of the bandwidth |\n|---|---|---|---|---|---|")
    for case in DECODE:
        kernel_us, launch_us = measure(case, tuning)
        bytes_read = 4 * case.batch * case.context * case.heads.kv_heads * case.heads.head_dim
        rate = bytes_read / kernel_us * 1e6
        name = f"| {case.heads.model} | {case.batch} x {case.context} "
        print(f"{name}| {kernel_us:.1f} | {launch_us:.1f} | {rate / 1e9:.0f} | {rate / BANDWIDTH:.0%} |", flush=True)


def measure(case: Decode, tuning: Tuning) -> tuple[float, float]:
    """Microseconds of one kernel by the profiler, and of one launch in the chain by the clock."""
    sets = turns(case)
    run = jax.jit(functools.partial(chain, tuning, sets), donate_argnums=(1, 2)).lower(*shapes(case, sets)).compile()
    q, k, v, *rest = arrays(case, sets)
    q, k, v = jax.block_until_ready(run(q, k, v, *rest))
    started = time.perf_counter()
    for _ in range(REPEATS):
        q, k, v = run(q, k, v, *rest)
    jax.block_until_ready(q)
    launch_us = (time.perf_counter() - started) / REPEATS / (LAYERS * sets) * 1e6
    return kernel_time_us(lambda: jax.block_until_ready(run(q, k, v, *rest))), launch_us


def turns(case: Decode) -> int:
    """How many sets of pages the chain works on in turn."""
    layer_bytes = 4 * case.batch * case.context * case.heads.kv_heads * case.heads.head_dim
    return int(np.clip(np.ceil(COLD_BYTES / (layer_bytes * LAYERS)), 1, 4))


def chain(tuning: Tuning, sets: int, q: jax.Array, k: jax.Array, v: jax.Array, *rest: jax.Array) -> Arrays:
    new_k, new_v, page_table, slots, lengths = rest
    for turn in range(sets):
        for layer in range(LAYERS):
            place = (jnp.int32(layer), page_table, slots[turn], lengths)
            q, k, v = mosaic_decode.decode_attention_write(q, new_k, new_v, k, v, *place, tuning=tuning)
    return q, k, v


def shapes(case: Decode, sets: int) -> Arrays:
    return jax.eval_shape(lambda: arrays(case, sets))


def arrays(case: Decode, sets: int) -> Arrays:
    """q, k, v, new_k, new_v, page_table, slots, lengths: random, the pages of a row scattered."""
    heads, batch, width = case.heads, case.batch, -(-case.context // PAGE)
    rows = batch * sets
    keys = jax.random.split(jax.random.key(0), 5)
    normal = functools.partial(jax.random.normal, dtype=jnp.bfloat16)
    pages = (LAYERS, rows * width + 1, heads.kv_heads, PAGE, heads.head_dim)
    token = (batch, heads.kv_heads, heads.head_dim)
    q = normal(keys[0], (batch, heads.heads, heads.head_dim))
    stored = [normal(key, shape) for key, shape in zip(keys[1:], (pages, pages, token, token), strict=True)]
    ids = np.random.default_rng(0).permutation(np.arange(1, rows * width + 1)).reshape(rows, width)
    table = jnp.asarray(np.concatenate([np.zeros((1, width)), ids]), jnp.int32)
    slots = jnp.arange(1, rows + 1, dtype=jnp.int32).reshape(sets, batch)
    return q, *stored, table, slots, jnp.full(batch, case.context, jnp.int32)


def kernel_time_us(run: Callable[[], object]) -> float:
    """The mean duration of the Mosaic kernels that `run` launches."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        (trace,) = pathlib.Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(trace))
        durations = collections.defaultdict(list)
        for plane in data.planes:
            for line in plane.lines:
                if "GPU" in plane.name and "Stream" in line.name:
                    for event in line.events:
                        durations["mosaic" in event.name].append(event.duration_ns)
    return float(np.mean(durations[True])) / 1e3


if __name__ == "__main__":
    main()
