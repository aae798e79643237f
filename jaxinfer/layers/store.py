"""Store: what the layers of a model remember, on the device. Layers know what its arrays mean, nobody else does."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxinfer.cache.spec import CacheLayout, PagedKV
from jaxinfer.errors import ConfigError
from jaxinfer_kernels.attention.api import kv_shape

type Arrays = tuple[dict[str, jax.Array], ...]  # by group of recurrent layers, then by name


class States(struct.PyTreeNode):
    """The states of recurrent layers: of each slot, and snapshots of them. Row 0 of both is padding's.

    base: i32[S], the position that each slot's rows are behind: so many tokens are in them.
    rows: [layers, S, ...].    snapshots: [layers, snapshots + 1, ...].
    inputs: [layers, S, ...], what the token at `base` brings, if it was drawn. A row of a later position takes them in.
    """

    base: jax.Array
    rows: Arrays
    inputs: Arrays
    snapshots: Arrays


class Store(struct.PyTreeNode):
    """What layers remember.

    pages: keys and values in the layout of jaxinfer_kernels.attention.paged, whose axis 1 is the page.
    states: None where no layer is recurrent.
    """

    pages: tuple[jax.Array, ...]
    states: States | None = None

    @property
    def num_pages(self) -> int:
        return self.pages[0].shape[1]

    def zero(self, page_ids: jax.Array) -> "Store":
        """Overwrite pages with zeros: page_ids i32[n]; 0 is padding."""
        return self.replace(pages=jax.tree.map(lambda array: array.at[:, page_ids].set(0), self.pages))

    def save(self, page_ids: jax.Array) -> tuple[Any, ...]:
        """Copies of pages, each one's arrays of its own, so that each can be let go alone: page_ids i32[n]."""
        return _copies(self.pages, page_ids)

    def load(self, contents: tuple[Any, ...], page_ids: jax.Array) -> "tuple[Store, jax.Array]":
        """Overwrite pages with what `save` made of them: page_ids i32[n]; 0 is padding. Returns also a small array to
        wait for, since the store is the next step's."""
        return self.replace(pages=_overwritten(self.pages, contents, page_ids)), page_ids + 0

    def save_snapshots(self, snapshots: jax.Array) -> tuple[Any, ...]:
        """As `save`, of snapshots: i32[n]."""
        assert self.states is not None, "only recurrent layers have snapshots"
        return _copies(self.states.snapshots, snapshots)

    def load_snapshots(self, contents: tuple[Any, ...], snapshots: jax.Array) -> "tuple[Store, jax.Array]":
        """As `load`, of snapshots: i32[n]."""
        assert self.states is not None, "only recurrent layers have snapshots"
        arrays = _overwritten(self.states.snapshots, contents, snapshots)
        return self.replace(states=self.states.replace(snapshots=arrays)), snapshots + 0


def _copies(arrays: Any, rows: jax.Array) -> tuple[Any, ...]:
    """Of each of these rows of axis 1."""
    copy = functools.partial(jax.lax.dynamic_index_in_dim, axis=1, keepdims=False)
    return tuple(jax.tree.map(lambda array, row=row: copy(array, row), arrays) for row in rows)


def _overwritten(arrays: Any, contents: tuple[Any, ...], rows: jax.Array) -> Any:
    """The arrays with these contents in these rows of axis 1."""
    for row, content in zip(rows, contents, strict=True):
        put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=row, axis=1)
        arrays = jax.tree.map(lambda array, new, put=put: put(array, new), arrays, content)
    return arrays


def new_store(layout: CacheLayout, num_pages: int, max_num_seqs: int) -> Store:
    """A store of zeros. Raises ConfigError for layers whose keys and values are not of one shape."""
    paged = {dataclasses.replace(g.spec, window=None) for g in layout.groups if isinstance(g.spec, PagedKV)}
    if len(paged) != 1 or any(spec.v_dim != spec.head_dim for spec in paged):
        shapes = ", ".join(sorted(f"{s.kv_heads} heads of {s.head_dim} and {s.v_dim} in {s.dtype}" for s in paged))
        raise ConfigError(
            "layers that keep keys and values must all keep them in one shape, keys as wide as values, "
            f"got {shapes or 'none that keeps any'}; no other model can be served yet"
        )
    (spec,) = paged
    shape = kv_shape(layout.in_page(spec), num_pages, layout.page_size, spec.kv_heads, spec.head_dim)
    pages = jnp.zeros(shape, spec.dtype), jnp.zeros(shape, spec.dtype)
    return Store(pages, _new_states(layout, max_num_seqs + 1) if layout.recurrent else None)


def _new_states(layout: CacheLayout, slots: int) -> States:
    def zeros(kind: str, num_rows: int) -> Arrays:
        return tuple(
            {name: jnp.zeros((len(g.layers), num_rows, *shape), dtype) for name, shape, dtype in getattr(g.spec, kind)}
            for g in layout.recurrent
        )

    return States(
        jnp.zeros(slots, jnp.int32),
        rows=zeros("arrays", slots),
        inputs=zeros("inputs", slots),
        snapshots=zeros("arrays", layout.num_snapshots + 1),
    )
