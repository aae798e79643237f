"""Rows of an embedding table, whose rows a mesh may split."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxinfer.layers.products import Products
from jaxinfer_kernels.linear.quantized import Quantized


def embedding(
    tokens: Int[Array, "T"], table: Float[Array, "V D"] | Quantized, products: Products, *, split: str | None = None
) -> Float[Array, "T D"]:
    """The table's row of each token.

    split: where a step runs over this axis of a mesh, each device has an equal part of the rows, the first device the
      first ones. On one device it changes nothing.
    """
    if split is None or not products.runs_over(split):
        return table[tokens]
    index = tokens - jax.lax.axis_index(split) * len(table)
    is_here = (index >= 0) & (index < len(table))
    rows = jnp.where(is_here[:, None], table[jnp.where(is_here, index, 0)], 0)
    return jax.lax.psum(rows, split)
