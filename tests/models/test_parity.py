"""Our log-probabilities against those of Hugging Face transformers, and that planted errors do not pass.

Here with dense attention, one prompt each; test_paged_parity.py takes all prompts through the engine.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.layers.spec import Rope
from jaxinfer.models.dense import DenseConfig, Params
from tests.support.golden_models import MODELS, R1_ATTN_FACTOR, GoldenModel
from tests.support.parity import BOUND, answers, check, dense_logits, load, worst_difference

NAMED = {model.name: model for model in MODELS}
Mutation = Callable[[DenseConfig, Params], tuple[DenseConfig, Params]]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_dense_forward_pass_gives_the_log_probabilities_of_transformers(model: GoldenModel) -> None:
    check(answers(model)[40], *load(model), dense_logits)


@pytest.mark.parametrize(("dtype", "rounding"), [(jnp.bfloat16, 2**-8), (jnp.float16, 2**-11)])
def test_half_precision_stays_near_float32(dtype: jnp.dtype, rounding: float) -> None:
    model = NAMED["qwen3_untied"]
    config, params = load(model)
    answer = answers(model)[40]
    halved = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    logits = np.asarray(jax.jit(dense_logits, static_argnums=0)(config, halved, answer.tokens))
    assert logits.dtype == np.float32
    assert worst_difference(answer, logits) < 400 * rounding  # three layers, logits of up to 10: 130 to 205 were seen


def rope_off(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    return dataclasses.replace(config, rope=Rope(kind="linear", factor=1e12)), params


def wrong_theta(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    theta = 1e4 if config.rope.theta > 1e4 else 1e6
    return dataclasses.replace(config, rope=dataclasses.replace(config.rope, theta=theta)), params


def scaling_off(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    return dataclasses.replace(config, rope=Rope(theta=config.rope.theta)), params


def frequencies_unscaled(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    """YaRN's factor on cos and sin without its frequencies."""
    return dataclasses.replace(config, rope=dataclasses.replace(config.rope, factor=1.0)), params


def all_frequencies_scaled(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    linear = dataclasses.replace(config.rope, kind="linear")
    return dataclasses.replace(config, rope=linear), params


def attention_factor_off(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    return dataclasses.replace(config, rope=dataclasses.replace(config.rope, attention_factor=1.0)), params


def attn_factor_unread(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    factor = config.rope.attention_factor / R1_ATTN_FACTOR
    return dataclasses.replace(config, rope=dataclasses.replace(config.rope, attention_factor=factor)), params


def eps_ten_times(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    assert config.norm_eps == 1e-6
    return dataclasses.replace(config, norm_eps=1e-5), params


def no_qk_norm(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    return dataclasses.replace(config, qk_norm=False), params.replace(
        layers=params.layers.replace(q_norm=None, k_norm=None)
    )


def swapped_qk_norms(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    layers = params.layers
    return config, params.replace(layers=layers.replace(q_norm=layers.k_norm, k_norm=layers.q_norm))


def bias_dropped(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    return config, params.replace(layers=params.layers.replace(qkv_bias=None))


def tied_by_mistake(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    return config, params.replace(unembed=None)


def gate_and_up_swapped(config: DenseConfig, params: Params) -> tuple[DenseConfig, Params]:
    swapped = tuple(jnp.roll(w, config.intermediate_size, axis=0) for w in params.layers.gate_up)
    return config, params.replace(layers=params.layers.replace(gate_up=swapped))


EVERYWHERE = (rope_off, wrong_theta, eps_ten_times, gate_and_up_swapped)
PLANTED: dict[str, tuple[Mutation, ...]] = {
    "qwen2_bias_tied": (*EVERYWHERE, bias_dropped),
    "qwen2_bias_untied": (*EVERYWHERE, bias_dropped, tied_by_mistake),
    "qwen3_tied": (*EVERYWHERE, no_qk_norm, swapped_qk_norms),
    "qwen3_untied": (*EVERYWHERE, no_qk_norm, tied_by_mistake),
    "llama3_rope": (*EVERYWHERE, scaling_off, all_frequencies_scaled),
    "llama_linear_rope": (*EVERYWHERE, scaling_off, tied_by_mistake),
    "qwen3_yarn": (
        *EVERYWHERE,
        no_qk_norm,
        scaling_off,
        frequencies_unscaled,
        all_frequencies_scaled,
        attention_factor_off,
    ),
    "qwen3_yarn_attn_factor": (*EVERYWHERE, frequencies_unscaled, attn_factor_unread),
}


@pytest.mark.parametrize(
    ("name", "mutation"),
    [(name, mutation) for name, mutations in PLANTED.items() for mutation in mutations],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_planted_error_breaks_the_bound(name: str, mutation: Mutation) -> None:
    answer = answers(NAMED[name])[40]
    logits = dense_logits(*mutation(*load(NAMED[name])), answer.tokens)
    assert worst_difference(answer, np.asarray(logits)) > BOUND  # the smallest seen is 190 times it


def test_every_golden_model_has_planted_errors() -> None:
    assert PLANTED.keys() == NAMED.keys()
