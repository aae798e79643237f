"""A family of every kind of layer: attention over everything, attention over a window, and a recurrent state; a norm
behind each part; a leaf of a dtype of its own, stored in another order. Nothing else knows of it.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxinfer.cache.spec import CacheSpec, Recurrent
from jaxinfer.layers.attention import attention
from jaxinfer.layers.batch import Batch
from jaxinfer.layers.linear import add, array, linear, normed, swiglu
from jaxinfer.layers.products import Products
from jaxinfer.layers.recurrent import recurrent
from jaxinfer.layers.spec import Attention, Dense, Layer, MatrixShape, Rope
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.parameters import FileLayout, LayerParams, ParamSpec, single
from jaxinfer.models.registry import Family

EPS, WHOLE = 1e-6, PartitionSpec()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fading:
    """A memory [N, H, H] that fades by a gate and takes in the outer product of a key and a value."""

    heads: int
    head_dim: int
    snapshots: int

    @property
    def inner_width(self) -> int:
        return 3 * self.heads * self.head_dim + self.heads

    def products(self, width: int) -> tuple[MatrixShape, ...]:
        inner = self.heads * self.head_dim
        return ((inner,), width), ((inner,), width), ((inner,), width), ((self.heads,), width), ((width,), inner)

    def num_params(self, width: int) -> int:
        return sum(sum(rows) * columns for rows, columns in self.products(width)) + self.heads

    def cache(self, dtype: str) -> CacheSpec:
        n, h = self.heads, self.head_dim
        inputs = (("key", (n, h), "float32"), ("value", (n, h), "float32"), ("keeps", (n,), "float32"))
        return Recurrent((("memory", (n, h, h), "float32"),), self.snapshots, inputs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyConfig(ModelConfig):
    num_layers: int  # a multiple of 3
    heads: int
    head_dim: int
    window: int
    snapshots: int

    @functools.cached_property
    def layers(self) -> tuple[Layer, ...]:
        shape = dict(heads=self.heads, kv_heads=self.heads // 2, head_dim=self.head_dim, rope=Rope(), norm_eps=EPS)
        fading = Fading(heads=self.heads, head_dim=self.head_dim, snapshots=self.snapshots)
        mixers = fading, Attention(**shape, window=self.window), Attention(**shape, qk_norm=True)
        return tuple(Layer(mixer=mixers[i % 3], mlp=Dense(width=32), norms=4) for i in range(self.num_layers))


class Layers(LayerParams):
    """[out, in] of each layer, None where a layer has no such part."""

    norms: tuple[jax.Array, ...]  # [4, D]: before and behind the mixer, before and behind the MLP
    qkv: tuple[jax.Array | None, ...]
    head_norms: tuple[jax.Array | None, ...]  # [2, H]
    key: tuple[jax.Array | None, ...]
    value: tuple[jax.Array | None, ...]
    query: tuple[jax.Array | None, ...]
    gate: tuple[jax.Array | None, ...]
    rate: tuple[jax.Array | None, ...]  # [N], bfloat16, in the file the last head first
    out: tuple[jax.Array, ...]
    gate_up: tuple[jax.Array, ...]
    down: tuple[jax.Array, ...]


class Params(flax.struct.PyTreeNode):
    embed: jax.Array
    layers: Layers
    final_norm: jax.Array
    unembed: jax.Array


def parameters(config: ToyConfig) -> Params:
    d, inner, kv = config.hidden_size, config.heads * config.head_dim, config.heads * config.head_dim // 2
    recurs = [isinstance(layer.mixer, Fading) for layer in config.layers]

    def of(name: str, *shape: int, which: bool | None = None, **more: Any) -> tuple[Any, ...]:
        return tuple(
            ParamSpec(shape, ((f"{i}.{name}",),), shape[:1], WHOLE, **more) if which in (None, recur) else None
            for i, recur in enumerate(recurs)
        )

    order = FileLayout(order=tuple(reversed(range(config.heads))))
    return Params(
        embed=single("embed", (config.vocab_size, d), WHOLE),
        layers=Layers(
            norms=of("norms", 4, d, init="ones"),
            qkv=of("qkv", inner + 2 * kv, d, which=False),
            head_norms=of("head_norms", 2, config.head_dim, which=False, init="ones"),
            **{name: of(name, inner, d, which=True) for name in ("key", "value", "query")},
            gate=of("gate", config.heads, d, which=True),
            rate=of("rate", config.heads, which=True, dtype="bfloat16", layout=order),
            out=of("out", d, inner),
            gate_up=of("gate_up", 64, d),
            down=of("down", d, 32),
        ),
        final_norm=single("final_norm", (d,), WHOLE, "ones"),
        unembed=single("unembed", (config.vocab_size, d), WHOLE),
    )


def forward(config: ToyConfig, params: Params, batch: Batch, cache: Any) -> tuple[jax.Array, Any]:
    x = params.embed[batch.tokens]
    for i, layer in enumerate(config.layers):
        p = params.layers[i]
        mix = _attend if isinstance(layer.mixer, Attention) else _remember
        out, cache = mix(layer.mixer, p, normed(x, p.norms[0], EPS), batch, cache, i)
        x = add(x, normed(linear(out, p.out), p.norms[1], EPS))
        x = add(x, normed(linear(swiglu(linear(normed(x, p.norms[2], EPS), p.gate_up)), p.down), p.norms[3], EPS))
    return array(normed(x, params.final_norm, EPS), batch.products), cache


def _attend(spec: Attention, p: Any, h: Any, batch: Batch, cache: Any, i: int) -> tuple[jax.Array, Any]:
    norms = dict(q_norm=p.head_norms[0], k_norm=p.head_norms[1]) if spec.qk_norm else {}
    return attention(linear(h, p.qkv), spec, batch, cache, i, **norms)


def _remember(spec: Fading, p: Any, h: Any, batch: Batch, cache: Any, i: int) -> tuple[jax.Array, Any]:
    """Four products of one norm."""
    products = (array(linear(h, w), batch.products) for w in (p.key, p.value, p.query, p.gate))
    key, value, query, gate = (x.reshape(len(x), spec.heads, -1).astype(jnp.float32) for x in products)
    keeps = jax.nn.sigmoid(gate[..., 0] + p.rate.astype(jnp.float32))

    def move(state: dict[str, jax.Array], own: dict[str, jax.Array]) -> dict[str, jax.Array]:
        taken = own["key"][..., None] * own["value"][:, None]
        return {"memory": own["keeps"][:, None, None] * state["memory"] + taken}

    def read(state: dict[str, jax.Array], asked: jax.Array) -> jax.Array:
        return jnp.sum(asked[..., None] * state["memory"], axis=1)

    out, cache = recurrent(move, read, dict(key=key, value=value, keeps=keeps), query, batch, cache, i)
    return out.reshape(len(out), -1).astype(p.out.dtype), cache


def unembed(config: ToyConfig, params: Params, hidden: jax.Array, products: Products) -> jax.Array:
    return products.logits(hidden, params.unembed)


def config_from_hf(raw: Mapping[str, Any]) -> ToyConfig:
    sizes = {field.name: raw[field.name] for field in dataclasses.fields(ToyConfig) if field.name in raw}
    return ToyConfig(architecture="ToyForCausalLM", tie_embeddings=False, dtype="float32", **sizes)


RAW = dict(vocab_size=97, hidden_size=32, max_position=512, num_layers=6, heads=4, head_dim=8, window=9, snapshots=24)
TOY = Family(config_from_hf, parameters, forward, unembed)
