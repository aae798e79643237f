"""Pages and snapshots on their way between the device and pinned host memory, and how many of them may be under way.

What is under way takes device memory twice, in the pool and beside it, so its bytes are bounded: more waits until the
oldest has arrived. That is rare: what was saved for one step has arrived by the next.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.runtime.host_array import PINNED_HOST
from jaxinfer.runtime.packing import chunks

PAGES_MOVED = 8  # that one program saves or loads
STAGED_BYTES = 2**27  # under way in one direction, unless a single program's are more


def staged_bytes(page_bytes: int) -> int:
    """The most that is under way in both directions."""
    return 2 * _most(page_bytes) * PAGES_MOVED * page_bytes


def _most(page_bytes: int) -> int:
    """How many programs' pages may be under way in one direction."""
    return max(1, STAGED_BYTES // (PAGES_MOVED * page_bytes))


class Staging(deque[object]):
    """What is under way in one direction, oldest first: arrays that are ready once they have arrived."""

    def __init__(self, page_bytes: int) -> None:
        super().__init__()
        self._most = _most(page_bytes)  # programs' worth

    def make_room(self) -> None:
        """Wait until one more may be under way."""
        while len(self) >= self._most:
            jax.block_until_ready(self.popleft())


class Mover:
    """Moves pages, or snapshots: those of one kind, whose arrays have them along axis 1."""

    def __init__(self, save: Callable[..., Any], load: Callable[..., Any], stored: Any, count: int) -> None:
        """save, load: run the programs (Store) on `count` at once.    stored: the arrays on the device."""
        self._save, self._load, self._count = save, load, count
        self._like = jax.tree.map(lambda a: jax.ShapeDtypeStruct((a.shape[0], *a.shape[2:]), a.dtype), stored)
        self._where = jax.tree.leaves(stored)[0].sharding
        (device,) = self._where.device_set
        self._on_host = jax.sharding.SingleDeviceSharding(device, memory_kind=PINNED_HOST)
        self._padding = [jax.device_put(self._zeros(), self._where)] * (count - 1)
        num_bytes = sum(math.prod(like.shape) * like.dtype.itemsize for like in jax.tree.leaves(self._like))
        self._saving, self._loading = Staging(num_bytes), Staging(num_bytes)

    def save(self, ids: Sequence[int]) -> list[Any]:
        """Copies in host memory; the arrays are ready once they are."""
        contents: list[Any] = []
        for chunk in chunks(np.asarray(ids, np.int32), self._count):
            self._saving.make_room()
            copies = self._save(chunk)[: len(ids) - len(contents)]
            contents += self.to_host(copies)
            self._saving.append(contents[-len(copies) :])
        return contents

    def load(self, ids: Sequence[int], contents: Sequence[Any]) -> None:
        """Overwrite with what was saved."""
        for start, chunk in enumerate(chunks(np.asarray(ids, np.int32), self._count)):
            self._loading.make_room()
            wanted = contents[start * self._count : (start + 1) * self._count]
            self._loading.append(self._load(chunk, self.to_device(wanted)))

    def to_host(self, contents: Any) -> Any:
        return jax.device_put(contents, self._on_host)

    def to_device(self, contents: Sequence[Any]) -> tuple[Any, ...]:
        """As many as a program takes."""
        padded = [*contents, *self._padding[len(contents) - 1 :]]
        return tuple(jax.device_put(padded, self._where))

    def from_bytes(self, data: memoryview) -> Any:
        """A content in host memory: its arrays one after the other."""
        arrays, start = [], 0
        leaves, tree = jax.tree.flatten(self._like)
        for like in leaves:
            array = np.frombuffer(data, like.dtype, math.prod(like.shape), start)
            arrays.append(array.reshape(like.shape).copy())  # or `data` would live as long as each of its pages
            start += array.nbytes
        return self.to_host(jax.tree.unflatten(tree, arrays))

    def blank(self) -> Any:
        """A content of zeros in host memory."""
        return self.to_host(self._zeros())

    def clear(self) -> None:
        """The device's state is lost."""
        self._saving.clear()
        self._loading.clear()

    def _zeros(self) -> Any:
        return jax.tree.map(lambda like: np.zeros(like.shape, like.dtype), self._like)
