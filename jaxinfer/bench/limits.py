"""`python -m jaxinfer.bench.limits DEVICE`: what a device reads, copies and multiplies at most, as a line of JSON."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.runtime.device import select_device

IN_A_ROW, TRIES = 8, 5
ROW_S = 0.05  # a row of calls that take longer hides no more: dispatching one takes some 0.1 ms


def main() -> None:
    device = select_device(sys.argv[1], memory_utilization=0.2)
    is_gpu = device.platform == "gpu"
    with jax.default_device(device):
        words = jnp.arange((2**31 if is_gpu else 2**28) // 4, dtype=jnp.int32)
        side, dtype = (8192, jnp.bfloat16) if is_gpu else (1024, jnp.float32)
        matrix = jax.random.normal(jax.random.key(0), (side, side), dtype)
        copy_s = seconds(jax.jit(lambda x: x + 1), words)
        read_s = seconds(jax.jit(jnp.max), words)
        product_s = seconds(jax.jit(jnp.matmul), matrix, matrix)
    found = {"platform": device.platform, "kind": device.device_kind}
    rates = {"copy_bytes_per_s": 2 * words.nbytes / copy_s, "read_bytes_per_s": words.nbytes / read_s}
    print(json.dumps(found | rates | {"flops": 2 * side**3 / product_s}))


def seconds(run: Callable[..., Any], *arguments: jax.Array) -> float:
    """Of one call: the best of several tries of a few calls in a row, so that dispatching hides behind the device."""

    def row(num_calls: int) -> float:
        began = time.perf_counter()
        for _ in range(num_calls):
            result = run(*arguments)
        jax.block_until_ready(result)
        return (time.perf_counter() - began) / num_calls

    jax.block_until_ready(run(*arguments))  # compiled
    num_calls = max(1, min(IN_A_ROW, round(ROW_S / row(1))))
    return min(row(num_calls) for _ in range(TRIES))


if __name__ == "__main__":
    main()
