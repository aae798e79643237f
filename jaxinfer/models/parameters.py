"""ParamSpec: what one leaf of a model's parameters is, where it comes from and how it is spread over devices."""

import dataclasses
from typing import Any, Literal, Self

import flax.struct
from jax.sharding import PartitionSpec

from jaxinfer.layers.products import Stacked

Init = Literal["normal", "ones", "zeros"]


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """One array of a model. Not a pytree node, so a tree of specs has the structure of the tree of arrays.

    shape: of the whole leaf, the layer axis included when it is stacked.
    sources: Hugging Face tensor names. The inner names are concatenated on axis 0; the outer groups are stacked on a
      new axis 0 when `stacked`, else there is one group.
    rows: axis-0 size of each inner source, the same in every group; they add up to the concatenated axis.
    partition: mesh axis of each dimension; the name "tensor" is the tensor-parallel axis.
    init: of random weights: normal with a standard deviation of 1/sqrt(last dimension), ones or zeros.
    """

    shape: tuple[int, ...]
    sources: tuple[tuple[str, ...], ...]
    rows: tuple[int, ...]
    partition: PartitionSpec
    init: Init = "normal"
    stacked: bool = False

    def __post_init__(self) -> None:
        layers = len(self.sources)
        assert layers == (self.shape[0] if self.stacked else 1), "one group of sources per stacked layer"
        assert sum(self.rows) == self.group_shape[0], "the rows of the sources fill axis 0"
        assert all(len(group) == len(self.rows) for group in self.sources), "one row count per source"

    @property
    def group_shape(self) -> tuple[int, ...]:
        """The shape that one group of sources fills."""
        return self.shape[1:] if self.stacked else self.shape

    def source_shape(self, index: int) -> tuple[int, ...]:
        """The shape that the `index`-th tensor of every group must have."""
        return (self.rows[index], *self.group_shape[1:])


class LayerParams(flax.struct.PyTreeNode):
    """The parameters of layers that are alike, by kind: an array [L, ...] of all, a tuple of one each, or None."""

    def __getitem__(self, layer: int) -> Self:
        """Those of one layer: of an array its row, which is not taken yet, of a tuple its item."""

        def of_layer(kind: Any) -> Any:
            if kind is None:
                return None
            return kind[layer] if isinstance(kind, tuple) else Stacked(kind, layer)

        return self.replace(**{field.name: of_layer(getattr(self, field.name)) for field in dataclasses.fields(self)})


def single(name: str, shape: tuple[int, ...], partition: PartitionSpec, init: Init = "normal") -> ParamSpec:
    """A leaf that is one tensor of the checkpoint."""
    return ParamSpec(shape, ((name,),), (shape[0],), partition, init)


def stacked(
    groups: tuple[tuple[str, ...], ...],
    rows: tuple[int, ...],
    rest: tuple[int, ...],
    partition: PartitionSpec,
    init: Init = "normal",
) -> ParamSpec:
    """A leaf [L, sum(rows), *rest]; `partition` is of one layer, the layer axis is never split."""
    shape = (len(groups), sum(rows), *rest)
    return ParamSpec(shape, groups, rows, PartitionSpec(None, *partition), init, stacked=True)


def matrices(
    groups: tuple[tuple[str, ...], ...], rows: tuple[int, ...], columns: int, partition: PartitionSpec
) -> tuple[ParamSpec, ...]:
    """One leaf [sum(rows), columns] per layer (decision 0003)."""
    return tuple(ParamSpec((sum(rows), columns), (group,), rows, partition) for group in groups)
