"""Time logits with each row's largest on this GPU: XLA's product, copy and arg-max beside our one kernel.

Both keep f32[256, V] of logits in place. The floor is the weights read and the logits written once, at the card's
bandwidth.

    PYTHONPATH=.:kernels python benchmarks/kernels_head.py [--width 1536] [--rows 1,8,32,64,128,256] [--stages 0]
"""

import argparse
import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxinfer.runtime.sampler import largest_id
from jaxinfer_kernels import mosaic_head
from jaxinfer_kernels.linear import linear

BANDWIDTH = 4.306e12  # bytes a second, device to device, H200, 2026-10
VOCABULARY, KEPT, REPEATS = 151_936, 256, 50

type Head = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def xlas(x: jax.Array, w: jax.Array, kept: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As runtime.step does it."""
    logits = jax.lax.optimization_barrier(linear(x, w, out_dtype=jnp.float32))
    kept = jax.lax.optimization_barrier(jax.lax.dynamic_update_slice(kept, logits, (0, 0)))
    return kept, largest_id(kept[: len(x)])


def wall_us(head: Head, x: jax.Array, w: jax.Array) -> float:
    step = jax.jit(head, donate_argnums=2)
    kept, tokens = step(x, w, jnp.zeros((KEPT, len(w)), jnp.float32))
    for repeats in (3, REPEATS):
        jax.block_until_ready((kept, tokens))
        began = time.perf_counter()
        for _ in range(repeats):
            kept, tokens = step(x, w, kept)
        jax.block_until_ready((kept, tokens))
        took = time.perf_counter() - began
    return took / REPEATS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--rows", default="1,8,32,64,128,192,256")
    parser.add_argument("--stages", default="0", help="of our kernel, by commas; 0: what fits")
    asked = parser.parse_args()
    stages = [int(text) for text in asked.stages.split(",")]
    w = jax.random.normal(jax.random.key(0), (VOCABULARY, asked.width), jnp.bfloat16) * asked.width**-0.5
    print("| rows | XLA us |" + "".join(f" stages {n or 'auto'} us |" for n in stages) + " floor us |")
    print("|---|---|" + "---|" * (len(stages) + 1))
    for rows in (int(text) for text in asked.rows.split(",")):
        x = jax.random.normal(jax.random.key(1), (rows, asked.width), jnp.bfloat16)
        ours = [functools.partial(mosaic_head.head, tuning=mosaic_head.Tuning(stages=n)) for n in stages]
        taken = [wall_us(head, x, w) for head in (xlas, *ours)]
        floor = (w.nbytes + rows * VOCABULARY * 4) / BANDWIDTH * 1e6
        print(f"| {rows} |" + "".join(f" {us:.0f} |" for us in (*taken, floor)), flush=True)


if __name__ == "__main__":
    main()
