"""Tests check the shapes that annotations say (pyproject.toml, --jaxtyping-packages)."""

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from jaxinfer.layers import rope
from jaxinfer_kernels.attention import paged, xla_decode
from jaxinfer_kernels.linear import xla

PAGES = jnp.zeros((1, 2, 1, 4, 8)), jnp.zeros((1, 2, 1, 4, 8)), jnp.int32(0)
ROWS = jnp.zeros((3, 2), jnp.int32), jnp.zeros(2, jnp.int32), jnp.zeros(2, jnp.int32)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (xla.linear, (jnp.zeros((2, 4)), jnp.zeros((3, 5)))),
        (xla.gate_up, (jnp.zeros((2, 4)), jnp.zeros(4))),
        (rope.rotate, (jnp.zeros((2, 1, 4)), (jnp.zeros((3, 1, 2)), jnp.zeros((3, 1, 2))))),
        (xla_decode.decode_attention, (jnp.zeros((3, 2, 8)), PAGES, ROWS)),  # more queries than rows
        (xla_decode.decode_attention, (jnp.zeros((2, 2, 4)), PAGES, ROWS)),  # of other heads than the keys
        (paged.page_size_of, (jnp.zeros((2, 2), jnp.int32),)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_argument_of_another_shape_is_refused_under_test(function, arguments):
    with pytest.raises(TypeCheckError):
        function(*arguments)
