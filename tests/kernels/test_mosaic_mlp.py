"""The Mosaic MLP: its logic interpreted on the CPU, its lowering for sm_90, its numbers on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels import mosaic_linear, mosaic_mlp
from jaxinfer_kernels.mosaic_mlp import Tuning, supported

LAYER, LAYERS, EPS = 1, 2, 1e-6
INTERPRET = plgpu.InterpretGPUParams(detect_races=True)
MODELS = {"Qwen2.5-1.5B": (1536, 8960), "Qwen3-8B": (4096, 12288), "Qwen3-0.6B": (1024, 3072)}  # width, MLP width


def arguments(rows: int, width: int, mlp_width: int) -> dict[str, jax.Array]:
    """In bf16, of the sizes that a model has them in."""
    keys = jax.random.split(jax.random.key(0), 4)
    normal = functools.partial(jax.random.normal, dtype=jnp.float32)
    named = {
        "x": 3 * normal(keys[0], (rows, width)),
        "norm": 1 + 0.2 * normal(keys[1], (LAYERS, width)),
        "gate_up": width**-0.5 * normal(keys[2], (2 * mlp_width, width)),
        "down": 3 * mlp_width**-0.5 * normal(keys[3], (width, mlp_width)),
    }
    return {name: value.astype(jnp.bfloat16) for name, value in named.items()}


def run(named: dict[str, jax.Array], counter: jax.Array | None = None, **settings: object) -> tuple[jax.Array, ...]:
    """The MLP on these arguments, to the end: interpret mode's callbacks can wait for ever on work behind them."""
    counter = mosaic_mlp.counters(len(named["down"])) if counter is None else counter
    return jax.block_until_ready(mosaic_mlp.mlp(**named, counter=counter, layer=jnp.int32(LAYER), eps=EPS, **settings))


def plain(named: dict[str, jax.Array]) -> jax.Array:
    """The definition as XLA runs it, in the arguments' precision."""
    x, dtype = named["x"], named["x"].dtype
    precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
    product = functools.partial(jnp.einsum, "TK,NK->TN", preferred_element_type=jnp.float32, precision=precision)
    x32 = x.astype(jnp.float32)
    normed = (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + EPS)).astype(dtype)
    y = product(normed * named["norm"][LAYER], named["gate_up"]).astype(dtype)
    gate, up = jnp.split(y.astype(jnp.float32), 2, axis=-1)
    return x + product((jax.nn.silu(gate) * up).astype(dtype), named["down"]).astype(dtype)


def reference(named: dict[str, jax.Array]) -> np.ndarray:
    return np.asarray(plain({name: value.astype(jnp.float32) for name, value in named.items()}))


def error(out: jax.Array, wanted: np.ndarray) -> float:
    """Relative to the whole; NaN where any is."""
    return float(np.linalg.norm(np.asarray(out, np.float32) - wanted) / np.linalg.norm(wanted))


# One CTA: its two warpgroups wait for each other, and each holds one of XLA's threads, of which there is one a core.
TINY = [
    # rows, width, MLP width, tuning
    (8, 256, 256, Tuning(ctas=1, height=32, block=64, stages=3)),  # half of the blocks are early
    (3, 256, 768, Tuning(ctas=1, height=48, block=64)),
    (16, 256, 256, Tuning(ctas=1, height=48, block=64, stages=2)),  # tiles of 24 columns do not divide 256
    (8, 256, 256, Tuning(ctas=1, height=64)),
    (8, 256, 512, Tuning(ctas=1, height=16)),
]


@pytest.mark.parametrize(("rows", "width", "mlp_width", "tuning"), TINY)
def test_computes_its_definition(rows, width, mlp_width, tuning):
    named = arguments(rows, width, mlp_width)
    interpret = INTERPRET if mlp_width % (tuning.height or 64) == 0 else plgpu.InterpretGPUParams()
    got, _ = run(named, tuning=tuning, interpret=interpret)
    wanted = plain(named)
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    assert error(got, reference(named)) < 8e-3
    assert error(got, np.asarray(wanted, np.float32)) < 3e-3  # the same but for the order of sums


def test_padding_reaches_only_padding():
    named = arguments(8, 256, 256)
    named["x"] = named["x"].at[5:].set(jnp.nan)
    out, _ = run(named, tuning=Tuning(ctas=1), interpret=INTERPRET)
    assert error(out[:5], reference(named)[:5]) < 8e-3


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("model", MODELS)
def test_lowers_for_hopper(model, rows):
    shapes = jax.eval_shape(lambda: arguments(rows, *MODELS[model]))
    text = jax.jit(run_shapes).trace(shapes).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1


def run_shapes(named: dict[str, jax.Array]) -> jax.Array:
    counter = mosaic_mlp.counters(len(named["down"]))
    return mosaic_mlp.mlp(**named, counter=counter, layer=jnp.int32(LAYER), eps=EPS)[0]


def test_refuses_what_it_cannot_run():
    with pytest.raises(ValueError, match="use mosaic_linear"):
        run(arguments(17, 256, 256))
    with pytest.raises(ValueError, match="use mosaic_linear"):
        run(arguments(8, 256, 384))
    for tuning in (Tuning(splits=3), Tuning(block=96), Tuning(stages=20)):
        with pytest.raises(ValueError, match="block must be a multiple of 64"):
            run(arguments(8, 256, 256), tuning=tuning)
    assert not supported(8, 256, 128, jnp.float32)
    assert not supported(8, 256, 128, jnp.bfloat16, multiprocessors=114)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 16])
@pytest.mark.parametrize("model", MODELS)
def test_is_as_near_to_float32_as_xla_is(model, rows):
    named = arguments(rows, *MODELS[model])
    wanted = reference(named)
    got, _ = run(named)
    assert error(got, wanted) <= 2 * error(jax.jit(plain)(named), wanted)
    layer, apart = jnp.int32(LAYER), {name: named[name] for name in ("x", "norm")}
    gated = mosaic_linear.norm_gate_up(**apart, w=named["gate_up"], layer=layer, eps=EPS)
    assert error(got, np.asarray(mosaic_linear.linear_residual(gated, named["down"], named["x"]), np.float32)) < 3e-3


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
def test_gives_the_same_bits_every_time(model):
    named = arguments(8, *MODELS[model])
    first, counter = run(named)
    for _ in range(200):
        got, counter = run(named, counter)
        assert bool((got == first).all())
