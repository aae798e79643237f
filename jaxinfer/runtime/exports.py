"""DeviceExports: what a DeviceRunner's pages and snapshots are as bytes, and the model that they are of."""

import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxinfer.models.config import ModelConfig
from jaxinfer.runtime.moving import Mover


class DeviceExports:
    """plan.Exports: the bytes of a content's arrays, one after the other."""

    def __init__(self, config: ModelConfig, params: Any, pages: Mover, snapshots: Mover | None) -> None:
        """snapshots: None where no layer is recurrent."""
        self._config, self._params = config, params
        self._pages, self._snapshots = pages, snapshots

    @functools.cached_property
    def model(self) -> str:
        """Read from all weights when it is first asked for."""
        return model_digest(self._config, self._params)

    def to_bytes(self, content: object) -> bytes:
        return b"".join(_on_host(array).tobytes() for array in jax.tree.leaves(content))

    def page(self, data: memoryview) -> object:
        return self._pages.from_bytes(data)

    def save_snapshot(self, snapshot: int) -> object:
        assert self._snapshots is not None, "only recurrent layers have snapshots"
        return self._snapshots.save([snapshot])[0]

    def load_snapshot(self, snapshot: int, data: memoryview) -> None:
        assert self._snapshots is not None, "only recurrent layers have snapshots"
        self._snapshots.load([snapshot], [self._snapshots.from_bytes(data)])


def model_digest(config: ModelConfig, params: Any) -> str:
    """Of a config and of every bit of its weights, as they are held: of their dtype too."""
    leaves = jax.tree.leaves_with_path(params)
    with ThreadPoolExecutor() as threads:
        digests = threads.map(lambda leaf: hashlib.sha256(_bits(leaf[1])).hexdigest(), leaves)
        facts = [f"{jax.tree_util.keystr(path)} {leaf.dtype}{leaf.shape}" for path, leaf in leaves]
        told = "\n".join([repr(config), *map(" ".join, zip(facts, digests, strict=True))])
    return f"{config.architecture} {hashlib.sha256(told.encode()).hexdigest()[:32]}"


def _bits(array: jax.Array) -> np.ndarray:
    return _on_host(array).reshape(-1).view(np.uint8)


def _on_host(array: jax.Array) -> np.ndarray:
    """Its values; not asked of the array itself, which would keep them."""
    return np.ascontiguousarray(array.addressable_data(0))
