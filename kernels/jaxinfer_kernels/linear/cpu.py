"""The linear layer by our kernel for CPUs, cpu.cc: bfloat16, summed in float32."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxinfer_kernels.cpu import Isa, target
from jaxinfer_kernels.linear.xla import fit, gated


def supported(dtype: jnp.dtype) -> bool:
    return dtype == jnp.bfloat16


def linear(x: jax.Array, w: jax.Array, *, out_dtype: DTypeLike | None = None, isa: Isa = Isa.AMX) -> jax.Array:
    """Multiply rows by a weight matrix.

      x: bf16[T, K].    w: bf16[N, K].    out_dtype: bfloat16 or float32; x's unless given.
      isa: the most of a processor that is used; less where it has less.
    Returns [T, N]. Of up to eight rows each one's bits are the same whatever T is.
    """
    if not fit(x, w) or not supported(x.dtype):
        raise ValueError(f"linear needs x [T, K] and w [N, K] in bfloat16, got {x.aval} and {w.aval}")
    out = jax.ShapeDtypeStruct((x.shape[0], w.shape[0]), out_dtype or x.dtype)
    return jax.ffi.ffi_call(target("Linear"), out)(x, w, isa=np.int64(isa))


def linear_residual(x: jax.Array, w: jax.Array, residual: jax.Array) -> jax.Array:
    """residual + linear(x, w).    x: [T, K].    w: [N, K].    residual: [T, N].    Returns [T, N]."""
    return residual + linear(x, w)


def gate_up(x: jax.Array, w: jax.Array) -> jax.Array:
    """silu(gate) * up of linear(x, w).    x: [T, K].    w: [2F, K], the rows of gate, then of up.    Returns [T, F]."""
    return gated(linear(x, w))
