"""The interpreter of Mosaic kernels, without an array on JAX's device for each number that it looks at."""

from typing import Any

import numpy as np
import pytest
from jax import tree
from jax._src import callback as callbacks
from jax._src.pallas.mosaic_gpu.interpret import shared_memory


def interpret_quickly(patch: pytest.MonkeyPatch) -> None:
    """Give what is interpreted numpy's arrays, copied, since JAX takes the memory back behind each callback.

    A kernel's every load, store and wait is a callback of ten arrays, most of one number: to put them on the device
    took three quarters of a test. Both names are inside JAX: where it has none, every test of kernels says so.
    """
    to_int = shared_memory._to_int

    def called(*args: np.ndarray, callback: Any, **_: object) -> Any:
        return tree.map(np.asarray, callback(*map(np.array, args)))

    patch.setattr(callbacks, "io_callback_impl", called)
    patch.setattr(shared_memory, "_to_int", lambda x: x.item() if isinstance(x, np.ndarray) else to_int(x))
