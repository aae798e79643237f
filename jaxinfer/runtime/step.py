"""One step of the device: forward pass, page writes, attention, each row's most likely token, in one function.

decode  one token per row; everything it needs but the rows' slots lies on the device already.
extend  T tokens of R rows, L of which sample: prompt chunks and decode rows together.
Both take one int32 array (columns in runtime.packing) and return the new state and i32[R]: each row's token, or
NOT_FINITE if its last hidden state was not. That is all that goes to the host; `score` and `pool` look at the rest of
what an extend step has left in the state.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.cache.spec import layout_of
from jaxinfer.config import ExtendBucket
from jaxinfer.layers.batch import Batch, Moves
from jaxinfer.layers.store import Store
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.registry import Family
from jaxinfer.runtime.backends import XLA_ONLY, Backend, Backends, StepKernels, head_products, kernels_for
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.controls import logprobs
from jaxinfer.runtime.packing import (
    NOT_FINITE,
    DecodeColumn,
    PageColumn,
    PieceColumn,
    RowColumn,
    SaveColumn,
    UploadLayout,
    extend_layout,
)
from jaxinfer.runtime.sampler import largest_id
from jaxinfer.runtime.state import DeviceState
from jaxinfer_kernels.attention.api import page_size_of
from jaxinfer_kernels.launch import ffi, sequence
from jaxinfer_kernels.sampling import sm90_argmax

type Params = object  # the family's own pytree


@dataclasses.dataclass(frozen=True)
class Model:
    """What a step function is compiled for."""

    config: ModelConfig
    family: Family
    backends: Backends = XLA_ONLY

    def unembed(self, params: Params, hidden: jax.Array) -> jax.Array:
        """Logits f32[L, V] of rows [L, D] of hidden states."""
        return self.family.unembed(self.config, params, hidden, head_products(self.backends))


def decode(
    model: Model, context: int | None, params: Params, state: DeviceState, upload: jax.Array
) -> tuple[DeviceState, jax.Array]:
    """Bring each row one token further.

    context: no row is longer afterwards (XLA's attention then has no loop); None is any length.
    upload: i32[B, decode_width]; slot 0 is padding.
    """
    count = len(upload)
    kernels = kernels_for(model.config, model.backends, Decode(count, context))
    if kernels.products.align > 1:
        upload = jnp.pad(upload, ((0, -count % kernels.products.align), (0, 0)))
    slots = upload[:, DecodeColumn.SLOT]
    live = slots > 0
    page_slots = jnp.where(upload[:, DecodeColumn.PAGE_ID] > 0, slots, 0)
    page_table = state.page_table.at[page_slots, upload[:, DecodeColumn.PAGE_INDEX]].set(
        upload[:, DecodeColumn.PAGE_ID]
    )
    # Read once: fused into every layer, the old next_pos would have to outlive the new one, as a copy.
    positions = jax.lax.optimization_barrier(jnp.where(live, state.next_pos[slots], 0))
    lengths = jnp.where(live, positions + 1, 0)
    where = _places(model, page_table, slots, positions, state.store) | dict(lengths=lengths, count=count)
    if (states := state.store.states) is not None:
        saves = upload[:, DecodeColumn.SNAPSHOT]
        where["moves"] = Moves(slots, positions, states.base[slots], live, saves)
    hidden, store = _forward(model, kernels, params, state, state.last_token[slots], positions, where)
    store = _based(store, slots, positions)
    slots, live, positions, hidden = (rows[:count] for rows in (slots, live, positions, hidden))
    stored, drawn = _head(model, params, state.logits, hidden, upload[0, DecodeColumn.MASKED])
    state = state.replace(
        store=store,
        page_table=page_table,
        last_token=state.last_token.at[slots].set(jnp.where(live, drawn, 0)),
        next_pos=state.next_pos.at[slots].set(jnp.where(live, positions + 1, 0)),
        logits=stored,
    )
    return state, _result(drawn, hidden)


def extend(
    model: Model, bucket: ExtendBucket, params: Params, state: DeviceState, upload: jax.Array
) -> tuple[DeviceState, jax.Array]:
    """Bring each row `count` tokens further and take the most likely next token of the rows that sample.

    upload: i32[extend_layout(bucket, page_size).size].
    """
    page_size = page_size_of(state.store.pages[0])
    layout = extend_layout(bucket, page_size, has_state=state.store.states is not None)
    rows = layout.part(upload, "rows")
    slots, starts, counts, positions, logits_rows = (rows[:, column] for column in list(RowColumn)[:5])
    state = state.replace(page_table=set_pages(state.page_table, layout.part(upload, "pages")))
    state = _admit(state, rows)
    on_device = positions < 0  # decode rows
    positions = jnp.where(on_device, state.next_pos[slots], positions)
    tokens = (
        layout.part(upload, "tokens")
        .at[jnp.where(on_device, starts, bucket.tokens)]
        .set(state.last_token[slots], mode="drop")
    )
    token_slots, token_positions = _spread(bucket.tokens, slots, starts, counts, positions)
    where = _places(model, state.page_table, token_slots, token_positions, state.store)
    lengths = jnp.where(counts > 0, positions + counts, 0)
    where |= dict(
        lengths=jnp.where(token_slots > 0, token_positions + 1, 0), sequences=(slots, starts, counts, lengths)
    )
    if (states := state.store.states) is not None:
        moves = Moves(slots, positions, states.base[slots], on_device, *_snapshots(layout, upload))
        where["moves"] = moves
    kernels = kernels_for(model.config, model.backends, bucket)
    hidden, store = _forward(model, kernels, params, state, tokens, token_positions, where)
    store = _based(store, slots, jnp.where(on_device, positions, lengths))
    last_hidden = hidden.at[starts + jnp.maximum(counts, 1) - 1].get(mode="clip")  # [R, D]
    state = state.replace(
        store=store,
        next_pos=state.next_pos.at[slots].set(jnp.where(slots > 0, lengths, 0)),
        hidden=_first_rows(state.hidden, hidden),
    )
    masked = rows[0, RowColumn.MASKED]
    state, drawn = _sample_rows(model, bucket, params, state, last_hidden, slots, logits_rows, masked)
    return state, _result(drawn, last_hidden)


def _forward(
    model: Model,
    kernels: StepKernels,
    params: Any,
    state: DeviceState,
    tokens: jax.Array,
    positions: jax.Array,
    where: dict[str, Any],
) -> tuple[jax.Array, Store]:
    """hidden [T, D], and the store with what the tokens leave.    where: Batch's fields about what layers remember."""

    def run(params: Any, store: Store) -> tuple[jax.Array, Store]:
        batch = Batch(tokens, positions, kernels.attention, kernels.products, **where)
        return model.family.forward(model.config, params, batch, store)

    if not kernels.sequence:
        return run(params, state.store)
    if not model.family.layers_stay or params.layers is not None:
        return sequence.launched(lambda store: run(params, store), state.store)
    specs = model.family.specs(model.config)
    layers = jax.tree.map(lambda spec: spec.arrays(state.hidden.dtype), specs.layers)
    bound = sequence.Bound(layers, params.final_norm)
    return sequence.launched(lambda layers, store: run(params.replace(layers=layers), store), state.store, bound=bound)


def _based(store: Store, slots: jax.Array, bases: jax.Array) -> Store:
    """With the positions that the states of recurrent layers are behind now."""
    if store.states is None:
        return store
    base = store.states.base.at[slots].set(jnp.where(slots > 0, bases, 0))
    return store.replace(states=store.states.replace(base=base))


def _snapshots(layout: UploadLayout, upload: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of Moves: before, loads and behind."""
    (tokens,), (rows,) = layout.shapes["tokens"], layout.shapes["loads"]
    saves = layout.part(upload, "saves")
    stored = jnp.zeros(tokens + rows, jnp.int32).at[saves[:, SaveColumn.PLACE]].max(saves[:, SaveColumn.SNAPSHOT])
    return stored[:tokens], layout.part(upload, "loads"), stored[tokens:]


def score(model: Model, top: int, params: Params, hidden: jax.Array, upload: jax.Array) -> jax.Array:
    """Logprobs of given tokens after some of a step's: the LM head in a block of n rows.

    top: K.    hidden: state.hidden after the step.    upload: i32[1 + n], the first token's index in T, then the n that
    follow.
    Returns i32[n, 2 + 2 K], as controls.logprobs.
    """
    targets = upload[1:]
    places = upload[0] + jnp.arange(len(targets), dtype=jnp.int32)
    logits = model.unembed(params, hidden.at[places].get(mode="clip"))
    return logprobs(logits, targets, top)


def pool(width: int, hidden: jax.Array, upload: jax.Array) -> jax.Array:
    """Sums of hidden states: f32[n, D], of up to `width` tokens each.

    hidden: state.hidden after the step.    upload: i32[n, len(PieceColumn)].
    A piece is added up in the same order wherever it stands, and what is not finite beside it stays out of it.
    """
    offsets = jnp.arange(width, dtype=jnp.int32)
    found = hidden.at[upload[:, PieceColumn.START, None] + offsets].get(mode="clip")  # [n, width, D]
    inside = offsets < upload[:, PieceColumn.COUNT, None]
    return jnp.sum(jnp.where(inside[..., None], found.astype(jnp.float32), 0), axis=1)


def without_layers(family: Family, params: Any) -> Any:
    """What a step whose layers are one chain is given of the parameters."""
    return params.replace(layers=None) if family.layers_stay else params


@contextlib.contextmanager
def layers_placed(family: Family, params: Any) -> Iterator[None]:
    """Let chains find the layers that they are not given."""
    if not family.layers_stay:
        yield
        return
    anchor = params.final_norm.unsafe_buffer_pointer()
    ffi.place(anchor, [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(params.layers)])
    try:
        yield
    finally:
        ffi.place(anchor, ())


def set_pages(page_table: jax.Array, updates: jax.Array) -> jax.Array:
    """Write entries of page_table i32[S, M]: updates i32[U, 3] or flat, columns as PageColumn; all zeros is padding."""
    updates = updates.reshape(-1, len(PageColumn))
    places = updates[:, PageColumn.SLOT], updates[:, PageColumn.INDEX]
    return page_table.at[places].set(updates[:, PageColumn.PAGE_ID])


def _admit(state: DeviceState, rows: jax.Array) -> DeviceState:
    """Store the sampling columns of the rows that bring them."""
    slots = jnp.where(rows[:, RowColumn.ADMIT] > 0, rows[:, RowColumn.SLOT], 0)
    return state.replace(sampling=state.sampling.at[slots].set(rows[:, len(RowColumn) :]))


def _spread(
    num_tokens: int, slots: jax.Array, starts: jax.Array, counts: jax.Array, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Each token's slot and position, i32[T]; padding tokens get slot 0 and position 0."""
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    row = jnp.sum(token[:, None] >= (starts + counts)[None], axis=-1, dtype=jnp.int32)  # [T], R for padding
    in_row = row < len(slots)
    row = jnp.minimum(row, len(slots) - 1)
    in_row &= counts[row] > 0
    return jnp.where(in_row, slots[row], 0), jnp.where(in_row, positions[row] + token - starts[row], 0)


def _places(
    model: Model, page_table: jax.Array, slots: jax.Array, positions: jax.Array, store: Store
) -> dict[str, Any]:
    """Of Batch: its layout, the page tables, each token's slot, and where its keys and values go; a page that is not
    there for padding (slot 0)."""
    page_size, num_pages = page_size_of(store.pages[0]), store.num_pages
    layout = layout_of(model.config.caches(store.pages[0].dtype.name), page_size)
    tables = jnp.split(page_table, len(layout.windows), axis=1) if len(layout.windows) > 1 else [page_table]
    pages = tuple(jnp.where(slots > 0, table[slots, positions // page_size], num_pages) for table in tables)
    return dict(layout=layout, tables=tuple(tables), slots=slots, pages=pages, offsets=positions % page_size)


def _sample_rows(
    model: Model,
    bucket: ExtendBucket,
    params: Params,
    state: DeviceState,
    last_hidden: jax.Array,
    slots: jax.Array,
    logits_rows: jax.Array,
    masked: jax.Array,
) -> tuple[DeviceState, jax.Array]:
    """Logits for the rows that sample, a token for each, stored under its slot. Returns state, i32[R]."""
    sampling = logits_rows >= 0
    row_of = (
        jnp.zeros(bucket.logits, jnp.int32)
        .at[jnp.where(sampling, logits_rows, bucket.logits)]
        .set(jnp.arange(bucket.rows, dtype=jnp.int32), mode="drop")
    )  # [L]; unused rows of logits repeat row 0
    stored, largest = _head(model, params, state.logits, last_hidden[row_of], masked)
    drawn = largest[jnp.maximum(logits_rows, 0)]  # [R]
    kept = jnp.where(sampling, slots, 0)
    last_token = state.last_token.at[kept].set(jnp.where(kept > 0, drawn, 0))
    return state.replace(last_token=last_token, logits=stored), drawn


def _head(
    model: Model, params: Params, kept: jax.Array, hidden: jax.Array, masked: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """kept f32[L, V] with the logits of hidden [R, D] as its first rows, and where each is largest, i32[R].

    masked: i32[], the second may be zeros if it is not 0.
    """
    rows = len(hidden)
    # On a GPU the product is written to where the logits are kept, as long as nothing else reads it: XLA would compute
    # it a second time rather than copy it.
    stored = _first_rows(kept, model.unembed(params, hidden))
    if model.backends.decode_linear is Backend.MOSAIC and sm90_argmax.supported(rows, kept.shape[1]):
        return stored, sm90_argmax.argmax(stored, masked, rows=rows)
    # Beside what follows, XLA would copy them while it computes tokens, and no CUDA graph could hold the end of the
    # step: the copy would end only after the tokens' way to the host, which no graph holds.
    stored = jax.lax.optimization_barrier(stored)
    return stored, largest_id(stored[:rows])


def _first_rows(rows: jax.Array, new: jax.Array) -> jax.Array:
    """rows [L, V] with its first ones replaced by `new`."""
    return jax.lax.dynamic_update_slice(rows, new, (0, 0))


def _result(tokens: jax.Array, hidden: jax.Array) -> jax.Array:
    """What goes to the host, i32[R]: each row's token, or NOT_FINITE if its hidden state [D] is not."""
    return jnp.where(jnp.all(jnp.isfinite(hidden), axis=-1), tokens, NOT_FINITE)
