"""The leaves of a model whose checkpoint is quantized already.

A matrix [N, K] becomes Quantized(values, scales) whose parts are leaves of their own, each with its tensors, its dtype
and its place in the file: a loader, a plan and a check treat them as any other leaf. How they lie in memory:
jaxinfer_kernels/linear/quantized.py.
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxinfer.errors import CheckpointError
from jaxinfer.models.config import clipped
from jaxinfer.models.file_layout import AS_STORED, FileLayout, Int4Layout, Int8Layout, Part
from jaxinfer.models.parameters import FLOATS, Beside, ParamSpec
from jaxinfer.models.published import BLOCK, HEAD, Fp4, Fp8, Int4, Int8, Published, Scheme
from jaxinfer_kernels.linear import packed4
from jaxinfer_kernels.linear.quantized import Format, Quantized

SCALES = ("F32", "BF16", "F16", "F8_E8M0")  # what scales may be stored as
WEIGHT = ".weight"
_INT4_NAMES: tuple[dict[Part, str], ...] = (
    {"values": "weight_packed", "scales": "weight_scale", "zeros": "weight_zero_point"},
    {"values": "qweight", "scales": "scales", "zeros": "qzeros"},
)
_SPREAD4, _SPREAD8, _SPREAD_FP4 = 4.6, 73.9, 2.93  # standard deviations of all that values stand for, before scales


def as_published(specs: Any, published: Published, rounded: Format | None = None) -> Any:
    """The tree of ParamSpec with what is stored quantized as that.

    rounded: what those matrices are rounded to when they have been loaded; None leaves them as published, as those are
      in any case that have that form already.
    Raises CheckpointError for matrices that are fused and not stored alike.
    """
    mixed: list[str] = []
    moved: list[str] = []
    faults: list[str] = []

    def of(spec: ParamSpec) -> ParamSpec | Quantized:
        modules = [name.removesuffix(WEIGHT) for group in spec.sources for name in group]
        if spec.may is None or (spec.may == "have 8 bits" and modules != [HEAD]):
            return spec
        schemes = [published.of(module) for module in modules]
        if len(set(schemes)) > 1:
            pairs = zip(modules, schemes, strict=True)
            mixed.extend(f"{module} is {scheme or 'not quantized'}" for module, scheme in pairs)
            return spec
        if schemes[0] is None:
            return spec
        if not has_order(spec, schemes[0]):
            moved.extend(modules)
            return spec
        if isinstance(schemes[0], Int4 | Fp4):
            faults.extend(tile_faults(spec, schemes[0]))
        if faults:
            return spec
        held = quantized(spec, schemes[0])
        return held if rounded in (None, held.format) else dataclasses.replace(spec, format=rounded)

    tree = jax.tree.map(of, specs)
    _refuse(
        faults,
        "matrices of 4 bits must have rows in multiples of 64, columns in multiples of 128, and whole groups of 32, "
        "64, 128 or all columns",
        "take a checkpoint in FP8, or the original in bfloat16",
    )
    _refuse(
        moved,
        "matrices whose rows or columns this model has in another order than the file must be fp8 or int8 "
        "with a scale per channel or tensor; by quantization_config these are not",
        "take such a checkpoint, or the original in bfloat16",
    )
    _refuse(
        mixed,
        "matrices that are one product here must be stored alike, as q_proj, k_proj and v_proj of a layer, or "
        "gate_proj and up_proj; by quantization_config they are not",
        "take a checkpoint that quantizes all of them or none",
    )
    return tree


def _refuse(faults: list[str], law: str, cure: str) -> None:
    if faults:
        lines = "".join(f"\n  - {line}" for line in clipped(faults))
        raise CheckpointError(f"config.json: {law}:{lines}\n{cure}")


def has_order(spec: ParamSpec, scheme: Scheme) -> bool:
    """Whether a matrix that is stored so can be read in the order that the model has its rows in."""
    if spec.layout == AS_STORED:
        return True
    is_order_of_rows = isinstance(spec.layout, FileLayout) and spec.layout == FileLayout(order=spec.layout.order)
    if isinstance(scheme, Int8):
        return is_order_of_rows and not scheme.packed
    return is_order_of_rows and isinstance(scheme, Fp8) and scheme.sharing != "block"


def quantized(spec: ParamSpec, scheme: Scheme) -> Quantized:
    """A matrix that is stored so, as its parts."""
    if isinstance(scheme, Int4):
        return int4(spec, scheme)
    if isinstance(scheme, Fp4):
        return fp4(spec, scheme)
    return int8(spec, scheme) if isinstance(scheme, Int8) else fp8(spec, scheme)


def fp8(spec: ParamSpec, scheme: Fp8) -> Quantized:
    """A matrix whose values are float8_e4m3fn."""
    rows, columns = spec.shape
    block = scheme.block(spec.rows, columns)
    shared = {"block": BLOCK // block[0], "channel": 1, "tensor": max(spec.rows)}[scheme.sharing]
    of_members = tuple(-(-size // block[0]) for size in spec.rows)
    scales = ParamSpec(
        (sum(of_members), -(-columns // block[1])),
        _renamed(spec, scheme.scale),
        of_members,
        PartitionSpec(None, None),
        "ones",
        dtype="float32",
        layout=FileLayout(order=_order(spec, scheme), shared=shared, ones_may_be_left_out=True),
        types=SCALES,
        scale="above 0",
    )
    beside = (Beside(_renamed(spec, "input_scale")),)
    values = dataclasses.replace(spec, may=None, dtype="float8_e4m3fn", types=("F8_E4M3",), beside=beside)
    return Quantized(values, scales, Format.FP8, block=block)


def int8(spec: ParamSpec, scheme: Int8) -> Quantized:
    """A matrix whose values are int8, as `--quantization int8` makes it."""
    rows, columns = spec.shape
    shared = 1 if scheme.sharing == "channel" else max(spec.rows)
    scales = ParamSpec(
        (rows,),
        _renamed(spec, "weight_scale"),
        spec.rows,
        PartitionSpec(None),
        1 / (_SPREAD8 * columns**0.5),
        dtype="float32",
        layout=FileLayout(order=_order(spec, scheme), shared=shared, ones_may_be_left_out=True),
        types=SCALES,
        scale="above 0",
    )
    more: dict[str, Any] = dict(types=("I8",))
    beside = [Beside(_renamed(spec, last)) for last in ("input_scale", "input_zero_point")]
    if scheme.packed:
        more = dict(sources=_renamed(spec, "weight_packed"), types=("I32",), layout=Int8Layout())
        beside = [_weight_shape(spec)]
    values = dataclasses.replace(spec, may=None, dtype="int8", init="bits", beside=tuple(beside), **more)
    return Quantized(values, scales, Format.INT8)


def _order(spec: ParamSpec, scheme: Fp8 | Int8) -> tuple[int, ...]:
    """Of scales. has_order: an order is of rows, and each row has a scale."""
    return spec.layout.order if isinstance(spec.layout, FileLayout) and scheme.sharing == "channel" else ()


def _weight_shape(spec: ParamSpec) -> Beside:
    return Beside(_renamed(spec, "weight_shape"), lengths=(2,) * len(spec.rows), types=("I32", "I64"))


def tile_faults(spec: ParamSpec, scheme: Int4 | Fp4) -> list[str]:
    """What keeps a matrix from being held in tiles."""
    columns = spec.shape[1]
    group = scheme.group or columns
    return [
        f"{name.removesuffix(WEIGHT)} has {rows} rows and {columns} columns in groups of {group}"
        for name, rows in zip(spec.sources[0], spec.rows, strict=True)
        if not packed4.supported(rows, columns) or columns % group
    ]


def int4(spec: ParamSpec, scheme: Int4) -> Quantized:
    """A matrix of 4 bits, in tiles of 64 rows."""
    columns = spec.shape[1]
    names = _INT4_NAMES[scheme.packing != "compressed-tensors"]
    tiles = tuple(rows // packed4.ROWS for rows in spec.rows)
    beside = [_weight_shape(spec)]
    if scheme.packing.startswith("gptq"):
        # its tools save a bias for each matrix, of zeros where the model has none
        groups_of = Beside(_renamed(spec, "g_idx"), scheme.group or columns, (columns,) * len(spec.rows), ("I32",))
        beside = [groups_of, Beside(_renamed(spec, "bias"), "zeros", spec.rows, FLOATS)]

    def part(name: Part, width: int, last: int, dtype: str, types: tuple[str, ...], **more: Any) -> ParamSpec:
        return ParamSpec(
            (sum(tiles), width, last),
            _renamed(spec, names[name]),
            tiles,
            PartitionSpec(None, None, None),
            dtype=dtype,
            types=types,
            layout=Int4Layout(scheme.packing, name),
            **more,
        )

    groups = columns // (scheme.group or columns)
    values = part("values", columns // 16, packed4.COLUMNS, "int32", ("I32",), init="bits", beside=tuple(beside))
    ordinary = 1 / (_SPREAD4 * columns**0.5)
    # tools store float16 beside any dtype of the model; of symmetric ones some store scales below 0
    scales = part("scales", groups, packed4.ROWS, "float32", FLOATS, init=ordinary, scale="not 0")
    if not scheme.stores_zeros:
        return Quantized(values, scales, Format.PACKED4)
    zeros = part("zeros", groups, packed4.ROWS, "uint8", ("I32",), init=float(packed4.ZERO))
    return Quantized(values, scales, Format.PACKED4, zeros=zeros)


def fp4(spec: ParamSpec, scheme: Fp4) -> Quantized:
    """A matrix of NVFP4 or MXFP4, in tiles of 64 rows."""
    columns, tiles = spec.shape[1], tuple(rows // packed4.ROWS for rows in spec.rows)
    divides = scheme.tool == "compressed-tensors"
    values, whole, of_inputs = (
        ("weight_packed", "weight_global_scale", "input_global_scale")
        if divides
        else ("weight", "weight_scale_2", "input_scale")
    )
    ordinary = 1 / (_SPREAD_FP4 * columns**0.5)
    of_tiles = PartitionSpec(None, None, None)
    return Quantized(
        ParamSpec(
            (sum(tiles), columns // 16, packed4.COLUMNS),
            _renamed(spec, values),
            tiles,
            of_tiles,
            init="bits",
            dtype="int32",
            layout=Int4Layout("fp4", "values"),
            types=("U8",),
            beside=(Beside(_renamed(spec, of_inputs)),),
        ),
        ParamSpec(
            (sum(tiles), columns // scheme.group, packed4.ROWS),
            _renamed(spec, "weight_scale"),
            tiles,
            of_tiles,
            init=ordinary if scheme.mx else "ones",
            dtype="float8_e8m0fnu" if scheme.mx else "float8_e4m3fn",
            layout=Int4Layout("fp4", "scales"),
            types=("U8",) if scheme.mx else ("F8_E4M3",),
            # 6 * 2**126 is no float32; a block of all but nothing may have a scale of 0
            scale="below 253" if scheme.mx else "0 or above",
        ),
        Format.FP4,
        of_rows=None
        if scheme.mx
        else ParamSpec(
            (spec.shape[0],),
            _renamed(spec, whole),
            spec.rows,
            PartitionSpec(None),
            init=1 / ordinary if divides else ordinary,
            dtype="float32",
            layout=FileLayout(shared=max(spec.rows), ones_may_be_left_out=True),
            types=("F32",),
            scale="above 0",
        ),
        divides=divides,
    )


def _renamed(spec: ParamSpec, last: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(f"{name.removesuffix(WEIGHT)}.{last}" for name in group) for group in spec.sources)
