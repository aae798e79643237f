"""Tiny models whose answers Hugging Face transformers gave once: their config.json and weights.

Shared by tests/golden/record.py, which runs where transformers is installed, and by the parity tests: numpy only, and
weights that follow from the tensor's name alone, so that only answers need to be kept in the repository.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PROMPT_LENGTHS = (5, 40, 300)
NUM_GREEDY = 64
LONG_LENGTH = 600
LONG = ("qwen2_bias_untied", "qwen3_tied", "llama3_rope")  # one of each family, also given a prompt of LONG_LENGTH
WINDOW, STRIDE = 128, 48  # that prompt is also read in windows
NUM_PICKED = 8

_SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "initializer_range": 0.02,
    "use_cache": True,
    "attention_dropout": 0.0,
}
_QWEN2 = {**_SHAPE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
_QWEN3 = {**_SHAPE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
_LLAMA = {**_SHAPE, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

# attn_factor of DeepSeek-R1-0528-Qwen3-8B: 1 / (0.1 ln 4 + 1), which cancels what YaRN computes for that factor.
R1_ATTN_FACTOR = 0.8782488562869419


@dataclasses.dataclass(frozen=True, eq=False)
class GoldenModel:
    """raw: the config.json our reader is given. recorded: keys that differ in the one transformers was given."""

    name: str
    raw: Mapping[str, Any]
    recorded: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


MODELS = (
    GoldenModel(
        "qwen2_bias_tied",
        {**_QWEN2, "torch_dtype": "float32", "rope_theta": 1000000.0, "tie_word_embeddings": True,
         "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 21, "use_mrope": False},
    ),
    GoldenModel(
        "qwen2_bias_untied",
        {**_QWEN2, "dtype": "float32", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
         "num_key_value_heads": 1, "tie_word_embeddings": False, "layer_types": ["full_attention"] * 3},
    ),
    GoldenModel(
        "qwen3_tied",
        {**_QWEN3, "torch_dtype": "float32", "rope_theta": 1000000, "rope_scaling": None, "tie_word_embeddings": True,
         "attention_bias": False, "use_sliding_window": False, "sliding_window": None, "max_window_layers": 3},
    ),
    GoldenModel(
        "qwen3_untied",
        {**_QWEN3, "dtype": "float32", "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
         "attention_bias": False, "tie_word_embeddings": False, "vocab_size": 101},
    ),
    GoldenModel(
        "llama3_rope",
        {**_LLAMA, "torch_dtype": "float32", "rope_theta": 500000.0, "tie_word_embeddings": True, "head_dim": 16,
         "attention_bias": False, "pretraining_tp": 1,
         "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 64}},
    ),
    GoldenModel(
        "llama_linear_rope",
        {**_LLAMA, "torch_dtype": "float32", "rope_theta": 10000.0, "tie_word_embeddings": False,
         "rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    GoldenModel(
        "qwen3_yarn",
        {**_QWEN3, "dtype": "float32", "rope_parameters": {**_YARN, "rope_theta": 1000000.0},
         "tie_word_embeddings": False},
    ),
    GoldenModel(
        "qwen3_yarn_attn_factor",
        {**_QWEN3, "torch_dtype": "float32", "rope_theta": 1000000, "tie_word_embeddings": False,
         "rope_scaling": {**_YARN, "attn_factor": R1_ATTN_FACTOR}},
        # transformers does not read attn_factor, so it is given the product: (0.1 ln 4 + 1) * attn_factor.
        recorded={"rope_scaling": {**_YARN, "attention_factor": (0.1 * float(np.log(4.0)) + 1.0) * R1_ATTN_FACTOR}},
    ),
)  # fmt: skip

# Rope sections of published models and every option of YaRN, of which only the frequencies are recorded.
ROPE_CASES: dict[str, dict[str, Any]] = {
    "qwen3_8b": {"rope_theta": 1000000, "max_position_embeddings": 40960},
    "llama_3_1_8b": {
        "rope_theta": 500000.0, "max_position_embeddings": 131072,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
                         "original_max_position_embeddings": 8192},
    },
    "llama_3_2_1b": {
        "head_dim": 64, "max_position_embeddings": 131072,
        "rope_parameters": {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
                            "original_max_position_embeddings": 8192, "rope_theta": 500000.0},
    },
    "linear_4": {"rope_theta": 100000, "max_position_embeddings": 16384,
                 "rope_scaling": {"type": "linear", "factor": 4.0}},
    "qwen3_yarn_4": {"rope_theta": 1000000, "max_position_embeddings": 40960,
                     "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
    "yarn_without_original": {"rope_theta": 1000000, "max_position_embeddings": 32768,
                              "rope_scaling": {"type": "yarn", "factor": 2.0}},
    "yarn_betas": {"rope_theta": 10000, "max_position_embeddings": 65536,
                   "rope_scaling": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096,
                                    "beta_fast": 16, "beta_slow": 2.5}},
    "yarn_not_truncated": {"rope_theta": 150000, "max_position_embeddings": 131072,
                           "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "truncate": False,
                                            "original_max_position_embeddings": 4096}},
    "yarn_mscale": {"rope_theta": 10000, "max_position_embeddings": 163840,
                    "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707,
                                     "original_max_position_embeddings": 4096}},
    "yarn_attention_factor": {"rope_theta": 10000, "max_position_embeddings": 16384,
                              "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25,
                                               "original_max_position_embeddings": 4096}},
}  # fmt: skip

# Scale of each kind of tensor: (mean, standard deviation); a matrix's deviation is divided by sqrt(inputs). The stream
# stays near 0.03, where eps 1e-6 and 1e-5 differ by a percent; scores have a deviation of a few, so that positions,
# biases and norms of q and k decide who attends to whom; logits have one of about 3, so that answers are not flat.
_SCALES = {
    "embed_tokens.weight": (0.0, 0.02 * 64**0.5),
    "lm_head.weight": (0.0, 3.0),
    "input_layernorm.weight": (1.0, 0.2),
    "post_attention_layernorm.weight": (1.0, 0.2),
    "q_norm.weight": (1.6, 0.3),
    "k_norm.weight": (1.6, 0.3),
    "q_proj.weight": (0.0, 1.6),
    "k_proj.weight": (0.0, 1.6),
    "v_proj.weight": (0.0, 1.0),
    "o_proj.weight": (0.0, 0.06),
    "gate_proj.weight": (0.0, 1.5),
    "up_proj.weight": (0.0, 1.5),
    "down_proj.weight": (0.0, 0.06),
    "q_proj.bias": (0.0, 1.0),
    "k_proj.bias": (0.0, 1.0),
    "v_proj.bias": (0.0, 0.5),
}


def picked(prompt: np.ndarray, vocab_size: int) -> np.ndarray:
    """i32[T, NUM_PICKED]: the tokens whose log-probabilities are kept of a long prompt, the one that follows first."""
    steps = np.arange(NUM_PICKED) * vocab_size // NUM_PICKED
    return (np.roll(prompt, -1)[:, None] + steps) % vocab_size


def tensor(model: GoldenModel, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor of that Hugging Face name, f32, whatever order tensors are asked for in."""
    normal = _generator(f"{model.name}/{name}").standard_normal(shape)
    if name == "model.norm.weight":  # tied logits are products with a matrix of deviation 0.02: undo that here
        mean, deviation = (18.0, 2.0) if model.raw["tie_word_embeddings"] else (1.0, 0.2)
    else:
        mean, deviation = next(scale for suffix, scale in _SCALES.items() if name.endswith(suffix))
    fan_in = shape[-1] if len(shape) == 2 else 1
    return (mean + deviation * fan_in**-0.5 * normal).astype(np.float32)


def _generator(name: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")))
