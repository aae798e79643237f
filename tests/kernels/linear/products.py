"""Arguments of linear layers, and how near to their definition a kernel must be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer_kernels.linear.cases import MODELS
from jaxinfer_kernels.linear.reference import fused_linear_reference

LAYER, LAYERS, EPS = 1, 2, 1e-6
QUICK_FIRST = [pytest.param(name, marks=pytest.mark.slow if i else ()) for i, name in enumerate(MODELS)]


def arguments(op: str, rows: int, out: int, depth: int) -> dict[str, jax.Array]:
    """In bf16, of the sizes that a model has them in."""
    keys = jax.random.split(jax.random.key(0), 4)
    normal = functools.partial(jax.random.normal, dtype=jnp.float32)
    named = {"x": 3 * normal(keys[0], (rows, depth)), "w": depth**-0.5 * normal(keys[1], (out, depth))}
    if op == "linear_residual":
        named["residual"] = 3 * normal(keys[2], (rows, out))
    elif op.startswith("norm"):
        named["norm"] = 1 + 0.2 * normal(keys[2], (LAYERS, depth))
    if op in ("norm_linear_bias", "linear_bias"):
        named["bias"] = normal(keys[3], (LAYERS, out))
    return {name: value.astype(jnp.bfloat16) for name, value in named.items()}


plain = functools.partial(fused_linear_reference, layer=LAYER, eps=EPS)


def reference(op: str, named: dict[str, jax.Array]) -> np.ndarray:
    return np.asarray(plain(op, {name: value.astype(jnp.float32) for name, value in named.items()}))


def error(out: jax.Array, wanted: np.ndarray) -> float:
    """Relative to the whole; NaN where any is."""
    return float(np.linalg.norm(np.asarray(out, np.float32) - wanted) / np.linalg.norm(wanted))


def check(op: str, named: dict[str, jax.Array], got: jax.Array) -> None:
    """It is the definition's result but for the order of sums, and as near to the exact one as rounding lets it be."""
    wanted = plain(op, named)
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    assert error(got, reference(op, named)) < 8e-3
    assert error(got, np.asarray(wanted, np.float32)) < 3e-3


def check_beside_xla(op: str, named: dict[str, jax.Array], got: jax.Array) -> None:
    """It is no further from float32 than twice what XLA makes of the definition."""
    wanted = reference(op, named)
    assert error(got, wanted) <= 2 * error(jax.jit(plain, static_argnums=0)(op, named), wanted)
