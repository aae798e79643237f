"""Gate and up of a prompt's rows: logic interpreted on the CPU, lowering for sm_90, numbers on a GPU."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.linear.cases import MODELS
from jaxinfer_kernels.linear.sm90_large import GateUpTuning, gate_up, supported
from jaxinfer_kernels.sm90 import H200
from tests.kernels.linear.products import QUICK_FIRST, arguments, check_beside_xla, error, reference, shapes


def run(named: dict[str, jax.Array], **settings: object) -> jax.Array:
    """Interpreted, with one warpgroup that multiplies and one that copies: each holds a thread of XLA's, one a core."""
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    return gate_up(**named, tuning=GateUpTuning(cluster=1, warpgroups=1, **settings), interpret=interpret)


# Stages are filled again, or are more than blocks; several groups of rows; then a CTA goes from tile to tile.
@pytest.mark.parametrize(
    ("rows", "out", "depth", "ctas", "settings"),
    [
        (384, 768, 128, 2, {"stages": 3}),
        pytest.param(128, 512, 192, H200.multiprocessors, {"stages": 2}, marks=pytest.mark.slow),
        pytest.param(384, 256, 64, H200.multiprocessors, {"stages": 4, "group": 2}, marks=pytest.mark.slow),
    ],
)
def test_computes_its_definition_with_one_rounding(rows, out, depth, ctas, settings):
    named = arguments("gate_up", rows, out, depth)
    gpu = dataclasses.replace(H200, multiprocessors=ctas)
    assert error(run(named, gpu=gpu, **settings), reference("gate_up", named)) < 2.5e-3


@pytest.mark.parametrize("rows", [1024, 1152, 8192])
@pytest.mark.parametrize("model", QUICK_FIRST)
def test_lowers_for_hopper(model, rows):
    named = shapes("gate_up", rows, 2 * MODELS[model].mlp, MODELS[model].width)
    text = jax.jit(lambda named: gate_up(**named)).trace(named).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1


def test_refuses_what_it_cannot_run():
    x, w = jnp.zeros((128, 64), jnp.bfloat16), jnp.zeros((512, 64), jnp.bfloat16)
    for rows, weights in ((x[:100], w), (x, w[:384]), (x, w.astype(jnp.float16)), (x[:, :32], w[:, :32])):
        with pytest.raises(ValueError, match="use linear.api.gate_up"):
            gate_up(rows, weights)
    with pytest.raises(ValueError, match="clusters of 2"):
        gate_up(x, w, tuning=GateUpTuning(cluster=2))
    assert not supported(128, 512, 64, jnp.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "rows"),
    [*(("Qwen2.5-1.5B", rows) for rows in (128, 1152, 4096, 8192)), *((model, 1024) for model in MODELS)],
)
def test_is_as_near_to_float32_as_xla_is(model, rows):
    named = arguments("gate_up", rows, 2 * MODELS[model].mlp, MODELS[model].width)
    check_beside_xla("gate_up", named, jax.block_until_ready(gate_up(**named)))
