"""How long does one launch of a kernel take inside a chain, where it begins while the one before it ends, by tuning?

Every launch has weights or a layer's pages of its own, so that none finds them in the L2. OP is attention or one of a
layer's products at many rows: qkv, o, gate_up, down. TUNING is what the kernel's Tuning takes, "splits=8,stages=2"; the
default is timed as well.

    XLA_FLAGS=--xla_gpu_graph_min_graph_size=1 PYTHONPATH=.:kernels:benchmarks \
        python benchmarks/chained_kernels.py OP [--model 1.5b] [--rows 1,4] [--contexts 128,4096] [--try TUNING ...]
        [--lower]

Without that flag a chain is too short for XLA to make a graph of it. --lower lowers all for a GPU, which needs none.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from shapes import SHAPES

from jaxinfer.models.dense import DenseConfig, config_from_hf
from jaxinfer_kernels.attention import sm90_decode, sm90_decode_config
from jaxinfer_kernels.launch import ffi
from jaxinfer_kernels.launch.sequence import launched
from jaxinfer_kernels.linear import sm90_medium, sm90_medium_config

LAYERS, PAGE, TRIES, CALLS = 28, 64, 3, 20
BF16 = jnp.bfloat16

type Arrays = Any  # a tree of arrays, or of what they will be
type Layers = Callable[[Arrays, Arrays], Arrays]  # of what is updated in place and what is not


def array(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def attention(model: DenseConfig, rows: int, context: int, tuning: dict[str, Any]) -> tuple[Layers, Arrays, Arrays]:
    """Its kernel of a decode step, LAYERS times; the pages; the rest."""
    kv_heads, h = model.num_kv_heads, model.head_dim
    width, joined = -(-context // PAGE) + 1, (model.num_heads + 2 * kv_heads) * h
    pages = (array(LAYERS, rows * width + 1, kv_heads, PAGE, h),) * 2
    table = jnp.arange(-width, rows * width, dtype=jnp.int32).reshape(rows + 1, width).clip(-1) + 1
    where = table, jnp.arange(1, rows + 1, dtype=jnp.int32), jnp.full(rows, context, jnp.int32)
    extra = {} if model.qkv_bias else dict(norms=(array(LAYERS, h),) * 2)  # its bias is the product's
    settings = dict(tuning=sm90_decode_config.DecodeTuning(pdl=True, **tuning)) | dict(norm_eps=1e-6)
    angles = (array(rows, h // 2, dtype=jnp.float32),) * 2

    def layers(kv: Arrays, rest: Arrays) -> Arrays:
        qkv, angles, where, extra = rest
        for i in range(LAYERS):
            index = jnp.int32(i)
            out, *kv = sm90_decode.decode_attention_fused(qkv, angles, (*kv, index), where, **extra, **settings)
        return out, *kv

    return layers, pages, (array(rows, joined), angles, where, extra)


def product(
    op: str, model: DenseConfig, rows: int, tuning: dict[str, Any]
) -> tuple[Layers, Arrays, tuple[Arrays, ...]]:
    """One product of a layer of many rows, LAYERS times; nothing is updated in place."""
    d, mlp, h = model.hidden_size, model.intermediate_size, model.head_dim
    out, depth = {
        "qkv": ((model.num_heads + 2 * model.num_kv_heads) * h, d),
        "o": (d, model.num_heads * h),
        "gate_up": (2 * mlp, d),
        "down": (d, mlp),
    }[op]
    cut = dict(tuning=sm90_medium_config.MediumTuning(**tuning))

    def layers(_: Arrays, rest: Arrays) -> Arrays:
        x, weights, residual = rest
        for w in weights:
            if op == "gate_up":
                y = sm90_medium.gate_up(x, w, **cut)
            elif op == "qkv":
                y = sm90_medium.linear_bias(x, w, jnp.int32(0), **cut)
            else:
                y = sm90_medium.linear_residual(x, w, residual, **cut)
        return (y,)

    return layers, (), (array(rows, depth), (array(out, depth),) * LAYERS, array(rows, out))


def made(tree: Arrays) -> Arrays:
    """Random numbers where only a shape is given."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    normal = jax.jit(jax.random.normal, static_argnums=(1, 2))
    found = [
        0.1 * normal(key, leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, found)


def launch_us(layers: Layers, updated: Arrays, rest: Arrays) -> float:
    run = jax.jit(functools.partial(launched, layers), donate_argnums=0).lower(updated, rest).compile()
    updated, rest, best_s = made(updated), made(rest), float("inf")
    for _ in range(1 + TRIES):
        began = time.perf_counter()
        for _ in range(CALLS):
            out, *updated = run(tuple(updated), rest)
        jax.block_until_ready(out)
        best_s = min(best_s, time.perf_counter() - began)
    return best_s / CALLS / LAYERS * 1e6


def parsed(text: str) -> dict[str, Any]:
    return {name: int(number) for name, number in (one.split("=") for one in text.split(",") if one)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", choices=["attention", "qkv", "o", "gate_up", "down"])
    parser.add_argument("--model", choices=SHAPES, default="1.5b")
    parser.add_argument("--rows", default="1")
    parser.add_argument("--contexts", default="128")
    parser.add_argument("--try", dest="tries", nargs="*", default=[], metavar="TUNING")
    parser.add_argument("--lower", action="store_true")
    options = parser.parse_args()
    if not options.lower:
        ffi.register()
        print(f"{jax.devices()[0].device_kind}, {options.model}, {options.op}, us a launch")
    model = config_from_hf(SHAPES[options.model])
    contexts = options.contexts.split(",") if options.op == "attention" else ["0"]
    for rows in map(int, options.rows.split(",")):
        for text in ["", *options.tries]:
            found = []
            for context in map(int, contexts):
                tuning = parsed(text)
                if options.op == "attention":
                    parts = attention(model, rows, context, tuning)
                else:
                    parts = product(options.op, model, rows, tuning)
                if options.lower:
                    jax.jit(functools.partial(launched, parts[0])).trace(*parts[1:]).lower(lowering_platforms=("cuda",))
                else:
                    found.append(f"{launch_us(*parts):.2f}")
            print(f"{rows} rows, {text or 'default'}: {' / '.join(found) or 'lowered'}", flush=True)


if __name__ == "__main__":
    main()
