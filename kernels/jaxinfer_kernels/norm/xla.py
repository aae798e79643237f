"""RMS norm as plain operations: XLA fuses it with its neighbours."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "*rows H"], weight: Float[Array, "H"], eps: float) -> Float[Array, "*rows H"]:
    """x over its root mean square along the last axis; normed in f32, rounded, then scaled: the checkpoint's order."""
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)).astype(x.dtype) * weight
