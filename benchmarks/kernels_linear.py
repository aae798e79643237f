"""Time the decode step's linear layers of real shapes on this GPU, cold, beside their bar: the weights' bytes over the
bandwidth that this run measures first. Weights are in bfloat16, in fp8 with a scale per row (row) or block (block), or
have 4 bits and a scale per 128 of a row (packed4), and a zero (awq).

Every launch of a chain reads another layer's weights. First each op alone (the profiler's time of its kernels), then
the four linear layers of all layers behind each other, beside XLA's. In that chain the product after attention is given
the projections themselves, so it is as deep as they are wide.

    XLA_FLAGS=--xla_enable_command_buffers_during_profiling=true PYTHONPATH=.:kernels \
        python benchmarks/kernels_linear.py [--model Qwen3-8B] [--rows 8,16] [--weights bf16,row,block]
        [--chain-only]
        [--try "norm_gate_up:splits=2,stages=6;linear_down:splits=5"]
        [--chain "norm_gate_up:splits=1,block=64"]
"""

import argparse
import functools
import itertools
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.bench.machine import measure_limits
from jaxinfer_kernels.linear import packed4, sm90_small
from jaxinfer_kernels.linear.cases import MODELS
from jaxinfer_kernels.linear.quantized import Format, Quantized
from jaxinfer_kernels.linear.sm90_small_config import SmallTuning
from jaxinfer_kernels.linear.xla import linear

REPEATS, EPS = 20, 1e-6
MOST_LAYERS = 28  # measured

type Arrays = dict[str, jax.Array | Quantized]
type Tunings = Mapping[str, SmallTuning]


def shapes(model: str) -> dict[str, tuple[int, int]]:
    """[out, in] of each product."""
    sizes = [(n, k) for _, n, k in MODELS[model].ops()]
    return dict(zip(("norm_linear", "linear_o", "norm_gate_up", "linear_down"), sizes, strict=True))


def ours(op: str, x: jax.Array, layer: Arrays, index: jax.Array, residual: jax.Array, tuning: SmallTuning) -> jax.Array:
    if op.startswith("linear"):
        return sm90_small.linear_residual(x, layer[op], residual, tuning=tuning)
    shared = dict(eps=EPS, tuning=tuning)
    if op == "norm_gate_up":
        return sm90_small.norm_gate_up(x, layer["norm"], layer[op], index, **shared)
    return sm90_small.norm_linear(x, layer["norm"], layer[op], index, **shared)


def xlas(op: str, x: jax.Array, layer: Arrays, index: jax.Array, residual: jax.Array, tuning: None) -> jax.Array:
    if op.startswith("linear"):
        return residual + linear(x, layer[op])
    x32 = x.astype(jnp.float32)
    x = (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + EPS)).astype(x.dtype) * layer["norm"][index]
    y = linear(x, layer[op])
    if op == "norm_linear":
        return y
    gate, up = jnp.split(y, 2, axis=-1)
    return (jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(x.dtype)


def alone(
    step: Callable, op: str, tuning: SmallTuning | None, x: jax.Array, residual: jax.Array, layers: list[Arrays]
) -> list[jax.Array]:
    return [step(op, x, layer, jnp.int32(0), residual, tuning) for layer in layers]


def chain(step: Callable, tunings: Tunings, x: jax.Array, layers: list[Arrays]) -> jax.Array:
    for layer in layers:
        index = jnp.int32(0)
        qkv = step("norm_linear", x, layer, index, x, tunings.get("norm_linear"))
        x = step("linear_o", qkv, layer, index, x, tunings.get("linear_o"))
        gated = step("norm_gate_up", x, layer, index, x, tunings.get("norm_gate_up"))
        x = step("linear_down", gated, layer, index, x, tunings.get("linear_down"))
    return x


def in_fp8(w: jax.Array, block: tuple[int, int]) -> Quantized:
    (out, depth), (rows, columns) = w.shape, block
    blocks = w.astype(jnp.float32).reshape(out // rows, rows, depth // columns, columns)
    scales = jnp.abs(blocks).max((1, 3)) / float(jnp.finfo(jnp.float8_e4m3fn).max)
    values = (blocks / scales[:, None, :, None]).astype(jnp.float8_e4m3fn).reshape(w.shape)
    return Quantized(values, scales, Format.FP8, block=block)


def in_4_bits(key: jax.Array, shape: tuple[int, int], *, zeros: bool) -> Quantized:
    (out, depth), keys = shape, jax.random.split(key)
    by_tile = out // packed4.ROWS, depth // 128, packed4.ROWS
    return Quantized(
        jax.random.bits(keys[0], (by_tile[0], depth // 16, packed4.COLUMNS), jnp.uint32).view(jnp.int32),
        jnp.full(by_tile, 0.3 * depth**-0.5 / 4.6),
        Format.PACKED4,
        zeros=jax.random.randint(keys[1], by_tile, 6, 10).astype(jnp.uint8) if zeros else None,
    )


def size_of(weight: jax.Array | Quantized) -> int:
    """Bytes."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(weight))


def weights(num_layers: int, width: int, cuts: Mapping[str, tuple[int, int]], kind: str) -> list[Arrays]:
    blocks = {"row": lambda depth: (1, depth), "block": lambda depth: (128, 128)}

    @jax.jit
    def one(key: jax.Array) -> Arrays:
        keys = jax.random.split(key, len(cuts))
        if kind in ("packed4", "awq"):
            packed = {
                name: in_4_bits(k, shape, zeros=kind == "awq")
                for k, (name, shape) in zip(keys, cuts.items(), strict=True)
            }
            return packed | {"norm": jnp.ones((1, width), jnp.bfloat16)}
        made = {
            name: (0.3 * jax.random.normal(k, shape, jnp.bfloat16) * shape[1] ** -0.5).astype(jnp.bfloat16)
            for k, (name, shape) in zip(keys, cuts.items(), strict=True)
        }
        if kind != "bf16":
            made = {name: in_fp8(w, blocks[kind](w.shape[1])) for name, w in made.items()}
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


def measure_alone(
    rows: int, layers: list[Arrays], op: str, tuning: SmallTuning | None, kind: str, bytes_per_s: float
) -> None:
    out, depth = layers[0][op].shape
    x, residual = jnp.ones((rows, depth), jnp.bfloat16), jnp.ones((rows, out), jnp.bfloat16)
    mine = [{name: layer[name] for name in (op, "norm")} for layer in layers]
    step = xlas if tuning is None else ours
    run = jax.jit(functools.partial(alone, step, op, tuning)).lower(x, residual, mine).compile()
    durations, _ = kernels_us(lambda: run(x, residual, mine))
    each = durations.sum() / len(layers)
    rate = size_of(layers[0][op]) / each / 1e3
    cut = "XLA" if tuning is None else f"{tuning.splits}s {tuning.clusters}c {tuning.block}x{tuning.stages}"
    share, launches = rate * 1e9 / bytes_per_s, len(durations) / len(layers)
    print(f"| {op} | {kind} | {rows} | {cut} | {each:.2f} | {rate:.0f} | {share:.0%} | {launches:.0f} |", flush=True)


def measure_chain(
    name: str, rows: int, layers: list[Arrays], step: Callable, tunings: Tunings, bytes_per_s: float
) -> None:
    x = jnp.ones((rows, layers[0]["norm"].shape[1]), jnp.bfloat16)
    started = time.perf_counter()
    run = jax.jit(functools.partial(chain, step, tunings)).lower(x, layers).compile()
    compiling = time.perf_counter() - started
    wall = wall_us(lambda: run(x, layers))
    durations, span = kernels_us(lambda: run(x, layers))
    each = durations.reshape(len(layers), -1).mean(axis=0) if len(durations) == 4 * len(layers) else np.empty(0)
    finite = bool(jnp.isfinite(run(x, layers)).all())
    size = sum(size_of(layer[op]) for layer in layers for op in layer if op != "norm")
    split = " ".join(f"{us:.1f}" for us in each)
    print(
        f"| {name} | {rows} | {wall:.0f} | {span:.0f} | {split} | {len(durations)} | {size / bytes_per_s * 1e6:.0f} | "
        f"{compiling:.1f} | {finite} |",
        flush=True,
    )


def parsed(text: str) -> list[tuple[str, SmallTuning]]:
    """Of "op:field=number,field=number;op:...": what each op is to be tried with."""
    tries = [part.split(":") for part in text.split(";") if part]
    cuts = [(op, [field.split("=") for field in fields.split(",")]) for op, fields in tries]
    given: list[tuple[str, dict[str, Any]]] = [(op, {name: int(n) for name, n in fields}) for op, fields in cuts]
    return [(op, SmallTuning(**{"pdl": False, **fields})) for op, fields in given]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="Qwen2.5-1.5B", choices=MODELS)
    parser.add_argument("--rows", default="8")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--try", dest="tries", default="")
    parser.add_argument("--chain", action="append", default=[])
    parser.add_argument("--chain-only", action="store_true")
    arguments = parser.parse_args()
    limit = measure_limits("cuda").bytes_per_s  # before this process takes the memory
    print(
        f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {os.environ.get('XLA_FLAGS')}, {limit / 1e9:,.0f} GB/s"
    )
    rows, kinds = [int(n) for n in arguments.rows.split(",")], arguments.weights.split(",")
    model, cuts = MODELS[arguments.model], shapes(arguments.model)
    num_layers = min(model.layers, MOST_LAYERS)
    if not arguments.chain_only:
        print("| op | weights | rows | cut | kernels us | GB/s | of bandwidth | kernels |")
        print("|---|---|---|---|---|---|---|---|")
        tries = parsed(arguments.tries) or [(op, SmallTuning()) for op in cuts]
        for op, kind in itertools.product(dict(tries), kinds):
            layers = weights(num_layers, model.width, {op: cuts[op]}, kind)
            for n in rows:
                for tuning in [None, *(tuning for name, tuning in tries if name == op)]:
                    measure_alone(n, layers, op, tuning, kind, limit)
    print("| chain | rows | wall us | device us | each kernel us | kernels | floor us | compiling s | finite |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in kinds:
        layers = weights(num_layers, model.width, cuts | {"linear_o": (model.width, model.qkv)}, kind)
        for n in rows:
            measure_chain(f"XLA {kind}", n, layers, xlas, {}, limit)
            for number, text in enumerate(arguments.chain or [""]):
                tunings = {op: SmallTuning() for op in shapes(arguments.model)} | dict(parsed(text))
                measure_chain(f"Mosaic {kind} {number}", n, layers, ours, tunings, limit)


if __name__ == "__main__":
    main()
