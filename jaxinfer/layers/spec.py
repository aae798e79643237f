"""What a layer is: frozen, hashable descriptions. Sizes are sums over layers. Nothing here imports jax.

Letters: D width of the model, N query heads, K kv heads, H head, F width of the MLP.
"""

import dataclasses
from typing import Literal, Protocol

from jaxinfer.cache.spec import CacheSpec, PagedKV


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """How positions turn into angles. Fields that `kind` does not read keep their defaults.

    attention_factor multiplies cos and sin (yarn); it is concrete, computed when config.json is read.
    original_max_position: the context the model had before its angles were stretched (llama3, yarn).
    """

    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


type MatrixShape = tuple[tuple[int, ...], int]  # rows of each member of a fused matrix, and columns


class Mixer(Protocol):
    """What mixes the tokens of a sequence: frozen and hashable. Its `cache` says whether it has pages or a state."""

    @property
    def inner_width(self) -> int:
        """Numbers that a token has inside of it, where it has the most of them at once."""

    def products(self, width: int) -> tuple[MatrixShape, ...]:
        """Of its matrices. width: D."""

    def num_params(self, width: int) -> int:
        """width: D."""

    def cache(self, dtype: str) -> CacheSpec:
        """What one layer remembers, in a model that is loaded in `dtype`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
    """Causal attention over all earlier tokens, or the last ones, with rotary positions: a Mixer.

    qk_norm: each head of q and k has an RMS norm of `norm_eps`, taken before rotating.
    bias: the product of q, k and v has one.    window: tokens that each attends to, itself included; None: all.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    norm_eps: float
    qk_norm: bool = False
    bias: bool = False
    window: int | None = None

    @property
    def q_width(self) -> int:
        """N * H."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """K * H, of the keys or of the values."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """(N + 2K) * H."""
        return self.q_width + 2 * self.kv_width

    @property
    def inner_width(self) -> int:
        return self.qkv_width

    def products(self, width: int) -> tuple[MatrixShape, ...]:
        return ((self.q_width, self.kv_width, self.kv_width), width), ((width,), self.q_width)

    def num_params(self, width: int) -> int:
        biases, norms = self.qkv_width * self.bias, 2 * self.head_dim * self.qk_norm
        return width * (self.qkv_width + self.q_width) + biases + norms

    def cache(self, dtype: str) -> CacheSpec:
        return PagedKV(self.kv_heads, self.head_dim, self.head_dim, dtype, self.window)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense:
    """An MLP of `width` F: down(silu(gate) * up), or without a gate. The methods' `width` is D, as Layer's is."""

    width: int
    gated: bool = True

    def products(self, width: int) -> tuple[MatrixShape, ...]:
        return ((self.width,) * (1 + self.gated), width), ((width,), self.width)

    def num_params(self, width: int) -> int:
        return (3 if self.gated else 2) * width * self.width


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: what mixes tokens, what follows, and how many norms of width D it has."""

    mixer: Mixer
    mlp: Dense
    norms: int = 2

    def num_params(self, width: int) -> int:
        return self.mixer.num_params(width) + self.mlp.num_params(width) + self.norms * width
