"""A program of four virtual CPU devices: a dense model says the same on one device and over meshes of 1, 2 and 4.

    python -m tests.support.mesh FOLDER FAMILY KV_HEADS [quick]

FOLDER takes the checkpoint. XLA reads how many devices it has once, so this is a process of its own.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxinfer.cache.spec import layout_of
from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.checkpoint.placement import Placement
from jaxinfer.checkpoint.resolve import resolve
from jaxinfer.layers.attention import decode_xla, extend_xla
from jaxinfer.layers.batch import AttentionOp, Batch
from jaxinfer.layers.products import XLA, Products
from jaxinfer.layers.store import Store, new_store
from jaxinfer.models import dense
from jaxinfer.models.dense import TENSOR, DenseConfig
from tests.support.checkpoints import write_checkpoint
from tests.support.loading import open_checkpoint
from tests.support.parity import ATTEND_DENSE

BOUND = 1e-4  # of |difference of logits|: sums in another order move them by 1e-6 to 1e-5
NUM_GREEDY, PAGE, PAGES_EACH = 30, 4, 12
PROMPTS = (3, 1, 4, 1, 5, 9, 2, 6, 5), (95, 96, 191, 192, 383)  # of four devices each has 96 rows of the vocabulary
TABLE = np.concatenate([np.zeros((1, PAGES_EACH)), 1 + np.arange(2 * PAGES_EACH).reshape(2, -1)]).astype(np.int32)

type Step = Callable[..., tuple[jax.Array, Any]]
"""(config, products, params, *arrays) -> (logits [T, V], cache)."""


def whole(config: DenseConfig, products: Products, params: Any, tokens: jax.Array) -> tuple[jax.Array, None]:
    """One sequence without a cache."""
    batch = Batch(tokens, jnp.arange(len(tokens)), ATTEND_DENSE, products)
    hidden, _ = dense.forward(config, params, batch, None)
    return dense.unembed(config, params, hidden), None


def paged(
    attention: AttentionOp,
    config: DenseConfig,
    products: Products,
    params: Any,
    tokens: jax.Array,
    positions: jax.Array,
    slots: jax.Array,
    sequences: Any,
    store: Store | None,
) -> tuple[jax.Array, Store]:
    """Tokens of both sequences, whose keys and values lie in pages."""
    layout, table = layout_of(config.caches("float32"), PAGE), jnp.asarray(TABLE)
    pages, offsets = table[slots, positions // PAGE], positions % PAGE
    where = dict(tables=(table,), slots=slots, lengths=positions + 1, pages=(pages,), offsets=offsets)
    batch = Batch(tokens, positions, attention, products, layout, sequences=sequences, **where)
    store = new_store(layout, 1 + 2 * PAGES_EACH, 2) if store is None else store
    hidden, store = dense.forward(config, params, batch, store)
    return dense.unembed(config, params, hidden), store


EXTEND = functools.partial(paged, extend_xla)
DECODE = functools.partial(paged, functools.partial(decode_xla, None))


@functools.cache
def compiled(step: Step, config: DenseConfig, placement: Placement) -> Callable[..., tuple[jax.Array, Any]]:
    """step(params, *arrays) on the device, or over the mesh."""
    if not isinstance(placement, Mesh):
        return jax.jit(functools.partial(step, config, XLA))
    local = functools.partial(step, config.local(placement.size), dataclasses.replace(XLA, axis=TENSOR))
    partitions = jax.tree.map(lambda spec: spec.partition, dense.parameters(config))
    of_heads = P(None, None, TENSOR)

    def spread(params: Any, *arrays: Any) -> tuple[jax.Array, Any]:
        specs = [of_heads if isinstance(one, Store) else P() for one in arrays]
        over = dict(mesh=placement, in_specs=(partitions, *specs), out_specs=(P(None, TENSOR), of_heads))
        # JAX checks that what is not split is the same on all devices. It cannot in loops that begin with zeros, as
        # those of attention over pages do.
        return jax.shard_map(local, **over, check_vma=step is whole)(params, *arrays)

    return jax.jit(spread)


def greedy(config: DenseConfig, placement: Placement, params: Any) -> np.ndarray:
    """Logits f32[2, NUM_GREEDY, V] after both prompts and greedy tokens, computed together through pages."""
    extend, decode = (compiled(step, config, placement) for step in (EXTEND, DECODE))
    counts, slots = np.array([len(prompt) for prompt in PROMPTS], np.int32), np.array([1, 2], np.int32)
    starts = np.cumsum(counts, dtype=np.int32) - counts
    positions = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    tokens = np.concatenate([np.array(prompt, np.int32) for prompt in PROMPTS])
    out, store = extend(params, tokens, positions, np.repeat(slots, counts), (slots, starts, counts, counts), None)
    logits = [np.asarray(out)[starts + counts - 1]]
    for i in range(NUM_GREEDY - 1):
        drawn = logits[-1].argmax(axis=-1).astype(np.int32)
        out, store = decode(params, drawn, counts + np.int32(i), slots, None, store)
        logits.append(np.asarray(out))
    return np.stack(logits, axis=1)


def check(config: DenseConfig, make: Callable[[Placement], Any], meshes: list[Mesh], *, through_pages: bool) -> None:
    """The same logits and greedy tokens over each mesh as on one device.    make: the parameters there."""
    device = jax.devices()[0]
    tokens = np.array(sum(PROMPTS, ()), np.int32)
    for place in (device, *meshes):
        params = make(place)
        logits = {"whole": np.asarray(compiled(whole, config, place)(params, tokens)[0])}
        if through_pages:
            logits["paged"] = greedy(config, place, params)
        if place is device:
            alone = logits
        for kind, got in logits.items():
            np.testing.assert_allclose(got, alone[kind], rtol=0, atol=BOUND, err_msg=f"{kind}, {place}")
            np.testing.assert_array_equal(got.argmax(axis=-1), alone[kind].argmax(axis=-1), f"{kind}, {place}")


def main(folder: str, family: str, kv_heads: str, *quick: str) -> None:
    write_checkpoint(Path(folder), family, num_key_value_heads=int(kv_heads), tie_word_embeddings=family != "llama")
    config = dense.config_from_hf(resolve(folder).config)
    specs, devices = dense.parameters(config), np.array(jax.devices())
    assert len(devices) == 4, "this program is started with four virtual devices"
    meshes = [Mesh(devices[:size], (TENSOR,)) for size in ((4,) if quick else (1, 2, 4))]
    check(config, lambda place: open_checkpoint(Path(folder), placement=place), meshes, through_pages=not quick)
    if not quick:
        check(config, lambda place: dummy_params(specs, "float32", 0, place), meshes, through_pages=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
