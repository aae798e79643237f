"""Time the decode step's linear layers of real shapes on this GPU, cold, beside their bar: the weights' bytes over the
bandwidth.

Every launch of a chain reads another layer's weights. First each op alone (the profiler's time of its kernels), then
the four linear layers of all layers behind each other, beside XLA's. In that chain the product after attention is given
the projections themselves, so it is as deep as they are wide.

    XLA_FLAGS=--xla_enable_command_buffers_during_profiling=true PYTHONPATH=.:kernels \
        python benchmarks/kernels_linear.py [--model Qwen3-8B] [--rows 8,16] [--chain-only]
        [--try "norm_gate_up:splits=2,stages=6;linear_down:splits=5"]
        [--chain "norm_gate_up:splits=1,block=64"] [--mlp "splits=5,stages=4;height=64"] [--trace]

With --mlp only the MLPs of all layers behind each other: two launches each, then one with each tuning given. Then, with
--trace, when the parts of one launch begin and end.
"""

import argparse
import collections
import dataclasses
import functools
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer_kernels import mosaic_linear, mosaic_mlp
from jaxinfer_kernels.linear import linear
from jaxinfer_kernels.mosaic_linear_plan import Tuning

BANDWIDTH = 4.306e12  # bytes a second, device to device, H200, 2026-10
REPEATS, EPS = 20, 1e-6
# Layers measured, model width, rows of qkv, query heads times head_dim, MLP width
MODELS = {
    "Qwen2.5-1.5B": (28, 1536, 2048, 1536, 8960),
    "Qwen3-8B": (12, 4096, 6144, 4096, 12288),
    "Qwen3-0.6B": (28, 1024, 4096, 2048, 3072),
}

type Arrays = dict[str, jax.Array]
type Tunings = Mapping[str, Tuning]


VOCABULARY = 151_936


def shapes(model: str) -> dict[str, tuple[int, int]]:
    _, width, qkv, heads, mlp = MODELS[model]
    return {
        "norm_linear": (qkv, width),
        "linear_o": (width, heads),
        "norm_gate_up": (2 * mlp, width),
        "linear_down": (width, mlp),
    }


def ours(op: str, x: jax.Array, layer: Arrays, index: jax.Array, residual: jax.Array, tuning: Tuning) -> jax.Array:
    if op.startswith("linear"):
        return mosaic_linear.linear_residual(x, layer[op], residual, tuning=tuning)
    shared = dict(eps=EPS, tuning=tuning)
    if op == "norm_gate_up":
        return mosaic_linear.norm_gate_up(x, layer["norm"], layer[op], index, **shared)
    out_dtype = jnp.float32 if op == "logits" else x.dtype
    return mosaic_linear.norm_linear(x, layer["norm"], layer[op], index, out_dtype=out_dtype, **shared)


def xlas(op: str, x: jax.Array, layer: Arrays, index: jax.Array, residual: jax.Array, tuning: None) -> jax.Array:
    if op.startswith("linear"):
        return residual + linear(x, layer[op])
    x32 = x.astype(jnp.float32)
    x = (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + EPS)).astype(x.dtype) * layer["norm"][index]
    if op in ("norm_linear", "logits"):
        return linear(x, layer[op], out_dtype=jnp.float32 if op == "logits" else x.dtype)
    y = linear(x, layer[op])
    gate, up = jnp.split(y, 2, axis=-1)
    return (jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(x.dtype)


def alone(step: Callable, op: str, tuning: Tuning | None, x: jax.Array, residual: jax.Array, layers: list[Arrays]):
    return [step(op, x, layer, jnp.int32(0), residual, tuning) for layer in layers]


def chain(step: Callable, tunings: Tunings, x: jax.Array, layers: list[Arrays]) -> jax.Array:
    for layer in layers:
        index = jnp.int32(0)
        qkv = step("norm_linear", x, layer, index, x, tunings.get("norm_linear"))
        x = step("linear_o", qkv, layer, index, x, tunings.get("linear_o"))
        gated = step("norm_gate_up", x, layer, index, x, tunings.get("norm_gate_up"))
        x = step("linear_down", gated, layer, index, x, tunings.get("linear_down"))
    return x


def mlp_chain(tuning: mosaic_mlp.Tuning | None, x: jax.Array, layers: list[Arrays]) -> jax.Array:
    index, counter = jnp.int32(0), mosaic_mlp.counters(x.shape[1])
    for layer in layers:
        gate_up, down = layer["norm_gate_up"], layer["linear_down"]
        if tuning is None:
            gated = mosaic_linear.norm_gate_up(x, layer["norm"], gate_up, index, eps=EPS)
            x = mosaic_linear.linear_residual(gated, down, x)
        else:
            x, counter = mosaic_mlp.mlp(x, layer["norm"], gate_up, down, counter, index, eps=EPS, tuning=tuning)
    return x


def weights(num_layers: int, width: int, cuts: Mapping[str, tuple[int, int]]) -> list[Arrays]:

    @jax.jit
    def one(key: jax.Array) -> Arrays:
        keys = jax.random.split(key, len(cuts))
        made = {
            name: (0.3 * jax.random.normal(k, shape, jnp.bfloat16) * shape[1] ** -0.5).astype(jnp.bfloat16)
            for k, (name, shape) in zip(keys, cuts.items(), strict=True)
        }
        return made | {"norm": jnp.ones((1, width), jnp.bfloat16)}

    return [one(key) for key in jax.random.split(jax.random.key(0), num_layers)]


def wall_us(run: Callable[[], object]) -> float:
    jax.block_until_ready(run())
    jax.block_until_ready(run())
    started = time.perf_counter()
    for _ in range(REPEATS):
        last = run()
    jax.block_until_ready(last)
    return (time.perf_counter() - started) / REPEATS * 1e6


def kernels_us(run: Callable[[], object]) -> tuple[np.ndarray, float]:
    """The durations of the kernels that `run` launches, in order; the time from the first's start to the last's end."""
    jax.block_until_ready(run())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (trace,) = pathlib.Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(trace))
        times = [
            (event.start_ns, event.start_ns + event.duration_ns)
            for plane in data.planes
            if "GPU" in plane.name
            for line in plane.lines
            if "Stream" in line.name
            for event in line.events
        ]
    starts, ends = np.array(sorted(times)).T / 1e3
    return ends - starts, float(ends.max() - starts.min())


def measure_alone(rows: int, layers: list[Arrays], op: str, tuning: Tuning | None) -> None:
    out, depth = layers[0][op].shape
    x, residual = jnp.ones((rows, depth), jnp.bfloat16), jnp.ones((rows, out), jnp.bfloat16)
    mine = [{name: layer[name] for name in (op, "norm")} for layer in layers]
    step = xlas if tuning is None else ours
    run = jax.jit(functools.partial(alone, step, op, tuning)).lower(x, residual, mine).compile()
    durations, _ = kernels_us(lambda: run(x, residual, mine))
    each = durations.sum() / len(layers)
    rate = 2 * out * depth / each / 1e3
    cut = "XLA" if tuning is None else f"{tuning.splits}s {tuning.clusters}c {tuning.block}x{tuning.stages}"
    print(f"| {op} | {rows} | {cut} | {each:.2f} | {rate:.0f} | {len(durations) / len(layers):.0f} |", flush=True)


def measure_chain(name: str, rows: int, layers: list[Arrays], step: Callable, tunings: Tunings) -> None:
    x = jnp.ones((rows, layers[0]["norm"].shape[1]), jnp.bfloat16)
    started = time.perf_counter()
    run = jax.jit(functools.partial(chain, step, tunings)).lower(x, layers).compile()
    compiling = time.perf_counter() - started
    wall = wall_us(lambda: run(x, layers))
    durations, span = kernels_us(lambda: run(x, layers))
    each = durations.reshape(len(layers), -1).mean(axis=0) if len(durations) == 4 * len(layers) else []
    finite = bool(jnp.isfinite(run(x, layers)).all())
    size = sum(layer[op].nbytes for layer in layers for op in layer if op != "norm")
    split = " ".join(f"{us:.1f}" for us in each)
    print(
        f"| {name} | {rows} | {wall:.0f} | {span:.0f} | {split} | {len(durations)} | {size / BANDWIDTH * 1e6:.0f} | "
        f"{compiling:.1f} | {finite} |",
        flush=True,
    )


def measure_mlp(
    rows: int, layers: list[Arrays], tuning: mosaic_mlp.Tuning | None, wanted: jax.Array | None
) -> jax.Array:
    """Prints the row of one cut, the share of results unlike `wanted` last; returns the chain's result."""
    x = jnp.linspace(-2, 2, rows * layers[0]["norm"].shape[1], dtype=jnp.bfloat16).reshape(rows, -1)
    run = jax.jit(functools.partial(mlp_chain, tuning)).lower(x, layers).compile()
    wall = wall_us(lambda: run(x, layers)) / len(layers)
    durations, span = kernels_us(lambda: run(x, layers))
    floor = sum(layer[op].nbytes for layer in layers for op in layer if op != "norm") / BANDWIDTH / len(layers) * 1e6
    got = run(x, layers).astype(jnp.float32)
    away = 0.0 if wanted is None else float(jnp.linalg.norm(got - wanted) / jnp.linalg.norm(wanted))
    print(
        f"| {tuning} | {rows} | {durations.sum() / len(layers):.2f} | {span / len(layers):.2f} | {wall:.2f} | "
        f"{len(durations)} | {floor:.2f} | {away:.1e} |",
        flush=True,
    )
    return got


def measure_mlps(rows: list[int], layers: list[Arrays], text: str) -> None:
    print("| MLP, us a layer | rows | kernels | device | wall | kernels in all | floor | unlike two launches |")
    print("|---|---|---|---|---|---|---|---|")
    for n in rows:
        wanted = measure_mlp(n, layers, None, None)
        for tuning in mlp_tunings(text):
            measure_mlp(n, layers, tuning, wanted)


def measure_parts(rows: int, layers: list[Arrays], text: str) -> None:
    """Of the last of a few launches of one layer each: in us, from the first part's begin; of all warpgroups."""
    x = jnp.linspace(-2, 2, rows * layers[0]["norm"].shape[1], dtype=jnp.bfloat16).reshape(rows, -1)
    with tempfile.TemporaryDirectory() as folder:
        tuning = dataclasses.replace(mlp_tunings(text)[0], trace=folder)
        run = jax.jit(functools.partial(mlp_chain, tuning))
        for layer in layers[:4]:
            jax.block_until_ready(run(x, [layer]))
        jax.effects_barrier()
        last = max(pathlib.Path(folder).iterdir(), key=lambda path: path.stat().st_mtime_ns)
        events = json.loads(last.read_text())["traceEvents"]
    times = collections.defaultdict(list)
    for event in events:
        times[event["name"], event["ph"]].append(event["ts"])
    start = min(min(of) for of in times.values())
    print("| part | first begin | median begin | last begin | first end | median end | last end |")
    print("|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(name for name, _ in times):
        figures = [f(times[name, phase]) - start for phase in "BE" for f in (min, np.median, max)]
        print(f"| {name} | " + " | ".join(f"{us:.2f}" for us in figures) + " |", flush=True)


def mlp_tunings(text: str) -> list[mosaic_mlp.Tuning]:
    cuts = [[field.split("=") for field in cut.split(",") if field] for cut in text.split(";")]
    return [mosaic_mlp.Tuning(**{name: int(value) for name, value in cut}) for cut in cuts]


def parsed(text: str) -> list[tuple[str, Tuning]]:
    """Of "op:field=number,field=number;op:...": what each op is to be tried with."""
    tries = [part.split(":") for part in text.split(";") if part]
    cuts = [(op, [field.split("=") for field in fields.split(",")]) for op, fields in tries]
    return [(op, Tuning(**{"pdl": False, **{name: int(n) for name, n in fields}})) for op, fields in cuts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="Qwen2.5-1.5B", choices=MODELS)
    parser.add_argument("--rows", default="8")
    parser.add_argument("--try", dest="tries", default="")
    parser.add_argument("--chain", action="append", default=[])
    parser.add_argument("--chain-only", action="store_true")
    parser.add_argument("--mlp", help="tunings of mosaic_mlp")
    parser.add_argument("--trace", action="store_true")
    arguments = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {os.environ.get('XLA_FLAGS')}")
    rows = [int(n) for n in arguments.rows.split(",")]
    num_layers, width, qkv, *_ = MODELS[arguments.model]
    cuts = shapes(arguments.model)
    if arguments.mlp is not None:
        layers = weights(num_layers, width, {op: cuts[op] for op in ("norm_gate_up", "linear_down")})
        measure_mlps(rows, layers, arguments.mlp)
        if arguments.trace:
            measure_parts(rows[0], layers, arguments.mlp)
        return
    if not arguments.chain_only:
        print("| op | rows | cut | kernels us | GB/s | kernels |\n|---|---|---|---|---|---|")
        tries = parsed(arguments.tries) or [(op, Tuning()) for op in [*cuts, "logits"]]
        for op in dict(tries):
            count, shape = (3, (VOCABULARY, width)) if op == "logits" else (num_layers, cuts[op])
            layers = weights(count, width, {op: shape})
            for n in rows:
                for tuning in [None, *(tuning for name, tuning in tries if name == op)]:
                    measure_alone(n, layers, op, tuning)
    layers = weights(num_layers, width, cuts | {"linear_o": (width, qkv)})
    print("| chain | rows | wall us | device us | each kernel us | kernels | floor us | compiling s | finite |")
    print("|---|---|---|---|---|---|---|---|---|")
    for n in rows:
        measure_chain("XLA", n, layers, xlas, {})
        for number, text in enumerate(arguments.chain or [""]):
            tunings = {op: Tuning() for op in shapes(arguments.model)} | dict(parsed(text))
            measure_chain(f"Mosaic {number}", n, layers, ours, tunings)


if __name__ == "__main__":
    main()
