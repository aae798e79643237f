"""A tiny model behind a real DeviceRunner, and sequences driven through it by hand: for tests of the runtime room."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.layers.attention import over_heads
from jaxinfer.layers.batch import Batch
from jaxinfer.layers.spec import Rope
from jaxinfer.models.dense import DenseConfig
from jaxinfer.models.registry import dense
from jaxinfer.runtime.backends import XLA_ONLY, Backend, Backends
from jaxinfer.runtime.plan import Plan, Row, Sampling, StepResult
from jaxinfer.runtime.programs import Helper, Key
from jaxinfer.runtime.runner import DeviceRunner
from tests.support.hopper import all_mosaic, gpu

TINY = DenseConfig(
    architecture="Qwen3ForCausalLM",
    vocab_size=97,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=48,
    norm_eps=1e-6,
    rope=Rope(),
    max_position=4096,
    qkv_bias=False,
    qk_norm=True,
    tie_embeddings=True,
    dtype="float32",
)
# The number of slots (11) and the table's width (19) occur in no other shape, so that compiled text can be searched.
SMALL, LARGE = ExtendBucket(20, 3, 3), ExtendBucket(64, 10, 10)
LIMITS = Limits(
    max_model_len=300,
    max_num_seqs=10,
    max_num_batched_tokens=64,
    page_size=16,
    num_pages=120,
    num_host_pages=120,
    vocab_size=TINY.vocab_size,
    decode_buckets=(1, 4, 10),
    extend_buckets=(SMALL, LARGE),
)
FEW = dataclasses.replace(LIMITS, decode_buckets=(1, 10))  # to compile
# With every op in our kernels: a decode step of few rows and one of many, and an extend step of each kind.
MOSAIC_TINY = dataclasses.replace(
    TINY,
    hidden_size=128,
    num_heads=2,
    num_kv_heads=1,
    head_dim=64,
    intermediate_size=128,
    vocab_size=512,
    dtype="bfloat16",
)
MOSAIC_LIMITS = dataclasses.replace(
    LIMITS,
    vocab_size=MOSAIC_TINY.vocab_size,
    max_num_seqs=17,
    decode_buckets=(1, 10, 17),
    extend_buckets=(ExtendBucket(20, 3, 3), ExtendBucket(64, 17, 17)),
)
GREEDY = Sampling()
HELPERS = set(Helper) - {Helper.SAVE_SNAPSHOT, Helper.LOAD_SNAPSHOT}
"""Of a model without recurrent layers."""


def make_runner(
    model: DenseConfig = TINY,
    limits: Limits = LIMITS,
    seed: int = 0,
    device: jax.Device | None = None,
    backends: Backends = XLA_ONLY,
) -> DeviceRunner:
    device = device or jax.devices("cpu")[0]
    params = dummy_params(dense.parameters(model), model.dtype, seed, device)
    return DeviceRunner(model, dense, params, limits, device, backends)


def make_mosaic_runner() -> DeviceRunner:
    """On a Hopper GPU, every op in our kernels."""
    backends = all_mosaic(MOSAIC_TINY, MOSAIC_LIMITS.page_size, gpu())
    assert backends.masks is Backend.MOSAIC
    return make_runner(MOSAIC_TINY, MOSAIC_LIMITS, device=gpu(), backends=backends)


def forget(runner: DeviceRunner, key: Key) -> None:
    """Make a warmed runner compile this program when it next needs it."""
    program = runner._programs[key]
    anew = functools.partial(program.function)  # for the same function JAX remembers what it compiled
    runner._programs[key] = dataclasses.replace(program, function=anew)
    runner._cache = None
    del runner._executables[key]


def dense_logits(model: DenseConfig, tokens: Sequence[int], seed: int = 0) -> np.ndarray:
    """f32[T, V] of the whole sequence at once, with plain attention and no pages."""
    params = dummy_params(dense.parameters(model), model.dtype, seed, jax.devices("cpu")[0])
    return np.asarray(dense.unembed(model, params, jnp.asarray(dense_hidden(model, tokens, seed))))


def dense_hidden(model: DenseConfig, tokens: Sequence[int], seed: int = 0) -> np.ndarray:
    """[T, D], likewise."""
    params = dummy_params(dense.parameters(model), model.dtype, seed, jax.devices("cpu")[0])

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array, kv: None) -> tuple[jax.Array, None]:
        grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
        scores = jnp.einsum("TKGH,SKH->KGTS", grouped, k, precision="highest") * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(jnp.tri(len(q), dtype=bool), scores, -jnp.inf), axis=-1)
        return jnp.einsum("KGTS,SKH->TKGH", weights, v, precision="highest").reshape(q.shape), kv

    positions = jnp.arange(len(tokens), dtype=jnp.int32)
    batch = Batch(jnp.asarray(tokens, jnp.int32), positions, over_heads(attend))
    hidden, _ = dense.forward(model, params, batch, None)
    return np.asarray(hidden)


@dataclasses.dataclass
class Driven:
    """One sequence in a slot, fed by hand. `tokens` grows by what is drawn; pages are taken from `free` as needed."""

    slot: int
    tokens: list[int]
    free: "itertools.count[int]"
    sampling: Sampling = GREEDY
    computed: int = 0
    last_was_drawn: bool = False
    pages: list[int] = dataclasses.field(default_factory=list)

    def row(self, count: int | None = None) -> Row:
        """The next `count` tokens, all that are known by default; a decode row if only the last drawn one is."""
        count = count or len(self.tokens) - self.computed
        end, first = self.computed + count, self.computed == 0
        new = [(i, next(self.free)) for i in range(len(self.pages), -(-end // LIMITS.page_size))]
        self.pages += [page for _, page in new]
        on_device = self.computed == len(self.tokens) - 1 and self.last_was_drawn
        known = None if on_device else self.tokens[self.computed : end]
        row = Row(
            self.slot, self.computed, count, known, end == len(self.tokens), new, self.sampling if first else None
        )
        row.sampler = self.sampling.sampler
        self.computed = end
        return row

    def take(self, result: StepResult, index: int) -> None:
        assert result.finite[index]
        self.tokens.append(int(result.tokens[index]))
        self.last_was_drawn = True


def step(runner: DeviceRunner, *sequences: Driven) -> None:
    """One step that brings every sequence up to date and draws its next token."""
    result = runner.run(Plan([sequence.row() for sequence in sequences])).wait()
    for index, sequence in enumerate(sequences):
        sequence.take(result, index)


def generate(
    runner: DeviceRunner,
    prompt: Sequence[int],
    steps: int,
    sampling: Sampling = GREEDY,
    slot: int = 1,
) -> list[int]:
    """The prompt in one chunk, alone, then decode rows: prompt and answer."""
    sequence = Driven(slot, list(prompt), itertools.count(1), sampling)
    for _ in range(steps):
        step(runner, sequence)
    return sequence.tokens
