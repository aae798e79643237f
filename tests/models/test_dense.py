"""The dense family's parameter table and forward pass, apart from its numbers (test_parity.py has those)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxinfer.layers.attention import over_heads
from jaxinfer.layers.batch import Batch
from jaxinfer.models import dense
from jaxinfer.models.parameters import ParamSpec
from tests.support.golden_models import MODELS, GoldenModel
from tests.support.jaxprs import equations
from tests.support.parity import ATTEND_DENSE, dense_logits, load

NAMED = {model.name: model for model in MODELS}
TOKENS = np.array([3, 1, 4, 1, 5, 9])


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_specs_have_the_structure_and_count_of_the_parameters(model: GoldenModel) -> None:
    config, params = load(model)
    specs = dense.parameters(config)
    assert jax.tree.structure(specs) == jax.tree.structure(params)
    assert all(spec.shape == leaf.shape for spec, leaf in zip(*map(jax.tree.leaves, (specs, params)), strict=True))
    assert sum(np.prod(spec.shape) for spec in jax.tree.leaves(specs)) == config.num_params
    assert all(len(spec.partition) == len(spec.shape) for spec in jax.tree.leaves(specs))


def test_each_tensor_of_a_checkpoint_is_named_once_with_its_shape() -> None:
    config, _ = load(NAMED["qwen2_bias_untied"])
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in jax.tree.leaves(dense.parameters(config)):
        for group in spec.sources:
            assert not shapes.keys() & set(group)
            shapes |= {name: spec.source_shape(i) for i, name in enumerate(group)}
    assert {name: shape for name, shape in shapes.items() if ".layers." not in name or ".layers.2." in name} == {
        "model.embed_tokens.weight": (97, 64),
        "model.layers.2.input_layernorm.weight": (64,),
        "model.layers.2.mlp.down_proj.weight": (64, 96),
        "model.layers.2.mlp.gate_proj.weight": (96, 64),
        "model.layers.2.mlp.up_proj.weight": (96, 64),
        "model.layers.2.post_attention_layernorm.weight": (64,),
        "model.layers.2.self_attn.k_proj.bias": (16,),
        "model.layers.2.self_attn.k_proj.weight": (16, 64),
        "model.layers.2.self_attn.o_proj.weight": (64, 64),
        "model.layers.2.self_attn.q_proj.bias": (64,),
        "model.layers.2.self_attn.q_proj.weight": (64, 64),
        "model.layers.2.self_attn.v_proj.bias": (16,),
        "model.layers.2.self_attn.v_proj.weight": (16, 64),
        "model.norm.weight": (64,),
        "lm_head.weight": (97, 64),
    }
    assert len(shapes) == 3 + 3 * 12


def test_a_spec_whose_rows_do_not_fill_its_shape_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="fill axis 0"):
        ParamSpec((5, 2), (("a", "b"),), (2, 2), PartitionSpec(None, None))
    with pytest.raises(AssertionError, match="one group of sources per stacked layer"):
        ParamSpec((3, 5, 2), (("a",),), (5,), PartitionSpec(None, None, None), stacked=True)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_everything_stays_in_the_dtype_of_the_weights_until_the_logits(dtype: jnp.dtype) -> None:
    config, params = load(NAMED["qwen3_tied"])
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    seen = []

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array, kv: int) -> tuple[jax.Array, int]:
        seen.append((layer, kv, q.shape, k.shape, v.shape, {q.dtype, k.dtype, v.dtype}))
        return q, kv + 1

    def run(params: dense.Params) -> tuple[jax.Array, jax.Array]:
        hidden, kv = dense.forward(config, params, Batch(jnp.asarray(TOKENS), jnp.arange(6), over_heads(attend)), 0)
        assert kv == config.num_layers
        return hidden, dense.unembed(config, params, hidden[-1:])

    hidden, logits = jax.eval_shape(run, params)
    assert seen == [(i, i, (6, 4, 32), (6, 2, 32), (6, 2, 32), {jnp.dtype(dtype)}) for i in range(3)]
    assert (hidden.shape, hidden.dtype) == ((6, 64), dtype)
    assert (logits.shape, logits.dtype) == ((1, 97), jnp.float32)


def test_float32_products_are_computed_in_full_float32() -> None:
    config, params = load(NAMED["qwen2_bias_tied"])
    program = jax.make_jaxpr(lambda params: dense_logits(config, params, TOKENS))(params)
    precisions = [eqn.params["precision"] for eqn in equations(program) if eqn.primitive.name == "dot_general"]
    # qkv, scores, values, o, gate|up and down of each layer, and the logits; what goes through `linear` has a version
    # for CPUs as well
    assert len(precisions) == 3 * (2 + 2 * 4) + 2
    assert set(precisions) == {(jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)}


def test_every_parameter_gets_a_gradient() -> None:
    config, params = load(NAMED["qwen3_untied"])

    def loss(params: dense.Params) -> jax.Array:
        hidden, _ = dense.forward(config, params, Batch(jnp.asarray(TOKENS), jnp.arange(6), ATTEND_DENSE), None)
        logits = dense.unembed(config, params, hidden[:-1])
        return -jax.nn.log_softmax(logits)[jnp.arange(5), TOKENS[1:]].mean()

    for path, gradient in jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(params)):
        assert np.isfinite(gradient).all(), path
        assert np.abs(gradient).max() > 0, path
