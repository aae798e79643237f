"""DeviceRunner: the device behind plan.Runner. It packs a plan, dispatches one executable and hands back a Pending."""

import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np

from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.registry import Family
from jaxinfer.runtime import buckets, packing, step
from jaxinfer.runtime.packing import ExtendLayout
from jaxinfer.runtime.plan import Plan, StepResult
from jaxinfer.runtime.state import DeviceState, init_state

PAGE_UPDATES = 512  # page table entries that one call of the helper writes
PAGES_ZEROED = 64  # pages that one call of the helper clears


class PendingStep:
    """A dispatched step; its results are already on their way to the host."""

    def __init__(self, packed: jax.Array, num_rows: int) -> None:
        packed.copy_to_host_async()
        self._packed = packed
        self._num_rows = num_rows

    def wait(self) -> StepResult:
        packed = np.asarray(self._packed)[: self._num_rows]
        return StepResult(tokens=packed[:, 0], finite=packed[:, 1] != 0)


class DeviceRunner:
    """Owns the device state; every call is dispatched at once and runs in the order of the calls."""

    def __init__(
        self, config: ModelConfig, family: Family, params: step.Params, limits: Limits, device: jax.Device
    ) -> None:
        self.limits = limits
        self._model = step.Model(config, family)
        self._params = params
        self._device = device
        self._state = self._new_state()
        self._decode = jax.jit(functools.partial(step.decode, self._model), donate_argnums=1)
        self._set_pages = jax.jit(step.set_pages, donate_argnums=0)
        self._zero_pages = jax.jit(step.zero_pages, donate_argnums=0)
        self._extend: dict[ExtendBucket, Callable[..., tuple[DeviceState, jax.Array]]] = {}

    def run(self, plan: Plan) -> PendingStep:
        """Dispatch one step without waiting for it."""
        if plan.is_decode and all(len(row.new_pages) <= 1 for row in plan.rows):
            batch = buckets.pick_decode(self.limits.decode_buckets, len(plan.rows))
            upload = packing.pack_decode(plan, batch)
            self._state, packed = self._decode(self._params, self._state, self._put(upload))
        else:
            packed = self._run_extend(plan)
        return PendingStep(packed, len(plan.rows))

    def _run_extend(self, plan: Plan) -> jax.Array:
        need = ExtendBucket(plan.num_tokens, len(plan.rows), sum(row.sample for row in plan.rows))
        bucket = buckets.pick_extend(self.limits.extend_buckets, need)
        layout = ExtendLayout.of(bucket, self.limits.page_size)
        updates = packing.page_updates(plan.rows)
        if len(updates) > layout.updates:
            self._write_pages(updates)
            updates = updates[:0]
        upload = self._put(packing.pack_extend(plan, layout, updates))
        if bucket not in self._extend:
            self._extend[bucket] = jax.jit(functools.partial(step.extend, self._model, bucket), donate_argnums=1)
        self._state, packed = self._extend[bucket](self._params, self._state, upload)
        return packed

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        """Overwrite these pages' keys and values with zeros, after every step already dispatched."""
        for chunk in _chunks(np.asarray(page_ids, np.int32), PAGES_ZEROED):
            self._state = self._zero_pages(self._state, self._put(chunk))

    def reset(self) -> None:
        """Drop the device state and allocate it anew; every page and slot loses its content."""
        for leaf in jax.tree.leaves(self._state):
            leaf.delete()
        self._state = self._new_state()

    def _write_pages(self, updates: np.ndarray) -> None:
        for chunk in _chunks(updates, PAGE_UPDATES):
            self._state = self._set_pages(self._state, self._put(chunk))

    def _new_state(self) -> DeviceState:
        config = self._model.config
        dtype = jax.tree.leaves(self._params)[0].dtype
        with jax.default_device(self._device):
            return init_state(self.limits, config.num_layers, config.num_kv_heads, config.head_dim, dtype)

    def _put(self, upload: np.ndarray) -> jax.Array:
        return jax.device_put(upload, self._device)


def _chunks(values: np.ndarray, size: int) -> list[np.ndarray]:
    """`values` in pieces of `size` along axis 0, the last one padded with zeros."""
    padded = np.zeros((-(-len(values) // size) * size, *values.shape[1:]), np.int32)
    padded[: len(values)] = values
    return list(padded.reshape(-1, size, *values.shape[1:]))
