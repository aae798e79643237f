"""The linear layer: `x @ w.T` with weights as Hugging Face stores them, `[out, in]`, alone and with its neighbours.

Bound by memory at small T: it must read `N * K * itemsize` bytes of weights; that is our bar. On CPUs XLA's own bf16
product of one row runs at a tenth of that, and a product written as multiply-and-sum at all of it (measured on two
cores, 6144 x 1024: 10 against 27 GB/s; from two rows on the dot is faster).
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxinfer_kernels.linear.quantized import Quantized


@functools.partial(jax.jit, static_argnames="out_dtype")
def linear(
    x: Float[Array, "T K"], w: Float[Array, "N K"] | Quantized, *, out_dtype: DTypeLike | None = None
) -> Float[Array, "T N"]:
    """Multiply rows by a weight matrix, summing in float32; float32 inputs are multiplied in full float32, never TF32.

      w: of x's dtype, or quantized and then widened to it first.    out_dtype: x's dtype unless given.
    In float32 on a CPU each row's bits are the same whatever T is.
    """
    if not fit(x, w):
        raise ValueError(f"linear needs x [T, K] and w [N, K] of one dtype, got {x.aval} and {w.aval}")
    if isinstance(w, Quantized):
        # What is widened waits for x: else XLA widens the matrices of all layers before the first product.
        w, x = jax.lax.optimization_barrier((w, x))
        w = w.widened(x.dtype)
    dtype = out_dtype or x.dtype
    # A GPU's libraries round their sums in place; rounding a float32 result would be a kernel of its own.
    rounded = functools.partial(_dot, out_dtype=dtype)
    return jax.lax.platform_dependent(x, w, cpu=lambda x, w: _cpu(x, w).astype(dtype), default=rounded)


def fit(x: jax.Array | jax.ShapeDtypeStruct, w: jax.Array | jax.ShapeDtypeStruct | Quantized) -> bool:
    """Whether they are x [T, K] and w [N, K] of one dtype, or w quantized, for that dtype or for any."""
    return x.ndim == w.ndim == 2 and x.shape[1] == w.shape[1] and (w.dtype is None or w.dtype == x.dtype)


def linear_residual(
    x: Float[Array, "T K"], w: Float[Array, "N K"] | Quantized, residual: Float[Array, "T N"]
) -> Float[Array, "T N"]:
    """residual + linear(x, w)."""
    return residual + linear(x, w)


def gate_up(x: Float[Array, "T K"], w: Float[Array, "G K"] | Quantized) -> Float[Array, "T F"]:
    """silu(gate) * up of linear(x, w).    w: the rows of gate, then of up."""
    return gated(linear(x, w))


def gated(product: Float[Array, "T G"]) -> Float[Array, "T G//2"]:
    """silu(gate) * up of gate and up side by side."""
    gate, up = jnp.split(product, 2, axis=-1)  # [T, F] each
    # In f32: XLA fuses the casts, and a bf16 silu would round twice.
    return (jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(product.dtype)


def _dot(x: jax.Array, w: jax.Array, out_dtype: DTypeLike = jnp.float32) -> jax.Array:
    """[T, N], summed in float32."""
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    contract_last = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(x, w, contract_last, precision=precision, preferred_element_type=out_dtype)


def _cpu(x: jax.Array, w: jax.Array) -> jax.Array:
    """f32[T, N]. In float32 one row runs as two, so that its bits are those it would have in a batch."""
    if x.dtype == jnp.float16:
        return _in_blocks(x, w)
    if x.shape[0] > 1:
        return _dot(x, w)
    if x.dtype == jnp.float32:
        return _dot(jnp.concatenate([x, x]), w)[:1]
    return jnp.sum(w.astype(jnp.float32) * x.astype(jnp.float32), axis=-1)[None]


def _in_blocks(x: jax.Array, w: jax.Array) -> jax.Array:
    """f32[T, N] by rows of w that are made float32 while they are in the cache."""
    num_rows, block, x = w.shape[0], min(w.shape[0], 256), x.astype(jnp.float32)

    def step(i: jax.Array, out: jax.Array) -> jax.Array:
        rows = jax.lax.dynamic_slice_in_dim(w, i * block, block).astype(jnp.float32)  # the last block is moved to fit,
        return jax.lax.dynamic_update_slice_in_dim(out, _dot(x, rows), i * block, axis=1)  # and its result likewise

    return jax.lax.fori_loop(0, -(-num_rows // block), step, jnp.zeros((x.shape[0], num_rows), jnp.float32))
