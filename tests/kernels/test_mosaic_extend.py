"""The Mosaic extend attention: its logic interpreted on the CPU, its lowering for sm_90, its numbers on a GPU."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels import mosaic_extend
from jaxinfer_kernels.cases import HEADS, Heads
from jaxinfer_kernels.extend_attention import extend_attention
from jaxinfer_kernels.mosaic_extend import Tuning

LAYER, LAYERS = 1, 2


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Rows of `counts` queries behind prefixes. Pages hold NaN wherever no row has a token."""

    arguments: tuple[jax.Array, ...]
    wanted: np.ndarray  # f32[T, N, H]
    tokens: np.ndarray  # those of `wanted` that belong to a row


def make_chunks(heads: Heads, prefixes: list[int], counts: list[int], num_tokens: int, page: int) -> Chunks:
    rng = np.random.default_rng(0)
    lengths = np.array(prefixes) + np.array(counts)
    width = -(-int(lengths.max()) // page) + 1
    num_pages = len(counts) * width + 2
    table = np.zeros((len(counts) + 1, width), np.int32)
    table[1:] = rng.permutation(np.arange(1, num_pages))[: len(counts) * width].reshape(-1, width)
    slots = rng.permutation(np.arange(1, len(counts) + 1)).astype(np.int32)
    starts = np.cumsum([0, *counts[:-1]]).astype(np.int32)

    def normal(*shape: int) -> np.ndarray:
        return np.asarray(jnp.asarray(rng.normal(size=shape), jnp.bfloat16), np.float32)

    q = normal(num_tokens, heads.heads, heads.head_dim)
    k, v = (np.full((LAYERS, num_pages, heads.kv_heads, page, heads.head_dim), np.nan, np.float32) for _ in "kv")
    wanted, tokens = np.zeros_like(q), np.zeros(num_tokens, bool)
    for slot, start, count, length in zip(slots, starts, counts, lengths, strict=True):
        places = np.arange(length)
        keys, values = (normal(length, heads.kv_heads, heads.head_dim) for _ in "kv")
        for pages, filling in ((k, keys), (v, values)):
            pages[LAYER, table[slot, places // page], :, places % page] = filling
        mine = slice(start, start + count)
        tokens[mine] = True
        grouped = q[mine].reshape(count, heads.kv_heads, heads.heads // heads.kv_heads, heads.head_dim)
        scores = np.einsum("TKGH,SKH->KGTS", grouped, keys) * heads.head_dim**-0.5
        scores = np.where(places <= (length - count + np.arange(count))[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        wanted[mine] = np.einsum("KGTS,SKH->TKGH", weights, values).reshape(count, heads.heads, heads.head_dim)
    rows = (jnp.asarray(x, jnp.int32) for x in (table, slots, starts, counts, lengths))
    arrays = tuple(jnp.asarray(x, jnp.bfloat16) for x in (q, k, v))
    return Chunks((*arrays, jnp.int32(LAYER), *rows), wanted, tokens)


def error(out: jax.Array, chunks: Chunks) -> float:
    """Relative to the whole; NaN where any is. Tokens of no row are left out."""
    difference = np.asarray(out, np.float32)[chunks.tokens] - chunks.wanted[chunks.tokens]
    return float(np.linalg.norm(difference) / np.linalg.norm(chunks.wanted[chunks.tokens]))


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")  # scores of NaN keys, masked afterwards
@pytest.mark.parametrize(
    ("prefixes", "counts", "num_tokens", "page"),
    [([30, 0, 5, 64], [70, 40, 0, 1], 128, 64), ([0, 130], [64, 3], 80, 16)],
)
def test_each_chunk_sees_its_prefix_and_itself_up_to_each_query(prefixes, counts, num_tokens, page):
    chunks = make_chunks(Heads("tiny", 2, 1, 64), prefixes, counts, num_tokens, page)
    # One computing warpgroup and one that copies: interpreted, each holds one of XLA's threads, one a core.
    out = mosaic_extend.extend_attention(
        *chunks.arguments, tuning=Tuning(warpgroups=1, block_tokens=64), interpret=plgpu.InterpretGPUParams()
    )
    assert error(jax.block_until_ready(out), chunks) < 4e-3


@pytest.mark.parametrize("heads", [HEADS[0], HEADS[1]], ids=lambda heads: heads.model)
def test_lowers_for_hopper(heads):
    kv = jax.ShapeDtypeStruct((LAYERS, 50, heads.kv_heads, 64, heads.head_dim), jnp.bfloat16)
    q = jax.ShapeDtypeStruct((2048, heads.heads, heads.head_dim), jnp.bfloat16)
    scalars = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((), (257, 8), *((8,),) * 4)]
    text = mosaic_extend.extend_attention.trace(q, kv, kv, *scalars).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1


def test_refuses_shapes_it_cannot_run():
    chunks = make_chunks(Heads("odd", 2, 1, 96), [0], [64], 64, 64)
    with pytest.raises(ValueError, match="head_dim 64 or 128"):
        mosaic_extend.extend_attention(*chunks.arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [h for h in HEADS if h.head_dim <= 128], ids=lambda heads: heads.model)
def test_is_as_near_to_float32_as_xla_is(heads):
    chunks = make_chunks(heads, [0, 1000, 64, 4000], [300, 129, 64, 1], 512, 64)
    bound = 2 * error(extend_attention(*chunks.arguments), chunks)
    assert error(mosaic_extend.extend_attention(*chunks.arguments), chunks) <= bound
