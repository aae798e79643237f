"""Linear layers by our kernels for CPUs alone and cold, beside XLA's, with weights in bfloat16, int8 and int4."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.bench.latency import TRIES_S
from jaxinfer.bench.report import Table, Value
from jaxinfer_kernels.linear import cpu, xla
from jaxinfer_kernels.linear.cases import MODELS
from jaxinfer_kernels.linear.quantized import ROUNDED, Format, quantize

MODEL, ROWS = "Qwen3-0.6B", (1, 8, 64)  # whose product of gate and up is timed, and by so many rows
TITLE = "linear layers"
COLUMNS = ("weights, rows", "C++ us", "XLA us", "C++ GB/s", "of the limit %", "XLA GB/s", "XLA of the limit %")


def rows(limit: float, cold_bytes: float, repeats: int) -> Iterator[Callable[[], Sequence[Value]]]:
    """What makes each row of the table.    limit: bytes that the machine reads in a second.    cold_bytes: of weights
    that are multiplied by before the first ones come again."""
    shape = MODELS[MODEL]
    for kind in (None, *ROUNDED):
        held = weights(kind, 2 * shape.mlp, shape.width)
        for count in ROWS:
            yield functools.partial(row, kind, held, count, limit, cold_bytes, repeats)


def table(rows: Sequence[Sequence[Value]]) -> Table:
    return Table(TITLE, COLUMNS, rows)


def weights(kind: Format | None, out: int, depth: int) -> Any:
    array = jax.random.normal(jax.random.key(0), (out, depth), jnp.bfloat16)
    return array if kind is None else quantize(array, kind, array.dtype)


def row(kind: Format | None, held: Any, count: int, limit: float, cold_bytes: float, repeats: int) -> Sequence[Value]:
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(held))
    copies = [jax.tree.map(jnp.array, held) for _ in range(max(1, round(cold_bytes / num_bytes)))]
    x = jax.random.normal(jax.random.key(1), (count, held.shape[1]), jnp.bfloat16)
    times = [seconds(linear, x, copies, repeats) for linear in (cpu.linear, xla.linear)]
    rates = [num_bytes / taken for taken in times]
    shares = [value for rate in rates for value in (rate / 1e9, rate / limit * 100)]
    name = f"{MODEL}, {kind or 'bfloat16'}, {count}"
    return [name, *(taken * 1e6 for taken in times), *shares]


def seconds(linear: Callable[..., jax.Array], x: jax.Array, copies: Sequence[Any], repeats: int) -> float:
    """Of one product, the best of some turns; each takes a part of the one before it as its rows."""

    def chain(x: jax.Array, copies: Sequence[Any]) -> jax.Array:
        for one in copies:
            x = linear(x, one)[:, : x.shape[1]]
        return x

    run = jax.jit(chain).lower(x, copies).compile()
    taken: list[float] = []
    while len(taken) < repeats and sum(taken) < TRIES_S:
        began = time.perf_counter()
        jax.block_until_ready(run(x, copies))
        taken.append(time.perf_counter() - began)
    return min(taken) / len(copies)
