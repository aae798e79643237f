"""The demo model's shape, its random start, and its weights as a safetensors file."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.flax import load_file, save_file

from jaxinfer.demo.tokenizer import VOCAB_SIZE
from jaxinfer.models import dense
from jaxinfer.models.dense import DenseConfig, Params
from jaxinfer.models.parameters import ParamSpec

CHECKPOINT = Path(__file__).parent / "checkpoint"


def hf_config(tokens: dict[str, int]) -> dict[str, Any]:
    """config.json; `tokens` are the ids of the control tokens."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": tokens["<|endoftext|>"],
        "eos_token_id": tokens["<|im_end|>"],
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 640,
        "max_position_embeddings": 2048,
        "model_type": "qwen3",
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": VOCAB_SIZE,
    }


def init_params(config: DenseConfig, seed: int) -> Params:
    """float32 parameters; what writes to the residual stream starts small, so that depth does not add up."""
    specs = dense.parameters(config)
    leaves, structure = jax.tree.flatten(specs)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    params = jax.tree.unflatten(structure, [_init(spec, key) for spec, key in zip(leaves, keys, strict=True)])
    small = (2 * config.num_layers) ** -0.5
    layers = params.layers
    layers = layers.replace(o=tuple(w * small for w in layers.o), down=tuple(w * small for w in layers.down))
    return params.replace(layers=layers)


def _init(spec: ParamSpec, key: jax.Array) -> jax.Array:
    if spec.init == "normal":
        return jax.random.normal(key, spec.shape, jnp.float32) * spec.shape[-1] ** -0.5
    return jnp.full(spec.shape, 1.0 if spec.init == "ones" else 0.0, jnp.float32)


def save(path: Path, config: DenseConfig, params: Params) -> None:
    """Write the parameters, rounded to bfloat16, under Hugging Face's names."""
    tensors: dict[str, jax.Array] = {}
    for spec, leaf in zip(jax.tree.leaves(dense.parameters(config)), jax.tree.leaves(params), strict=True):
        array = leaf.astype(jnp.bfloat16)
        for group, part in zip(spec.sources, array if spec.stacked else array[None], strict=True):
            tensors.update(zip(group, jnp.split(part, np.cumsum(spec.rows)[:-1]), strict=True))
    save_file(tensors, path, metadata={"format": "pt"})


def load(folder: Path, dtype: jnp.dtype) -> tuple[DenseConfig, Params]:
    """Read a checkpoint that `save` wrote, its weights cast to `dtype`."""
    config = dense.config_from_hf(json.loads((folder / "config.json").read_text()))
    tensors = load_file(folder / "model.safetensors")

    def leaf(spec: ParamSpec) -> jax.Array:
        groups = [jnp.concatenate([tensors[name] for name in group]) for group in spec.sources]
        return (jnp.stack(groups) if spec.stacked else groups[0]).astype(dtype)

    return config, jax.tree.map(leaf, dense.parameters(config))
