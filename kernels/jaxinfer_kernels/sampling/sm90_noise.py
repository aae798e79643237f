"""Gumbel noise in a kernel, as jax.random has it: threefry2x32 (Salmon et al., 2011), words as i32."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxinfer_kernels.sm90 import F32, I32

type Key = tuple[jax.Array, jax.Array]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def fold_in(key: Key, data: jax.Array) -> Key:
    """As jax.random.fold_in."""
    return threefry(key, I32(0), data)


def gumbel(key: Key, places: jax.Array) -> jax.Array:
    """What jax.random.gumbel has at these places of an f32 array of any length."""
    first, second = threefry(key, jnp.zeros_like(places), places)
    mantissa = lax.shift_right_logical(first ^ second, 9) | 0x3F800000
    uniform = jnp.maximum(lax.bitcast_convert_type(mantissa, F32) - 1, jnp.finfo(F32).tiny)
    return -jnp.log(-jnp.log(uniform))


def threefry(key: Key, first: jax.Array, second: jax.Array) -> Key:
    """Two words for two words, in 20 rounds."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    first, second = first + keys[0], second + keys[1]
    for i in range(5):
        for rotation in ROTATIONS[i % 2]:
            first = first + second
            second = first ^ (lax.shift_left(second, rotation) | lax.shift_right_logical(second, 32 - rotation))
        first, second = first + keys[(i + 1) % 3], second + (keys[(i + 2) % 3] + (i + 1))
    return first, second
