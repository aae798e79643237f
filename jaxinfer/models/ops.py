"""What a family's forward pass is given to compute with, so that one pass serves every implementation of an op.

Attention comes with its mask and its cache. The linear layers come together with their neighbours, as XLA computes them
or as one Mosaic kernel each; shapes and rounding: jaxinfer_kernels.linear.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer_kernels.launch.sequence import chained
from jaxinfer_kernels.linear import sm90_large as mosaic_gate_up
from jaxinfer_kernels.linear import sm90_medium as mosaic_batch_linear
from jaxinfer_kernels.linear import sm90_small as mosaic_linear
from jaxinfer_kernels.linear import sm90_small_config as mosaic_linear_plan
from jaxinfer_kernels.linear import xla as linear
from jaxinfer_kernels.linear.sm90_medium import DeferredNorm as Scaled
from jaxinfer_kernels.linear.sm90_medium_config import can_defer_norm as begins_norm
from jaxinfer_kernels.norm import sm90 as mosaic_norm

type Following = tuple[jax.Array, int]  # the norm [L, D] that is taken next, and its layer
type Attend[Kv] = Callable[[int, jax.Array, jax.Array, jax.Array, Kv], tuple[jax.Array, Kv]]


@dataclasses.dataclass(frozen=True)
class Joined:
    """An attention that takes the product of q, k and v as it is, and norms and rotates it itself.

    attend(layer, qkv [T, (N + 2K) * H], cos_sin f32[T, H / 2] each, norms, kv) -> (out [T, N, H], kv)
    norms: the scales [L, H] of q and of k, or None.
    """

    attend: Callable[..., tuple[jax.Array, Any]]


@dataclasses.dataclass(frozen=True)
class Linears:
    """norm_linear(x, norm, w, layer, eps=, bias=)    linear_residual(x, w, residual, then)    norm_gate_up(x, norm, w,
    layer, eps=)    together(f, *arguments): f(*arguments), where f is made of these and of an attention that is Joined

    then: (norm, layer) of the op that takes the norm of the result next, or None. With one the result may be anything
    that these ops know to take as their x and residual; without it is the array.
    """

    norm_linear: Callable[..., jax.Array]
    linear_residual: Callable[..., jax.Array]
    norm_gate_up: Callable[..., jax.Array]
    together: Callable[..., Any] = lambda function, *arguments: function(*arguments)


def _norm_linear(
    x: jax.Array, norm: jax.Array, w: jax.Array, layer: int, *, eps: float, bias: jax.Array | None
) -> jax.Array:
    # Layer 0's is the first of a chain: it begins when all that XLA does before has ended, for itself and those after.
    tuning = dataclasses.replace(mosaic_linear_plan.DEFAULT, pdl=layer > 0)
    return mosaic_linear.norm_linear(x, norm, w, jnp.int32(layer), eps=eps, bias=bias, tuning=tuning)


def _norm_gate_up(x: jax.Array, norm: jax.Array, w: jax.Array, layer: int, *, eps: float) -> jax.Array:
    return mosaic_linear.norm_gate_up(x, norm, w, jnp.int32(layer), eps=eps)


def _batch_gate_up(x: jax.Array, norm: jax.Array, w: jax.Array, layer: int, *, eps: float) -> jax.Array:
    return mosaic_batch_linear.gate_up(linear.rms_norm(x, norm[layer], eps), w)


def _normed(x: jax.Array | Scaled, norm: jax.Array, layer: int, eps: float, *, pdl: bool = True) -> jax.Array | Scaled:
    """Rows for a product of mosaic_batch_linear: with their norm, or with it begun, which the product ends."""
    if isinstance(x, Scaled):
        return x
    return mosaic_norm.rms_norm(x, norm, jnp.int32(layer), eps=eps, pdl=pdl)


def _batch_norm_linear(
    x: jax.Array | Scaled, norm: jax.Array, w: jax.Array, layer: int, *, eps: float, bias: jax.Array | None
) -> jax.Array:
    normed = _normed(x, norm, layer, eps, pdl=layer > 0)  # see _norm_linear
    return mosaic_batch_linear.linear_bias(normed, w, jnp.int32(layer), bias=bias, eps=eps)


def _batch_norm_gate_up(x: jax.Array | Scaled, norm: jax.Array, w: jax.Array, layer: int, *, eps: float) -> jax.Array:
    return mosaic_batch_linear.gate_up(_normed(x, norm, layer, eps), w, eps=eps)


def _batch_linear_residual(
    x: jax.Array, w: jax.Array, residual: jax.Array | Scaled, then: Following | None
) -> jax.Array | Scaled:
    rows = residual.rows if isinstance(residual, Scaled) else residual
    if then is None or not begins_norm(*rows.shape, rows.dtype):
        return mosaic_batch_linear.linear_residual(x, w, rows)
    norm, layer = then
    return mosaic_batch_linear.linear_residual(x, w, rows, norm=norm, layer=jnp.int32(layer))


def _alone(linear_residual: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Without the norm that follows."""
    return lambda x, w, residual, then: linear_residual(x, w, residual)


def _many_gate_up(x: jax.Array, norm: jax.Array, w: jax.Array, layer: int, *, eps: float) -> jax.Array:
    return mosaic_gate_up.gate_up(linear.rms_norm(x, norm[layer], eps), w)


XLA = Linears(linear.norm_linear, _alone(linear.linear_residual), linear.norm_gate_up)
# The layer comes as an operand: then all layers share one kernel.
MOSAIC = Linears(_norm_linear, _alone(mosaic_linear.linear_residual), _norm_gate_up)
CHAINED = dataclasses.replace(MOSAIC, together=chained)
# For more rows: the products with what follows them; norms stay XLA's.
MOSAIC_BATCH = Linears(linear.norm_linear, _alone(mosaic_batch_linear.linear_residual), _batch_gate_up)
# In a chain, the product of q, k and v is ours too, and so are norms: the first, and those that no product can begin.
CHAINED_BATCH = Linears(_batch_norm_linear, _batch_linear_residual, _batch_norm_gate_up, chained)
# For prompts: the product whose result is large, with what makes it small.
MOSAIC_MANY = Linears(linear.norm_linear, _alone(linear.linear_residual), _many_gate_up)
