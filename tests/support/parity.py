"""Parity with Hugging Face transformers: recorded answers, our parameters for them, and the comparison.

`check` takes any function from tokens to logits, so the dense forward pass and the engine's paged steps are held
against the same numbers.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from beartype import beartype
from jaxtyping import jaxtyped

from jaxinfer.layers.attention import over_heads
from jaxinfer.layers.batch import Batch
from jaxinfer.models import dense
from jaxinfer.models.dense import DenseConfig
from jaxinfer.models.parameters import ParamSpec
from tests.support.golden_models import GOLDEN, LONG, NUM_GREEDY, PROMPT_LENGTHS, GoldenModel, picked, tensor

BOUND = 1e-3
"""Of |difference of log-probabilities|, float32 against float32; sums in another order move them by 1e-5 to 1e-4."""

LogitsFn = Callable[[DenseConfig, Any, np.ndarray], jax.Array | np.ndarray]
"""(config, params, tokens i32[T]) -> logits f32[T, V], each row from the tokens up to its own."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What transformers said: log_probs f32[T, V] after each token of prompt i32[T], then `greedy` i32[64].

    picked: i32[T, n] if log_probs f32[T, n] are those of these tokens alone.
    """

    prompt: np.ndarray
    log_probs: np.ndarray
    greedy: np.ndarray
    picked: np.ndarray | None = None

    @property
    def tokens(self) -> np.ndarray:
        """The prompt and all greedy tokens but the last; the last NUM_GREEDY rows of logits choose the greedy ones."""
        return np.concatenate([self.prompt, self.greedy[:-1]])


@functools.cache
def answers(model: GoldenModel) -> dict[int, Answer]:
    """The recorded answers by prompt length."""
    with np.load(GOLDEN / f"{model.name}.npz") as file:
        return {n: Answer(file[f"prompt_{n}"], file[f"logprobs_{n}"], file[f"greedy_{n}"]) for n in PROMPT_LENGTHS}


def long_answers(model: GoldenModel) -> list[Answer]:
    """The recorded answer to a prompt of LONG_LENGTH tokens, where there is one."""
    if model.name not in LONG:
        return []
    with np.load(GOLDEN / "long.npz") as file:
        prompt, log_probs, greedy = (file[f"{model.name}_{part}"] for part in ("prompt", "logprobs", "greedy"))
    return [Answer(prompt, log_probs, greedy, picked(prompt, model.raw["vocab_size"]))]


@functools.cache
def load(model: GoldenModel) -> tuple[DenseConfig, dense.Params]:
    """Our reading of its config.json, and its parameters put together as their specs say, in float32."""

    def build(spec: ParamSpec) -> jax.Array:
        groups = [
            np.concatenate([tensor(model, name, spec.source_shape(i)) for i, name in enumerate(group)])
            for group in spec.sources
        ]
        return jnp.asarray(np.stack(groups) if spec.stacked else groups[0])

    config = dense.config_from_hf(model.raw)
    return config, jax.tree.map(build, dense.parameters(config))


def check(answer: Answer, config: DenseConfig, params: Any, logits_fn: LogitsFn) -> None:
    """Assert that every log-probability is within BOUND and that greedy decoding chooses the recorded tokens."""
    logits = np.asarray(logits_fn(config, params, answer.tokens))
    assert logits.shape == (len(answer.tokens), config.vocab_size)
    assert worst_difference(answer, logits) <= BOUND
    np.testing.assert_array_equal(logits[-NUM_GREEDY:].argmax(axis=-1), answer.greedy)


def worst_difference(answer: Answer, logits: np.ndarray) -> float:
    """The largest |difference of log-probabilities| over the prompt's positions and all that was recorded there."""
    logits = logits[: len(answer.prompt)].astype(np.float64)
    ours = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    if answer.picked is not None:
        ours = np.take_along_axis(ours, answer.picked, axis=-1)
    return float(np.abs(ours - answer.log_probs).max())


def dense_logits(config: DenseConfig, params: Any, tokens: np.ndarray) -> jax.Array:
    """All logits from one forward pass, attending densely."""
    positions = jnp.arange(len(tokens))
    forward, unembed = map(jaxtyped(typechecker=beartype), (dense.forward, dense.unembed))
    hidden, _ = forward(config, params, Batch(jnp.asarray(tokens), positions, ATTEND_DENSE), None)
    return unembed(config, params, hidden)


def _attend_dense(layer: int, q: jax.Array, k: jax.Array, v: jax.Array, kv: None) -> tuple[jax.Array, None]:
    """Causal attention of one whole sequence, written to be believed."""
    num_tokens, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    k, v = (jnp.repeat(x, group, axis=1) for x in (k, v))  # query head n reads kv head n // group
    scores = jnp.einsum("TNH,SNH->NTS", q, k, precision="highest") * head_dim**-0.5
    causal = jnp.tril(jnp.ones((num_tokens, num_tokens), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return jnp.einsum("NTS,SNH->TNH", weights, v, precision="highest"), kv


ATTEND_DENSE = over_heads(_attend_dense)
