"""The definitions of the linear layers, to be believed rather than to be fast."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jaxinfer_kernels.linear.quantized import Format, Quantized


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


def linear_quantized_reference(x: ArrayLike, w: Quantized) -> np.ndarray:
    """The arithmetic of cpu_quantized.cc for up to eight rows, f32[T, N], but for the order of its sums of float32.

    Each row of x is rounded to 8 bits with a scale per group of 32 columns. A group's products with weights are summed
    as integers. Of int8, a group is 16 columns and the 16 that are 64 columns on; of int4 the columns of a scale.
    """
    held, scales = np.asarray(w.values), np.asarray(w.scales, np.float32)
    if w.format is Format.INT8:
        values, of_weights = held.astype(np.int32), np.ones((1, 1, 1), np.float32)
    else:
        halves = held.reshape(len(held), -1, 16)
        values = np.concatenate([halves & 15, halves >> 4], axis=-1).reshape(w.shape).astype(np.int32) - 8
        missing = -scales.shape[1] % 4
        of_weights = np.pad(scales, ((0, 0), (0, missing))).reshape(len(held), -1, 4)
    rows, of_x = _rounded(_grouped(np.asarray(x, np.float32), w.format))  # [T, B, 4, 32], [T, B, 4]
    products = np.einsum("TBGC,NBGC->TNBG", rows, _grouped(values, w.format))
    sums = (products.astype(np.float32) * (of_x[:, None] * of_weights)).sum(axis=(2, 3))
    return sums * scales if w.format is Format.INT8 else sums


def _grouped(rows: np.ndarray, kind: Format) -> np.ndarray:
    """[R, B, 4, 32] of rows [R, K], as many zeros behind as a block of 128 has room for."""
    blocks = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 128))).reshape(len(rows), -1, 128)
    if kind is Format.INT8:
        blocks = blocks.reshape(*blocks.shape[:2], 2, 4, 16).swapaxes(2, 3)
    return blocks.reshape(*blocks.shape[:2], 4, 32)


def _rounded(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values -127 .. 127 of groups, halves away from zero, and each group's scale."""
    most = np.abs(groups).max(axis=-1)
    counts = most >= np.float32(1e-30)
    twice = (groups * np.where(counts, np.float32(254) / np.where(counts, most, 1), 0)[..., None]).astype(np.int32)
    return np.sign(twice) * ((np.abs(twice) + 1) // 2), most / np.float32(127)
