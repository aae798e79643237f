"""The definition of RMS norm, to be believed rather than to be fast."""

import jax
import jax.numpy as jnp


def rms_norm_reference(x: jax.Array, norm: jax.Array, layer: int, *, eps: float) -> jax.Array:
    """The same function, to be believed rather than to be fast."""
    x32 = x.astype(jnp.float32)
    normed = x32 / jnp.sqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * norm[layer]
