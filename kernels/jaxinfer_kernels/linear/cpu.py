"""Linear layers by our kernels for CPUs: bfloat16 by weights of that (cpu.cc) or of fewer bits (cpu_quantized.cc)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxinfer_kernels.cpu import Isa, target
from jaxinfer_kernels.linear.quantized import Format, Quantized
from jaxinfer_kernels.linear.xla import fit, gated

type Weights = jax.Array | Quantized

_OF_FORMAT = {Format.INT8: "LinearInt8", Format.INT4: "LinearInt4"}


def supported(dtype: jnp.dtype) -> bool:
    return dtype == jnp.bfloat16


def linear(x: jax.Array, w: Weights, *, out_dtype: DTypeLike | None = None, isa: Isa = Isa.AMX) -> jax.Array:
    """Multiply rows by a weight matrix.

      x: bf16[T, K].    w: bf16[N, K], or the same quantized.    out_dtype: bfloat16 or float32; x's unless given.
      isa: the most of a processor that is used; less where it has less.
    Returns [T, N]. Of up to eight rows each one's bits are the same whatever T is.

    With quantized weights, up to eight rows of x are rounded to 8 bits too (reference.linear_quantized_reference), and
    any number of them where the processor has no AMX.
    """
    if not fit(x, w) or not supported(x.dtype):
        raise ValueError(f"linear needs x [T, K] and w [N, K] in bfloat16, got {x.aval} and {w}")
    out = jax.ShapeDtypeStruct((x.shape[0], w.shape[0]), out_dtype or x.dtype)
    if isinstance(w, Quantized):
        return jax.ffi.ffi_call(target(_OF_FORMAT[w.format]), out)(x, w.values, w.scales, isa=np.int64(isa))
    return jax.ffi.ffi_call(target("Linear"), out)(x, w, isa=np.int64(isa))


def linear_residual(x: jax.Array, w: Weights, residual: jax.Array) -> jax.Array:
    """residual + linear(x, w).    x: [T, K].    w: [N, K].    residual: [T, N].    Returns [T, N]."""
    return residual + linear(x, w)


def gate_up(x: jax.Array, w: Weights) -> jax.Array:
    """silu(gate) * up of linear(x, w).    x: [T, K].    w: [2F, K], the rows of gate, then of up.    Returns [T, F]."""
    return gated(linear(x, w))
