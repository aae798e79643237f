"""The Mosaic RMS norm: its logic interpreted on the CPU, its lowering for sm_90, its numbers on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.norm import sm90
from jaxinfer_kernels.norm.reference import rms_norm_reference
from jaxinfer_kernels.norm.sm90 import AT_ONCE, WIDTH
from jaxinfer_kernels.norm.xla import rms_norm
from tests.kernels.linear.products import EPS, LAYER, LAYERS, error, replaced

INTERPRET = plgpu.InterpretGPUParams(detect_races=True)


def arguments(rows: int, depth: int, dtype: jnp.dtype = jnp.bfloat16) -> tuple[jax.Array, jax.Array]:
    """Rows of different sizes, and every layer's scales."""
    rng = np.random.default_rng(rows + depth)
    x = rng.standard_normal((rows, depth)) * np.exp(2 * rng.standard_normal((rows, 1)))
    norm = 1 + 0.2 * rng.standard_normal((LAYERS, depth))
    return jnp.asarray(x.astype(dtype)), jnp.asarray(norm.astype(dtype))


# One program rounds as the definition's operations do one by one: it keeps no more bits between them.
reference = jax.jit(
    functools.partial(rms_norm_reference, layer=LAYER, eps=EPS),
    compiler_options={"xla_allow_excess_precision": False},
)


def run(x: jax.Array, norm: jax.Array, **settings: object) -> jax.Array:
    return jax.block_until_ready(sm90.rms_norm(x, norm, jnp.int32(LAYER), eps=EPS, **settings))


@pytest.mark.parametrize(
    ("rows", "depth", "dtype"),
    [
        (8, WIDTH, jnp.bfloat16),
        (19, 3 * WIDTH, jnp.float16),  # padded
        (8, (AT_ONCE + 1) * WIDTH, jnp.bfloat16),  # in two goes
        pytest.param(64, 24 * WIDTH, jnp.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_computes_its_definition(rows, depth, dtype):
    x, norm = arguments(rows, depth, dtype)
    out, wanted = run(x, norm, interpret=INTERPRET), reference(x, norm)
    assert (out.shape, out.dtype) == (wanted.shape, wanted.dtype)
    assert error(out, np.asarray(wanted, np.float32)) < 3e-3  # sums of another order round a few values elsewhere


def test_small_rows_are_kept_from_dividing_by_zero():
    x, norm = arguments(8, WIDTH)
    x = replaced(replaced(x, 3, 0), 4, 1e-4)
    out, wanted = run(x, norm, interpret=INTERPRET), reference(x, norm)
    assert not out[3].any()
    assert error(out[4], np.asarray(wanted[4], np.float32)) < 1e-2


def test_padding_reaches_only_padding():
    x, norm = arguments(16, 2 * WIDTH)
    out = run(replaced(x, slice(9, None), np.nan), norm, interpret=INTERPRET)
    assert error(out[:9], np.asarray(reference(x, norm)[:9], np.float32)) < 3e-3
    assert np.isnan(np.asarray(out[9:], np.float32)).all()


def lowered(rows: int, width: int, **settings: object) -> str:
    """The kernel lowered for a GPU."""
    function = functools.partial(sm90.rms_norm, eps=EPS, **settings)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, width), (LAYERS, width))]
    traced = jax.jit(function).trace(*shapes, jax.ShapeDtypeStruct((), jnp.int32))
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("rows", [24, 128])
@pytest.mark.parametrize("width", [1024, 1536, 4096])
def test_lowers_for_hopper(width, rows):
    assert lowered(rows, width).count("mosaic_gpu_v2") == 1


def test_it_begins_early_unless_told_otherwise():
    early, late = (lowered(24, 1024, pdl=pdl) for pdl in (True, False))
    assert "griddepcontrol" in early
    assert "griddepcontrol" not in late


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [24, 128])
@pytest.mark.parametrize("width", [1024, 1536, 4096])
def test_is_as_near_to_float32_as_xla_is(width, rows):
    x, norm = arguments(rows, width)
    wanted = np.asarray(reference(*(one.astype(jnp.float32) for one in (x, norm))))
    theirs = jax.jit(rms_norm, static_argnums=2)(x, norm[LAYER], EPS)
    assert error(run(x, norm), wanted) <= 1.1 * error(theirs, wanted)
