"""Batched greedy decoding with a dense KV cache: what the trainer and the tests measure the checkpoint with.

It shares the model with the engine and nothing else, so it also says whether a wrong answer is the model's own.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.layers.attention import over_heads
from jaxinfer.layers.batch import AttentionOp, Batch
from jaxinfer.models import dense
from jaxinfer.models.dense import DenseConfig, Params

Cache = tuple[jax.Array, jax.Array]  # keys and values, [L, B, S, K, H]


def greedy(
    config: DenseConfig,
    params: Params,
    prompts: list[list[int]],
    *,
    max_tokens: int,
    eos: tuple[int, ...],
    batch: int = 64,
) -> list[list[int]]:
    """The likeliest continuation of each prompt, up to and without the first of `eos`, at most `max_tokens` tokens."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    outputs: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), batch):
        members = order[start : start + batch]
        longest = max(len(prompts[index]) for index in members)
        width = next(width for width in (128, 512, longest) if width >= longest)  # few shapes to compile
        tokens = np.zeros((batch, width), np.int32)
        lengths = np.ones(batch, np.int32)
        for row, index in enumerate(members):
            tokens[row, : len(prompts[index])] = prompts[index]
            lengths[row] = len(prompts[index])
        made = np.asarray(_continue(config, params, tokens, lengths, max_tokens, eos))
        for row, index in enumerate(members):
            stop = np.flatnonzero(np.isin(made[row], eos))
            outputs[index] = made[row, : stop[0] if len(stop) else max_tokens].tolist()
    return outputs


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def _continue(
    config: DenseConfig, params: Params, tokens: jax.Array, lengths: jax.Array, max_tokens: int, eos: tuple[int, ...]
) -> jax.Array:
    """i32[B, max_tokens]: what follows the first lengths[b] of tokens i32[B, S]; what follows an eos is arbitrary."""
    rows, width = tokens.shape
    size = (config.num_layers, rows, width + max_tokens, config.num_kv_heads, config.head_dim)
    cache = (jnp.zeros(size, params.embed.dtype), jnp.zeros(size, params.embed.dtype))
    ends = jnp.asarray(eos, jnp.int32)

    def run(tokens: jax.Array, positions: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        batch = Batch(tokens.reshape(-1), positions.reshape(-1), _cached(tokens.shape, positions))
        return dense.forward(config, params, batch, cache)

    def choose(hidden: jax.Array) -> jax.Array:
        return jnp.argmax(dense.unembed(config, params, hidden), axis=-1).astype(jnp.int32)

    def step(state: tuple) -> tuple:
        count, last, done, made, cache = state
        hidden, cache = run(last[:, None], (lengths + count - 1)[:, None], cache)
        last = choose(hidden)
        return count + 1, last, done | jnp.isin(last, ends), made.at[:, count].set(last), cache

    positions = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), tokens.shape)
    hidden, cache = run(tokens, positions, cache)
    last = choose(hidden.reshape(rows, width, -1)[jnp.arange(rows), lengths - 1])
    made = jnp.zeros((rows, max_tokens), jnp.int32).at[:, 0].set(last)
    state = (jnp.int32(1), last, jnp.isin(last, ends), made, cache)
    return jax.lax.while_loop(lambda state: (state[0] < max_tokens) & ~state[2].all(), step, state)[3]


def _cached(shape: tuple[int, ...], positions: jax.Array) -> AttentionOp:
    """Writes each token's key and value at its position and attends to all positions up to it."""
    row = jnp.arange(shape[0])[:, None]

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        keys, values = (
            old.at[layer, row, positions].set(new.reshape(*shape, *new.shape[1:]))
            for old, new in zip(cache, (k, v), strict=True)
        )
        visible = jnp.arange(keys.shape[2]) <= positions[:, :, None]  # [B, T, S]
        out = attention(q.reshape(*shape, *q.shape[1:]), keys[layer], values[layer], visible)
        return out.reshape(q.shape), (keys, values)

    return over_heads(attend)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array) -> jax.Array:
    """[B, T, N, H] of q [B, T, N, H], k and v [B, S, K, H], visible bool[B, T, S]; the softmax is in float32."""
    rows, length, heads, size = q.shape
    grouped = q.reshape(rows, length, k.shape[2], -1, size)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=jnp.float32) * size**-0.5
    weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, -1e30), axis=-1).astype(q.dtype)
    out = jnp.einsum("bkgts,bskh->btkgh", weights, v)
    return out.reshape(rows, length, heads, size)
