"""Sequences whose every token is given, through the step functions that ship, and how far their logits lie apart."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.layers.spec import Rope
from jaxinfer.models.dense import DenseConfig, Params
from jaxinfer.models.registry import dense
from jaxinfer.runtime import buckets, packing, step
from jaxinfer.runtime.backends import Launches
from jaxinfer.runtime.packing import extend_layout
from jaxinfer.runtime.plan import Plan, Row
from jaxinfer.runtime.state import DeviceState, init_state
from jaxinfer_kernels.launch import ffi
from jaxinfer_kernels.linear.quantized import Format, Quantized

CLEAR = 0.1  # a gap between the two most likely tokens that no rounding may turn round


def model_of(heads: int, kv_heads: int, head_dim: int, *, qk_norm: bool, hidden: int, num_layers: int) -> DenseConfig:
    """Qwen3 with qk_norm, else Qwen2, whose q, k and v have a bias."""
    return DenseConfig(
        architecture="Qwen3ForCausalLM" if qk_norm else "Qwen2ForCausalLM",
        vocab_size=1000,
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=2 * hidden,
        norm_eps=1e-6,
        rope=Rope(),
        max_position=8192,
        qkv_bias=not qk_norm,
        qk_norm=qk_norm,
        tie_embeddings=False,
        dtype="bfloat16",
    )


def clear_params(model: DenseConfig, device: jax.Device) -> Params:
    """Random weights in bf16 that make logits with clear winners and attention that picks few tokens.

    Untouched, dummy weights attend to all tokens alike, and a page read from a stranger would hardly show.
    """
    params = dummy_params(dense.parameters(model), "bfloat16", 0, device)
    layers = params.layers
    queries = model.num_heads * model.head_dim
    sharper = jnp.ones(layers.qkv[0].shape[0], jnp.bfloat16).at[:queries].set(2)[:, None]
    norms = {name: _about_one(i, getattr(layers, name)) for i, name in enumerate(("attention_norm", "mlp_norm"))}
    if model.qk_norm:
        norms |= {"q_norm": jnp.bfloat16(1.25) * _about_one(2, layers.q_norm), "k_norm": _about_one(3, layers.k_norm)}
    else:
        bias = jax.random.normal(jax.random.key(4), layers.qkv_bias.shape, jnp.bfloat16)
        norms |= {"qkv": tuple(w * sharper for w in layers.qkv), "qkv_bias": bias}
    large = dict(embed=params.embed * jnp.bfloat16(24), unembed=params.unembed * jnp.bfloat16(2.5))
    params = params.replace(layers=layers.replace(**norms), **large)
    return jax.device_put(params, device)


def _about_one(seed: int, like: jax.Array) -> jax.Array:
    return (1 + 0.2 * jax.random.normal(jax.random.key(seed), like.shape)).astype(like.dtype)


def in_float32(params: Params) -> Params:
    """What they stand for."""

    def wide(leaf: jax.Array | Quantized) -> jax.Array:
        return leaf.widened(jnp.float32) if isinstance(leaf, Quantized) else leaf.astype(jnp.float32)

    return jax.tree.map(wide, params, is_leaf=lambda leaf: isinstance(leaf, Quantized))


def in_fp8(params: Params, block: tuple[int, int] | None) -> Params:
    """With the matrices of layers in fp8.    block: rows and columns that share a scale; None: a row."""
    layers = params.layers

    def of_layers(matrices: tuple[jax.Array, ...]) -> tuple[Quantized, ...]:
        return tuple(_in_fp8(matrix, block or (1, matrix.shape[1])) for matrix in matrices)

    return params.replace(
        layers=layers.replace(
            qkv=of_layers(layers.qkv),
            o=of_layers(layers.o),
            gate_up=of_layers(layers.gate_up),
            down=of_layers(layers.down),
        )
    )


def _in_fp8(matrix: jax.Array, block: tuple[int, int]) -> Quantized:
    (out, depth), (rows, columns) = matrix.shape, block
    blocks = matrix.astype(jnp.float32).reshape(out // rows, rows, depth // columns, columns)
    scales = jnp.abs(blocks).max((1, 3), keepdims=True) / 448
    values = (blocks / scales).reshape(out, depth).astype(jnp.float8_e4m3fn)
    return Quantized(values, scales[:, 0, :, 0], Format.FP8, block=block)


class Forced:
    """One run of a model over `sequences`, i32[T] each; `logits[i]` collects f32[n, V] after the tokens of each step.

    Pages come shuffled, and all of them hold NaN until a token is written there.
    """

    def __init__(
        self, model: step.Model, params: Params, limits: Limits, sequences: Sequence[np.ndarray], device: jax.Device
    ) -> None:
        if model.backends.launches is Launches.SEQUENCE:
            ffi.register()
        config, dtype = model.config, jax.tree.leaves(params)[0].dtype
        state = init_state(limits, config, dtype)
        state = state.replace(store=jax.tree.map(lambda array: jnp.full_like(array, jnp.nan), state.store))
        self.state: DeviceState = jax.device_put(state, device)
        self.logits: list[list[np.ndarray]] = [[] for _ in sequences]
        self._model, self._params, self._limits, self._sequences = model, params, limits, sequences
        self._done = [0] * len(sequences)
        self._free = iter(np.random.default_rng(5).permutation(np.arange(1, limits.num_pages)).tolist())

    @property
    def left(self) -> list[int]:
        """Of each sequence, the tokens not given yet."""
        return [len(tokens) - done for tokens, done in zip(self._sequences, self._done, strict=True)]

    def extend(self, counts: Sequence[int]) -> None:
        """One ragged step; a row of one token behind others is a decode row."""
        rows = [self._row(i, count, on_device=count == 1) for i, count in enumerate(counts) if count]
        need = ExtendBucket(sum(counts), len(rows), len(rows))
        bucket = buckets.pick_extend(self._limits.extend_buckets, need)
        layout = extend_layout(bucket, self._limits.page_size)
        self._run(bucket, rows, packing.pack_extend(Plan(rows), layout, packing.page_updates(rows), masked=False))

    def decode(self) -> None:
        """One decode step of all sequences."""
        rows = [self._row(i, 1, on_device=True) for i in range(len(self._sequences))]
        batch = buckets.pick_size(self._limits.decode_buckets, len(rows))
        self._run(None, rows, packing.pack_decode(Plan(rows), batch, masked=False))

    def _row(self, index: int, count: int, *, on_device: bool) -> Row:
        start, page_size = self._done[index], self._limits.page_size
        first, end = -(-start // page_size), -(-(start + count) // page_size)
        new_pages = [(i, next(self._free)) for i in range(first, end)]
        known = self._sequences[index][start : start + count].tolist()
        return Row(index + 1, start, count, None if on_device and start else known, True, new_pages)

    def _run(self, bucket: ExtendBucket | None, rows: list[Row], upload: np.ndarray) -> None:
        last = np.zeros(self._limits.max_num_seqs + 1, np.int32)
        for row in rows:
            last[row.slot] = self._sequences[row.slot - 1][row.start]
        self.state, tokens, logits = _step(self._model, bucket, self._params, self.state, upload, last)
        drawn, found, start = np.asarray(tokens), np.asarray(logits), 0
        for i, row in enumerate(rows):
            mine = found[start : start + row.count]
            assert drawn[i] != packing.NOT_FINITE, f"sequence {row.slot - 1} is not finite at {row.start}"
            assert drawn[i] == mine[-1].argmax(), "the step drew another token than its logits say"
            self.logits[row.slot - 1].append(mine)
            self._done[row.slot - 1] += row.count
            start += row.count


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _step(
    model: step.Model,
    bucket: ExtendBucket | None,
    params: Params,
    state: DeviceState,
    upload: jax.Array,
    last_token: jax.Array,
) -> tuple[DeviceState, jax.Array, jax.Array]:
    """A step as it ships, fed with last_token i32[slots + 1], and the logits of all its tokens."""
    state = state.replace(last_token=last_token)
    if bucket is None:
        state, tokens = step.decode(model, None, params, state, upload)
        return state, tokens, state.logits[: len(upload)]
    state, tokens = step.extend(model, bucket, params, state, upload)
    return state, tokens, model.unembed(params, state.hidden[: bucket.tokens])


def give(run: Forced, counts: Sequence[int], budget: int) -> None:
    """`counts` tokens of each sequence in as few ragged steps of up to `budget` tokens as there can be."""
    rest = list(counts)
    while any(rest):
        room, now = budget, []
        for left in rest:
            now.append(min(left, room))
            room -= now[-1]
        run.extend(now)
        rest = [left - taken for left, taken in zip(rest, now, strict=True)]


def give_in_pieces(run: Forced, budget: int, most: int = 200) -> None:
    """All that is left: in each step single tokens of some sequences beside chunks of others."""
    draw = np.random.default_rng(6)
    while any(run.left):
        room, now = budget, []
        for left in run.left:
            wanted = int(draw.choice([0, 1, 1, 2, 7, 64, 65, most]))
            now.append(min(left, wanted, room))
            room -= now[-1]
        if any(now):
            run.extend(now)


@dataclasses.dataclass(frozen=True)
class Distance:
    """Of log-probabilities from the float32 ones, over all positions and tokens."""

    worst: float
    typical: float  # root of the mean square


def distance(logits: np.ndarray, wanted: np.ndarray) -> Distance:
    """Both f32[T, V]."""
    difference = np.abs(_log_probs(logits) - _log_probs(wanted))
    return Distance(float(difference.max()), float(np.sqrt(np.mean(difference**2))))


def clear_share(wanted: np.ndarray) -> float:
    """The share of positions at which one token is clearly the most likely."""
    return float(np.mean(_gaps(wanted) > CLEAR))


def faults(got: np.ndarray, xla: np.ndarray, wanted: np.ndarray, *, in_fp8: bool = False) -> list[str]:
    """What is wrong with logits f32[T, V], against XLA's of the same precision and float32's.

    in_fp8: rows of activations are too. Other tokens then win even by XLA, and may at twice as many places.
    """
    mine, bound = distance(got, wanted), distance(xla, wanted)
    found = [
        f"{name} distance {a:.4f} from float32, XLA's is {b:.4f}"
        for name, a, b in (("worst", mine.worst, bound.worst), ("typical", mine.typical, bound.typical))
        if not a <= 2 * b  # so that NaN is a fault
    ]
    flips, xlas = (one.argmax(axis=-1) != wanted.argmax(axis=-1) for one in (got, xla))
    flips &= _gaps(wanted) > CLEAR
    if in_fp8 and flips.sum() <= 2 * xlas.sum():
        return found
    return found + [f"another token wins at {place} by a gap above {CLEAR}" for place in np.flatnonzero(flips)]


def _log_probs(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def _gaps(logits: np.ndarray) -> np.ndarray:
    second, first = np.sort(logits, axis=-1)[:, -2:].T
    return first - second


type Spoil = Callable[[Forced], None]


@dataclasses.dataclass(frozen=True)
class Work:
    """Prompts of these lengths, each followed by `forced` tokens, all of them random; and the sizes of the steps."""

    prompts: tuple[int, ...]
    forced: int
    page_size: int
    budget: int
    decode: int
    rows: int

    @property
    def lengths(self) -> list[int]:
        return [length + self.forced for length in self.prompts]

    def sequences(self, vocab_size: int) -> list[np.ndarray]:
        return [np.random.default_rng(i).integers(0, vocab_size, n, np.int32) for i, n in enumerate(self.lengths)]

    def limits(self, vocab_size: int) -> Limits:
        slots = max(self.rows, self.decode)
        return Limits(
            max_model_len=max(self.lengths),
            max_num_seqs=slots,
            max_num_batched_tokens=self.budget,
            page_size=self.page_size,
            num_pages=3 + sum(-(-length // self.page_size) for length in self.lengths),
            vocab_size=vocab_size,
            decode_buckets=(self.decode,),
            extend_buckets=(ExtendBucket(self.budget, self.rows, self.rows),),
        )


def forced_logits(
    model: step.Model,
    params: Params,
    work: Work,
    way: str,
    device: jax.Device,
    spoil: Spoil = lambda run: None,
) -> list[np.ndarray]:
    """f32[forced, V] of each sequence, given by decode steps, in pieces, or together with the prompt.

    spoil: what happens between the prompts and the rest.
    """
    vocab_size = model.config.vocab_size
    run = Forced(model, params, work.limits(vocab_size), work.sequences(vocab_size), device)
    if way == "whole":
        give(run, run.left, work.budget)
    else:
        give(run, work.prompts, work.budget)
        spoil(run)
    if way == "decode":
        for _ in range(work.forced):
            run.decode()
    elif way == "pieces":
        give_in_pieces(run, work.budget)
    assert run.left == [0] * len(work.prompts)
    return [np.concatenate(rows)[-work.forced :] for rows in run.logits]


def all_faults(
    got: Sequence[np.ndarray], xla: Sequence[np.ndarray], wanted: Sequence[np.ndarray], *, in_fp8: bool = False
) -> dict:
    """Of the sequences that have any, by index."""
    every = enumerate(zip(got, xla, wanted, strict=True))
    found = {i: faults(*logits, in_fp8=in_fp8) for i, logits in every}
    return {index: wrong for index, wrong in found.items() if wrong}
