"""Where parameters live: one device, or a mesh over which each leaf's PartitionSpec spreads it."""

import dataclasses
import math

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxinfer.errors import ConfigError
from jaxinfer.models.parameters import ParamSpec

type Placement = jax.Device | Mesh


@dataclasses.dataclass(frozen=True)
class Shard:
    """One distinct part of a leaf, and the devices that hold a copy of it.

    layers: of a stacked leaf, else range(1).    part, num_parts: which of the equal parts of *each* source's rows.
    rest: of the source's dimensions beyond the rows.    shape: of the array on the device.

    The rows of a fused leaf are split source by source, not in the order of the whole leaf: device i's shard is the
    concatenation of every source's i-th part, since under shard_map each device needs its own q, k and v heads.
    """

    spec: ParamSpec
    devices: tuple[jax.Device, ...]
    layers: range
    part: int
    num_parts: int
    rest: tuple[slice, ...]
    shape: tuple[int, ...]

    @property
    def group_shape(self) -> tuple[int, ...]:
        """The shape that one group of sources fills on the device."""
        return self.shape[1:] if self.spec.stacked else self.shape


def sharding_for(partition: PartitionSpec, placement: Placement) -> Sharding:
    """The sharding of a leaf with this partition: whole on a device, spread over a mesh."""
    if isinstance(placement, Mesh):
        return NamedSharding(placement, partition)
    return SingleDeviceSharding(placement)


def devices_of(placement: Placement) -> list[jax.Device]:
    """The devices that will hold parameters."""
    return list(placement.devices.flat) if isinstance(placement, Mesh) else [placement]


def shards_of(spec: ParamSpec, placement: Placement) -> list[Shard]:
    """Every distinct part of the leaf that this process's devices hold."""
    _check_divides(spec, placement)
    holders: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    indices = sharding_for(spec.partition, placement).addressable_devices_indices_map(spec.shape)
    for device, index in indices.items():
        spans = tuple(part.indices(size)[:2] for part, size in zip(index, spec.shape, strict=True))
        holders.setdefault(spans, []).append(device)
    return [_shard(spec, spans, tuple(devices)) for spans, devices in holders.items()]


def shard_bytes(spec: ParamSpec, itemsize: int, placement: Placement) -> int:
    """Bytes of the leaf on each device."""
    _check_divides(spec, placement)
    return math.prod(sharding_for(spec.partition, placement).shard_shape(spec.shape)) * itemsize


def _shard(spec: ParamSpec, spans: tuple[tuple[int, int], ...], devices: tuple[jax.Device, ...]) -> Shard:
    layers, group = (range(*spans[0]), spans[1:]) if spec.stacked else (range(1), spans)
    (first_row, last_row), rest = group[0], group[1:]
    num_rows = last_row - first_row
    return Shard(
        spec,
        devices,
        layers,
        part=first_row // num_rows,
        num_parts=spec.group_shape[0] // num_rows,
        rest=tuple(slice(*span) for span in rest),
        shape=tuple(stop - start for start, stop in spans),
    )


def row_order(spec: ParamSpec, placement: Placement) -> np.ndarray | None:
    """Which row of the whole leaf lies at each row of its array over a mesh; None where each lies at its own.

    The devices' parts of a fused leaf follow each other, and each is made of every source's part.
    """
    parts = _ways(spec, placement, row_dimension(spec))
    if parts == 1 or len(spec.rows) == 1:
        return None
    starts = np.cumsum([0, *spec.rows[:-1]])
    return np.concatenate(
        [
            np.arange(start + part * rows // parts, start + (part + 1) * rows // parts)
            for part in range(parts)
            for start, rows in zip(starts, spec.rows, strict=True)
        ]
    )


def row_dimension(spec: ParamSpec) -> int:
    """The leaf's dimension along which its sources are concatenated."""
    return 1 if spec.stacked else 0


def _ways(spec: ParamSpec, placement: Placement, dimension: int) -> int:
    """How many parts a dimension is split into."""
    if not isinstance(placement, Mesh) or dimension >= len(spec.partition):
        return 1
    names = spec.partition[dimension]
    axes = () if names is None else (names,) if isinstance(names, str) else names
    return math.prod(placement.shape[axis] for axis in axes)


def _check_divides(spec: ParamSpec, placement: Placement) -> None:
    """Every split dimension, and every source's rows, must come out even."""
    for dimension in range(len(spec.partition)):
        ways = _ways(spec, placement, dimension)
        of_rows = dimension == row_dimension(spec)
        block = len(spec.layout.order) or 1 if of_rows else 1  # what an order moves rows within stays together
        for size in spec.rows if of_rows else (spec.shape[dimension],):
            if size % (ways * (block if ways > 1 else 1)):
                raise ConfigError(
                    f"the tensor-parallel size must divide every split dimension of the model, {ways} does not "
                    f"divide {size} of {spec.sources[0][0]}; use fewer devices"
                )
