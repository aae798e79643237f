"""How products of weights are computed together with their neighbours, by XLA or by our kernels.

A step takes one of these (runtime/backends.py chooses). A model never sees them: layers.linear asks them.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxinfer_kernels.linear import cpu as cpu_linear
from jaxinfer_kernels.linear import sm90_large, sm90_medium, sm90_small, sm90_w8a8
from jaxinfer_kernels.linear import xla as xla_linear
from jaxinfer_kernels.linear.quantized import Quantized
from jaxinfer_kernels.linear.sm90_large import GateUpTuning
from jaxinfer_kernels.linear.sm90_medium import DeferredNorm
from jaxinfer_kernels.linear.sm90_medium_config import MediumTuning, can_defer_norm
from jaxinfer_kernels.linear.sm90_small_config import SmallTuning
from jaxinfer_kernels.linear.sm90_w8a8 import W8A8Tuning
from jaxinfer_kernels.norm import sm90 as sm90_norm
from jaxinfer_kernels.norm.api import rms_norm as xla_norm
from jaxinfer_kernels.sm90 import HopperGpu


@dataclasses.dataclass(frozen=True)
class Stacked:
    """One layer's row of an array [L, N] that holds those of all layers: kernels take the whole and the index."""

    array: jax.Array
    layer: int

    @property
    def row(self) -> jax.Array:
        return self.array[self.layer]

    @property
    def index(self) -> np.int32:
        return np.int32(self.layer)


type Weight = jax.Array | Stacked  # [N]
type Matrix = jax.Array | Quantized  # [N, K]


@dataclasses.dataclass(frozen=True)
class Norm:
    """An RMS norm that is to be taken.    first: of rows that no kernel of ours made.

    The kernel of such a norm begins when all that XLA does before has ended, for itself and for the kernels after it.
    """

    weight: Weight
    eps: float
    first: bool = False


@dataclasses.dataclass(frozen=True)
class Deferred:
    """Rows whose norm is still to be taken, by the product that takes them."""

    rows: jax.Array | DeferredNorm
    norm: Norm


@dataclasses.dataclass(frozen=True)
class Products:
    """norm(rows, norm) -> left    linear(left, w, bias) -> array    gate_up(left, w) -> array
    linear_residual(x, w, residual, then) -> rows    logits(hidden, w) -> f32[L, V]

    rows: an array [T, D], or DeferredNorm.    left: what `linear` and `gate_up` take: an array, or Deferred.
    w: an array, or Quantized, which all but `large_products` take.
    then: the norm that is taken of the result next, or None. With one, the result may be DeferredNorm.
    align: rows of a decode step are padded to a multiple of it.
    axis: of the mesh that the step runs over, under shard_map; each device computes with its part of the weights. None:
      the step runs on one device.
    """

    norm: Callable[[Any, Norm], Any]
    linear: Callable[[Any, Matrix, Weight | None], jax.Array]
    linear_residual: Callable[[jax.Array, Matrix, jax.Array, Norm | None], Any]
    gate_up: Callable[[Any, Matrix], jax.Array]
    logits: Callable[[jax.Array, Matrix], jax.Array] = functools.partial(xla_linear.linear, out_dtype=jnp.float32)
    align: int = 1
    axis: str | None = None

    def runs_over(self, axis: str | None) -> bool:
        """Whether the step runs over this axis of a mesh."""
        return axis is not None and axis == self.axis


def stacked(weight: Weight) -> Stacked:
    return weight if isinstance(weight, Stacked) else Stacked(weight.reshape(1, -1), 0)


def rms_norm(rows: Float[Array, "T D"], norm: Norm) -> Float[Array, "T D"]:
    """The norm by XLA."""
    return xla_norm(rows, row_of(norm.weight), norm.eps)


def row_of(weight: Weight) -> jax.Array:
    return weight.row if isinstance(weight, Stacked) else weight


def _linear(
    x: jax.Array, w: Matrix, bias: Weight | None, product: Callable[..., jax.Array] = xla_linear.linear
) -> jax.Array:
    out = product(x, w)
    return out if bias is None else out + row_of(bias)


def _alone(linear_residual: Callable[..., jax.Array], **tuning: Any) -> Callable[..., jax.Array]:
    """Without the norm that follows."""
    return lambda x, w, residual, then: linear_residual(x, w, residual, **tuning)


# Up to 16 rows: each product takes the norm of its rows itself. The layer comes as an operand, so that all layers share
# one kernel.


def _small_linear(tuning: SmallTuning, x: jax.Array | Deferred, w: Matrix, bias: Weight | None) -> jax.Array:
    if not isinstance(x, Deferred):
        return _linear(x, w, bias)
    norm, added = stacked(x.norm.weight), None if bias is None else stacked(bias)
    assert added is None or added.layer == norm.layer, "a norm and the bias behind it are of one layer"
    tuning = dataclasses.replace(tuning, pdl=not x.norm.first)
    rest = dict(eps=x.norm.eps, bias=added and added.array, tuning=tuning)
    return sm90_small.norm_linear(x.rows, norm.array, w, norm.index, **rest)


def _small_gate_up(tuning: SmallTuning, x: jax.Array | Deferred, w: Matrix) -> jax.Array:
    if not isinstance(x, Deferred):
        return xla_linear.gate_up(x, w)
    norm = stacked(x.norm.weight)
    return sm90_small.norm_gate_up(x.rows, norm.array, w, norm.index, eps=x.norm.eps, tuning=tuning)


# More rows, in a launch sequence: the product before a norm begins it, and the products behind it end it.


def _begun_norm(x: jax.Array | DeferredNorm, norm: Norm) -> Deferred:
    """x with the norm begun, which the product ends, or with it taken."""
    if isinstance(x, DeferredNorm):
        return Deferred(x, norm)
    scale = stacked(norm.weight)
    return Deferred(sm90_norm.rms_norm(x, scale.array, scale.index, eps=norm.eps, pdl=not norm.first), norm)


def _medium_linear(tuning: MediumTuning, x: jax.Array | Deferred, w: Matrix, bias: Weight | None) -> jax.Array:
    if not isinstance(x, Deferred):
        return _linear(x, w, bias)
    layer = stacked(x.norm.weight) if bias is None else stacked(bias)
    added = None if bias is None else layer.array
    return sm90_medium.linear_bias(x.rows, w, layer.index, bias=added, eps=x.norm.eps, tuning=tuning)


def _medium_gate_up(tuning: MediumTuning, x: jax.Array | Deferred, w: Matrix) -> jax.Array:
    if not isinstance(x, Deferred):
        return sm90_medium.gate_up(x, w, tuning=tuning)
    return sm90_medium.gate_up(x.rows, w, eps=x.norm.eps, tuning=tuning)


def _medium_linear_residual(
    tuning: MediumTuning, x: jax.Array, w: Matrix, residual: jax.Array, then: Norm | None
) -> jax.Array | DeferredNorm:
    shared = w.block if isinstance(w, Quantized) else None
    if then is None or not can_defer_norm(*residual.shape, residual.dtype, tuning, shared):
        return sm90_medium.linear_residual(x, w, residual, tuning=tuning)
    norm = stacked(then.weight)
    return sm90_medium.linear_residual(x, w, residual, norm=norm.array, layer=norm.index, tuning=tuning)


# Rows are rounded to fp8 as weights are, where a step has many (runtime/backends.py).


def _w8a8(tuning: W8A8Tuning, x: jax.Array, w: Matrix, *, gated: bool = False) -> jax.Array:
    if not isinstance(w, Quantized):
        return xla_linear.gate_up(x, w) if gated else xla_linear.linear(x, w)
    return sm90_w8a8.product(*sm90_w8a8.rounded(x), w, dtype=x.dtype, gated=gated, tuning=tuning)


XLA = Products(rms_norm, _linear, _alone(xla_linear.linear_residual), xla_linear.gate_up)
CPU = Products(
    rms_norm,
    functools.partial(_linear, product=cpu_linear.linear),
    _alone(cpu_linear.linear_residual),
    cpu_linear.gate_up,
    functools.partial(cpu_linear.linear, out_dtype=jnp.float32),
)


def small_products(gpu: HopperGpu) -> Products:
    """For up to 16 rows."""
    tuning = SmallTuning(gpu=gpu)
    linear, gate_up = (functools.partial(one, tuning) for one in (_small_linear, _small_gate_up))
    return Products(Deferred, linear, _alone(sm90_small.linear_residual, tuning=tuning), gate_up, align=8)


def medium_products(gpu: HopperGpu) -> Products:
    """For more, outside of a launch sequence: norms and the product of q, k and v stay XLA's."""
    tuning = MediumTuning(gpu=gpu)
    added = _alone(sm90_medium.linear_residual, tuning=tuning)
    return Products(rms_norm, _linear, added, functools.partial(_medium_gate_up, tuning))


def sequence_products(gpu: HopperGpu) -> Products:
    """For more, in a launch sequence."""
    rest = (_medium_linear, _medium_linear_residual, _medium_gate_up)
    return Products(_begun_norm, *(functools.partial(one, MediumTuning(gpu=gpu)) for one in rest), align=8)


def large_products(gpu: HopperGpu) -> Products:
    """For prompts: the product whose result is large, with what makes it small."""
    gate_up = functools.partial(sm90_large.gate_up, tuning=GateUpTuning(gpu=gpu))
    return Products(rms_norm, _linear, _alone(xla_linear.linear_residual), gate_up)


def w8a8_products(gpu: HopperGpu) -> Products:
    """For prompts and many rows where weights are in fp8."""
    product = functools.partial(_w8a8, W8A8Tuning(gpu=gpu))
    added = _alone(lambda x, w, residual: residual + product(x, w))
    gate_up = functools.partial(product, gated=True)
    return Products(rms_norm, functools.partial(_linear, product=product), added, gate_up)
