"""Arguments of linear layers, and how near to their definition a kernel must be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer_kernels.linear import packed4
from jaxinfer_kernels.linear.cases import MODELS
from jaxinfer_kernels.linear.quantized import Format, Quantized
from jaxinfer_kernels.linear.reference import fused_linear_reference

LAYER, LAYERS, EPS = 1, 2, 1e-6
QUICK_FIRST = [pytest.param(name, marks=pytest.mark.slow if i else ()) for i, name in enumerate(MODELS)]


def shapes(op: str, rows: int, out: int, depth: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Of what `arguments` makes: what is only lowered needs no more."""
    sizes: dict[str, tuple[int, int]] = {"x": (rows, depth), "w": (out, depth)}
    if op == "linear_residual":
        sizes["residual"] = rows, out
    elif op.startswith("norm"):
        sizes["norm"] = LAYERS, depth
    if op in ("norm_linear_bias", "linear_bias"):
        sizes["bias"] = LAYERS, out
    return {name: jax.ShapeDtypeStruct(size, jnp.bfloat16) for name, size in sizes.items()}


def arguments(op: str, rows: int, out: int, depth: int) -> dict[str, jax.Array]:
    """In bf16, of the sizes that a model has them in."""
    rng, sized = np.random.default_rng(0), {"x": (0, 3), "w": (0, depth**-0.5), "residual": (0, 3), "norm": (1, 0.2)}
    named = {}
    for name, shape in shapes(op, rows, out, depth).items():
        mean, deviation = sized.get(name, (0, 1))
        values = mean + deviation * rng.standard_normal(shape.shape, np.float32)
        named[name] = jnp.asarray(values.astype(shape.dtype))
    return named


def in_fp8(w: jax.Array, block: tuple[int, int]) -> Quantized:
    """w rounded, with a scale for each block that reaches the largest code.

    Blocks are made up to 64 times as large as others, so that a scale of another block is wrong by far.
    """
    (out, depth), (rows, columns) = w.shape, block
    blocks = np.asarray(w, np.float32).reshape(out // rows, rows, depth // columns, columns)
    blocks = blocks * np.exp2(np.random.default_rng(1).integers(-3, 4, (out // rows, 1, depth // columns, 1)))
    scales = np.abs(blocks).max((1, 3), keepdims=True) / 448
    values = jnp.asarray((blocks / scales).reshape(out, depth)).astype(jnp.float8_e4m3fn)
    return Quantized(values, jnp.asarray(scales[:, 0, :, 0]), Format.FP8, block=block)


def in_packed4(w: jax.Array, group: int, *, zeros: bool) -> Quantized:
    """Weights of 4 bits of w's shape, with all values in all places, scales up to 64 times as large as others, and
    zeros, if there are any, of 0 to 15.
    """
    out, depth = w.shape
    rng = np.random.default_rng(2)
    by_tile = out // packed4.ROWS, depth // group, packed4.ROWS
    scales = np.exp2(rng.uniform(-3, 3, by_tile)) * depth**-0.5 / 8
    return Quantized(
        jnp.asarray(packed4.pack(rng.integers(0, 16, (out, depth), np.uint8))),
        jnp.asarray(scales.astype(np.float32)),
        Format.PACKED4,
        zeros=jnp.asarray(rng.integers(0, 16, by_tile, np.uint8)) if zeros else None,
    )


def draw(t: int, n: int, k: int) -> tuple[jax.Array, jax.Array]:
    """x [T, K] and w [N, K], in bf16."""
    rng = np.random.default_rng(t)
    return tuple(jnp.asarray(rng.normal(size=size), jnp.bfloat16) for size in ((t, k), (n, k)))


def replaced(x: jax.Array, rows: int | slice, value: float) -> jax.Array:
    """x with this value in these rows, without a program of its shape."""
    changed = np.array(x)
    changed[rows] = value
    return jnp.asarray(changed)


plain = functools.partial(fused_linear_reference, layer=LAYER, eps=EPS)
# One program rounds as the definition's operations do one by one: it keeps no more bits between them.
rounded = jax.jit(plain, static_argnums=0, compiler_options={"xla_allow_excess_precision": False})


by_xla = jax.jit(plain, static_argnums=0)


def reference(op: str, named: dict[str, jax.Array]) -> np.ndarray:
    exact = {name: np.asarray(value, np.float32) for name, value in named.items()}
    return np.asarray(rounded(op, exact))


def error(out: jax.Array, wanted: np.ndarray) -> float:
    """Relative to the whole; NaN where any is."""
    return float(np.linalg.norm(np.asarray(out, np.float32) - wanted) / np.linalg.norm(wanted))


def check(op: str, named: dict[str, jax.Array], got: jax.Array) -> None:
    """It is the definition's result but for the order of sums, and as near to the exact one as rounding lets it be."""
    wanted = rounded(op, named)
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    assert error(got, reference(op, named)) < 8e-3
    assert error(got, np.asarray(wanted, np.float32)) < 3e-3


def check_beside_xla(op: str, named: dict[str, jax.Array], got: jax.Array) -> None:
    """It is no further from float32 than twice what XLA makes of the definition."""
    wanted = reference(op, named)
    assert error(got, wanted) <= 2 * error(by_xla(op, named), wanted)
