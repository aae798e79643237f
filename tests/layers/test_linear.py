"""Values of layers.linear are what their mathematics says, each computed once, in whatever order they are asked for."""

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.layers.linear import Gated, Normed, Product, Sum, Value, add, array, linear, normed, swiglu
from jaxinfer.layers.products import (
    CPU,
    XLA,
    Norm,
    Products,
    Stacked,
    medium_products,
    sequence_products,
    small_products,
    stacked,
)
from jaxinfer_kernels import cpu
from jaxinfer_kernels.linear.sm90_medium import DeferredNorm
from jaxinfer_kernels.sm90 import H200

ROWS, WIDTH, EPS = 4, 8, 1e-5
RANDOM = np.random.default_rng(0)
X = jnp.asarray(RANDOM.normal(size=(ROWS, WIDTH)), jnp.float32)
MATRICES = jnp.asarray(RANDOM.normal(size=(3, WIDTH, WIDTH)) / WIDTH**0.5, jnp.float32)
WIDE = jnp.asarray(RANDOM.normal(size=(2 * WIDTH, WIDTH)) / WIDTH**0.5, jnp.float32)
SCALES = jnp.asarray(RANDOM.normal(size=(3, WIDTH)), jnp.float32)


def believed(value: Value) -> jax.Array:
    """The value by its definition, nothing shared and nothing fused."""
    match value:
        case Normed():
            x, weight = believed(value.x), value.norm.weight
            scale = weight.row if isinstance(weight, Stacked) else weight
            return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + value.norm.eps) * scale
        case Product():
            bias = value.bias.row if isinstance(value.bias, Stacked) else 0 if value.bias is None else value.bias
            return jnp.matmul(believed(value.x), value.w.T, precision="highest") + bias
        case Gated():
            gate, up = jnp.split(believed(value.product), 2, axis=-1)
            return jax.nn.silu(gate) * up
        case Sum():
            return believed(value.residual) + believed(value.term)
    return value


@dataclasses.dataclass
class Counting:
    """XLA's products, or ones that begin norms as our kernels do, counting what they compute."""

    begins: bool
    calls: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def products(self) -> Products:
        return Products(self._norm, self._linear, self._residual, self._gate_up)

    def _norm(self, rows: Any, norm: Norm) -> jax.Array:
        self.calls["norm"] += 1
        if isinstance(rows, DeferredNorm):
            scale = stacked(norm.weight)
            assert rows.squares == (id(scale.array), scale.layer), "the norm that was begun is ended"
            rows = rows.rows
        return XLA.norm(rows, norm)

    def _linear(self, x: jax.Array, w: jax.Array, bias: Any) -> jax.Array:
        self.calls["product"] += 1
        return XLA.linear(x, w, bias)

    def _residual(self, x: jax.Array, w: jax.Array, residual: jax.Array, then: Norm | None) -> Any:
        self.calls["product"] += 1
        rows = XLA.linear_residual(x, w, residual, None)
        if then is None or not self.begins:
            return rows
        return DeferredNorm(rows, rows, (id(stacked(then.weight).array), stacked(then.weight).layer))

    def _gate_up(self, x: jax.Array, w: jax.Array) -> jax.Array:
        self.calls["product"] += 1
        return XLA.gate_up(x, w)


@st.composite
def programs(draw: st.DrawFn) -> list[Value]:
    """Values made of earlier ones at random, as a model of any kind of block may make them."""
    values: list[Value] = [X]
    norms = [Stacked(SCALES, i) for i in range(3)] + [SCALES[0]]
    for _ in range(draw(st.integers(1, 12))):
        rows = [one for one in values if not isinstance(one, Normed)]
        x, other = draw(st.sampled_from(values)), draw(st.sampled_from(rows))
        w, bias = MATRICES[draw(st.integers(0, 2))], draw(st.sampled_from([None, *norms]))
        make = draw(st.sampled_from(["norm", "linear", "swiglu", "add", "add a product", "array"]))
        match make:
            case "norm":
                values.append(normed(other, draw(st.sampled_from(norms)), EPS))
            case "linear":
                values.append(linear(x, w, bias))
            case "swiglu":
                values.append(swiglu(linear(x, WIDE)))
            case "add":
                values.append(add(other, x))
            case "add a product":
                values.append(add(other, linear(x, w)))
            case "array":
                values.append(array(x, XLA))
    return values


@settings(max_examples=60)
@given(programs(), st.booleans(), st.randoms(use_true_random=False))
def test_any_program_of_values_is_what_it_says_in_any_order_of_asking(values, begins, random):
    wanted = [believed(one) for one in values]
    counting = Counting(begins)
    order = list(range(len(values)))
    random.shuffle(order)
    for i in order:
        np.testing.assert_allclose(array(values[i], counting.products()), wanted[i], rtol=2e-4, atol=2e-4)
    again = dict(counting.calls)
    for one in values:
        array(one, counting.products())
    assert dict(counting.calls) == again, "what was computed is kept"


@pytest.mark.parametrize(
    "model",
    [
        lambda x, w: linear(x, w, reduce="tensor"),
        lambda x, w: linear(x, w, Stacked(SCALES, 1), reduce="tensor"),
        lambda x, w: add(X, linear(x, w, reduce="tensor")),
        lambda x, w: add(X, linear(x, w, SCALES[2], reduce="tensor")),
        lambda x, w: normed(add(X, linear(x, w, reduce="tensor")), Stacked(SCALES, 0), EPS),
        lambda x, w: linear(normed(add(X, linear(x, w, reduce="tensor")), SCALES[0], EPS), MATRICES[1]),
    ],
    ids=["alone", "with a bias", "added", "added with a bias", "normed", "before another"],
)
@pytest.mark.parametrize("begins", [False, True])
def test_partial_sums_are_added_up_once_with_one_residual_and_one_bias(model, begins):
    """Each device has some columns of x and of w; the residual, biases and norms are whole on all."""
    over = dataclasses.replace(Counting(begins).products(), axis="tensor")
    x, w = (jnp.stack(jnp.split(whole, 4, axis=1)) for whole in (X, MATRICES[0]))
    found = jax.vmap(lambda x, w: array(model(x, w), over), axis_name="tensor")(x, w)
    for rows in found:
        np.testing.assert_allclose(rows, believed(model(X, MATRICES[0])), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [None, "experts"])
def test_where_the_step_does_not_run_over_its_axis_reduce_changes_nothing(axis):
    counting = Counting(begins=True)
    products = dataclasses.replace(counting.products(), axis=axis)
    x = add(X, linear(X, MATRICES[0], reduce="tensor"))
    array(linear(normed(x, Stacked(SCALES, 1), EPS), MATRICES[1]), products)
    assert isinstance(x.made, DeferredNorm), "the residual is added by the product, which begins the norm"


def test_a_norm_that_four_products_take_is_computed_once():
    counting = Counting(begins=True)
    x = add(X, linear(X, MATRICES[0]))
    h = normed(x, Stacked(SCALES, 1), EPS)
    for w in (*MATRICES, MATRICES[0]):
        array(linear(h, w), counting.products())
    assert counting.calls == {"norm": 1, "product": 5}


def test_a_sum_begins_the_norm_that_is_asked_for_first_and_gives_others_its_rows():
    counting = Counting(begins=True)
    x = add(X, linear(X, MATRICES[0]))
    first, second = normed(x, Stacked(SCALES, 1), EPS), normed(x, Stacked(SCALES, 2), EPS)
    for one in (first, second, first):
        got = array(linear(one, MATRICES[1]), counting.products())
        np.testing.assert_allclose(got, believed(linear(one, MATRICES[1])), rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(array(x, counting.products()), believed(x), rtol=1e-5, atol=1e-5)


def test_the_residual_of_a_product_begins_the_norm_that_the_product_s_own_rows_take():
    """x + mlp(norm(x)): the product that made x has to begin that norm, though x is a residual too."""
    counting = Counting(begins=True)
    x = add(X, linear(X, MATRICES[0]))
    y = add(x, linear(swiglu(linear(normed(x, Stacked(SCALES, 0), EPS), WIDE)), MATRICES[1]))
    array(y, counting.products())
    assert isinstance(x.made, DeferredNorm)


@pytest.mark.parametrize(
    "products",
    [small_products(H200), medium_products(H200), sequence_products(H200)],
    ids=["small", "medium", "in a sequence"],
)
def test_what_has_no_kernel_is_xlas(products):
    """A product of rows without a norm, and its sum with rows that are not a product's."""
    value = add(X, normed(linear(X, MATRICES[0], SCALES[1]), SCALES[0], EPS))
    np.testing.assert_allclose(array(value, products), believed(value), rtol=1e-5, atol=1e-5)


def test_kernels_for_cpus_compute_layers_of_bfloat16_as_xla_does():
    """Without a compiler there are none, and XLA's are compared with themselves."""
    products = XLA if cpu.best() is None else CPU
    x, w, up, scales = (one.astype(jnp.bfloat16) for one in (X, MATRICES[0], WIDE, SCALES))
    for bias in (None, scales[1], Stacked(scales, 1)):
        found, expected = (
            [array(value, one) for value in (linear(x, w, bias), add(x, linear(x, w, bias)), swiglu(linear(x, up)))]
            for one in (products, XLA)
        )
        for mine, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(*(np.asarray(a, np.float32) for a in (mine, other)), rtol=2**-6, atol=2**-6)
    np.testing.assert_allclose(products.logits(x, w), XLA.logits(x, w), rtol=1e-5, atol=1e-5)
