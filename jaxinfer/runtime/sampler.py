"""Drawing tokens on the device: plan.Sampler's plain, bounded and wide variants.

A step takes each row's largest logit; `draw_rows` looks at its logits again and draws for the rows that ask for it, in
programs of their own that run only when there are such rows: a conditional in the step would cost every step host time,
and XLA computes both sides of one whose sides are cheap, as it thinks reductions are. Where top-k and top-p end is
looked for among few candidates if top-k is small, else in passes over all logits: rows that want neither pay for
neither. runtime.controls has the full variant, masks and logprobs.

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

import jax
import jax.numpy as jnp

from jaxinfer.runtime.plan import MAX_BOUNDED_K, Sampler
from jaxinfer_kernels.sampling.columns import SAMPLING, DrawColumn, SamplingColumn

PART = 128  # tokens of a vocabulary


def draw_rows(
    sampler: Sampler,
    last_token: jax.Array,
    next_pos: jax.Array,
    sampling: jax.Array,
    logits: jax.Array,
    upload: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Draw each row's token anew: the same one where its temperature is 0.

    sampler: able enough for all rows.    upload: i32[n, len(DrawColumn)], of the first n rows of logits.
    The others are parts of the state after the step.
    Returns last_token and i32[n, 1], the tokens.
    """
    slots = upload[:, DrawColumn.SLOT]
    tokens = draw(logits[: len(slots)], sampling[slots], next_pos[slots], sampler)
    return store_tokens(last_token, slots, tokens), tokens[:, None]


def store_tokens(last_token: jax.Array, slots: jax.Array, tokens: jax.Array) -> jax.Array:
    """last_token i32[slots + 1] with tokens i32[L] at slots i32[L]; slot 0 stays as it is."""
    return last_token.at[jnp.where(slots > 0, slots, len(last_token))].set(tokens, mode="drop")


def draw(logits: jax.Array, columns: jax.Array, positions: jax.Array, sampler: Sampler = Sampler.WIDE) -> jax.Array:
    """One token per row.

    logits: f32[L, V].    columns: i32[L, len(SamplingColumn)].    positions: i32[L], of the tokens being drawn.
    Returns i32[L].
    """
    temperature = float_column(columns, SamplingColumn.TEMPERATURE)
    scaled = (logits - jnp.max(logits, axis=-1, keepdims=True)) / jnp.where(temperature > 0, temperature, 1.0)
    noise = gumbel_noise(columns, positions, logits.shape[-1])
    left = kept(scaled, columns, temperature[:, 0] > 0, sampler)
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
        for data in (sample_index, position, jnp.uint32(SAMPLING)):
            key = jax.random.fold_in(key, data)
        return jax.random.gumbel(key, (width,), jnp.float32)

    bits = jax.lax.bitcast_convert_type(columns, jnp.uint32)
    seeds = bits[:, SamplingColumn.SEED_HIGH : SamplingColumn.SEED_LOW + 1]
    return jax.vmap(row)(seeds, bits[:, SamplingColumn.SAMPLE_INDEX], positions.astype(jnp.uint32))


def kept(scaled: jax.Array, columns: jax.Array, drawing: jax.Array, sampler: Sampler = Sampler.WIDE) -> jax.Array:
    """bool[L, V]: what top-k, top-p and min-p leave of `scaled` logits, whose largest is 0 in each row.

    A row's bound is found the same way whatever sampler draws for the rows beside it.
    """
    likely = scaled >= jnp.log(float_column(columns, SamplingColumn.MIN_P))
    if sampler < Sampler.BOUNDED:
        return likely
    top_k = columns[:, SamplingColumn.TOP_K]
    found, few = largest_parts(scaled, MAX_BOUNDED_K), (top_k > 0) & (top_k <= MAX_BOUNDED_K)
    if found is None:
        bound = _bound(scaled, columns, drawing)
    else:
        bound = _bound(found[0], columns, drawing & few)
        if sampler > Sampler.BOUNDED:
            bound = jnp.maximum(bound, _bound(scaled, columns, drawing & ~few))  # 0 where it is the other's
    return likely & (_ordered(scaled) >= bound[:, None])


def largest_parts(logits: jax.Array, count: int) -> tuple[jax.Array, jax.Array] | None:
    """Those parts of each row of f32[L, V] whose own largest are largest, f32[L, count * PART], and their numbers,
    rising, i32[L, count]: the row's `count` largest logits are among them. None if they were all of the row.

    Of as many equals as there are parts and more, some are left out, those of the highest ids first.
    """
    width, num_rows = logits.shape[-1], len(logits)
    if width <= PART * count:
        return None
    parts = jnp.pad(logits, ((0, 0), (0, -width % PART)), constant_values=-jnp.inf).reshape(num_rows, -1, PART)
    numbers = jnp.sort(jax.lax.top_k(jnp.max(parts, axis=-1), count)[1], axis=-1)
    return jnp.take_along_axis(parts, numbers[:, :, None], axis=1).reshape(num_rows, -1), numbers


def _bound(scaled: jax.Array, columns: jax.Array, wanted: jax.Array) -> jax.Array:
    """u32[L], in the order of _ordered, below which top-k and top-p leave nothing of f32[L, n]; 0 for other rows."""
    top_k = columns[:, SamplingColumn.TOP_K]
    top_p = float_column(columns, SamplingColumn.TOP_P)[:, 0]
    use_k, use_p = wanted & (top_k > 0), wanted & (top_p < 1)
    order = _ordered(scaled)
    lowest = jnp.zeros(len(scaled), jnp.uint32)

    def k_bound() -> jax.Array:
        return _largest_bound(order, jnp.ones(order.shape, jnp.int32), top_k, lowest)

    bound = jnp.where(use_k, jax.lax.cond(jnp.any(use_k), k_bound, lambda: lowest), 0)

    def p_bound() -> jax.Array:
        weights = jnp.where(order >= bound[:, None], jnp.exp(scaled), 0.0)
        return _largest_bound(order, weights, top_p * jnp.sum(weights, axis=-1), lowest)

    return jnp.maximum(bound, jnp.where(use_p, jax.lax.cond(jnp.any(use_p), p_bound, lambda: lowest), 0))


def _largest_bound(order: jax.Array, weights: jax.Array, wanted: jax.Array, lowest: jax.Array) -> jax.Array:
    """The largest u32 per row for which the weights of all that is not below it sum to what is wanted; no sort.

    order: u32[L, V].    weights: [L, V], none negative.    wanted, lowest: [L], lowest all 0.
    """
    by_loop = functools.partial(_by_halves, order, weights, wanted)
    unrolled = functools.partial(_by_digits, order, weights, wanted)
    return jax.lax.platform_dependent(lowest, cpu=by_loop, default=unrolled)


def _by_halves(order: jax.Array, weights: jax.Array, wanted: jax.Array, lowest: jax.Array) -> jax.Array:
    def step(i: jax.Array, bound: jax.Array) -> jax.Array:
        raised = bound | jnp.left_shift(jnp.uint32(1), jnp.uint32(31) - i.astype(jnp.uint32))
        sums = jnp.sum(jnp.where(order >= raised[:, None], weights, 0), axis=-1)
        return jnp.where(sums >= wanted, raised, bound)

    return jax.lax.fori_loop(0, 32, step, lowest)


def _by_digits(order: jax.Array, weights: jax.Array, wanted: jax.Array, lowest: jax.Array) -> jax.Array:
    """Some bits at a time: how many of the bounds above hold is the digit.

    For GPUs, where a loop makes the host wait for the device. The sums of a digit are one reduction, for which XLA
    reads the row once. Of whole vocabularies four bits would halve the passes and take longer: 15 sums of 128 rows are
    95 us of an H200, against 22 to read them (Qwen's).
    """
    bound, nothing = lowest, jnp.zeros((), weights.dtype)
    bits = 4 if order.shape[-1] <= PART * MAX_BOUNDED_K else 2
    for shift in range(32 - bits, -1, -bits):
        raised = [(bound | jnp.uint32(digit << shift))[:, None] for digit in range(1, 1 << bits)]
        parts = tuple(jnp.where(order >= each, weights, nothing) for each in raised)
        sums = jax.lax.reduce(parts, (nothing,) * len(parts), _added, (1,))
        bound |= sum([(one >= wanted).astype(jnp.uint32) for one in sums]) << shift
    return bound


def _added(left: tuple[jax.Array, ...], right: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return tuple(one + other for one, other in zip(left, right, strict=True))


def _ordered(x: jax.Array) -> jax.Array:
    """u32 of x's shape whose order is that of the floats. Both zeros are one."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(0x80000000))


def float_column(columns: jax.Array, column: enum.IntEnum) -> jax.Array:
    """f32[L, 1]."""
    return jax.lax.bitcast_convert_type(columns[:, column], jnp.float32)[:, None]
