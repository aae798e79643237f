"""Drawing tokens on the device, *plain* variant: temperature, top-k, top-p, min-p, seed.

A step takes each row's largest logit; `draw_plain` looks at its logits again and draws for the rows that ask for it. It
is a program of its own, run only when there are such rows: a conditional in the step would cost every step host time.
runtime.controls has the full variant, masks and logprobs.

Order of operations, each on what the one before left: temperature, top-k, top-p, min-p, draw.
  temperature  0 takes the largest logit (the lowest id among equals) and ignores the rest; else logits are divided.
  top_k        keeps the k largest logits and whatever equals the k-th; 0 is off.
  top_p        keeps the fewest largest logits whose probabilities, among those left, sum to at least p, and whatever
               equals the last of them; 1 is off.
  min_p        keeps probabilities of at least min_p times the largest; 0 is off.
  draw         adds Gumbel noise and takes the largest, which draws from the softmax of what is left.

The noise depends on (seed, sample_index, position of the token being drawn, purpose) and on nothing else, so a request
draws the same tokens alone, in any batch, and after having been preempted.
"""

import enum
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxinfer.runtime.packing import DrawColumn, SamplingColumn


class Purpose(enum.IntEnum):
    """What a random number is for: two purposes at one position never share their noise."""

    DRAW = 0


def draw_plain(
    last_token: jax.Array,
    next_pos: jax.Array,
    sampling: jax.Array,
    logits: jax.Array,
    upload: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Draw each row's token anew: the same one where its temperature is 0.

    upload: i32[n, len(DrawColumn)], of the first n rows of logits.    The others are parts of the state after the step.
    Returns last_token and i32[n, 1], the tokens.
    """
    slots = upload[:, DrawColumn.SLOT]
    tokens = draw(logits[: len(slots)], sampling[slots], next_pos[slots])
    return store_tokens(last_token, slots, tokens), tokens[:, None]


def store_tokens(last_token: jax.Array, slots: jax.Array, tokens: jax.Array) -> jax.Array:
    """last_token i32[slots + 1] with tokens i32[L] at slots i32[L]; slot 0 stays as it is."""
    return last_token.at[jnp.where(slots > 0, slots, len(last_token))].set(tokens, mode="drop")


def draw(logits: jax.Array, columns: jax.Array, positions: jax.Array) -> jax.Array:
    """One token per row.

    logits: f32[L, V].    columns: i32[L, len(SamplingColumn)].    positions: i32[L], of the tokens being drawn.
    Returns i32[L].
    """
    temperature = float_column(columns, SamplingColumn.TEMPERATURE)
    scaled = (logits - jnp.max(logits, axis=-1, keepdims=True)) / jnp.where(temperature > 0, temperature, 1.0)
    noise = gumbel_noise(columns, positions, logits.shape[-1])
    left = kept(scaled, columns, temperature[:, 0] > 0)
    tokens = largest_id(jnp.where(left, scaled + noise, -jnp.inf))
    return jnp.where(temperature[:, 0] > 0, tokens, largest_id(logits))


def largest_id(x: jax.Array) -> jax.Array:
    """i32[L], where each row of x [L, V] is largest, the lowest id among equals; any id if the row holds a NaN."""
    return jax.lax.platform_dependent(x, cpu=_largest_id, default=functools.partial(jnp.argmax, axis=-1))


def _largest_id(x: jax.Array) -> jax.Array:
    """Two plain reductions: XLA's own arg-max is 5 to 10 times slower on CPUs (measured, 8 rows of 151936)."""
    ids = jnp.arange(x.shape[-1], dtype=jnp.int32)
    is_largest = x == jnp.max(x, axis=-1, keepdims=True)
    return jnp.min(jnp.where(is_largest, ids, x.shape[-1] - 1), axis=-1)


def gumbel_noise(columns: jax.Array, positions: jax.Array, width: int) -> jax.Array:
    """f32[L, width], a function of each row's seed, sample index and position alone."""

    def row(seed: jax.Array, sample_index: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        for data in (sample_index, position, jnp.uint32(Purpose.DRAW)):
            key = jax.random.fold_in(key, data)
        return jax.random.gumbel(key, (width,), jnp.float32)

    bits = jax.lax.bitcast_convert_type(columns, jnp.uint32)
    seeds = bits[:, SamplingColumn.SEED_HIGH : SamplingColumn.SEED_LOW + 1]
    return jax.vmap(row)(seeds, bits[:, SamplingColumn.SAMPLE_INDEX], positions.astype(jnp.uint32))


def kept(scaled: jax.Array, columns: jax.Array, drawing: jax.Array) -> jax.Array:
    """bool[L, V]: what top-k, top-p and min-p leave of `scaled` logits, whose largest is 0 in each row."""
    top_k = columns[:, SamplingColumn.TOP_K]
    top_p = float_column(columns, SamplingColumn.TOP_P)[:, 0]
    use_k, use_p = drawing & (top_k > 0), drawing & (top_p < 1)
    order = _ordered(scaled)
    lowest = jnp.zeros(len(scaled), jnp.uint32)

    def k_bound() -> jax.Array:
        return _largest_bound(lambda bound: jnp.sum(order >= bound, axis=-1, dtype=jnp.int32) >= top_k, lowest)

    bound = jnp.where(use_k, jax.lax.cond(jnp.any(use_k), k_bound, lambda: lowest), 0)[:, None]

    def p_bound() -> jax.Array:
        weights = jnp.where(order >= bound, jnp.exp(scaled), 0.0)
        wanted = top_p * jnp.sum(weights, axis=-1)
        return _largest_bound(lambda t: jnp.sum(jnp.where(order >= t, weights, 0.0), axis=-1) >= wanted, lowest)

    p_bounds = jnp.where(use_p, jax.lax.cond(jnp.any(use_p), p_bound, lambda: lowest), 0)[:, None]
    min_p = float_column(columns, SamplingColumn.MIN_P)
    return (order >= jnp.maximum(bound, p_bounds)) & (scaled >= jnp.log(min_p))


def _largest_bound(holds: Callable[[jax.Array], jax.Array], lowest: jax.Array) -> jax.Array:
    """The largest u32 per row for which `holds(bound[:, None])`, true at 0 and monotone; no sort."""
    # A loop inside a conditional makes a GPU's host wait for the device; unrolled, both go into the CUDA graph.
    by_loop, unrolled = functools.partial(_by_halves, holds), functools.partial(_by_digits, holds)
    return jax.lax.platform_dependent(lowest, cpu=by_loop, default=unrolled)


def _by_halves(holds: Callable[[jax.Array], jax.Array], lowest: jax.Array) -> jax.Array:
    def step(i: jax.Array, bound: jax.Array) -> jax.Array:
        raised = bound | jnp.left_shift(jnp.uint32(1), jnp.uint32(31) - i.astype(jnp.uint32))
        return jnp.where(holds(raised[:, None]), raised, bound)

    return jax.lax.fori_loop(0, 32, step, lowest)


def _by_digits(holds: Callable[[jax.Array], jax.Array], lowest: jax.Array) -> jax.Array:
    """Four bits at a time: how many of the 15 bounds above hold is the digit."""
    bound = lowest
    for shift in range(28, -1, -4):
        held = [holds((bound | jnp.uint32(digit << shift))[:, None]) for digit in range(1, 16)]
        bound |= jnp.sum(jnp.stack(held), axis=0, dtype=jnp.uint32) << shift
    return bound


def _ordered(x: jax.Array) -> jax.Array:
    """u32 of x's shape whose order is that of the floats."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(0x80000000))


def float_column(columns: jax.Array, column: enum.IntEnum) -> jax.Array:
    """f32[L, 1]."""
    return jax.lax.bitcast_convert_type(columns[:, column], jnp.float32)[:, None]
