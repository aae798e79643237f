"""The Mosaic extend attention: its logic interpreted on the CPU, its lowering for sm_90, its numbers on a GPU."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.attention import sm90_extend
from jaxinfer_kernels.attention.cases import HEADS, Heads
from jaxinfer_kernels.attention.paged import ExtendRows, LayerPages
from jaxinfer_kernels.attention.sm90_extend import ExtendTuning
from jaxinfer_kernels.attention.xla_extend import extend_attention

LAYER, LAYERS = 1, 2


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Rows of `counts` queries behind prefixes. Pages hold NaN wherever no row has a token."""

    arguments: tuple[jax.Array, LayerPages, ExtendRows]
    wanted: np.ndarray  # f32[T, N, H]
    tokens: np.ndarray  # those of `wanted` that belong to a row


def make_chunks(heads: Heads, prefixes: list[int], counts: list[int], num_tokens: int, page: int) -> Chunks:
    rng = np.random.default_rng(0)
    lengths = np.array(prefixes) + np.array(counts)
    width = -(-int(lengths.max()) // page) + 1
    needs = -(-lengths // page)
    num_pages = int(needs.sum()) + 8
    table = rng.integers(1, num_pages, (len(counts) + 1, width), np.int32)
    slots = rng.permutation(np.arange(1, len(counts) + 1)).astype(np.int32)
    shuffled = np.split(rng.permutation(np.arange(1, num_pages)), np.cumsum(needs))
    for slot, need, pages in zip(slots, needs, shuffled[:-1], strict=True):
        table[slot, :need] = pages
    starts = np.cumsum([0, *counts[:-1]]).astype(np.int32)

    def normal(*shape: int) -> np.ndarray:
        return np.asarray(jnp.asarray(rng.standard_normal(shape, np.float32), jnp.bfloat16), np.float32)

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
        wanted[mine] = attended(q[mine], keys, values) if count else 0
    rows = tuple(jnp.asarray(x, jnp.int32) for x in (table, slots, starts, counts, lengths))
    queries, *pages = (jnp.asarray(x, jnp.bfloat16) for x in (q, k, v))
    return Chunks((queries, (*pages, jnp.int32(LAYER)), rows), wanted, tokens)


def attended(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """q [T, N, H], the last of the tokens that keys and values [S, K, H] are of: the definition, kv head by kv head."""
    (count, num_heads, head_dim), (length, kv_heads, _) = q.shape, keys.shape
    visible = np.arange(length) <= (length - count + np.arange(count))[:, None]  # [T, S]
    out = np.zeros_like(q)
    for head in range(num_heads):
        key, value = (x[:, head // (num_heads // kv_heads)] for x in (keys, values))  # [S, H]
        scores = np.where(visible, q[:, head] @ key.T * head_dim**-0.5, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = weights @ value / weights.sum(axis=-1, keepdims=True)
    return out


def worst_error(out: jax.Array, chunks: Chunks) -> float:
    """Of the tokens, each relative to itself: a late token's average is small beside an early one's values."""
    got, wanted = (np.asarray(x, np.float32)[chunks.tokens] for x in (out, chunks.wanted))
    sizes, off = (np.linalg.norm(x.reshape(len(x), -1), axis=-1) for x in (wanted, got - wanted))
    return float((off / sizes).max())


def error(out: jax.Array, chunks: Chunks) -> float:
    """Relative to the whole; NaN where any is. Tokens of no row are left out."""
    difference = np.asarray(out, np.float32)[chunks.tokens] - chunks.wanted[chunks.tokens]
    return float(np.linalg.norm(difference) / np.linalg.norm(chunks.wanted[chunks.tokens]))


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")  # scores of NaN keys, masked afterwards
@pytest.mark.parametrize(
    ("prefixes", "counts", "num_tokens", "page"),
    [pytest.param([30, 0, 5, 64], [70, 40, 0, 1], 128, 64, marks=pytest.mark.slow), ([0, 130], [64, 3], 80, 16)],
)
@pytest.mark.parametrize("splits", [1, 3])
def test_each_chunk_sees_its_prefix_and_itself_up_to_each_query(prefixes, counts, num_tokens, page, splits):
    chunks = make_chunks(Heads("tiny", 2, 1, 64), prefixes, counts, num_tokens, page)
    # One computing warpgroup and one that copies: interpreted, each holds one of XLA's threads, one a core.
    out = sm90_extend.extend_attention(
        *chunks.arguments,
        tuning=ExtendTuning(warpgroups=1, block_tokens=64, splits=splits),
        interpret=plgpu.InterpretGPUParams(),
    )
    assert error(jax.block_until_ready(out), chunks) < 4e-3


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")
@pytest.mark.parametrize("splits", [1, 3])
def test_kernels_alone_give_the_same(splits):
    """As a chain has them: tiles are laid out before, and what splits found is added up by a kernel."""
    chunks = make_chunks(Heads("tiny", 2, 1, 64), [0, 130], [64, 3], 80, 16)
    q, pages, rows = chunks.arguments
    tuning = ExtendTuning(warpgroups=1, block_tokens=64, splits=splits)
    tiles = sm90_extend.tiles_of(rows[3], len(q), q.shape[1], tuning)
    interpret = plgpu.InterpretGPUParams()
    out = sm90_extend.extend_tiles(q, pages, tiles, rows, tuning=tuning, interpret=interpret)
    assert error(jax.block_until_ready(out), chunks) < 4e-3


@pytest.mark.parametrize(("num_tokens", "kernels"), [(64, 2), (128, 1)])
def test_kernels_of_a_chain_lower_for_hopper(num_tokens, kernels):
    heads = HEADS[0]
    kv = jax.ShapeDtypeStruct((LAYERS, 50, heads.kv_heads, 64, heads.head_dim), jnp.bfloat16)
    q = jax.ShapeDtypeStruct((num_tokens, heads.heads, heads.head_dim), jnp.bfloat16)
    tiles = jax.eval_shape(lambda counts: sm90_extend.tiles_of(counts, num_tokens, heads.heads), jnp.zeros(8, int))
    layer, *rows = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((), (257, 8), *((8,),) * 4))
    traced = sm90_extend.extend_tiles.trace(q, (kv, kv, layer), tiles, tuple(rows), tuning=ExtendTuning(pdl=True))
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("mosaic_gpu_v2") == kernels


@pytest.mark.parametrize("num_tokens", [64, 128, 2048])
@pytest.mark.parametrize("heads", [HEADS[0], HEADS[1]], ids=lambda heads: heads.model)
def test_lowers_for_hopper(heads, num_tokens):
    kv = jax.ShapeDtypeStruct((LAYERS, 50, heads.kv_heads, 64, heads.head_dim), jnp.bfloat16)
    q = jax.ShapeDtypeStruct((num_tokens, heads.heads, heads.head_dim), jnp.bfloat16)
    layer, *rows = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((), (257, 8), *((8,),) * 4))
    traced = sm90_extend.extend_attention.trace(q, (kv, kv, layer), tuple(rows))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1


def test_refuses_shapes_it_cannot_run():
    chunks = make_chunks(Heads("odd", 2, 1, 96), [0], [64], 64, 64)
    with pytest.raises(ValueError, match="head_dim 64 or 128"):
        sm90_extend.extend_attention(*chunks.arguments)


FEW = ([0, 1000, 64, 4000], [300, 129, 64, 1], 512)
MANY = ([0, 8191, 8000, 63, 64, 2047, 0, 500, 127, 4095], [65, 1, 100, 1, 64, 1, 0, 130, 2, 1], 512)
LONG = ([6144], [2048], 2048)
SHORT = ([8000, 0, 100], [32, 20, 7], 64)  # few queries: their keys are split
SUPPORTED = [heads for heads in HEADS if heads.head_dim <= 128]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "chunks", "page"),
    [
        *((heads, FEW, 64) for heads in SUPPORTED),
        *((heads, MANY, 64) for heads in (HEADS[0], HEADS[1], HEADS[3])),
        *((HEADS[1], FEW, page) for page in (8, 16, 32, 128)),
        (HEADS[1], MANY, 16),
        (HEADS[1], LONG, 64),
        *((heads, SHORT, 64) for heads in SUPPORTED),
    ],
    ids=lambda value: getattr(value, "model", str(value)[:12]),
)
def test_is_as_near_to_float32_as_xla_is(heads, chunks, page):
    made = make_chunks(heads, *chunks, page)
    bound = 2 * worst_error(extend_attention(*made.arguments), made)
    assert worst_error(sm90_extend.extend_attention(*made.arguments), made) <= bound
