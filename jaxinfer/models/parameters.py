"""ParamSpec: what one leaf of a model's parameters is, where it comes from and how it is spread over devices."""

import dataclasses
import math
from typing import Any, Literal, Self

import flax.struct
import jax
import numpy as np
from jax.sharding import PartitionSpec

from jaxinfer.errors import ConfigError
from jaxinfer.layers.products import Stacked
from jaxinfer.models.config import Quantization
from jaxinfer.models.file_layout import AS_STORED, FileLayout, Layout
from jaxinfer_kernels.linear.quantized import Format, Quantized, quantize, quantized_shapes

Init = Literal["normal", "bits", "ones", "zeros"] | float
May = Literal["be quantized", "have 8 bits"]
Scale = Literal["above 0", "0 or above", "not 0", "below 253"]
FLOATS = ("BF16", "F16", "F32")


@dataclasses.dataclass(frozen=True)
class Beside:
    """Tensors that may be in the file beside a leaf's, and that no leaf reads.

    holds: what their numbers must be: anything, zeros, or for each column its index // so many.
    lengths: how many numbers each of a group's is a list of; (): it may have any shape.    types: as ParamSpec.types;
      (): any.
    """

    names: tuple[tuple[str, ...], ...]
    holds: Literal["anything", "zeros"] | int = "anything"
    lengths: tuple[int, ...] = ()
    types: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """One array of a model. Not a pytree node, so a tree of specs has the structure of the tree of arrays.

    shape: of the whole leaf, the layer axis included when it is stacked.
    sources: Hugging Face tensor names. The inner names are concatenated on axis 0; the outer groups are stacked on a
      new axis 0 when `stacked`, else there is one group.
    rows: axis-0 size of each inner source, the same in every group; they add up to the concatenated axis.
    partition: mesh axis of each dimension; the name "tensor" is the tensor-parallel axis.
    init: of random weights: normal with a standard deviation of 1/sqrt(last dimension), any bits, or one number.
    dtype: of the leaf, whatever the model is loaded in; None: that.    layout: of each source in its file.
    block: rows of a source that stay together on one device, such as a head's.
    copied: for each source, whether several devices hold copies of a block where there are fewer blocks than devices.
      (): none is copied.
    may: of a matrix [N, K] that only layers.linear, layers.embedding and products.logits take: "be quantized" into what
      is asked for, or at least "have 8 bits", where fewer are asked for too; None: it stays an array.
    format: in which it is held; None: as an array.
    types: what its tensors may be stored as, as safetensors spells it.    beside: what else may be there.
    scale: of scales, what each must be, and finite; None: it holds no scales.
    """

    shape: tuple[int, ...]
    sources: tuple[tuple[str, ...], ...]
    rows: tuple[int, ...]
    partition: PartitionSpec
    init: Init = "normal"
    stacked: bool = False
    dtype: str | None = None
    layout: Layout = AS_STORED
    block: int = 1
    copied: tuple[bool, ...] = ()
    may: May | None = None
    format: Format | None = None
    types: tuple[str, ...] = FLOATS
    scale: Scale | None = None
    beside: tuple[Beside, ...] = ()

    def __post_init__(self) -> None:
        layers = len(self.sources)
        assert layers == (self.shape[0] if self.stacked else 1), "one group of sources per stacked layer"
        assert sum(self.rows) == self.group_shape[0], "the rows of the sources fill axis 0"
        assert all(len(group) == len(self.rows) for group in self.sources), "one row count per source"
        assert len(self.group_shape) == 2 or not self._layout.transposed, "only matrices are transposed"
        assert self.may is None or (len(self.shape) == 2 and self.dtype is None), "matrices alone are quantized"
        assert len(self.copied) in (0, len(self.rows)), "each source is copied or not"
        assert not any(rows % self._block for rows in self.rows), "blocks fill each source"

    @property
    def group_shape(self) -> tuple[int, ...]:
        """The shape that one group of sources fills."""
        return self.shape[1:] if self.stacked else self.shape

    def source_shape(self, index: int) -> tuple[int, ...]:
        """The shape that the `index`-th tensor of every group must have in its file."""
        return self.layout.file_shape((self.rows[index], *self.group_shape[1:]))

    def takes(self, index: int, shape: tuple[int, ...]) -> bool:
        """Whether the `index`-th tensor of a group may have this shape in its file."""
        return self.layout.takes(self.source_shape(index), shape)

    @property
    def _block(self) -> int:
        """What an order moves rows within stays together too."""
        return math.lcm(self.block, len(self._layout.order) or 1)

    @property
    def _layout(self) -> FileLayout:
        """That of its rows, where tiles have none."""
        return self.layout if isinstance(self.layout, FileLayout) else AS_STORED

    def part(self, index: int, num_parts: int) -> tuple[range, ...]:
        """Of each source the rows that one device of num_parts holds.

        Sources are split one by one, since each device needs its own heads of q, k and v. Raises ConfigError unless all
        devices hold equally many rows.
        """
        copied = self.copied or (False,) * len(self.rows)
        return tuple(self._rows_of(source, one, index, num_parts) for source, one in enumerate(copied))

    def _rows_of(self, source: int, copied: bool, index: int, num_parts: int) -> range:
        blocks = self.rows[source] // self._block
        copies = num_parts // blocks if copied and blocks < num_parts else 1
        parts = num_parts // copies
        if parts * copies != num_parts or blocks % parts:
            raise uneven(num_parts, f"{blocks} blocks of {self._block} rows of {self.sources[0][source]}")
        size = self.rows[source] // parts
        first = index // copies * size
        return range(first, first + size)

    def dtype_in[D](self, dtype: D) -> D | str:
        """The leaf's dtype in a model that is loaded in `dtype`."""
        return dtype if self.dtype is None else self.dtype

    def arrays(self, dtype: Any, **more: Any) -> jax.ShapeDtypeStruct | Quantized:
        """What it is on one device in a model that is loaded in `dtype`, as shapes.    more: of ShapeDtypeStruct."""
        kind = np.dtype(self.dtype_in(dtype))
        if self.format is None:
            return jax.ShapeDtypeStruct(self.shape, kind, **more)
        rows, columns = self.shape
        return quantized_shapes((rows, columns), self.format, kind, **more)

    def quantized(self, quantization: Quantization | None) -> Self:
        """The same in what it may be quantized into. Raises ConfigError where its shape cannot be."""
        if quantization is None or self.may is None:
            return self
        kind = Format(quantization) if self.may == "be quantized" else Format.INT8
        if not kind.fits(self.shape[1]):
            raise ConfigError(
                f"quantization {kind} needs rows of a multiple of 32 weights, {self.sources[0][0]} has rows of "
                f"{self.shape[1]}; choose int8"
            )
        return dataclasses.replace(self, format=kind)


def uneven(num_parts: int, dimension: str) -> ConfigError:
    """Of a dimension, told by its size and name, that so many devices cannot split."""
    return ConfigError(
        f"the tensor-parallel size must divide every split dimension of the model, {num_parts} does not divide "
        f"{dimension}; use fewer devices"
    )


class LayerParams(flax.struct.PyTreeNode):
    """The parameters of layers that are alike, by kind: an array [L, ...] of all, a tuple of one each, or None."""

    def __getitem__(self, layer: int) -> Self:
        """Those of one layer: of an array its row, which is not taken yet, of a tuple its item."""

        def of_layer(kind: Any) -> Any:
            if kind is None:
                return None
            return kind[layer] if isinstance(kind, tuple) else Stacked(kind, layer)

        return self.replace(**{field.name: of_layer(getattr(self, field.name)) for field in dataclasses.fields(self)})


def dtype_of(specs: Any, params: Any) -> Any:
    """The dtype that parameters were loaded in: of those that have none of their own."""
    leaves, structure = jax.tree.flatten(specs)
    held = structure.flatten_up_to(params)
    return next(np.dtype(one.dtype) for spec, one in zip(leaves, held, strict=True) if spec.dtype is None)


def held(values: jax.Array, kind: Format | None, dtype: Any) -> jax.Array | Quantized:
    """A leaf's values in its format; as they are where it has none."""
    return values if kind is None else quantize(values, kind, dtype)


def quantized_matrices(specs: Any) -> list[ParamSpec | Quantized]:
    """Of a tree of specs what is held in fewer bits: to be rounded as it is loaded, or as it was published."""
    leaves = jax.tree.leaves(specs, is_leaf=lambda node: isinstance(node, Quantized))
    return [leaf for leaf in leaves if leaf.format is not None]


def num_bytes(specs: Any, dtype: Any) -> int:
    """Of the parameters of a model that is loaded in `dtype`, on one device."""
    arrays = jax.tree.leaves([spec.arrays(dtype) for spec in jax.tree.leaves(specs)])
    return sum(math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in arrays)


def single(
    name: str, shape: tuple[int, ...], partition: PartitionSpec, init: Init = "normal", **more: Any
) -> ParamSpec:
    """A leaf that is one tensor of the checkpoint.    more: fields of ParamSpec."""
    return ParamSpec(shape, ((name,),), (shape[0],), partition, init, **more)


def stacked(
    groups: tuple[tuple[str, ...], ...],
    rows: tuple[int, ...],
    rest: tuple[int, ...],
    partition: PartitionSpec,
    init: Init = "normal",
    **more: Any,
) -> ParamSpec:
    """A leaf [L, sum(rows), *rest]; `partition` is of one layer, the layer axis is never split.

    more: fields of ParamSpec.
    """
    shape = (len(groups), sum(rows), *rest)
    return ParamSpec(shape, groups, rows, PartitionSpec(None, *partition), init, stacked=True, **more)


def matrices(
    groups: tuple[tuple[str, ...], ...], rows: tuple[int, ...], columns: int, partition: PartitionSpec, **more: Any
) -> tuple[ParamSpec, ...]:
    """One leaf [sum(rows), columns] per layer (decision 0003).    more: fields of ParamSpec."""
    return tuple(ParamSpec((sum(rows), columns), (group,), rows, partition, **more) for group in groups)
