"""Where parameters live: one device, or a mesh over which each leaf's PartitionSpec spreads it."""

import dataclasses
import math

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxinfer.models.parameters import ParamSpec, uneven

type Placement = jax.Device | Mesh


@dataclasses.dataclass(frozen=True)
class Shard:
    """One distinct part of a leaf, and the devices that hold a copy of it.

    layers: of a stacked leaf, else range(1).    rows: of each source; they follow each other (ParamSpec.part).
    rest: of the source's dimensions beyond the rows.    shape: of the array on the device.
    """

    spec: ParamSpec
    devices: tuple[jax.Device, ...]
    layers: range
    rows: tuple[range, ...]
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
    shape = shape_over(spec, placement)
    holders: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    indices = sharding_for(spec.partition, placement).addressable_devices_indices_map(shape)
    for device, index in indices.items():
        spans = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
        holders.setdefault(spans, []).append(device)
    return [_shard(spec, placement, spans, tuple(devices)) for spans, devices in holders.items()]


def shard_bytes(spec: ParamSpec, itemsize: int, placement: Placement) -> int:
    """Bytes of the leaf on each device."""
    return math.prod(sharding_for(spec.partition, placement).shard_shape(shape_over(spec, placement))) * itemsize


def shape_over(spec: ParamSpec, placement: Placement) -> tuple[int, ...]:
    """The shape of the leaf's array: it has more rows than the leaf where devices hold copies.

    Raises ConfigError unless every split dimension comes out even.
    """
    shape, of_rows = list(spec.shape), row_dimension(spec)
    for dimension in range(len(spec.partition)):
        ways = _ways(spec, placement, dimension)
        if dimension == of_rows:
            shape[dimension] = ways * sum(map(len, spec.part(0, ways)))
        elif shape[dimension] % ways:
            raise uneven(ways, f"{shape[dimension]} columns of {spec.sources[0][0]}")
    return tuple(shape)


def _shard(
    spec: ParamSpec, placement: Placement, spans: tuple[tuple[int, int], ...], devices: tuple[jax.Device, ...]
) -> Shard:
    layers, group = (range(*spans[0]), spans[1:]) if spec.stacked else (range(1), spans)
    (first_row, last_row), rest = group[0], group[1:]
    return Shard(
        spec,
        devices,
        layers,
        rows=spec.part(first_row // (last_row - first_row), _ways(spec, placement, row_dimension(spec))),
        rest=tuple(slice(*span) for span in rest),
        shape=tuple(stop - start for start, stop in spans),
    )


def row_order(spec: ParamSpec, placement: Placement) -> np.ndarray | None:
    """Which row of the whole leaf lies at each row of its array over a mesh; None where each lies at its own.

    The devices' parts of the leaf follow each other, and each is made of every source's part.
    """
    parts = _ways(spec, placement, row_dimension(spec))
    if parts == 1 or (len(spec.rows) == 1 and not any(spec.copied)):
        return None
    starts = np.cumsum([0, *spec.rows[:-1]])
    return np.concatenate(
        [
            start + np.arange(rows.start, rows.stop)
            for part in range(parts)
            for start, rows in zip(starts, spec.part(part, parts), strict=True)
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
