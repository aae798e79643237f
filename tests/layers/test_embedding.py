"""A table gives each token its row, whether a mesh splits the table's rows or not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.layers.embedding import embedding
from jaxinfer.layers.products import XLA

TABLE = jnp.arange(24, dtype=jnp.float32).reshape(8, 3) + 1
TOKENS = jnp.asarray([0, 7, 3, 4, 1, 2, 5, 6, 3])


def test_each_token_gets_its_row_from_the_device_that_has_it():
    over = dataclasses.replace(XLA, axis="tensor")
    each = jax.vmap(lambda table: embedding(TOKENS, table, over, split="tensor"), axis_name="tensor")
    for rows in np.asarray(jax.jit(each)(TABLE.reshape(4, -1, 3))):
        np.testing.assert_array_equal(rows, TABLE[TOKENS])


@pytest.mark.parametrize("split", [None, "tensor"])
def test_on_one_device_the_table_is_whole(split):
    np.testing.assert_array_equal(embedding(TOKENS, TABLE, XLA, split=split), TABLE[TOKENS])
