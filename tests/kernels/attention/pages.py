"""Pages with random contents for the attention tests: shuffled tables, and NaN wherever a row has no business."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer_kernels.attention.paged import DecodeRows, LayerPages, kv_shape, write_kv

LAYERS, LAYER = 2, 1


@dataclasses.dataclass(frozen=True)
class Heads:
    """Query heads, kv heads, head dimension."""

    n: int
    k: int
    h: int


HEADS = [Heads(4, 2, 32), Heads(4, 4, 16), Heads(6, 1, 64), Heads(2, 2, 80)]


@dataclasses.dataclass
class Pages:
    """k, v as stored; table and slots of the rows; every place that belongs to no row holds NaN."""

    k: jax.Array
    v: jax.Array
    table: jax.Array
    slots: jax.Array
    lengths: jax.Array

    @property
    def of_layer(self) -> LayerPages:
        return self.k, self.v, jnp.int32(LAYER)

    @property
    def rows(self) -> DecodeRows:
        return self.table, self.slots, self.lengths

    def with_nan_before(self, firsts: list[int]) -> "Pages":
        """The same, with NaN in each row's pages before these entries of its table."""
        left = [
            page for slot, first in zip(self.slots, firsts, strict=True) for page in self.table[slot, : max(0, first)]
        ]
        k, v = (array.at[:, jnp.asarray(left, jnp.int32)].set(jnp.nan) for array in (self.k, self.v))
        return dataclasses.replace(self, k=k, v=v)


def make_pages(heads: Heads, lengths: list[int], page_size: int, dtype: str, seed: int = 0) -> Pages:
    rng = np.random.default_rng(seed)
    width = -(-max(lengths) // page_size) + 2
    num_pages = len(lengths) * width + 1
    slots = rng.permutation(len(lengths) + 3)[: len(lengths)] + 1
    table = rng.integers(0, num_pages, (len(lengths) + 5, width))  # stale entries name any page, others' included
    owned = rng.permutation(num_pages - 1) + 1
    for row, length in enumerate(lengths):
        used = -(-length // page_size)
        table[slots[row], :used] = owned[row * width : row * width + used]
    positions = np.concatenate([np.arange(length) for length in lengths])
    page_ids = table[np.repeat(slots, lengths), positions // page_size]
    shape = kv_shape(LAYERS, num_pages, page_size, heads.k, heads.h)
    nowhere = np.full(shape, np.nan, jnp.dtype(dtype))
    new_k, new_v = (rng.normal(size=(sum(lengths), heads.k, heads.h)).astype(dtype) for _ in range(2))
    places = (page_ids.astype(np.int32), (positions % page_size).astype(np.int32))
    k, v = write_kv(nowhere, nowhere, np.int32(LAYER), new_k, new_v, *places)
    return Pages(k, v, *(jnp.asarray(x, jnp.int32) for x in (table, slots, lengths)))


def queries(count: int, heads: Heads, dtype: str) -> jax.Array:
    return jax.random.normal(jax.random.key(7), (count, heads.n, heads.h), jnp.float32).astype(dtype)


def assert_close(out: jax.Array, expected: jax.Array, dtype: str) -> None:
    # bfloat16 rounds the weights before the second product and the result after it: two roundings of 2**-8
    tolerance = {"float32": 2e-6, "bfloat16": 2**-6}[dtype]
    assert out.dtype == jnp.dtype(dtype)
    np.testing.assert_allclose(
        np.asarray(out, np.float32), np.asarray(expected, np.float32), rtol=tolerance, atol=tolerance
    )
