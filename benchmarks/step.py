"""How long does one step take alone, outside the engine, and in which kernels?

Random weights, keys, values and tokens, the runner that ships, one step ahead of the host. Does the size of the pool
matter, or pages that lie apart? Then --pages and --shuffled say so. STEP is decode:ROWS:CONTEXT or
extend:TOKENS:ROWS:PREFIX, the tokens dealt evenly to the rows, each behind a prefix that is in the pages already.

    PYTHONPATH=.:kernels python benchmarks/step.py 1.5b decode:256:1024 extend:8192:1:0 [--pages 6000] [--shuffled]
        [--single]
"""

import argparse
import dataclasses
import functools
import itertools
import tempfile
import time

import jax
import numpy as np
from shapes import SHAPES

from jaxinfer.bench import trace
from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.config import EngineConfig
from jaxinfer.models.dense import config_from_hf
from jaxinfer.models.registry import family_for
from jaxinfer.runtime.backends import Launches
from jaxinfer.runtime.device import select_device
from jaxinfer.runtime.memory import backends_for, plan_memory
from jaxinfer.runtime.plan import Plan, Row
from jaxinfer.runtime.runner import DeviceRunner

WARM, TIMED, TRACED, SHOWN = 5, 30, 10, 12


def start(options: argparse.Namespace) -> DeviceRunner:
    raw = SHAPES[options.model]
    family, model = family_for(raw), config_from_hf(raw)
    if options.layers:
        model = dataclasses.replace(model, num_layers=options.layers)
    device = select_device("auto")
    settings = EngineConfig(
        dtype="bfloat16",
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        num_pages=options.pages,
        attention_backend=options.attention_backend,
    )
    plan = plan_memory(settings, model, family, device, backends_for(settings, model, device))
    params = dummy_params(family.specs(model), "bfloat16", 0, device)
    print(f"{device.device_kind}, {options.model}, {plan.limits.num_pages} pages,", dict(plan.backends.rows()))
    backends = dataclasses.replace(plan.backends, launches=Launches.SINGLE) if options.single else plan.backends
    return DeviceRunner(model, family, params, plan.limits, device, backends)


def plans(runner: DeviceRunner, spec: str, shuffled: bool) -> "itertools.chain[Plan] | itertools.repeat[Plan]":
    """The step again and again; a decode step's rows grow by a token each time."""
    kind, *numbers = spec.split(":")
    if kind == "decode":
        rows, context = map(int, numbers)
        place(runner, rows, context, context + WARM + TIMED + TRACED, shuffled)
        return itertools.chain(Plan([Row(1 + i, context + n, 1) for i in range(rows)]) for n in itertools.count())
    tokens, rows, prefix = map(int, numbers)
    place(runner, rows, 0, prefix + tokens // rows, shuffled)
    ids = np.random.default_rng(0).integers(0, runner.limits.vocab_size, tokens // rows).tolist()
    return itertools.repeat(Plan([Row(1 + i, prefix, len(ids), ids) for i in range(rows)]))


def place(runner: DeviceRunner, rows: int, position: int, length: int, shuffled: bool) -> None:
    """Give slots 1 to `rows` pages for `length` tokens each, random keys, values and last tokens, and decode rows their
    position. Zeros everywhere would need less power, and a card at its limit would seem faster than it is."""
    state, each = runner._state, -(-length // runner.limits.page_size)
    table, next_pos = np.zeros(state.page_table.shape, np.int32), np.zeros(state.next_pos.shape, np.int32)
    if rows * each >= runner.limits.num_pages:
        raise SystemExit(f"--pages must be above {rows * each} for these rows, got {runner.limits.num_pages}")
    ids = np.arange(1, runner.limits.num_pages)
    if shuffled:
        ids = np.random.default_rng(0).permutation(ids)
    table[1 : rows + 1, :each] = ids[: rows * each].reshape(rows, each)
    next_pos[1 : rows + 1] = position
    last_token = np.random.default_rng(1).integers(0, runner.limits.vocab_size, next_pos.shape, np.int32)
    moved = (jax.device_put(x, state.next_pos.sharding) for x in (table, next_pos, last_token))
    found = dict(zip(("page_table", "next_pos", "last_token"), moved, strict=True))
    runner._state = state.replace(store=jax.tree.map(randomized, state.store), **found)


@functools.partial(jax.jit, donate_argnums=0)
def randomized(pages: jax.Array) -> jax.Array:
    """[L, P, K, page, H], the pages of a layer all alike: the memory has no room for other bits to be made at once."""

    def layer(i: int, pages: jax.Array) -> jax.Array:
        return pages.at[i].set(jax.random.normal(jax.random.key(i), pages.shape[2:], pages.dtype))

    return jax.lax.fori_loop(0, len(pages), layer, pages)


def run(runner: DeviceRunner, some: "itertools.islice[Plan]") -> float:
    """Seconds a step, each read while the next one runs."""
    began, count, before = time.perf_counter(), 0, None
    for plan in some:
        pending = runner.run(plan)
        if before is not None:
            before.wait()
        before, count = pending, count + 1
    assert before is not None
    before.wait()
    return (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("steps", nargs="+", metavar="STEP")
    parser.add_argument("--pages", type=int, help="of the pool; as many as fit if not given")
    parser.add_argument("--shuffled", action="store_true", help="deal pages in random order")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--single", action="store_true", help="launch kernels one by one where they could be chained")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    options = parser.parse_args()
    runner = start(options)
    for spec in options.steps:
        steps = iter(plans(runner, spec, options.shuffled))
        run(runner, itertools.islice(steps, WARM))
        seconds = run(runner, itertools.islice(steps, TIMED))
        print(f"\n{spec}{', shuffled' if options.shuffled else ''}: {seconds * 1e3:.3f} ms a step")
        show_kernels(runner, itertools.islice(steps, TRACED))


def show_kernels(runner: DeviceRunner, some: "itertools.islice[Plan]") -> None:
    with tempfile.TemporaryDirectory() as folder:
        with trace.trace_into(folder):
            run(runner, some)
        events = trace.device_events(folder)
    found = trace.sums(events)  # of a chain's kernels: with the wait for the kernel before each
    print(f"in kernels: {trace.busy_ns(events) / TRACED / 1e6:.3f} ms\n")
    print("| kernel | a step | us a step | us each |\n|---|---|---|---|")
    for name, count, total_ns in [(kernel.name, kernel.count, kernel.total_ns) for kernel in found[:SHOWN]]:
        print(f"| {name} | {count / TRACED:.0f} | {total_ns / TRACED / 1e3:.1f} | {total_ns / count / 1e3:.1f} |")


if __name__ == "__main__":
    main()
