"""Recurrent layers: a state per sequence that each token moves on, as a model writes it for one token.

A row of known tokens moves its slot's state past all of them. A row whose token was drawn on the device leaves the
state before that token, and its inputs beside it (store.States): the next row says by its position whether the token
counts. So a token that is dropped, or a row that is computed twice, needs no undo.
This version, by XLA, takes the tokens of a prompt one after the other.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.layers.batch import Batch, Moves

type Arrays = dict[str, jax.Array]
type Move = Callable[[Arrays, Arrays], Arrays]
"""(state, what a token brings) -> state, of one sequence and one token."""
type Read = Callable[[Arrays, jax.Array], jax.Array]
"""(state behind a token, the token's query) -> out, likewise."""


def recurrent(
    move: Move, read: Read, inputs: Arrays, query: jax.Array, batch: Batch, cache: Any, layer: int
) -> tuple[jax.Array, Any]:
    """Move the states of the batch's sequences on, and read them behind each token.

    States and inputs have the names, shapes and dtypes of the layer's cache spec (cache.spec.Recurrent).
    inputs: [T, ...] each, what the tokens bring.    query: [T, ...].    layer: whose state it is.
    Returns (out [T, ...], cache).
    """
    group, index = batch.place(layer)
    trees = cache.states.rows, cache.states.inputs, cache.states.snapshots
    rows, before, snapshots = (jax.tree.map(lambda array: array[index], tree[group]) for tree in trees)
    moves = batch.moves
    assert moves is not None, "a step of a model with recurrent layers says where states go"
    inputs = {name: array.astype(before[name].dtype) for name, array in inputs.items()}
    started = _started(move, rows, before, snapshots, moves)
    if batch.sequences is None:
        ends = started
        out = jax.vmap(read)(jax.vmap(move)(started, inputs), query)
        snapshots = _stored(snapshots, moves.before, started)
        drawn = inputs
    else:
        out, ends, snapshots = _through(move, read, inputs, query, batch, started, snapshots)
        drawn = {name: array.at[batch.sequences[1]].get(mode="clip") for name, array in inputs.items()}
    after = _stored(rows, moves.slots, ends), _stored(before, moves.slots, drawn), snapshots
    rows, inputs, snapshots = (_put(tree, group, index, new) for tree, new in zip(trees, after, strict=True))
    return out, cache.replace(states=cache.states.replace(rows=rows, inputs=inputs, snapshots=snapshots))


def _started(move: Move, rows: Arrays, before: Arrays, snapshots: Arrays, moves: Moves) -> Arrays:
    """The state before each row's first token, [R, ...].    before: what the tokens that were drawn last bring."""
    state, inputs = jax.tree.map(lambda array: array[moves.slots], (rows, before))
    counts = moves.bases < moves.starts  # the token that was drawn last
    state = _chosen(counts, jax.vmap(move)(state, inputs), state)
    if moves.loads is None:
        return state
    taken = jax.tree.map(lambda array: array[jnp.maximum(moves.loads - 1, 0)], snapshots)
    loaded = _chosen(moves.loads > 1, taken, jax.tree.map(jnp.zeros_like, taken))
    return _chosen(moves.loads > 0, loaded, state)


def _through(
    move: Move,
    read: Read,
    inputs: Arrays,
    query: jax.Array,
    batch: Batch,
    started: Arrays,
    snapshots: Arrays,
) -> tuple[jax.Array, Arrays, Arrays]:
    """The rows' tokens one after the other: out [T, ...], the rows' states behind them, and the snapshots."""
    moves = batch.moves
    assert moves is not None
    _, firsts, counts, _ = batch.sequences
    token = jnp.arange(len(batch.tokens), dtype=jnp.int32)
    ends = firsts + counts
    row = jnp.minimum(jnp.sum(token[:, None] >= ends[None], axis=-1, dtype=jnp.int32), len(firsts) - 1)

    def one(
        carry: tuple[Arrays, Arrays, Arrays], at: tuple[Any, ...]
    ) -> tuple[tuple[Arrays, Arrays, Arrays], jax.Array]:
        state, behind, kept = carry
        own, asked, is_first, is_last, stays, r, snapshot = at
        state = {name: jnp.where(is_first, started[name][r], array) for name, array in state.items()}
        kept = {name: array.at[snapshot].set(state[name]) for name, array in kept.items()}
        after = move(state, own)
        state = {name: jnp.where(stays, array, after[name]) for name, array in state.items()}
        ended = jnp.where(is_last, r, len(firsts))
        behind = {name: array.at[ended].set(state[name], mode="drop") for name, array in behind.items()}
        return (state, behind, kept), read(after, asked)

    along = inputs, query, token == firsts[row], token == ends[row] - 1, moves.drawn[row], row, moves.before
    first = {name: array[0] for name, array in started.items()}
    (_, behind, snapshots), out = jax.lax.scan(one, (first, started, snapshots), along)
    return out, behind, snapshots if moves.behind is None else _stored(snapshots, moves.behind, behind)


def _chosen(which: jax.Array, one: Arrays, other: Arrays) -> Arrays:
    """Of each row one or the other: which bool[R]."""
    return {
        name: jnp.where(which.reshape(-1, *[1] * (array.ndim - 1)), array, other[name]) for name, array in one.items()
    }


def _stored(rows: Arrays, where: jax.Array, new: Arrays) -> Arrays:
    return {name: array.at[where].set(new[name].astype(array.dtype)) for name, array in rows.items()}


def _put(tree: tuple[Arrays, ...], group: int, index: int, new: Arrays) -> tuple[Arrays, ...]:
    """The arrays of all groups, with one layer's anew."""
    mine = {name: array.at[index].set(new[name]) for name, array in tree[group].items()}
    return (*tree[:group], mine, *tree[group + 1 :])
