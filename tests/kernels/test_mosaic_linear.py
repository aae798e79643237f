"""The Mosaic linear layers: their logic interpreted on the CPU, their lowering for sm_90, their numbers on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels import mosaic_linear
from jaxinfer_kernels.mosaic_linear_plan import Tuning, supported

LAYER, LAYERS, EPS = 1, 2, 1e-6
INTERPRET = plgpu.InterpretGPUParams(detect_races=True)
# Model width, rows of qkv, query heads times head_dim, MLP width
MODELS = {
    "Qwen2.5-1.5B": (1536, 2048, 1536, 8960),
    "Qwen3-8B": (4096, 6144, 4096, 12288),
    "Qwen3-0.6B": (1024, 4096, 2048, 3072),
    "Qwen2.5-0.5B": (896, 1152, 896, 4864),
    "Llama-3.2-1B": (2048, 3072, 2048, 8192),
}
OPS = ["norm_linear", "norm_linear_bias", "logits", "linear_residual", "norm_gate_up"]


def arguments(op: str, rows: int, out: int, depth: int) -> dict[str, jax.Array]:
    """In bf16, of the sizes that a model has them in."""
    keys = jax.random.split(jax.random.key(0), 4)
    normal = functools.partial(jax.random.normal, dtype=jnp.float32)
    named = {"x": 3 * normal(keys[0], (rows, depth)), "w": depth**-0.5 * normal(keys[1], (out, depth))}
    if op == "linear_residual":
        named["residual"] = 3 * normal(keys[2], (rows, out))
    else:
        named["norm"] = 1 + 0.2 * normal(keys[2], (LAYERS, depth))
    if op == "norm_linear_bias":
        named["bias"] = normal(keys[3], (LAYERS, out))
    return {name: value.astype(jnp.bfloat16) for name, value in named.items()}


def run(op: str, named: dict[str, jax.Array], **settings: object) -> jax.Array:
    """The op on these arguments, to the end: interpret mode's callbacks can wait for ever on work behind them."""
    if op == "linear_residual":
        return jax.block_until_ready(mosaic_linear.linear_residual(**named, **settings))
    settings |= {"out_dtype": jnp.float32} if op == "logits" else {}
    function = mosaic_linear.norm_gate_up if op == "norm_gate_up" else mosaic_linear.norm_linear
    return jax.block_until_ready(function(**named, layer=jnp.int32(LAYER), eps=EPS, **settings))


def plain(op: str, named: dict[str, jax.Array]) -> jax.Array:
    """The definition as XLA runs it, in the arguments' precision."""
    x, w = named["x"], named["w"]
    if "norm" in named:
        x32 = x.astype(jnp.float32)
        x = (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + EPS)).astype(x.dtype)
        x = x * named["norm"][LAYER]
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    y = jnp.einsum("TK,NK->TN", x, w, preferred_element_type=jnp.float32, precision=precision)
    if op == "logits":
        return y
    y = y.astype(w.dtype)
    if op == "norm_gate_up":
        gate, up = jnp.split(y.astype(jnp.float32), 2, axis=-1)
        return (jax.nn.silu(gate) * up).astype(w.dtype)
    return y + (named["bias"][LAYER] if "bias" in named else named.get("residual", jnp.zeros((), w.dtype)))


def reference(op: str, named: dict[str, jax.Array]) -> np.ndarray:
    return np.asarray(plain(op, {name: value.astype(jnp.float32) for name, value in named.items()}))


def error(out: jax.Array, wanted: np.ndarray) -> float:
    """Relative to the whole; NaN where any is."""
    return float(np.linalg.norm(np.asarray(out, np.float32) - wanted) / np.linalg.norm(wanted))


# At most two splits: peers that wait for each other each hold one of XLA's threads, of which there is one a core.
TINY = [
    # rows, out, depth, tuning
    (8, 128, 256, Tuning(splits=1)),
    (3, 128, 256, Tuning(splits=2, block=64, stages=1)),
    (16, 192, 256, Tuning(splits=1, clusters=2, block=64, stages=3)),
    (8, 192, 256, Tuning(splits=2, clusters=1, stages=2)),
]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("rows", "out", "depth", "tuning"), TINY)
def test_computes_its_definition(op, rows, out, depth, tuning):
    named = arguments(op, rows, out, depth)
    got = run(op, named, tuning=tuning, interpret=INTERPRET)
    wanted = plain(op, named)
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    assert error(got, reference(op, named)) < 8e-3
    assert error(got, np.asarray(wanted, np.float32)) < 3e-3  # the same but for the order of sums


def test_padding_reaches_only_padding():
    named = arguments("norm_gate_up", 8, 128, 256)
    named["x"] = named["x"].at[5:].set(jnp.nan)
    out = run("norm_gate_up", named, tuning=Tuning(splits=1), interpret=INTERPRET)
    assert error(out[:5], reference("norm_gate_up", named)[:5]) < 8e-3


def layer_ops(model: str) -> list[tuple[str, int, int]]:
    """Op, out, depth of every linear layer of a model."""
    width, qkv, heads, mlp = MODELS[model]
    return [
        ("norm_linear_bias" if model.startswith("Qwen2.5") else "norm_linear", qkv, width),
        ("linear_residual", width, heads),
        ("norm_gate_up", 2 * mlp, width),
        ("linear_residual", width, mlp),
        ("logits", 151936, width),
    ]


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("model", MODELS)
def test_lowers_for_hopper(model, rows):
    for op, out, depth in layer_ops(model):
        named = jax.eval_shape(lambda op=op, out=out, depth=depth: arguments(op, rows, out, depth))
        text = jax.jit(functools.partial(run_shapes, op)).trace(named).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("mosaic_gpu_v2") == 1


def run_shapes(op: str, named: dict[str, jax.Array]) -> jax.Array:
    return run(op, named)


def test_refuses_what_it_cannot_run():
    x, w = jnp.zeros((8, 4096), jnp.bfloat16), jnp.zeros((64, 4096), jnp.bfloat16)
    with pytest.raises(ValueError, match="use linear.linear"):
        mosaic_linear.linear_residual(x, jnp.zeros((100, 4096), jnp.bfloat16), jnp.zeros((8, 100), jnp.bfloat16))
    for tuning in (Tuning(splits=3), Tuning(block=96), Tuning(splits=1, stages=20)):
        with pytest.raises(ValueError, match="block must be a multiple of 64"):
            mosaic_linear.linear_residual(x, w, jnp.zeros((8, 64), jnp.bfloat16), tuning=tuning)
    assert not supported(65, 64, 128, jnp.bfloat16)
    assert not supported(8, 64, 128, jnp.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "rows"), [*((model, rows) for model in MODELS for rows in (3, 16)), ("Qwen2.5-1.5B", 64)]
)
def test_is_as_near_to_float32_as_xla_is(model, rows):
    for op, out, depth in layer_ops(model):
        if rows <= 16 or supported(rows, out, depth, jnp.bfloat16):  # so many rows the engine counts on
            named = arguments(op, rows, out, depth)
            wanted = reference(op, named)
            assert error(run(op, named), wanted) <= 2 * error(jax.jit(plain, static_argnums=0)(op, named), wanted)
