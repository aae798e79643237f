"""HostArray: each call reads what was written for it, whatever is written for the next."""

import jax
import numpy as np

from jaxinfer.runtime.host_array import HostArray, from_host


def test_each_call_reads_what_was_written_for_it() -> None:
    """The first is still being computed when the second is about to be written."""
    device = jax.devices()[0]
    given = HostArray((64, 3), device)
    weights = jax.device_put(np.ones((600, 600), np.float32), device)

    def slow(weights: jax.Array, given: jax.Array) -> jax.Array:
        turned = jax.lax.fori_loop(0, 40, lambda _, x: x @ weights / 600, weights)
        return from_host(given) + turned[0, 0].astype(np.int32)

    arguments = (weights, jax.ShapeDtypeStruct(given.array.shape, np.int32, sharding=given.array.sharding))
    program, made = jax.jit(slow).lower(*arguments).compile(), []
    for number in range(5):
        given.lend()[:] = number
        made.append(program(weights, given.array))
        given.read_for(made[-1])
    for number, result in enumerate(made):
        np.testing.assert_array_equal(np.asarray(result), np.full((64, 3), number + 1))


def test_it_begins_with_zeros() -> None:
    given = HostArray((2, 5), jax.devices()[0])
    assert not given.lend().any() and not np.asarray(given.array).any()
