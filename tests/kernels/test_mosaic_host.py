"""The kernel that reads the host's memory: lowered, and on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.runtime.host_array import HostArray
from jaxinfer_kernels.mosaic_host import address_of, read_host


def test_an_address_is_its_halves_the_low_one_first():
    assert address_of(0x7F12_89AB_CDEF).view(np.uint32).tolist() == [0x89AB_CDEF, 0x7F12]


@pytest.mark.parametrize("shape", [(1, 3), (8, 3), (256, 3)])
def test_lowers(shape):
    traced = jax.jit(functools.partial(read_host, shape=shape)).trace(jax.ShapeDtypeStruct((2,), jnp.int32))
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("mosaic_gpu_v2") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 3), (128, 3), (256, 3)])
def test_each_call_reads_what_was_written_for_it(shape):
    """Also the second and later ones, which XLA replays from a graph."""
    given = HostArray(shape, jax.devices()[0], by_address=True)
    program = jax.jit(lambda address: read_host(address, shape=shape) + 1)
    for number in range(8):
        values = given.lend()
        values[:] = np.arange(values.size).reshape(shape) * number
        expected, made = values + 1, program(given.argument)
        given.read_for(made)
        np.testing.assert_array_equal(made, expected)
