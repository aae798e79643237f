"""Safetensors to arrays on devices, in constant host memory.

Threads copy chunks of at most 64 MiB out of the mapped files, fusing the sources of a leaf by concatenation; each chunk
is put on its devices and written into the leaf there, in place (the leaf is donated), quantized if the leaf is: chunks
are whole rows. So the host holds a few chunks, however large the model or any tensor of it is. Chunks are read in the
order of the files.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxinfer.checkpoint.memory import check_memory, take_pool
from jaxinfer.checkpoint.placement import Placement, Shard, devices_of, shape_over, shard_bytes, sharding_for, shards_of
from jaxinfer.checkpoint.resolve import Checkpoint
from jaxinfer.checkpoint.weights import Weights, check_tensors, leaf_specs, named_as_stored
from jaxinfer.errors import CheckpointError, ConfigError
from jaxinfer.models.file_layout import FileLayout
from jaxinfer.models.parameters import ParamSpec, held, num_bytes, quantized_matrices

CHUNK_BYTES = 64 * 2**20
PACKED_BYTES = 2**20  # of a tensor that is packed anew: what is done at once
NUM_READERS = min(6, os.cpu_count() or 1)
MAX_IN_FLIGHT = 4  # chunks handed to the devices and not yet known to have arrived
ALIGNMENT = 64  # XLA's CPU client then uses the buffer itself instead of a copy

OnProgress = Callable[[int, int, float], None]
"""Told (bytes done, bytes in all, seconds so far) after every chunk; their quotient is the speed."""


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """A box of one leaf's shard: whole layers of it, or some rows of one layer. Positions are within the shard."""

    leaf: int
    shard: Shard
    layers: range
    rows: range
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        layers = (len(self.layers),) if self.shard.spec.stacked else ()
        return (*layers, len(self.rows), *self.shard.group_shape[1:])

    @property
    def start(self) -> tuple[int, ...]:
        layers = (self.layers.start,) if self.shard.spec.stacked else ()
        return (*layers, self.rows.start, *(0,) * (len(self.shard.group_shape) - 1))

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def load_params(
    checkpoint: Checkpoint,
    spec_tree: Any,
    dtype: jax.typing.DTypeLike,
    placement: Placement,
    on_progress: OnProgress | None = None,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> Any:
    """The checkpoint's parameters as a tree of spec_tree's structure, on a device or over a mesh.

    They are in `dtype`, but for leaves that have one of their own.

    Raises CheckpointError when the tensors are not the model's (check_tensors), when one of them holds no finite
    number, or when one is too large for float16; DeviceError when they do not fit in memory.
    """
    dtype = np.dtype(dtype)
    weights = Weights(checkpoint.weight_files, checkpoint.weight_map)
    spec_tree = named_as_stored(spec_tree, weights)
    check_tensors(spec_tree, weights)
    specs = leaf_specs(spec_tree)
    make_room_for(spec_tree, dtype, placement)
    chunks = _chunks(weights, [shards_of(spec, placement) for spec in specs], chunk_bytes)
    with concurrent.futures.ThreadPoolExecutor(NUM_READERS, "jaxinfer-load") as readers:
        _check_finite(weights, [name for spec in specs for group in spec.sources for name in group], readers)
        parts = _fill(weights, chunks, dtype, readers, on_progress or _ignore)
    leaves = [_join(spec, parts[leaf], placement) for leaf, spec in enumerate(specs)]
    return jax.tree.unflatten(jax.tree.structure(spec_tree), leaves)


def _join(spec: ParamSpec, parts: Mapping[jax.Device, Any], placement: Placement) -> Any:
    """A leaf of its parts on its devices."""
    if not isinstance(placement, Mesh):
        return parts[placement]
    sharding = sharding_for(spec.partition, placement)
    return jax.make_array_from_single_device_arrays(shape_over(spec, placement), sharding, list(parts.values()))


def make_room_for(spec_tree: Any, dtype: jax.typing.DTypeLike, placement: Placement) -> None:
    """Begin to take the pools that the parameters will lie in, beside what comes before the first array.

    Raises DeviceError unless every device has room for its parameters; ConfigError for quantized ones over a mesh.
    """
    if isinstance(placement, Mesh) and quantized_matrices(spec_tree):
        raise ConfigError("quantization needs a model on one device, got a mesh; leave it out")
    per_device = params_bytes(spec_tree, dtype, placement)
    devices = devices_of(placement)
    shared = len(devices) if devices[0].platform == "cpu" else 1  # CPU devices share one memory
    for device in devices:
        check_memory(per_device * shared, device)
    take_pool(devices)


def params_bytes(spec_tree: Any, dtype: jax.typing.DTypeLike, placement: Placement) -> int:
    """Bytes of the parameters on each device."""
    if not isinstance(placement, Mesh):
        return num_bytes(spec_tree, dtype)
    return sum(shard_bytes(spec, np.dtype(spec.dtype_in(dtype)).itemsize, placement) for spec in leaf_specs(spec_tree))


def _chunks(weights: Weights, shards: list[list[Shard]], chunk_bytes: int) -> list[_Chunk]:
    """Cut every shard into boxes of at most chunk_bytes (at least one row), in the order of the files."""
    chunks = []
    for leaf, parts in enumerate(shards):
        for shard in parts:
            dtype = _staging_dtype(weights, shard)
            num_rows = shard.group_shape[0]
            row_bytes = math.prod(shard.group_shape[1:]) * dtype.itemsize
            layers_at_once = max(1, chunk_bytes // (num_rows * row_bytes))
            rows_at_once = num_rows if layers_at_once > 1 else min(num_rows, max(1, chunk_bytes // row_bytes))
            chunks += [
                _Chunk(leaf, shard, layers, rows, dtype)
                for layers in _ranges(len(shard.layers), layers_at_once)
                for rows in _ranges(num_rows, rows_at_once)
            ]
    order = {path: number for number, path in enumerate(weights.paths)}

    def place(chunk: _Chunk) -> tuple[int, int, int]:
        entry = weights[chunk.shard.spec.sources[chunk.shard.layers[chunk.layers.start]][0]]
        return order[entry.path], entry.start, chunk.rows.start

    return sorted(chunks, key=place)


def _ranges(size: int, step: int) -> list[range]:
    return [range(start, min(start + step, size)) for start in range(0, size, step)]


def _staging_dtype(weights: Weights, shard: Shard) -> np.dtype:
    """The stored type of the shard's sources; float32, which holds all of them, when they differ.

    Scales are float32 too: devices need not know the types that they are stored in. What is packed anew is as the leaf.
    """
    if shard.spec.dtype is not None and shard.spec.scale is None and not isinstance(shard.spec.layout, FileLayout):
        return np.dtype(shard.spec.dtype)
    stored = {weights.view(name).dtype for layer in shard.layers for name in shard.spec.sources[layer]}
    return stored.pop() if len(stored) == 1 and shard.spec.scale is None else np.dtype(np.float32)


def _check_finite(weights: Weights, names: list[str], readers: concurrent.futures.Executor) -> None:
    """Refuse tensors without a single finite number, the mark of a checkpoint saved after its training diverged.

    Only when the first 64 values are all NaN or infinite is the rest looked at, so this costs one page per tensor.
    """
    for name, finite in zip(names, readers.map(functools.partial(_has_finite, weights), names), strict=True):
        if not finite:
            raise CheckpointError(
                f"{weights[name]} must hold finite numbers, all of its values are NaN or infinite; "
                f"the checkpoint is damaged: download it again, or take another one"
            )


def _has_finite(weights: Weights, name: str) -> bool:
    values = weights.view(name).reshape(-1)
    step = 2**20
    blocks = [values[:64], *(values[start : start + step] for start in range(0, values.size, step))]
    return any(bool(np.isfinite(block.astype(np.float32)).any()) for block in blocks)


def _fill(
    weights: Weights,
    chunks: list[_Chunk],
    dtype: np.dtype,
    readers: concurrent.futures.Executor,
    on_progress: OnProgress,
) -> dict[int, dict[jax.Device, Any]]:
    """Bring every chunk to its devices; the arrays that they filled, by leaf and device."""
    parts: dict[int, dict[jax.Device, Any]] = collections.defaultdict(dict)
    in_flight: collections.deque[tuple[jax.Array, int, jax.Device]] = collections.deque()
    overflows: list[tuple[_Chunk, jax.Array]] = []
    done, total, begin = 0, sum(chunk.num_bytes for chunk in chunks), time.monotonic()
    for chunk, staged in _read_ahead(weights, chunks, readers):
        kind = np.dtype(chunk.shard.spec.dtype_in(dtype))
        for device in chunk.shard.devices:
            arrived = jax.device_put(staged, device)
            if kind == np.float16 and staged.dtype != np.float16 and chunk.shard.spec.format is None:
                overflows.append((chunk, _overflows_float16(arrived)))
            leaf = parts[chunk.leaf]
            leaf[device] = _place(leaf.get(device), arrived, chunk, kind, device)
            in_flight.append((arrived, chunk.leaf, device))
        while len(in_flight) > MAX_IN_FLIGHT * len(chunk.shard.devices):
            arrived, number, device = in_flight.popleft()
            jax.block_until_ready((arrived, parts[number][device]))
        done += chunk.num_bytes
        on_progress(done, total, time.monotonic() - begin)
    jax.block_until_ready([list(leaf.values()) for leaf in parts.values()])
    for chunk, overflow in overflows:
        if overflow:
            _refuse_overflow(weights, chunk)
    return parts


def _read_ahead(
    weights: Weights, chunks: list[_Chunk], readers: concurrent.futures.Executor
) -> Iterator[tuple[_Chunk, np.ndarray]]:
    """Each chunk with its values, in order, while the readers work on the next few."""
    waiting: collections.deque[tuple[_Chunk, concurrent.futures.Future[np.ndarray]]] = collections.deque()
    for chunk in chunks:
        waiting.append((chunk, readers.submit(_read, weights, chunk)))
        if len(waiting) > NUM_READERS:
            first, staged = waiting.popleft()
            yield first, staged.result()
    while waiting:
        first, staged = waiting.popleft()
        yield first, staged.result()


def _read(weights: Weights, chunk: _Chunk) -> np.ndarray:
    """Copy the chunk's values out of the files into one aligned buffer."""
    staged = _aligned_empty((len(chunk.layers), len(chunk.rows), *chunk.shard.group_shape[1:]), chunk.dtype)
    shard = chunk.shard
    for out, layer in zip(staged, chunk.layers, strict=True):
        first = 0  # of this source's rows, within the shard
        for name, rows in zip(shard.spec.sources[shard.layers[layer]], shard.rows, strict=True):
            begin, end = max(first, chunk.rows.start), min(first + len(rows), chunk.rows.stop)
            if begin < end:
                part = out[begin - chunk.rows.start : end - chunk.rows.start]
                _read_rows(weights, name, shard, rows[begin - first : end - first], part)
            first += len(rows)
    return staged.reshape(chunk.shape)


def _read_rows(weights: Weights, name: str, shard: Shard, rows: range, out: np.ndarray) -> None:
    """Copy rows of a source, as the model has them, out of its file."""
    layout, shape = shard.spec.layout, weights[name].shape
    touched = layout.touched(rows, shape[0] if shape else 1)
    weights.will_need(name, touched)
    # What is packed anew is there several times meanwhile.
    at_once = len(rows) if isinstance(layout, FileLayout) else max(1, PACKED_BYTES // out[0].nbytes)
    for some in _ranges(len(rows), at_once):
        _copy(out[some.start : some.stop], layout.read(weights.view(name), rows[some.start : some.stop], shard.rest))
    weights.release(name, touched)


def _copy(out: np.ndarray, source: np.ndarray) -> None:
    if out.dtype != source.dtype:
        out[...] = source.astype(out.dtype)
        return
    bits = np.dtype(f"u{source.dtype.itemsize}")  # numpy copies its own types faster, and without the GIL
    np.copyto(out.view(bits), source.view(bits))


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    num_bytes = math.prod(shape) * dtype.itemsize
    buffer = np.empty(num_bytes + ALIGNMENT, np.uint8)
    skip = -buffer.ctypes.data % ALIGNMENT
    return buffer[skip : skip + num_bytes].view(dtype).reshape(shape)


def _place(leaf: Any, arrived: jax.Array, chunk: _Chunk, dtype: np.dtype, device: jax.Device) -> Any:
    """The leaf's shard on this device with the chunk in it."""
    spec = chunk.shard.spec
    part: Any = held(arrived, spec.format, dtype)
    if chunk.shape == chunk.shard.shape:
        return part if part.dtype == dtype else _cast(part, dtype)
    if leaf is None:
        whole = jax.ShapeDtypeStruct(chunk.shard.shape, dtype) if spec.format is None else spec.arrays(dtype)
        leaf = jax.tree.map(lambda array: jnp.zeros(array.shape, array.dtype, device=device), whole)
    return _write(leaf, part, tuple(np.int32(start) for start in chunk.start))


@functools.partial(jax.jit, static_argnames="dtype")
def _cast(arrived: jax.Array, dtype: np.dtype) -> jax.Array:
    return arrived.astype(dtype)


@functools.partial(jax.jit, donate_argnames="leaf")
def _write(leaf: Any, arrived: Any, start: tuple[jax.Array, ...]) -> Any:
    def written(whole: jax.Array, part: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(whole, part.astype(whole.dtype), start[: whole.ndim])

    return jax.tree.map(written, leaf, arrived)


@jax.jit
def _overflows_float16(arrived: jax.Array) -> jax.Array:
    return jnp.any(jnp.isfinite(arrived) & ~jnp.isfinite(arrived.astype(jnp.float16)))


def _refuse_overflow(weights: Weights, chunk: _Chunk) -> None:
    name = chunk.shard.spec.sources[chunk.shard.layers[chunk.layers.start]][0]
    raise CheckpointError(
        f"{weights[name]} or one fused with it must fit in float16, it holds values beyond 65504; "
        "load it as bfloat16 or float32"
    )


def _ignore(done: int, total: int, seconds: float) -> None:
    """The listener of callers that show nothing."""
