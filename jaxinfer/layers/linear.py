"""The linear layer and its neighbours, as values that are computed when somebody asks for them.

A model writes what it computes; whoever needs an array decides what runs together. So `add(x, linear(h, w))` is a
product that adds to the residual, and where a norm of the sum is taken next, the same product begins that norm:

    h = normed(x, p.norm, eps)          nothing is computed yet
    x = add(x, linear(swiglu(linear(h, p.gate_up)), p.down))

A value is computed once, however many ask for it. `array` computes one; `attention` computes its qkv. A product that is
added to the residual is computed with it. Anything else that is added (an array, a norm of a product) is added by XLA.
Shapes and rounding: jaxinfer_kernels.linear.xla.
"""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Float

from jaxinfer.layers.products import Matrix, Norm, Products, Stacked, Weight, rms_norm, row_of
from jaxinfer_kernels.linear.quantized import Quantized
from jaxinfer_kernels.linear.sm90_medium import DeferredNorm


@dataclasses.dataclass(eq=False)
class Normed:
    """The RMS norm of x.    made: what a product takes in its place."""

    x: "Value"
    norm: Norm
    made: Any = None


@dataclasses.dataclass(eq=False)
class Product:
    """x @ w.T + bias.    reduce: the axis of a mesh over which the products of its devices are partial sums."""

    x: "Value"
    w: Matrix
    bias: Weight | None
    reduce: str | None = None
    made: jax.Array | None = None


@dataclasses.dataclass(eq=False)
class Gated:
    """silu(gate) * up of a product of gate's rows, then up's."""

    product: Product
    made: jax.Array | None = None


@dataclasses.dataclass(eq=False)
class Sum:
    """residual + term.    made: its rows, with the norm `begun` where that was asked for first."""

    residual: "Value"
    term: "Value"
    made: jax.Array | DeferredNorm | None = None
    begun: Norm | None = None


type Value = jax.Array | Normed | Product | Gated | Sum


def normed(x: Value, weight: Weight, eps: float) -> Normed:
    """The RMS norm of rows x [T, D], scaled by weight [D]."""
    return Normed(x, Norm(weight, eps, first=isinstance(x, jax.Array)))


def linear(
    x: Value, w: Float[Array, "N K"] | Quantized, bias: Weight | None = None, *, reduce: str | None = None
) -> Product:
    """x [T, K] @ w.T + bias [N], [T, N].

    reduce: where a step runs over this axis of a mesh, each device has some columns of x and of w, and the products are
      summed over the devices. On one device it changes nothing.
    """
    return Product(x, w, bias, reduce)


def add(residual: Value, term: Value) -> Sum:
    """residual + term, [T, D]."""
    return Sum(residual, term)


def swiglu(product: Product) -> Gated:
    """silu(gate) * up, [T, F], of a product [T, 2F] without bias whose first half is gate."""
    assert product.bias is None and product.reduce is None, "a gated product has no bias here and is no partial sum"
    return Gated(product)


def array(value: Value, products: Products) -> Float[Array, "T N"]:
    """The value, computed."""
    match value:
        case Normed():
            return value.made if isinstance(value.made, jax.Array) else rms_norm(array(value.x, products), value.norm)
        case Product():
            if value.made is None:
                value.made = _product(value, products)
            return value.made
        case Gated():
            if value.made is None:
                value.made = products.gate_up(_left(value.product.x, products), value.product.w)
            return value.made
        case Sum():
            rows = _rows(value, products, None)
            return rows.rows if isinstance(rows, DeferredNorm) else rows
    return value


def _product(value: Product, products: Products) -> jax.Array:
    left = _left(value.x, products)
    if not products.runs_over(value.reduce):
        return products.linear(left, value.w, value.bias)
    total = jax.lax.psum(products.linear(left, value.w, None), value.reduce)
    return total if value.bias is None else total + row_of(value.bias)


def _left(x: Value, products: Products) -> Any:
    """x as a product takes it."""
    if not isinstance(x, Normed):
        return array(x, products)
    if x.made is None:
        x.made = products.norm(_rows(x.x, products, x.norm), x.norm)
    return x.made


def _rows(x: Value, products: Products, then: Norm | None) -> jax.Array | DeferredNorm:
    """Rows of which the norm `then` is taken next, if any: DeferredNorm only where it is that norm which is begun."""
    if not isinstance(x, Sum):
        return array(x, products)
    if x.made is None:
        term = x.term
        fuses = isinstance(term, Product) and term.bias is None and term.made is None
        # Not a partial sum: each device would add the residual to its own.
        fuses = fuses and not products.runs_over(term.reduce)
        # The term before the residual: it may need the residual with a norm begun, which nobody who came later would.
        added = array(term.x if fuses else term, products)
        residual = array(x.residual, products)
        if fuses:
            x.made, x.begun = products.linear_residual(added, term.w, residual, then), then
        else:
            x.made = residual + added
    same = then is not None and x.begun is not None and _is_same(x.begun, then)
    return x.made.rows if isinstance(x.made, DeferredNorm) and not same else x.made


def _is_same(one: Norm, other: Norm) -> bool:
    """Whether they scale alike; eps is the ending product's."""
    a, b = one.weight, other.weight
    if isinstance(a, Stacked) and isinstance(b, Stacked):
        return a.array is b.array and a.layer == b.layer
    return a is b
