"""The leaves of a model whose checkpoint is quantized already.

A matrix [N, K] becomes Quantized(values, scales) whose parts are leaves of their own, each with its tensors, its dtype
and its place in the file: a loader, a plan and a check treat them as any other leaf. How they lie in memory:
jaxinfer_kernels/linear/quantized.py.
"""

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxinfer.errors import CheckpointError
from jaxinfer.models.parameters import FileLayout, ParamSpec
from jaxinfer.models.published import HEAD, Published, Scheme
from jaxinfer_kernels.linear.quantized import Format, Quantized

BLOCK = 128  # rows and columns of a block
SCALES = ("F32", "BF16", "F16", "F8_E8M0")  # what scales may be stored as
WEIGHT = ".weight"


def as_published(specs: Any, published: Published, rounded: Format | None = None) -> Any:
    """The tree of ParamSpec with what is stored quantized as that.

    rounded: what those matrices are rounded to when they have been loaded; None leaves them as published.
    Raises CheckpointError for matrices that are fused and not stored alike.
    """
    mixed: list[str] = []

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
        return fp8(spec, schemes[0]) if rounded is None else dataclasses.replace(spec, format=rounded)

    tree = jax.tree.map(of, specs)
    if mixed:
        more = [f"and {len(mixed) - 12} more"] if len(mixed) > 12 else []
        lines = "".join(f"\n  - {line}" for line in [*mixed[:12], *more])
        raise CheckpointError(
            "config.json: matrices that are one product here must be stored alike, as q_proj, k_proj and v_proj of a "
            f"layer, or gate_proj and up_proj; by quantization_config they are not:{lines}\n"
            "take a checkpoint that quantizes all of them or none"
        )
    return tree


def fp8(spec: ParamSpec, scheme: Scheme) -> Quantized:
    """A matrix whose values are float8_e4m3fn."""
    rows, columns = spec.shape
    if scheme.sharing == "block":
        # A block of a fused matrix must not reach from one member into the next.
        of_block = BLOCK if len(spec.rows) == 1 else math.gcd(BLOCK, *spec.rows)
        block, shared = (of_block, BLOCK), BLOCK // of_block
    else:
        block, shared = (1, columns), 1 if scheme.sharing == "channel" else max(spec.rows)
    of_members = tuple(-(-size // block[0]) for size in spec.rows)
    whole = PartitionSpec(None, None)
    scales = ParamSpec(
        (sum(of_members), -(-columns // block[1])),
        _renamed(spec, scheme.scale),
        of_members,
        whole,
        "ones",
        dtype="float32",
        layout=FileLayout(shared=shared, ones_may_be_left_out=True),
        types=SCALES,
        positive=True,
    )
    values = dataclasses.replace(
        spec, may=None, dtype="float8_e4m3fn", types=("F8_E4M3",), beside=_renamed(spec, "input_scale")
    )
    return Quantized(values, scales, Format.FP8, block=block)


def _renamed(spec: ParamSpec, last: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(f"{name.removesuffix(WEIGHT)}.{last}" for name in group) for group in spec.sources)
