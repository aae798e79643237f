"""What lives on the device between steps. Only the runner holds it; every step takes it donated and gives it back."""

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike

from jaxinfer.cache.spec import layout_of
from jaxinfer.config import Limits
from jaxinfer.layers.store import Store, new_store
from jaxinfer.models.config import ModelConfig
from jaxinfer.runtime.mask_table import mask_rows
from jaxinfer.runtime.packing import ControlColumn, SamplingColumn
from jaxinfer.runtime.plan import MAX_LOGIT_BIAS


class DeviceState(struct.PyTreeNode):
    """What layers remember, and one row per slot. Slot 0 and page 0 belong to padding: no result depends on them.

    page_table: i32[slots + 1, tables * M], the pages of each slot's sequence in order, of one table after the other;
      stale beyond its length.
    last_token, next_pos: i32[slots + 1], the token a decode row feeds and its position.
    logits: f32[slots, V], in its first rows those of the step before, for the samplers. Here because what a step leaves
      must lie where it lay before: a new address makes the driver update the step's whole CUDA graph.
    hidden: [T, D] for the largest T, in its first rows those of the last extend step, after the final norm, for the
      logprobs of prompts and for embeddings.
    sampling: i32[slots + 1, len(SamplingColumn)].
    """

    store: Store
    page_table: jax.Array
    last_token: jax.Array
    next_pos: jax.Array
    logits: jax.Array
    hidden: jax.Array
    sampling: jax.Array


def init_state(limits: Limits, model: ModelConfig, dtype: DTypeLike) -> DeviceState:
    layout = layout_of(model.caches(jnp.dtype(dtype).name), limits.page_size)
    slots = limits.max_num_seqs + 1
    return DeviceState(
        store=new_store(layout, limits.num_pages, limits.max_num_seqs),
        page_table=jnp.zeros((slots, len(layout.windows) * limits.max_pages_per_seq), jnp.int32),
        last_token=jnp.zeros(slots, jnp.int32),
        next_pos=jnp.zeros(slots, jnp.int32),
        logits=jnp.zeros((limits.max_num_seqs, limits.vocab_size), jnp.float32),
        hidden=jnp.zeros((limits.extend_buckets[-1].tokens, model.hidden_size), dtype),
        sampling=jnp.zeros((slots, len(SamplingColumn)), jnp.int32),
    )


def init_all(limits: Limits, model: ModelConfig, dtype: DTypeLike) -> "tuple[DeviceState, ControlState, MaskState]":
    return init_state(limits, model, dtype), init_controls(limits), init_masks(limits)


class ControlState(struct.PyTreeNode):
    """What the full sampler knows of each slot, apart from the rest so that plain steps need not pass it on.

    Written when a sequence with controls enters the slot, and read only for such a sequence: otherwise stale.
    columns: i32[slots + 1, len(ControlColumn)].    bias: i32[slots + 1, 2, MAX_LOGIT_BIAS], ascending ids and
    bit-cast floats.    bits: u32[slots + 1, 2, ceil(V / 32)], what is allowed, and what would end the sequence.
    counts: u16[slots + 1, V], IN_PROMPT and how often the token is in the output.
    """

    columns: jax.Array
    bias: jax.Array
    bits: jax.Array
    counts: jax.Array


def init_controls(limits: Limits) -> ControlState:
    slots = limits.max_num_seqs + 1
    return ControlState(
        columns=jnp.zeros((slots, len(ControlColumn)), jnp.int32),
        bias=jnp.zeros((slots, 2, MAX_LOGIT_BIAS), jnp.int32),
        bits=jnp.zeros((slots, 2, -(-limits.vocab_size // 32)), jnp.uint32),
        counts=jnp.zeros((slots, limits.vocab_size), jnp.uint16),
    )


class MaskState(struct.PyTreeNode):
    """What grammars need, apart from the rest as well.

    table: i32[rows, ceil(V / 32)], the masks that plan.Masks names rows of.    left: f32[slots, V], what they leave of
    the logits in whose rows they are, which logprobs are still of; stale after a step that no sampler draws from.
    """

    table: jax.Array
    left: jax.Array


def init_masks(limits: Limits) -> MaskState:
    rows = sum(mask_rows(limits.vocab_size, limits.max_num_seqs))
    return MaskState(
        table=jnp.zeros((rows, -(-limits.vocab_size // 32)), jnp.int32),
        left=jnp.zeros((limits.max_num_seqs, limits.vocab_size), jnp.float32),
    )
