"""HostArray: an array in the host's memory that programs read from there, written anew before each call."""

import ctypes

import jax
import numpy as np

PINNED_HOST = "pinned_host"  # the kind of memory that a device copies to and from by itself


class HostArray:
    """Zeros at first. An argument that is new to each call takes 0.1 ms more of the host (H200): it is copied
    beforehand, to another place each time, so that XLA has to change the CUDA graph that reads it.

    JAX knows nothing of what is written to it. So `lend` waits until what was made of it before is there.
    """

    def __init__(self, shape: tuple[int, ...], device: jax.Device) -> None:
        where = jax.sharding.SingleDeviceSharding(device, memory_kind=PINNED_HOST)
        self.array = jax.device_put(np.zeros(shape, np.int32), where).block_until_ready()
        content = (ctypes.c_int32 * self.array.size).from_address(self.array.unsafe_buffer_pointer())
        self._values = np.frombuffer(content, np.int32).reshape(shape)
        self._made: jax.Array | None = None

    def lend(self) -> np.ndarray:
        """To be written, which may be done until `array` is handed to a program."""
        if self._made is not None:
            self._made.block_until_ready()
        return self._values

    def read_for(self, made: jax.Array) -> None:
        """A program has been called with it; made: a result of that."""
        self._made = made


def from_host(array: jax.Array) -> jax.Array:
    """Of a traced argument in the host's memory, what is in it."""
    return jax.device_put(array, jax.memory.Space.Device)
