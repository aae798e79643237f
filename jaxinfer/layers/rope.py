"""Rotary position embedding: angles of positions, and heads turned by them. Halves are rotated, not pairs.

Sources: RoFormer (Su et al., arXiv:2104.09864); linear scaling (Chen et al., arXiv:2306.15595); YaRN (Peng et al.,
arXiv:2309.00071, section 3); Llama 3.1's scaling as Meta published it with the model.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from jaxinfer.layers.spec import Rope


def frequencies(rope: Rope, head_dim: int) -> Float32[np.ndarray, "{head_dim}//2"]:
    """Radians per position of each pair of a head's dimensions; computed in f64, rounded once."""
    plain = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.kind == "linear":
        plain = plain / rope.factor
    elif rope.kind == "llama3":
        plain = _blend(plain, rope.factor, _llama3_kept(rope, plain))
    elif rope.kind == "yarn":
        plain = _blend(plain, rope.factor, _yarn_kept(rope, head_dim))
    return plain.astype(np.float32)


def _blend(plain: np.ndarray, factor: float, kept: np.ndarray) -> np.ndarray:
    """Where `kept` is 1 the frequency stays, where it is 0 it is divided by `factor`."""
    return plain * (kept + (1.0 - kept) / factor)


def _llama3_kept(rope: Rope, plain: np.ndarray) -> np.ndarray:
    turns = rope.original_max_position * plain / (2 * math.pi)  # full turns within the original context
    return np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)


def _yarn_kept(rope: Rope, head_dim: int) -> np.ndarray:
    def dimension(turns: float) -> float:
        """The (fractional) pair that makes `turns` full turns within the original context."""
        ratio = rope.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    first, last = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)  # head_dim - 1, not head_dim / 2 - 1: as published
    width = last - first if last != first else 0.001
    return 1.0 - np.clip((np.arange(head_dim // 2) - first) / width, 0.0, 1.0)


def rotation(
    rope: Rope, head_dim: int, positions: Int[Array, "T"]
) -> tuple[Float32[Array, "T 1 {head_dim}//2"], Float32[Array, "T 1 {head_dim}//2"]]:
    """cos and sin of positions."""
    angle = positions[:, None, None].astype(jnp.float32) * frequencies(rope, head_dim)  # f32: bf16 rounds 257 to 256
    return jnp.cos(angle) * rope.attention_factor, jnp.sin(angle) * rope.attention_factor


def rotate(
    x: Float[Array, "T heads H"], cos_sin: tuple[Float32[Array, "T 1 half"], Float32[Array, "T 1 half"]]
) -> Float[Array, "T heads H"]:
    """Rotate x by its positions' angles; computed in f32, returned in x.dtype."""
    cos, sin = cos_sin
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
