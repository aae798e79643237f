"""Embeddings as an engine gives them against Hugging Face transformers' hidden states after the final norm."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Add, Pooling, Request
from jaxinfer.layers.batch import Batch
from jaxinfer.models.dense import DenseConfig
from jaxinfer.models.registry import dense
from jaxinfer.runtime.runner import DeviceRunner
from tests.support.golden_models import GOLDEN, MODELS, PROMPT_LENGTHS, GoldenModel
from tests.support.parity import ATTEND_DENSE, answers, load

BOUND = 1e-5
"""Of the length of the difference, relative to the recorded one's, float32 against float32: 2e-6 was the most seen."""
SOME = ("qwen3_tied", "llama3_rope", "qwen2_bias_untied", "qwen3_yarn_attn_factor")
QUICK = SOME[:1]  # compiling one takes seconds
POOLINGS: tuple[Pooling, ...] = ("last", "mean")


@functools.cache
def recorded() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "embeddings.npz") as file:
        return dict(file)


def embed(model: GoldenModel) -> dict[tuple[Pooling, int], np.ndarray]:
    """Of all prompts at once, in steps of 48 tokens, each prompt pooled both ways."""
    config, params = load(model)
    limits = Limits(
        max_model_len=300,
        max_num_seqs=4,
        max_num_batched_tokens=48,
        page_size=16,
        num_pages=97,
        vocab_size=config.vocab_size,
        decode_buckets=(4,),
        extend_buckets=(ExtendBucket(48, 4, 4),),
    )
    engine = Engine(DeviceRunner(config, dense, params, limits, jax.devices("cpu")[0]), limits)
    for length, answer in answers(model).items():
        for pooling in POOLINGS:
            prompt = tuple(answer.prompt.tolist())
            engine.inbox.put(Add(Request(f"{pooling} {length}", prompt, 1, pooling=pooling)))
    found = {}
    while engine.has_work:
        for output in engine.step():
            assert output.embedding is not None, output
            pooling, length = output.request_id.split()
            found[pooling, int(length)] = np.frombuffer(output.embedding, "<f4")
    engine.check()
    return found


def distance(one: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(one - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize(
    "model", [pytest.param(m, id=m.name, marks=() if m.name in QUICK else pytest.mark.slow) for m in MODELS]
)
def test_embeddings_are_the_hidden_states_of_transformers(model: GoldenModel) -> None:
    found = embed(model)
    assert found.keys() == {(pooling, length) for pooling in POOLINGS for length in PROMPT_LENGTHS}
    for (pooling, length), vector in found.items():
        wanted = recorded()[f"{model.name}_{pooling}_{length}"]
        assert distance(vector, wanted) <= BOUND, (pooling, length)


def last(hidden: np.ndarray) -> np.ndarray:
    return hidden[-1]


@dataclasses.dataclass(frozen=True)
class Planted:
    """Something that an embedding could get wrong. change: of config and parameters."""

    pooling: Pooling
    pool: Callable[[np.ndarray], np.ndarray] = last
    change: Callable[[DenseConfig, Any], tuple[DenseConfig, Any]] = lambda config, params: (config, params)


PLANTED = {
    "nothing": Planted("last"),
    "the token before the last": Planted("last", lambda hidden: hidden[-2]),
    "a mean without the first token": Planted("mean", lambda hidden: hidden[1:].mean(axis=0)),
    "a mean of chunks' means": Planted(
        "mean", lambda hidden: (hidden[:48].mean(axis=0) + hidden[48:].mean(axis=0)) / 2
    ),
    "before the final norm": Planted(
        "last", change=lambda config, params: (config, params.replace(final_norm=jnp.ones_like(params.final_norm)))
    ),
    "another eps": Planted("last", change=lambda config, params: (dataclasses.replace(config, norm_eps=1e-5), params)),
}


@pytest.mark.parametrize(
    "model",
    [pytest.param(m, id=m.name, marks=() if m.name in QUICK else pytest.mark.slow) for m in MODELS if m.name in SOME],
)
@pytest.mark.parametrize("name", PLANTED)
def test_the_bound_tells_what_is_right_from_what_is_not(model: GoldenModel, name: str) -> None:
    planted, prompt = PLANTED[name], jnp.asarray(answers(model)[300].prompt)
    config, params = planted.change(*load(model))
    hidden, _ = dense.forward(config, params, Batch(prompt, jnp.arange(len(prompt)), ATTEND_DENSE), None)
    found = distance(planted.pool(np.asarray(hidden)), recorded()[f"{model.name}_{planted.pooling}_300"])
    assert found <= BOUND if name == "nothing" else found > 10 * BOUND
