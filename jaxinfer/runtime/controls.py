"""Drawing tokens on the device, *full* variant: what the plain one does, and penalties, bias and what is forbidden.

`draw_full` looks at a step's logits again, as sampler.draw_rows does, for plans in which a row needs it. What grammars
forbid is left out before either (`mask_logits`, which takes the largest as a step does), the logprobs of what was drawn
come after (`draw_logprobs`).

Order of operations, each on what the one before left:
  masks        forbid (-inf) what a grammar does not allow.
  logit_bias   is added.
  forbidden    are (-inf) what is not among allowed ids, what would end the sequence before min_tokens, what would
               complete a bad word.
  repetition   divides positive logits and multiplies others, of tokens in the prompt or the output.
  frequency    subtracts its penalty for each time a token is in the output, presence once if it is there at all.
  temperature, top_k, top_p, min_p, draw    as in runtime.sampler, with the same random numbers.
Logprobs are of the raw logits: their log-softmax, of the token finally drawn and of the K most likely.
"""

import jax
import jax.numpy as jnp

from jaxinfer.runtime.backends import Backend
from jaxinfer.runtime.host_array import from_host
from jaxinfer.runtime.mask_table import ANY as NO_MASK
from jaxinfer.runtime.packing import MaskColumn, slot_layout
from jaxinfer.runtime.plan import Sampler
from jaxinfer.runtime.sampler import PART, draw, float_column, largest_id, largest_parts, store_tokens
from jaxinfer.runtime.state import ControlState
from jaxinfer_kernels.sampling import sm90_argmax, sm90_draw
from jaxinfer_kernels.sampling.columns import (
    ANY,
    IN_PROMPT,
    MOST_COUNTED,
    NO_ID,
    ControlColumn,
    ControlFlag,
    DrawColumn,
    SamplingColumn,
)


def mask_logits(
    backend: Backend, left: jax.Array, last_token: jax.Array, logits: jax.Array, table: jax.Array, upload: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Leave out what masks forbid, and take each row's most likely token of what is left.

    left: f32[slots, V], gets the first rows of logits f32[slots, V], -inf where a bit says so; unless KEEP is set it
    may also stay as it is.    last_token: part of the state.    table: i32[rows, ceil(V / 32)], of masks: a bit for
    each token that may be drawn, the lowest first.    upload: i32[n, len(MaskColumn)] in the host's memory, of the
    first n rows of logits.
    Returns left, last_token, and the tokens i32[n, 1].
    """
    upload = jnp.maximum(from_host(upload), NO_MASK)  # nothing is less: it makes of the copy a part of a kernel
    slots = upload[:, MaskColumn.SLOT]
    if backend is Backend.MOSAIC:
        columns = dict(mask=MaskColumn.MASK, keep=MaskColumn.KEEP)
        tokens, left = sm90_argmax.argmax_allowed(logits, left, table, upload, **columns)
    else:
        allowed = _allowed(logits[: len(upload)], table, upload[:, MaskColumn.MASK])
        tokens, left = largest_id(allowed), left.at[: len(upload)].set(allowed)
    return left, store_tokens(last_token, slots, tokens), tokens[:, None]


def _allowed(logits: jax.Array, table: jax.Array, rows: jax.Array) -> jax.Array:
    """f32[n, V]: the logits, -inf where a row of the table says so."""
    words = jnp.where(rows[:, None] == NO_MASK, -1, table[jnp.maximum(rows, 0)])
    may = _unpacked(jax.lax.bitcast_convert_type(words, jnp.uint32), logits.shape[-1])
    return jnp.where(may, logits, -jnp.inf)


def set_masks(table: jax.Array, upload: jax.Array) -> jax.Array:
    """Write rows of the table of masks: upload i32[n, 1 + ceil(V / 32)], which and with what; zeros are padding."""
    return table.at[upload[:, 0]].set(upload[:, 1:])


def draw_logprobs(top: int, last_token: jax.Array, logits: jax.Array, upload: jax.Array) -> jax.Array:
    """What `logprobs` says of the tokens that have been drawn: i32[n, 2 + 2 K].

    top: K.    upload: i32[n, len(DrawColumn)], of the first n rows of logits.    The others are parts of the state.
    """
    slots = upload[:, DrawColumn.SLOT]
    return logprobs(logits[: len(slots)], last_token[slots], top)


def draw_full(
    last_token: jax.Array,
    controls: ControlState,
    next_pos: jax.Array,
    sampling: jax.Array,
    logits: jax.Array,
    upload: jax.Array,
) -> tuple[jax.Array, ControlState, jax.Array]:
    """Draw each row's token anew, and count it.

    upload: i32[n, DRAW_WIDTH], of the first n rows of logits.    The others are parts of the state after the step.
    Returns last_token, controls, and i32[n, 1], the tokens.
    """
    slots = upload[:, DrawColumn.SLOT]
    columns, positions, logits = sampling[slots], next_pos[slots], logits[: len(slots)]
    last, (ids, after) = controls.columns[slots, ControlColumn.LAST], jnp.split(upload[:, len(DrawColumn) :], 2, axis=1)
    banned = jnp.where((after == ANY) | (after == last[:, None]), ids, NO_ID)
    changed = controlled_logits(logits, controls, slots, columns, positions, banned)
    tokens = draw(changed, columns, positions, Sampler.FULL)
    controls = controls.replace(
        counts=_counted(controls.counts, slots, columns, tokens),
        columns=controls.columns.at[slots, ControlColumn.LAST].set(tokens),
    )
    return store_tokens(last_token, slots, tokens), controls, tokens[:, None]


def draw_any(
    top: int,
    last_token: jax.Array,
    controls: ControlState,
    next_pos: jax.Array,
    sampling: jax.Array,
    logits: jax.Array,
    raw: jax.Array,
    upload: jax.Array,
) -> tuple[jax.Array, ControlState, jax.Array]:
    """draw_full, and draw_logprobs of rows that ask for it unless top is 0, in one kernel.

    raw: the state's logits, where `logits` are what masks left.
    Returns last_token, controls, and what was drawn, as sm90_draw.draw.
    """
    parts = logits, raw, last_token, controls.columns, controls.counts, next_pos, sampling, controls.bias, controls.bits
    drawn, last_token, columns, counts = sm90_draw.draw(*parts, upload, top=top)
    # XLA writes what it computes to the host's memory, and copies what a kernel computed: no CUDA graph holds a copy
    drawn = jnp.where(upload[:, DrawColumn.SLOT, None] > 0, drawn, 0)
    return last_token, controls.replace(columns=columns, counts=counts), drawn


def controlled_logits(
    logits: jax.Array,
    controls: ControlState,
    slots: jax.Array,
    columns: jax.Array,
    positions: jax.Array,
    banned: jax.Array,
) -> jax.Array:
    """f32[L, V]: the logits after bias, what is forbidden, and penalties; rows whose flags name none stay as they are.

    slots, positions: i32[L].    columns: i32[L, len(SamplingColumn)].    banned: i32[L, n], beyond V for none.
    """
    flags = columns[:, SamplingColumn.FLAGS, None]
    logits = _biased(logits, controls.bias, slots, flags)
    logits = jnp.where(_forbidden(controls, slots, flags, positions, logits.shape[-1]), -jnp.inf, logits)
    rows = jnp.arange(len(logits), dtype=jnp.int32)[:, None]
    logits = logits.at[rows, banned].set(-jnp.inf, mode="drop")
    return jnp.where(flags & ControlFlag.PENALTIES != 0, _penalized(logits, controls, slots), logits)


def logprobs(logits: jax.Array, tokens: jax.Array, top: int) -> jax.Array:
    """i32[L, 2 + 2 K]: the token's logprob (bit-cast), its rank from 1, the ids of the K most likely, their logprobs.

    logits: f32[L, V].    tokens: i32[L].    top: K, at most V.
    """
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)  # [L, 1]
    rank = 1 + jnp.sum(logits > chosen, axis=-1, dtype=jnp.int32, keepdims=True)
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    values, ids = top_of(logits, top)
    as_bits = jax.lax.bitcast_convert_type(jnp.concatenate([chosen, values], axis=-1) - total, jnp.int32)
    return jnp.concatenate([as_bits[:, :1], rank, ids, as_bits[:, 1:]], axis=-1)


def top_of(logits: jax.Array, top: int) -> tuple[jax.Array, jax.Array]:
    """The largest values of each row of f32[L, V], falling, and their ids, lower ones first among equals: as top_k.

    A GPU sorts all of a row for that: 1.3 ms for 128 rows of Qwen's vocabulary on an H200, which its parts spare it.
    """
    found = largest_parts(logits, top)
    if found is None:
        return jax.lax.top_k(logits, top)
    values, places = jax.lax.top_k(found[0], top)
    ids = jnp.take_along_axis(found[1], places // PART, axis=-1) * PART + places % PART
    return values, jnp.minimum(ids, logits.shape[-1] - 1)


def logprob_width(top: int) -> int:
    """The columns of `logprobs`."""
    return 2 + 2 * top


def set_slot(controls: ControlState, upload: jax.Array) -> ControlState:
    """Write one slot's row of everything: upload i32[slot_layout(V).size]."""
    num_slots, vocab_size = controls.counts.shape
    layout = slot_layout(vocab_size)
    slot = jnp.minimum(upload[0], num_slots - 1)
    bits = jax.lax.bitcast_convert_type(layout.part(upload, "bits"), jnp.uint32)
    counts = jax.lax.bitcast_convert_type(layout.part(upload, "counts"), jnp.uint16).reshape(-1)[:vocab_size]
    return ControlState(
        columns=controls.columns.at[slot].set(layout.part(upload, "columns")),
        bias=controls.bias.at[slot].set(layout.part(upload, "bias")),
        bits=controls.bits.at[slot].set(bits.reshape(2, -1)),
        counts=controls.counts.at[slot].set(counts),
    )


def _biased(logits: jax.Array, bias: jax.Array, slots: jax.Array, flags: jax.Array) -> jax.Array:
    ids, values = bias[slots, 0], jax.lax.bitcast_convert_type(bias[slots, 1], jnp.float32)
    ids = jnp.where(flags & ControlFlag.BIAS != 0, ids, logits.shape[-1])
    rows = jnp.arange(len(logits), dtype=jnp.int32)[:, None]
    return logits.at[rows, ids].add(values, mode="drop")


def _forbidden(
    controls: ControlState, slots: jax.Array, flags: jax.Array, positions: jax.Array, vocab_size: int
) -> jax.Array:
    """bool[L, V]."""
    allowed, ends = (_unpacked(controls.bits[slots, i], vocab_size) for i in (0, 1))
    too_early = positions < controls.columns[slots, ControlColumn.MIN_LENGTH]
    not_allowed = (flags & ControlFlag.ALLOWED != 0) & ~allowed
    return not_allowed | ((flags & ControlFlag.MIN_TOKENS != 0) & too_early[:, None] & ends)


def _unpacked(words: jax.Array, vocab_size: int) -> jax.Array:
    """bool[L, V] of u32[L, ceil(V / 32)], the lowest bit first."""
    bits = words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32) & jnp.uint32(1)
    marked: jax.Array = bits.reshape(len(words), -1)[:, :vocab_size] != 0
    return marked


def _penalized(logits: jax.Array, controls: ControlState, slots: jax.Array) -> jax.Array:
    counts, columns = controls.counts[slots], controls.columns[slots]
    presence, frequency, repetition = (
        float_column(columns, c) for c in (ControlColumn.PRESENCE, ControlColumn.FREQUENCY, ControlColumn.REPETITION)
    )
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    used = (counts & jnp.uint16(MOST_COUNTED)).astype(jnp.float32)
    penalty: jax.Array = frequency * used + presence * (used > 0).astype(jnp.float32)
    return jnp.where(counts > 0, repeated, logits) - penalty


def _counted(counts: jax.Array, slots: jax.Array, columns: jax.Array, tokens: jax.Array) -> jax.Array:
    """The counts with each row's token in it, for rows with penalties; a count at its most stays there."""
    penalized = columns[:, SamplingColumn.FLAGS] & ControlFlag.PENALTIES != 0
    before = counts[slots, tokens]
    more = (before & jnp.uint16(MOST_COUNTED)) < jnp.uint16(MOST_COUNTED)
    places = jnp.where(penalized, slots, len(counts)), tokens
    return counts.at[places].set(before + more.astype(jnp.uint16), mode="drop")


assert IN_PROMPT == MOST_COUNTED + 1, "the count and the prompt's bit share a u16"
