"""The definitions of the linear layers, to be believed rather than to be fast."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def linear_reference(x: jax.Array, w: jax.Array, *, out_dtype: DTypeLike | None = None) -> jax.Array:
    """linear.xla.linear, in float32."""
    out = jnp.einsum("TK,NK->TN", x.astype(jnp.float32), w.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    return out.astype(out_dtype or x.dtype)


def fused_linear_reference(op: str, named: dict[str, jax.Array], *, layer: int, eps: float) -> jax.Array:
    """A linear layer with its neighbours, in the arguments' precision: in float32 it is the exact result.

    op:    what is computed: silu(gate) * up if it ends in "gate_up", else x @ w.T.
    named: x [T, K] and w [N, K], and norm [L, K] taken of x first, bias [L, N] or residual [T, N] added, if there.
    """
    x, w = named["x"], named["w"]
    if "norm" in named:
        x32 = x.astype(jnp.float32)
        x = (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)).astype(x.dtype)
        x = x * named["norm"][layer]
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    y = jnp.einsum("TK,NK->TN", x, w, preferred_element_type=jnp.float32, precision=precision)
    y = y.astype(w.dtype)
    if op.endswith("gate_up"):
        gate, up = jnp.split(y.astype(jnp.float32), 2, axis=-1)
        return (jax.nn.silu(gate) * up).astype(w.dtype)
    return y + (named["bias"][layer] if "bias" in named else named.get("residual", jnp.zeros((), w.dtype)))
