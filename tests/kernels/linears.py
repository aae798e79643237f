"""The linear layers of real models and their definitions, for the tests of the kernels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

LAYER, LAYERS, EPS = 1, 2, 1e-6
# Model width, rows of qkv, query heads times head_dim, MLP width
MODELS = {
    "Qwen2.5-1.5B": (1536, 2048, 1536, 8960),
    "Qwen3-8B": (4096, 6144, 4096, 12288),
    "Qwen3-0.6B": (1024, 4096, 2048, 3072),
    "Qwen2.5-0.5B": (896, 1152, 896, 4864),
    "Llama-3.2-1B": (2048, 3072, 2048, 8192),
}
QUICK_FIRST = [pytest.param(name, marks=pytest.mark.slow if i else ()) for i, name in enumerate(MODELS)]


def arguments(op: str, rows: int, out: int, depth: int) -> dict[str, jax.Array]:
    """In bf16, of the sizes that a model has them in."""
    keys = jax.random.split(jax.random.key(0), 4)
    normal = functools.partial(jax.random.normal, dtype=jnp.float32)
    named = {"x": 3 * normal(keys[0], (rows, depth)), "w": depth**-0.5 * normal(keys[1], (out, depth))}
    if op == "linear_residual":
        named["residual"] = 3 * normal(keys[2], (rows, out))
    elif op.startswith(("norm", "logits")):
        named["norm"] = 1 + 0.2 * normal(keys[2], (LAYERS, depth))
    if op in ("norm_linear_bias", "linear_bias"):
        named["bias"] = normal(keys[3], (LAYERS, out))
    return {name: value.astype(jnp.bfloat16) for name, value in named.items()}


def plain(op: str, named: dict[str, jax.Array]) -> jax.Array:
    """The definition as XLA runs it, in the arguments' precision."""
    x, w = named["x"], named["w"]
    if "norm" in named:
        x32 = x.astype(jnp.float32)
        x = (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + EPS)).astype(x.dtype)
        x = x * named["norm"][LAYER]
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    y = jnp.einsum("TK,NK->TN", x, w, preferred_element_type=jnp.float32, precision=precision)
    if op == "logits":
        return y
    y = y.astype(w.dtype)
    if op in ("norm_gate_up", "gate_up"):
        gate, up = jnp.split(y.astype(jnp.float32), 2, axis=-1)
        return (jax.nn.silu(gate) * up).astype(w.dtype)
    return y + (named["bias"][LAYER] if "bias" in named else named.get("residual", jnp.zeros((), w.dtype)))


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


def layer_ops(model: str) -> list[tuple[str, int, int]]:
    """Op, out, depth of every linear layer of a model."""
    width, qkv, heads, mlp = MODELS[model]
    return [
        ("norm_linear_bias" if model.startswith("Qwen2.5") else "norm_linear", qkv, width),
        ("linear_residual", width, heads),
        ("norm_gate_up", 2 * mlp, width),
        ("linear_residual", width, mlp),
        ("logits", 151936, width),
    ]
