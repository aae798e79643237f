"""The Mosaic decode attention: its logic interpreted on the CPU, its lowering for sm_90, its numbers on a GPU."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.attention import sm90_decode
from jaxinfer_kernels.attention.cases import HEADS, Heads
from jaxinfer_kernels.attention.paged import DecodeRows, LayerPages
from jaxinfer_kernels.attention.sm90_decode_config import DecodeTuning, plan_launch, supported
from jaxinfer_kernels.attention.xla_decode import decode_attention
from jaxinfer_kernels.sm90 import H200

LAYER, LAYERS, EPS = 1, 2, 1e-6
INTERPRET = plgpu.InterpretGPUParams(detect_races=True)


@dataclasses.dataclass(frozen=True)
class Step:
    """One decode step's arguments. The pages hold NaN wherever no row has a token yet, its newest place included.

    Entries of the page table past a row's last page name any page: a neighbour's, or one that is all NaN.
    """

    q: jax.Array  # [B, N, H]
    new: tuple[jax.Array, jax.Array]  # [B, K, H] each
    before: tuple[jax.Array, jax.Array]  # pages without the newest tokens
    after: tuple[jax.Array, jax.Array]  # pages with them
    rows: DecodeRows

    @property
    def pages(self) -> LayerPages:
        return *self.after, jnp.int32(LAYER)


def make_step(heads: Heads, lengths: list[int], page: int, context: int = 0) -> Step:
    """context: the longest length that the page table and the pool are made for; by default the longest there is."""
    rng = np.random.default_rng(sum(lengths))
    batch, width = len(lengths), -(-max(*lengths, context) // page) + 1
    needs = [-(-length // page) for length in lengths]
    num_pages = max(sum(needs), 5 * width // 4) + 8
    table = rng.integers(1, num_pages, (batch + 1, width), np.int32)
    slots = rng.permutation(np.arange(1, batch + 1)).astype(np.int32)
    shuffled = np.split(rng.permutation(np.arange(1, num_pages)), np.cumsum(needs))
    for slot, need, pages in zip(slots, needs, shuffled[:-1], strict=True):
        table[slot, :need] = pages

    def normal(*shape: int) -> np.ndarray:
        return np.asarray(jnp.asarray(rng.standard_normal(shape, np.float32), jnp.bfloat16), np.float32)

    new = [normal(batch, heads.kv_heads, heads.head_dim) for _ in "kv"]
    filled = [normal(LAYERS, num_pages, heads.kv_heads, page, heads.head_dim) for _ in "kv"]
    owned = np.zeros((num_pages, page), bool)
    for slot, length in zip(slots, lengths, strict=True):
        places = np.arange(max(length - 1, 0))
        owned[table[slot, places // page], places % page] = True
    before = [np.where(owned[None, :, None, :, None], pages, np.nan) for pages in filled]
    after = [pages.copy() for pages in before]
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        if length:
            for pages, token in zip(after, new, strict=True):
                pages[LAYER, table[slot, (length - 1) // page], :, (length - 1) % page] = token[row]

    def bf16(arrays: list[np.ndarray]) -> tuple[jax.Array, jax.Array]:
        first, second = (jnp.asarray(a, jnp.bfloat16) for a in arrays)
        return first, second

    q = jnp.asarray(normal(batch, heads.heads, heads.head_dim), jnp.bfloat16)
    rows = jnp.asarray(table), jnp.asarray(slots), jnp.asarray(lengths, jnp.int32)
    return Step(q, bf16(new), bf16(before), bf16(after), rows)


def reference(step: Step) -> np.ndarray:
    """The definition in float32, row by row; decode_attention_reference says the same but compiles for each length."""
    q, k, v = (np.asarray(x, np.float32) for x in (step.q, *step.after))
    table, slots, lengths = (np.asarray(x) for x in step.rows)
    out = np.zeros_like(q)
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        if length:
            places = np.arange(length)
            pages, offsets = table[slot, places // k.shape[3]], places % k.shape[3]
            keys, values = (x[LAYER][pages, :, offsets] for x in (k, v))  # [S, K, H]
            grouped = q[row].reshape(keys.shape[1], -1, q.shape[-1])
            scores = np.einsum("KGH,SKH->KGS", grouped, keys) * q.shape[-1] ** -0.5
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            out[row] = np.einsum("KGS,SKH->KGH", weights, values).reshape(q.shape[1:])
    return out


def finished[T](result: T) -> T:
    """Interpret mode's callbacks can wait for ever on work that is dispatched behind them."""
    return jax.block_until_ready(result)


def error(out: jax.Array, wanted: np.ndarray) -> float:
    """Relative to the whole; NaN where any is."""
    return float(np.linalg.norm(np.asarray(out, np.float32) - wanted) / np.linalg.norm(wanted))


def row_errors(out: jax.Array, wanted: np.ndarray) -> np.ndarray:
    """f32[B], each row relative to itself: a long row's average is small beside a short row's values."""
    sizes = np.linalg.norm(wanted.reshape(len(wanted), -1), axis=-1)
    off = np.linalg.norm((np.asarray(out, np.float32) - wanted).reshape(len(wanted), -1), axis=-1)
    return off / np.where(sizes > 0, sizes, 1)


def assert_same_pages(got: tuple[jax.Array, jax.Array], wanted: tuple[jax.Array, jax.Array]) -> None:
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


# At most two splits: peers that wait for each other each hold one of XLA's threads, of which there is one a core.
TINY = [
    # heads, kv_heads, head_dim, lengths, page, tuning
    (6, 2, 64, [130, 0], 64, DecodeTuning(splits=1, stages=2)),
    (3, 1, 128, [200], 64, DecodeTuning(splits=2, stages=2)),
    (9, 1, 64, [70], 16, DecodeTuning(splits=2)),
    (2, 2, 64, [129], 128, DecodeTuning(splits=1)),
    (1, 1, 64, [1, 64, 65], 64, DecodeTuning(splits=1, block_tokens=128)),
]
tiny = pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "lengths", "page", "tuning"), TINY)


@tiny
def test_attends_to_its_own_pages_only(heads, kv_heads, head_dim, lengths, page, tuning):
    step = make_step(Heads("tiny", heads, kv_heads, head_dim), lengths, page)
    out = finished(sm90_decode.decode_attention(step.q, step.pages, step.rows, tuning=tuning, interpret=INTERPRET))
    assert error(out, reference(step)) < 4e-3


def test_a_slot_may_have_several_rows_each_of_its_length():
    """As where tokens of a sequence come together: each sees those before it, and no NaN behind it."""
    step = make_step(Heads("tiny", 3, 1, 64), [66, 3], 64)
    table, slots, _ = step.rows
    rows, lengths = jnp.array([0, 1, 0, 0, 1]), jnp.array([64, 3, 65, 66, 1], jnp.int32)
    q, slots = finished((step.q[rows], slots[rows]))
    step = dataclasses.replace(step, q=q, rows=(table, slots, lengths))
    tuning = DecodeTuning(splits=1)
    out = finished(sm90_decode.decode_attention(step.q, step.pages, step.rows, tuning=tuning, interpret=INTERPRET))
    assert row_errors(out, reference(step)).max() < 8e-3


@tiny
def test_stores_the_newest_token_and_attends_to_it(heads, kv_heads, head_dim, lengths, page, tuning):
    step = make_step(Heads("tiny", heads, kv_heads, head_dim), lengths, page)
    out, *pages = finished(
        sm90_decode.decode_attention_write(
            step.q, *step.new, (*step.before, jnp.int32(LAYER)), step.rows, tuning=tuning, interpret=INTERPRET
        )
    )
    assert_same_pages(pages, step.after)
    assert error(out, reference(step)) < 4e-3


def fused_arguments(heads: Heads, batch: int, seed: int = 1) -> tuple[jax.Array, tuple[jax.Array, jax.Array], dict]:
    """qkv, cos and sin, and the optional arguments of the model."""
    keys = jax.random.split(jax.random.key(seed), 5)
    width = (heads.heads + 2 * heads.kv_heads) * heads.head_dim
    qkv = jax.random.normal(keys[0], (batch, width), jnp.bfloat16)
    angle = jax.random.uniform(keys[1], (batch, heads.head_dim // 2), maxval=6.0)
    optional = {}
    if heads.norm:
        scales = (1 + 0.2 * jax.random.normal(key, (LAYERS, heads.head_dim)) for key in keys[3:])
        optional |= {"norms": tuple(scale.astype(jnp.bfloat16) for scale in scales), "norm_eps": EPS}
    return qkv, (jnp.cos(angle), jnp.sin(angle)), optional


def unfused(heads: Heads, qkv: jax.Array, cos_sin: tuple[jax.Array, jax.Array], optional: dict) -> list[jax.Array]:
    """q, k, v as the models compute them: norm, rotation, rounded between."""
    x = qkv.reshape(len(qkv), -1, heads.head_dim)
    q, k, v = jnp.split(x, (heads.heads, heads.heads + heads.kv_heads), axis=1)
    if heads.norm:
        q, k = (_rms_norm(a, scale[LAYER]) for a, scale in zip((q, k), optional["norms"], strict=True))
    cos, sin = (a[:, None] for a in cos_sin)
    first, second = jnp.split(jnp.concatenate([q, k], axis=1).astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
    return [turned[:, : heads.heads], turned[:, heads.heads :], v]


def _rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + EPS)).astype(x.dtype) * scale


def fused_and_wanted(
    heads: Heads,
    lengths: list[int],
    page: int,
    tuning: DecodeTuning,
    interpret: plgpu.InterpretGPUParams | None,
    context: int = 0,
    padding: int = 0,
) -> tuple[Step, tuple[jax.Array, ...]]:
    """The step that the fused op ought to have done, and (out, k, v) of what it did.

    padding: rows of NaN behind those that count.
    """
    step = make_step(heads, lengths, page, context)
    qkv, cos_sin, optional = fused_arguments(heads, len(lengths))
    padded = jnp.pad(qkv, ((0, padding), (0, 0)), constant_values=jnp.nan)
    angles = tuple(jnp.pad(x, ((0, padding), (0, 0)), constant_values=jnp.nan) for x in cos_sin)
    q, *new = unfused(heads, qkv, cos_sin, optional)
    table, slots, sizes = step.rows
    rows = np.flatnonzero(np.asarray(sizes))
    places = np.asarray(table)[np.asarray(slots)[rows], (np.asarray(sizes)[rows] - 1) // page]
    after = [
        pages.at[LAYER, places, :, (sizes[rows] - 1) % page].set(token[rows])
        for pages, token in zip(step.before, new, strict=True)
    ]
    finished((after, padded, angles, optional))
    out, *got = finished(
        sm90_decode.decode_attention_fused(
            padded, angles, (*step.before, jnp.int32(LAYER)), step.rows, **optional, tuning=tuning, interpret=interpret
        )
    )
    assert len(out) == len(lengths) + padding
    return dataclasses.replace(step, q=q, new=tuple(new), after=tuple(after)), (out[: len(lengths)], *got)


@pytest.mark.parametrize(
    "norm",
    [True, pytest.param(False, marks=pytest.mark.slow)],
)
def test_fused_does_what_norm_rotation_write_and_attention_do(norm):
    heads = Heads("tiny", 6, 2, 64, norm=norm)
    step, (out, *pages) = fused_and_wanted(heads, [70, 0], 64, DecodeTuning(splits=2, stages=2), INTERPRET, padding=1)
    for got, wanted in zip(pages, step.after, strict=True):
        got, wanted = (np.asarray(a, np.float32) for a in (got, wanted))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        np.testing.assert_allclose(got, wanted, rtol=2**-7, atol=2**-6)
    assert error(out, reference(step)) < 6e-3


@pytest.mark.parametrize(
    ("heads", "batch"),
    [(HEADS[1], 256), *(pytest.param(heads, 1, marks=pytest.mark.slow) for heads in HEADS)],
    ids=lambda x: getattr(x, "model", x),
)
def test_lowers_for_hopper(heads, batch):
    kv = jax.ShapeDtypeStruct((LAYERS, 50, heads.kv_heads, 64, heads.head_dim), jnp.bfloat16)
    layer, *rows = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((), (257, 8), (batch,), (batch,)))
    where = (kv, kv, layer), tuple(rows)
    qkv, cos_sin = jax.eval_shape(lambda: fused_arguments(heads, batch)[:2])
    optional = fused_arguments(heads, 1)[2]
    op = sm90_decode.decode_attention_fused
    text = op.trace(qkv, cos_sin, *where, **optional).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1


@pytest.mark.parametrize(
    ("heads", "page", "batch"),
    [
        (Heads("wide", 32, 1, 128), 128, 1),
        (Heads("large", 4, 1, 256), 64, 1),
        (Heads("wide and large", 32, 1, 256), 64, 256),
        (Heads("too large", 8, 1, 256), 128, 1),
        (Heads("too wide", 64, 1, 256), 64, 1),
    ],
    ids=lambda x: getattr(x, "model", x),
)
def test_what_is_supported_fits_into_shared_memory(heads, page, batch):
    kv = jax.ShapeDtypeStruct((LAYERS, 50, heads.kv_heads, page, heads.head_dim), jnp.bfloat16)
    layer, *rows = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((), (257, 8), (batch,), (batch,)))
    where = (kv, kv, layer), tuple(rows)
    q = jax.ShapeDtypeStruct((batch, heads.heads, heads.head_dim), jnp.bfloat16)
    if supported(heads.heads, heads.kv_heads, heads.head_dim, page, jnp.bfloat16, H200):
        sm90_decode.decode_attention.trace(q, *where).lower(lowering_platforms=("cuda",))
    else:
        assert heads.model.startswith("too")
        with pytest.raises(ValueError, match="use attention.api.decode_attention"):
            sm90_decode.decode_attention.trace(q, *where)


@pytest.mark.parametrize(
    ("rows", "kv_heads", "splits"),
    [(1, 2, 16), (3, 1, 16), (2, 2, 8), (1, 8, 8), (8, 2, 4), (8, 8, 2), (60, 2, 1)],
)
def test_few_rows_are_split_over_as_many_ctas_as_pay(rows, kv_heads, splits):
    pages = jax.ShapeDtypeStruct((LAYERS, 50, kv_heads, 64, 128), jnp.bfloat16)
    assert plan_launch(rows, 4 * kv_heads, pages, pages.dtype, DecodeTuning(), None).splits == splits


def test_refuses_shapes_it_cannot_run():
    step = make_step(Heads("odd", 2, 1, 96), [5], 64)
    with pytest.raises(ValueError, match="head_dim 64, 128 or 256"):
        sm90_decode.decode_attention(step.q, step.pages, step.rows)
    step = make_step(Heads("tiny", 2, 1, 64), [5], 64)
    with pytest.raises(ValueError, match="block_tokens must be a multiple of 64"):
        sm90_decode.decode_attention(step.q, step.pages, step.rows, tuning=DecodeTuning(block_tokens=96))
    with pytest.raises(ValueError, match="stages must be at least 2"):
        sm90_decode.decode_attention(step.q, step.pages, step.rows, tuning=DecodeTuning(stages=1))


def test_one_wrong_page_of_a_long_row_is_seen_beside_short_rows():
    step = make_step(Heads("tiny", 6, 2, 64), [1, 700, 2, 64], 64)
    table, slots, lengths = step.rows
    wanted = reference(step)
    rows = row_errors(decode_attention(step.q, step.pages, step.rows), wanted)
    mixed_up = table.at[slots[1], 3].set(table[slots[3], 0])
    wrong = row_errors(decode_attention(step.q, step.pages, (mixed_up, slots, lengths)), wanted)
    assert wrong.max() == wrong[1] > 20 * rows.max()
    lost = table.at[slots[1], 3].set(0)  # page 0 is nobody's
    assert np.isnan(row_errors(decode_attention(step.q, step.pages, (lost, slots, lengths)), wanted)[1])


LENGTHS = ([64, 0, 65, 8192, 1, 1000, 127], [4095, 128, 2, 513, 63, 2048, 129])
MANY = [round(2048 ** (i / 143)) for i in range(144)]  # enough rows for one CTA each


def assert_as_near_as_xla(heads: Heads, lengths: list[int], page: int, context: int) -> None:
    """Fused, storing first, and attending alone: all of them do the same step."""
    step, (fused, *_) = fused_and_wanted(heads, lengths, page, DecodeTuning(), None, context, padding=-len(lengths) % 8)
    alone = sm90_decode.decode_attention(step.q, step.pages, step.rows)
    before = *step.before, jnp.int32(LAYER)
    stored, *pages = sm90_decode.decode_attention_write(step.q, *step.new, before, step.rows)
    assert_same_pages(pages, step.after)
    wanted = reference(step)
    bound = 2 * row_errors(decode_attention(step.q, step.pages, step.rows), wanted).max()
    for out in (fused, alone, stored):
        assert row_errors(out, wanted).max() <= bound


@pytest.mark.gpu
@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: heads.model)
def test_is_as_near_to_float32_as_xla_is(heads):
    for lengths in ([1], [1000], [8192], *LENGTHS):
        assert_as_near_as_xla(heads, lengths, 64, 8192)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "lengths", "page"),
    [*((HEADS[1], LENGTHS[0], page) for page in (8, 16, 32, 128)), (HEADS[0], MANY, 64), (HEADS[1], MANY, 64)],
    ids=lambda value: getattr(value, "model", str(value)[:12]),
)
def test_other_pages_and_many_rows_are_as_near_to_float32_as_xla_is(heads, lengths, page):
    assert_as_near_as_xla(heads, lengths, page, max(lengths))
