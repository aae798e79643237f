"""The kernel between the product of q, k and v and the extend attention: interpreted, lowered, and on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.attention.reference import rotate_write_reference
from jaxinfer_kernels.attention.sm90_rope import rotate_write

type Arguments = dict[str, jax.Array | tuple[jax.Array, jax.Array] | float | None]

LAYERS, PAGES, PAGE, EPS = 2, 7, 16, 1e-6
HEADS = [(6, 2, 64, True), (4, 1, 128, False), (14, 2, 64, False), (9, 3, 128, True)]  # of q, of k; H; normed


def arguments(heads: int, kv_heads: int, head_dim: int, normed: bool, num_tokens: int = 5) -> Arguments:
    """Random tokens, the third and every sixth after it padding, each other at a place of its own."""
    keys = jax.random.split(jax.random.key(heads), 5)
    angles = jax.random.uniform(keys[0], (num_tokens, head_dim // 2), maxval=6.0)
    pages = (LAYERS, PAGES, kv_heads, PAGE, head_dim)
    norms = tuple(1 + 0.1 * jax.random.normal(key, (LAYERS, head_dim)) for key in keys[3:])
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    return dict(
        qkv=jax.random.normal(keys[1], (num_tokens, (heads + 2 * kv_heads) * head_dim), jnp.bfloat16),
        cos_sin=(jnp.cos(angles), jnp.sin(angles)),
        k=jax.random.normal(keys[2], pages, jnp.bfloat16),
        v=jax.random.normal(keys[2], pages, jnp.bfloat16) + 1,
        page_ids=jnp.where(token % 6 == 2, PAGES, token % PAGES),
        offsets=(token // PAGES * 3 + 5) % PAGE,
        norms=tuple(norm.astype(jnp.bfloat16) for norm in norms) if normed else None,
        norm_eps=EPS if normed else None,
    )


def check(named: Arguments, got: tuple[jax.Array, ...]) -> None:
    """One rounding of bf16 apart at most; pages that nothing was written to are the same bits."""
    for mine, wanted in zip(got, rotate_write_reference(**named, layer=1), strict=True):
        np.testing.assert_allclose(mine.astype(jnp.float32), wanted.astype(jnp.float32), rtol=2**-7, atol=2**-7)
    for mine, before in zip(got[1:], (named["k"], named["v"]), strict=True):
        np.testing.assert_array_equal(mine[0], before[0])


@pytest.mark.parametrize("shape", HEADS, ids=str)
def test_rotates_queries_and_stores_keys_and_values_in_their_pages(shape):
    named = arguments(*shape)
    got = rotate_write(**named, layer=jnp.int32(1), interpret=plgpu.InterpretGPUParams(detect_races=True))
    check(named, jax.block_until_ready(got))


def test_padding_is_written_nowhere():
    named = arguments(4, 1, 128, normed=False)
    named["page_ids"] = jnp.full(5, PAGES, jnp.int32)
    _, k, v = rotate_write(**named, layer=jnp.int32(1), interpret=plgpu.InterpretGPUParams())
    np.testing.assert_array_equal(k, named["k"])
    np.testing.assert_array_equal(v, named["v"])


@pytest.mark.parametrize("shape", [(12, 2, 128, False), (32, 8, 128, True), (14, 2, 64, False)], ids=str)
def test_lowers_for_hopper(shape):
    eps = arguments(*shape).pop("norm_eps")
    arrays = jax.eval_shape(lambda: {k: v for k, v in arguments(*shape, num_tokens=128).items() if k != "norm_eps"})
    traced = jax.jit(lambda arrays: rotate_write(**arrays, layer=jnp.int32(1), norm_eps=eps)).trace(arrays)
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("mosaic_gpu_v2") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("shape", HEADS, ids=str)
def test_is_its_definition_on_a_gpu(shape):
    named = arguments(*shape, num_tokens=40)
    check(named, jax.block_until_ready(rotate_write(**named, layer=jnp.int32(1))))
