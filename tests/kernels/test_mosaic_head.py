"""Logits with each row's largest: logic interpreted on the CPU, lowering for sm_90, numbers on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels import mosaic_head
from jaxinfer_kernels.mosaic_head import Tuning, head, supported
from tests.kernels.linears import MODELS, QUICK_FIRST, arguments, check_beside_xla, error, reference

STALE = -7.0


def run(named: dict[str, jax.Array], kept: int, **settings: object) -> tuple[jax.Array, jax.Array]:
    """Interpreted; up to 64 rows, since each warpgroup holds a thread of XLA's, one a core."""
    logits = jnp.full((kept, len(named["w"])), STALE, jnp.float32)
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    return head(**named, logits=logits, tuning=Tuning(**settings), interpret=interpret)


# A vocabulary that tiles do not cut evenly; stages filled again, and more of them than blocks; fewer rows than eight.
@pytest.mark.parametrize(
    ("rows", "vocab", "depth", "ctas", "stages"),
    [
        (3, 896, 128, 2, 2),
        pytest.param(64, 512, 192, 132, 4, marks=pytest.mark.slow),
        pytest.param(17, 1152, 64, 1, 3, marks=pytest.mark.slow),
    ],
)
def test_rows_are_the_product_and_each_has_its_largest(monkeypatch, rows, vocab, depth, ctas, stages):
    monkeypatch.setattr(mosaic_head, "CTAS_WANTED", ctas)
    named = arguments("head", rows, vocab, depth)
    kept = mosaic_head.round_up(rows, 8) + 8
    logits, tokens = run(named, kept, stages=stages)
    assert logits.dtype == jnp.float32 and tokens.dtype == jnp.int32
    assert error(logits[:rows], reference("head", named)) < 1e-6
    assert np.array_equal(tokens, np.argmax(logits[:rows], axis=-1))
    assert np.all(np.asarray(logits[-8:]) == STALE)


def test_of_equal_logits_the_lowest_token_is_the_largest(monkeypatch):
    monkeypatch.setattr(mosaic_head, "CTAS_WANTED", 1)
    x = jnp.ones((8, 64), jnp.bfloat16)
    w = jnp.zeros((896, 64), jnp.bfloat16).at[jnp.array([130, 300, 301, 895])].set(1)  # in both sides, all tiles
    _, tokens = run({"x": x, "w": w}, 8)
    assert np.array_equal(tokens, np.full(8, 130))
    _, tokens = run({"x": x * 0, "w": w}, 8)
    assert np.array_equal(tokens, np.zeros(8))


def test_a_row_with_a_nan_gets_some_token_and_changes_no_other():
    named = arguments("head", 8, 256, 64)
    whole, tokens = run(named, 8)
    poisoned, found = run(named | {"x": named["x"].at[2, 5].set(jnp.nan)}, 8)
    others = np.arange(8) != 2
    assert np.all(np.isnan(poisoned[2])) and 0 <= found[2] < 256
    assert np.array_equal(np.asarray(poisoned)[others], np.asarray(whole)[others])
    assert np.array_equal(np.asarray(found)[others], np.asarray(tokens)[others])


@pytest.mark.parametrize("rows", [1, 64, 72, 128, 192, 256])
@pytest.mark.parametrize("model", QUICK_FIRST)
def test_lowers_for_hopper_and_copies_no_logits(model, rows):
    named = jax.eval_shape(functools.partial(arguments, "head", rows, 151936, MODELS[model][0]))
    logits = jax.ShapeDtypeStruct((256, 151936), jnp.float32)
    step = jax.jit(lambda named, logits: head(**named, logits=logits), donate_argnums=1)
    text = step.trace(named, logits).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1
    assert "output_operand_alias" in text


def test_refuses_what_it_cannot_run():
    x, w, logits = jnp.zeros((8, 64), jnp.bfloat16), jnp.zeros((512, 64), jnp.bfloat16), jnp.zeros((8, 512))
    for wrong in (
        (jnp.zeros((264, 64), x.dtype), w, jnp.zeros((264, 512))),
        (x, w, logits[:7]),
        (x, w, logits[:, :256]),
        (x, w[:248], logits[:, :248]),
        (x, w[:320], logits[:, :320]),
        (x[:, :32], w[:, :32], logits),
        (x, w.astype(jnp.float16), logits),
    ):
        with pytest.raises(ValueError, match="use linear.linear"):
            head(*wrong)
    assert not supported(8, 8, 512, 64, jnp.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "rows"),
    [*(("Qwen2.5-1.5B", rows) for rows in (1, 8, 64, 72, 128, 192, 256)), *((model, 32) for model in MODELS)],
)
def test_is_as_near_to_float32_as_xla_is(model, rows):
    named = arguments("head", rows, 151936, MODELS[model][0])
    logits, tokens = jax.block_until_ready(head(**named, logits=jnp.full((256, 151936), STALE, jnp.float32)))
    check_beside_xla("head", named, logits[:rows])
    assert np.array_equal(tokens, np.argmax(logits[:rows], axis=-1))
    assert np.all(np.asarray(logits[mosaic_head.round_up(rows, 8) :]) == STALE)
