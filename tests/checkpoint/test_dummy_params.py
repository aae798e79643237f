"""Random weights come from the specs alone, quickly, and look like an initialised model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.errors import DeviceError
from jaxinfer.models.parameters import single
from jaxinfer.models.registry import family_for
from tests.support.checkpoints import model_config

CPU = jax.devices("cpu")[0]


def specs(family: str, **overrides: object) -> object:
    raw = model_config(family, **overrides)
    return family_for(raw).parameters(family_for(raw).config_from_hf(raw))


def test_the_arrays_have_the_specs_structure_shapes_and_dtype() -> None:
    tree = specs("qwen2")
    params = dummy_params(tree, "bfloat16", 0, CPU)
    assert jax.tree.structure(params) == jax.tree.structure(tree)
    assert [leaf.shape for leaf in jax.tree.leaves(params)] == [spec.shape for spec in jax.tree.leaves(tree)]
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    assert params.embed.devices() == {CPU}


def test_matrices_are_nearly_normal_norms_are_one_and_biases_zero() -> None:
    params = dummy_params(specs("qwen2", hidden_size=256, vocab_size=2048), "float32", 0, CPU)
    matrix = np.asarray(params.embed, np.float64) * 256**0.5
    assert abs(matrix.mean()) < 0.005
    assert abs(matrix.std() - 1) < 0.005
    assert abs((np.abs(matrix) < 1).mean() - 0.683) < 0.02  # a uniform one would give 0.577
    assert np.abs(matrix).max() < 3.5
    assert bool((params.final_norm == 1).all())
    assert bool((params.layers.qkv_bias == 0).all())


def test_rows_columns_layers_and_leaves_are_unlike_each_other() -> None:
    params = dummy_params(specs("qwen3", hidden_size=256, vocab_size=512, num_hidden_layers=3), "float32", 0, CPU)
    rows = [*np.asarray(params.embed), *np.concatenate(params.layers.qkv)]
    rows += [*np.concatenate(params.layers.gate_up)]
    likeness = np.corrcoef(np.stack(rows)) - np.eye(len(rows))
    assert np.abs(likeness).max() < 0.4  # six sigma for 256 values
    columns = np.corrcoef(np.asarray(params.embed).T) - np.eye(256)
    assert np.abs(columns).max() < 0.3


def test_the_seed_decides_every_value() -> None:
    tree = specs("qwen3")
    first, again, other = (dummy_params(tree, "float32", seed, CPU) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert float((first.embed == other.embed).mean()) < 0.05


def test_a_model_beyond_the_memory_is_refused() -> None:
    tree = {"matrix": single("matrix", (2**30, 2**20), PartitionSpec("tensor", None))}
    with pytest.raises(DeviceError, match="weights need 2097152.00 GiB"):
        dummy_params(tree, "bfloat16", 0, CPU)
