"""DeviceRunner: the device behind plan.Runner. It packs a plan, dispatches one executable and hands back a Pending."""

import functools
import threading
from collections.abc import Sequence

import jax
import numpy as np

from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.registry import Family
from jaxinfer.runtime import buckets, packing, programs, step
from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.packing import ExtendLayout
from jaxinfer.runtime.plan import Plan, StepResult
from jaxinfer.runtime.programs import PAGE_UPDATES, PAGES_ZEROED, Helper, Key, Program
from jaxinfer.runtime.state import DeviceState, init_state
from jaxinfer.runtime.warmup import CompileCounter, OnProgress, build, build_all


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
    """Owns the device state; every call is dispatched at once and runs in the order of the calls.

    Invariant: only `_dispatch` touches the state, under the lock, so warm-up may go on in another thread while steps
    run. Without `warm_up` each program is compiled when it is first needed.
    """

    def __init__(
        self, config: ModelConfig, family: Family, params: step.Params, limits: Limits, device: jax.Device
    ) -> None:
        self.limits = limits
        self._model = step.Model(config, family)
        self._params = params
        self._device = device
        dtype = jax.tree.leaves(params)[0].dtype
        make = functools.partial(init_state, limits, config.num_layers, config.num_kv_heads, config.head_dim, dtype)
        self._init = jax.jit(make, out_shardings=jax.sharding.SingleDeviceSharding(device))
        self._state: DeviceState = self._init()
        self._lock = threading.Lock()
        listed = programs.programs(self._model, limits, params, self._state)
        self._programs: dict[Key, Program] = {program.key: program for program in listed}
        self._executables: dict[Key, jax.stages.Compiled] = {}
        self._decode_ready = limits.decode_buckets
        self._extend_ready = limits.extend_buckets
        self._counter = CompileCounter()

    # What the engine calls

    def run(self, plan: Plan) -> PendingStep:
        """Dispatch one step without waiting for it."""
        if not plan.is_decode or not all(row.sample for row in plan.rows):
            return self._run_extend(plan)
        if any(len(row.new_pages) > 1 for row in plan.rows):
            self._write_pages(packing.page_updates(plan.rows))
        batch = buckets.pick_decode(self._decode_ready, len(plan.rows))
        return PendingStep(self._dispatch(batch, packing.pack_decode(plan, batch)), len(plan.rows))

    def _run_extend(self, plan: Plan) -> PendingStep:
        need = ExtendBucket(plan.num_tokens, len(plan.rows), sum(row.sample for row in plan.rows))
        bucket = buckets.pick_extend(self._extend_ready, need)
        layout = ExtendLayout.of(bucket, self.limits.page_size)
        updates = packing.page_updates(plan.rows)
        if len(updates) > layout.updates:
            self._write_pages(updates)
            updates = updates[:0]
        return PendingStep(self._dispatch(bucket, packing.pack_extend(plan, layout, updates)), len(plan.rows))

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        """Overwrite these pages' keys and values with zeros, after every step already dispatched."""
        for chunk in _chunks(np.asarray(page_ids, np.int32), PAGES_ZEROED):
            self._dispatch(Helper.ZERO_PAGES, chunk)

    def reset(self) -> None:
        """Drop the device state and allocate it anew; every page and slot loses its content."""
        with self._lock:
            self._delete_state()
            self._state = self._init()

    # Starting and stopping

    def warm_up(self, on_progress: OnProgress, cache: ExecutableCache | None = None) -> None:
        """Compile everything and run it once on padding; nothing is compiled afterwards.

        on_progress(name, done, total, seconds, cached): after each program. May run in a thread of its own once
        `is_serving`; until then plans must wait.
        """
        self._decode_ready, self._extend_ready = (), ()
        common = programs.fingerprint(self._model, self._device)
        todo = list(self._programs.values())
        for done, built in enumerate(build_all(todo, self._device, cache, common), start=1):
            self._executables[built.program.key] = built.executable
            self._dispatch(built.program.key, np.zeros(built.program.arguments[-1].shape, np.int32))
            self._decode_ready = tuple(b for b in self.limits.decode_buckets if b in self._executables)
            self._extend_ready = tuple(b for b in self.limits.extend_buckets if b in self._executables)
            on_progress(built.program.name, done, len(todo), built.seconds, built.cached)
        self._state.next_pos.block_until_ready()
        self._counter.start()

    @property
    def is_serving(self) -> bool:
        """Whether any plan can be carried without compiling, if not in the best size yet."""
        return all(key in self._executables for key in self._programs if programs.is_serving(key, self.limits))

    @property
    def compiles_after_ready(self) -> int:
        """Compilations in this process since warm_up returned; each is a fault."""
        return self._counter.count

    def temporary_bytes(self) -> int:
        """The most that any compiled program needs beside its arguments."""
        analyses = [executable.memory_analysis() for executable in self._executables.values()]
        return max((analysis.temp_size_in_bytes for analysis in analyses if analysis), default=0)

    def close(self) -> None:
        """Free the device state; the runner cannot be used afterwards."""
        self._counter.close()
        with self._lock:
            self._delete_state()

    def _dispatch(self, key: Key, upload: np.ndarray) -> jax.Array:
        """Run one program on the state. Returns a step's packed result, or the array a helper changed."""
        executable = self._executables.get(key) or self._build(key)
        device_upload = jax.device_put(upload, self._device)
        with self._lock:
            state = self._state
            if key is Helper.SET_PAGES:
                table = executable(state.page_table, device_upload)
                self._state = state.replace(page_table=table)
                return table
            if key is Helper.ZERO_PAGES:
                k, v = executable(state.k, state.v, device_upload)
                self._state = state.replace(k=k, v=v)
                return k
            self._state, packed = executable(self._params, state, device_upload)
            return packed

    def _build(self, key: Key) -> jax.stages.Compiled:
        self._executables[key] = build(self._programs[key], self._device, None, "").executable
        return self._executables[key]

    def _write_pages(self, updates: np.ndarray) -> None:
        for chunk in _chunks(updates, PAGE_UPDATES):
            self._dispatch(Helper.SET_PAGES, chunk)

    def _delete_state(self) -> None:
        for leaf in jax.tree.leaves(self._state):
            if not leaf.is_deleted():
                leaf.delete()


def _chunks(values: np.ndarray, size: int) -> list[np.ndarray]:
    """`values` in pieces of `size` along axis 0, the last one padded with zeros."""
    padded = np.zeros((-(-len(values) // size) * size, *values.shape[1:]), np.int32)
    padded[: len(values)] = values
    return list(padded.reshape(-1, size, *values.shape[1:]))
