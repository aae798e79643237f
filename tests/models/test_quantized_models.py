"""A model whose weights are quantized: which of them, and that it is the same model with what those stand for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.models import dense as dense_model
from jaxinfer.models.parameters import held, num_bytes
from jaxinfer.models.registry import dense
from jaxinfer_kernels.linear.quantized import Format, Quantized
from tests.kernels.linear.products import error
from tests.support.golden_models import MODELS
from tests.support.parity import dense_logits, load
from tests.support.toy import RAW, TOY, config_from_hf

NAMED = {model.name: model for model in MODELS}


@pytest.mark.parametrize(("name", "quantization"), [("qwen2_bias_untied", "int4"), ("qwen3_tied", "int8")])
def test_it_is_the_model_of_what_its_weights_stand_for(name: str, quantization: str) -> None:
    config, params = load(NAMED[name])
    specs = dense.specs(dataclasses.replace(config, quantization=quantization))
    small = jax.tree.map(lambda spec, array: held(array, spec.format, array.dtype), specs, params)
    assert {spec.format for spec in jax.tree.leaves(specs.layers.down)} == {Format(quantization)}
    assert (specs.embed.format, specs.embed.shape) == (
        Format.INT8 if config.tie_embeddings else None,
        params.embed.shape,
    )
    assert (specs.unembed is None) == config.tie_embeddings
    assert specs.unembed is None or specs.unembed.format is Format.INT8

    def widened(leaf: jax.Array | Quantized) -> jax.Array:
        return leaf.widened(jnp.float32) if isinstance(leaf, Quantized) else leaf

    wide = jax.tree.map(widened, small, is_leaf=lambda leaf: isinstance(leaf, Quantized))
    tokens = np.array([3, 1, 4, 1, 5, 9])
    found, exact = dense_logits(config, small, tokens), dense_logits(config, params, tokens)
    np.testing.assert_allclose(found, dense_logits(config, wide, tokens), rtol=0, atol=1e-5)
    assert 0 < error(found, np.asarray(exact)) < {"int8": 0.05, "int4": 0.5}[quantization]
    assert num_bytes(specs, "float32") == sum(leaf.nbytes for leaf in jax.tree.leaves(small))


def test_a_shape_that_a_format_has_no_groups_for_is_refused() -> None:
    config = dataclasses.replace(load(NAMED["qwen3_tied"])[0], intermediate_size=90)
    dense.specs(dataclasses.replace(config, quantization="int8"))
    message = (
        r"int4 needs rows of a multiple of 32 weights, model.layers.0.mlp.down_proj.weight has rows of 90; choose int8"
    )
    with pytest.raises(ConfigError, match=message):
        dense.specs(dataclasses.replace(config, quantization="int4"))


def test_a_family_that_does_not_say_what_may_be_quantized_is_refused() -> None:
    config = config_from_hf(RAW)
    assert jax.tree.leaves(TOY.specs(config))
    with pytest.raises(ConfigError, match="int8 needs a family whose parameters say what may be quantized"):
        TOY.specs(dataclasses.replace(config, quantization="int8"))


def test_the_setting_is_part_of_the_model() -> None:
    raw = NAMED["qwen3_tied"].raw
    plain, small = dense.model(raw), dense.model(raw, "int8")
    assert plain == dense_model.config_from_hf(raw)
    assert small == dataclasses.replace(plain, quantization="int8")
    assert (plain.held_in("bfloat16"), small.held_in("bfloat16")) == ("bfloat16", "int8")
