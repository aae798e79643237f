"""The linear layer: `x @ w.T` with weights as Hugging Face stores them, `[out, in]`.

Bound by memory at small T: it must read `N * K * itemsize` bytes of weights; that is our bar. On CPUs XLA's own bf16
product of one row runs at a tenth of that, and a product written as multiply-and-sum at all of it (measured on two
cores, 6144 x 1024: 10 against 27 GB/s; from two rows on the dot is faster).
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@functools.partial(jax.jit, static_argnames="out_dtype")
def linear(x: jax.Array, w: jax.Array, *, out_dtype: DTypeLike | None = None) -> jax.Array:
    """Multiply rows by a weight matrix, summing in float32; float32 inputs are multiplied in full float32, never TF32.

      x: [T, K].    w: [N, K], of x's dtype.    out_dtype: x's dtype unless given.
    Returns [T, N]. In float32 on a CPU each row's bits are the same whatever T is.
    """
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1] or x.dtype != w.dtype:
        raise ValueError(f"linear needs x [T, K] and w [N, K] of one dtype, got {x.aval} and {w.aval}")
    out = jax.lax.platform_dependent(x, w, cpu=_cpu, default=_dot) if x.shape[0] == 1 else _dot(x, w)
    return out.astype(out_dtype or x.dtype)


def _dot(x: jax.Array, w: jax.Array) -> jax.Array:
    """f32[T, N]."""
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    contract_last = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(x, w, contract_last, precision=precision, preferred_element_type=jnp.float32)


def _cpu(x: jax.Array, w: jax.Array) -> jax.Array:
    """One row on a CPU. In float32 it runs as two, so that its bits are those it would have in a batch."""
    if x.dtype == jnp.float32:
        return _dot(jnp.concatenate([x, x]), w)[:1]
    return jnp.sum(w.astype(jnp.float32) * x.astype(jnp.float32), axis=-1)[None]


def linear_reference(x: jax.Array, w: jax.Array, *, out_dtype: DTypeLike | None = None) -> jax.Array:
    """The same function, to be believed rather than to be fast."""
    out = jnp.einsum("TK,NK->TN", x.astype(jnp.float32), w.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    return out.astype(out_dtype or x.dtype)
