"""What is read from a config.json, and what is refused and how."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.cache.spec import layout_of
from jaxinfer.errors import CheckpointError
from jaxinfer.layers.spec import Rope
from jaxinfer.models.dense import DenseConfig, config_from_hf
from jaxinfer.models.registry import dense, family_for

QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
R1_0528_QWEN3_8B = {
    **QWEN3_8B,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "attn_factor": 0.8782488562869419,
    },
}
R1_DISTILL_QWEN_1_5B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "initializer_range": 0.02,
    "intermediate_size": 8960,
    "max_position_embeddings": 131072,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.44.0",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LLAMA_3_2_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN3_0_6B = {
    **QWEN3_8B,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "max_window_layers": 28,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("raw", "num_params"),
    [
        (QWEN3_0_6B, 596_049_920),
        (QWEN3_8B, 8_190_735_360),
        (R1_0528_QWEN3_8B, 8_190_735_360),
        (R1_DISTILL_QWEN_1_5B, 1_777_088_000),
        (LLAMA_3_2_1B, 1_235_814_400),
    ],
    ids=["Qwen3-0.6B", "Qwen3-8B", "R1-0528-Qwen3-8B", "R1-Distill-Qwen-1.5B", "Llama-3.2-1B"],
)
def test_published_configs_are_read_and_count_their_published_parameters(raw: dict[str, Any], num_params: int) -> None:
    assert config_from_hf(raw).num_params == num_params


def test_every_field_of_a_published_config_is_read() -> None:
    assert config_from_hf(LLAMA_3_2_1B) == DenseConfig(
        architecture="LlamaForCausalLM",
        vocab_size=128256,
        hidden_size=2048,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        intermediate_size=8192,
        norm_eps=1e-5,
        rope=Rope(
            kind="llama3",
            theta=500000.0,
            factor=32.0,
            original_max_position=8192,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
        max_position=131072,
        qkv_bias=False,
        qk_norm=False,
        tie_embeddings=True,
        dtype="bfloat16",
        bos_token_id=128000,
        eos_token_ids=(128001, 128008, 128009),
    )


def test_a_missing_head_dim_is_the_hidden_size_over_the_heads() -> None:
    assert config_from_hf(R1_DISTILL_QWEN_1_5B).head_dim == 128


def test_keys_and_values_of_a_token_are_counted_in_bytes() -> None:
    layout = layout_of(config_from_hf(QWEN3_8B).caches("bfloat16"), 64)
    assert layout.page_bytes == 64 * 2 * 36 * 8 * 128 * 2 and layout.windows == (None,)


def test_both_styles_of_transformers_give_the_same_config() -> None:
    for old in (QWEN3_8B, R1_0528_QWEN3_8B, LLAMA_3_2_1B):
        new = {key: value for key, value in old.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")}
        new["dtype"] = old["torch_dtype"]
        new["rope_parameters"] = {"rope_theta": old["rope_theta"], **(old["rope_scaling"] or {"rope_type": "default"})}
        new["layer_types"] = ["full_attention"] * old["num_hidden_layers"]
        assert config_from_hf(new) == config_from_hf(old)


def test_a_config_can_be_a_key_and_cannot_change() -> None:
    first, second = config_from_hf(QWEN3_8B), config_from_hf(dict(QWEN3_8B))
    assert {first: 1}[second] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.vocab_size = 1  # type: ignore[misc]


def test_yarn_stretches_the_context_it_started_from() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert config_from_hf({**QWEN3_8B, "rope_scaling": scaling}).max_position == 131072
    assert config_from_hf({**QWEN3_8B, "rope_scaling": {"type": "linear", "factor": 4.0}}).max_position == 40960


def test_a_dtype_left_out_is_float32() -> None:
    assert config_from_hf({**QWEN3_8B, "torch_dtype": None}).dtype == "float32"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"quantization_config": {"quant_method": "hqq"}}, "quantization_config.quant_method must be one of fp8"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"attention_bias": True}, "attention_bias must be false, got true"),
        ({"mlp_bias": True}, "mlp_bias must be false"),
        ({"use_mrope": True}, "use_mrope must be false"),
        (
            {"architectures": [], "auto_map": {"AutoModelForCausalLM": "modeling.Mine"}},
            "code from a checkpoint is never run",
        ),
        ({"use_sliding_window": True, "sliding_window": 4096}, "use_sliding_window must be false"),
        ({"layer_types": ["full_attention"] * 35 + ["sliding_attention"]}, "layer_types must all be full_attention"),
        ({"layer_types": ["full_attention"] * 35}, "layer_types must have num_hidden_layers (36) entries"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.type must be one of default, linear"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type must be one of"),
        ({"rope_scaling": {"rope_type": "yarn", "type": "linear"}}, "rope_scaling.rope_type must agree with type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor must be a number above 0"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}},
            "rope_scaling.mrope_section is not",
        ),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"rope_scaling": False}, "rope_scaling must be an object"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "rope_theta must agree"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters.full_attention is not a key",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ({"original_max_position_embeddings": 7, "rope_scaling": R1_0528_QWEN3_8B["rope_scaling"]}, "must agree"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "attn_factor": 1.1, "attention_factor": 1.1}},
            "rope_scaling.attn_factor must not stand beside attention_factor",
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 4.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}},
            "rope_scaling.high_freq_factor must be above low_freq_factor",
        ),
        ({"model_type": "qwen2"}, "model_type must be 'qwen3', got 'qwen2'"),
        ({"torch_dtype": "float64"}, "torch_dtype must be one of bfloat16, float16, float32"),
        ({"dtype": "float16"}, "dtype must agree with torch_dtype ('bfloat16')"),
        ({"num_key_value_heads": 5}, "num_key_value_heads must divide num_attention_heads (32)"),
        ({"head_dim": 127}, "head_dim must be even"),
        ({"head_dim": None, "hidden_size": 4097}, "head_dim must be given"),
        ({"vocab_size": None}, "vocab_size must be an integer in 1 .. 16777216, got nothing"),
        ({"vocab_size": True}, "vocab_size must be an integer"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer in 1 .. 1024"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number above 0, at most 1, got nan"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list of token ids"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"residual_multiplier": 0.2}, "residual_multiplier must be 1, got 0.2"),
        ({"wings": 2}, "wings is not a key this architecture knows, got 2; delete it"),
        ({"rms_norm_epsilon": 0}, "did you mean 'rms_norm_eps'?"),
        (
            {"num_experts": 64, "num_experts_per_tok": 8},
            "num_experts must be 0, empty or absent, got 64; experts are not",
        ),
        ({"attention_multiplier": 1.0}, "attention_multiplier must be 0.0883883, which is 1 / sqrt(head_dim), got 1.0"),
        ({"softmax_scale": 0.0078125}, "softmax_scale must be 0.0883883"),
        ({"query_pre_attn_scalar": 256}, "query_pre_attn_scalar must be what head_dim is (128), got 256"),
        ({"full_attention_interval": 4}, "full_attention_interval must be absent, got 4; recurrent layers are not"),
        ({"rope_ratio": 2}, "rope_ratio is not a key"),
        ({"num_experts_per_tok": 8}, "num_experts_per_tok must be absent, got 8; experts are not supported"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers must be 0, empty or absent"),
        ({"vision_config": {"depth": 2}}, "images are not supported"),
        ({"use_qk_norm": False}, "use_qk_norm must be true, got false"),
        ({"activation": "gelu"}, "activation must be 'silu', got 'gelu'"),
        (
            {"dual_chunk_attention_config": {"chunk_size": 0}},
            "dual_chunk_attention_config.chunk_size must be an integer",
        ),
        (
            {"dual_chunk_attention_config": {"chunk_size": 8, "local_size": 2, "sparse_attention_enabled": True}},
            "sparse_attention_enabled must be false",
        ),
        ({"eos_token_id": 151936}, "eos_token_id must be below the vocabulary's size (151936), got 151936"),
        ({"bos_token_id": 151936}, "bos_token_id must be below the vocabulary's size (151936), got 151936"),
        ({"draft_vocab_size": 32000}, "a head that drafts for another model are not supported"),
        ({"no_rope_layers": [0] * 36}, "no_rope_layers must be 1 for each layer, or absent"),
        ({"no_rope_layers": [1] * 35}, "no_rope_layers must be 1 for each layer, or absent"),
        ({"no_rope_layers": [], "no_rope_layer_interval": 4}, "no_rope_layer_interval must be absent"),
        ({"attn_type_list": [0] * 36}, "attn_type_list must be 1 for each layer, or absent"),
        ({"moe_layer_freq": [0] * 35 + [1]}, "experts are not supported"),
        ({"rope_layers": [0] * 36}, "rope_layers must not be off"),
        ({"layers_block_type": ["mamba"] * 36}, "layers_block_type is not a key"),
        ({"wings": [0] * 35}, "wings is not a key"),
        ({"no_rope_layers": [1, 0]}, "layers without rotary positions are not supported"),
        ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "factor must be 1 or absent"),
        ({"use_bias": True}, "use_bias must be false"),
        ({"rope": False}, "rope must not be off, since the model served here has it, got false"),
        ({"apply_rotary_pos_emb": False}, "apply_rotary_pos_emb must not be off"),
        ({"use_swiglu": False}, "use_swiglu must not be off"),
        ({"gated_mlp": False}, "gated_mlp must not be off"),
        ({"pre_norm": False}, "pre_norm must not be off"),
        ({"use_attention": False}, "use_attention must not be off"),
        ({"scale_emb": 0}, "scale_emb must not be 0, since a factor of 0 leaves nothing, got 0"),
        ({"attention_multiplier": 0}, "attention_multiplier must be 0.0883883"),
        ({"attention_multiplier": "0.0883883"}, "attention_multiplier must be 0.0883883"),
        ({"quantization_config": {"load_in_4bit": True, "load_in_8bit": False}}, "quant_method must be one of fp8"),
        ({"quantization_config": {"quant_method": None, "bits": 4}}, "quant_method must be one of fp8"),
        ({"image_token_id": 5}, "image_token_id must be absent, got 5; images are not supported"),
        ({"eos_token_id": [1, 10**7]}, "eos_token_id must be below the vocabulary's size (151936)"),
        ({"rms_norm_epsilon": 1e-5}, "did you mean 'rms_norm_eps'?"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_from_hf({**QWEN3_8B, **changed})
    assert named in str(caught.value)
    assert str(caught.value).startswith("config.json of Qwen3ForCausalLM has ")


def test_qwen2_always_has_a_bias_on_q_k_v() -> None:
    assert config_from_hf({**R1_DISTILL_QWEN_1_5B, "attention_bias": True}).qkv_bias
    with pytest.raises(CheckpointError, match="attention_bias must be true, got false"):
        config_from_hf({**R1_DISTILL_QWEN_1_5B, "attention_bias": False})


def test_all_faults_are_reported_at_once() -> None:
    raw = {**QWEN3_8B, "hidden_act": "relu", "vocab_size": -1, "wings": 2, "rope_scaling": {"type": "su", "factor": 2}}
    with pytest.raises(CheckpointError) as caught:
        config_from_hf(raw)
    message = str(caught.value)
    assert "has 4 settings that" in message
    for key in ("hidden_act", "vocab_size", "wings", "rope_scaling.type"):
        assert f"\n  - {key} " in message


@pytest.mark.parametrize(
    "added",
    [
        {"seq_length": 32768, "model_max_length": 32768, "max_sequence_length": 4096},
        {"activation": "swiglu"},
        {"activation": "silu", "hidden_act": "swish"},
        {"num_nextn_predict_layers": 0},
        {"num_experts": None, "norm_topk_prob": True},
        {"num_experts": 0, "num_experts_per_tok": 8, "norm_topk_prob": True, "moe_intermediate_size": 768},
        {"mlp_only_layers": [], "decoder_sparse_step": 0},
        {"quantization_config": {}, "compression_config": {}},
        {"quantization_config": {"load_in_4bit": False, "load_in_8bit": False}},
        {"quantization_config": {"load_in_4bit": False, "load_in_8bit": False, "bnb_4bit_quant_type": "fp4"}},
        {"quantization_config": {"quant_method": None}},
        {"vision_config": {}, "image_token_id": 151655},
        {"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}},
        {"pad_token_id": 151936},
        {"attn_output_gate": False, "add_post_norms": False, "use_parallel_residual": False},
        {"tokenizer_padding_side": "left", "_flash_attn_2_enabled": True, "base_model": "some/model"},
        {"sliding_window": 40960, "use_sliding_window": True},
        {"vision_config": None, "image_token_id": None},
        {"no_rope_layers": [], "no_rope_layer_interval": 0},
        {"no_rope_layers": [1] * 36, "no_rope_layer_interval": 4},
        {"attn_type_list": [1] * 36},
        {"moe_layer_freq": [0] * 36, "mlp_layer_types": ["dense"] * 36},
        {"layer_types": ["attention"] * 36},
        {"layers_block_type": ["attention"] * 36, "hybrid_layer_pattern": [0] * 36},
        {"activation_sparsity_pattern": [0.0] * 36, "wings": [None] * 36, "wing_window": [-1] * 36},
        {"quantization_config": {"quant_method": "none"}},
        {"rope_scaling": {"rope_type": "default", "factor": 1.0}},
        {"decoder_sparse_step": 1, "router_aux_loss_coef": 0.001},
        {"flash_attn": True, "use_bias": False},
        {"embedding_multiplier": 1.0, "use_cross_wings": False, "num_wings": 0, "wings": [], "wing_type": ""},
    ],
    ids=str,
)
def test_a_key_that_changes_nothing_changes_nothing(added: dict[str, Any]) -> None:
    assert config_from_hf({**QWEN3_8B, **added}) == config_from_hf(QWEN3_8B)


OF_ALL_LAYERS = {"architectures", "num_hidden_layers"}


@pytest.mark.parametrize("key", [*sorted(QWEN3_8B.keys() - OF_ALL_LAYERS), "use_rope", "rope_layers", "wings"])
def test_a_list_that_says_the_same_of_each_layer_says_it_of_the_model(key: str) -> None:
    """And is shown as it was given where that is refused."""
    each = {"use_rope": True, "rope_layers": 1, "wings": 3}.get(key, QWEN3_8B.get(key))
    raw = {**QWEN3_8B, key: [each] * 36}
    if key in ("rope_layers", "wings"):
        with pytest.raises(CheckpointError, match=rf"{key} is not a key .*, got \[{each}, {each}, [^\n]*; delete it"):
            config_from_hf(raw)
    else:
        assert config_from_hf(raw) == config_from_hf(QWEN3_8B)


WAYS = ["flash", "flash_attention", "flash_attn_2", "sdpa", "fused_attention", "fused_rms_norm", "xformers_attention"]
WAYS += ["memory_efficient_attention", "liger_kernel", "triton", "fused_cross_entropy_loss", "fused_swiglu", "cache"]
WAYS += ["kv_cache", "gradient_checkpointing", "cuda_kernels", "fused_mlp", "fused_rotary_embedding", "apex_rmsnorm"]


@given(st.sampled_from(["", "_", "use_", "enable_", "disable_"]), st.sampled_from(WAYS), st.booleans())
def test_how_a_framework_computes_is_harmless_by_its_name(first: str, way: str, on: bool) -> None:
    assert config_from_hf({**QWEN3_8B, first + way: on}) == config_from_hf(QWEN3_8B)


@pytest.mark.parametrize(
    "added",
    [
        *({"attention_backend": name} for name in ("sdpa", "flash_attention_2", "eager", "xformers")),
        {"flash_attn_version": 2, "attn_dropout": 0.1, "embedding_dropout": 0.0, "classifier_dropout": 0.1},
        {"embd_pdrop": 0.1, "init_std": 0.02, "initializer_factor": 1, "z_loss_weight": 1e-4, "label_smoothing": 0.1},
    ],
    ids=str,
)
def test_names_of_kernels_and_of_training_are_harmless(added: dict[str, Any]) -> None:
    assert config_from_hf({**QWEN3_8B, **added}) == config_from_hf(QWEN3_8B)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, True) for key in ("use_parallel_residual", "parallel_attn", "use_cache_quantization", "use_logn_attn")),
        *((key, True) for key in ("fused_qk_norm", "fused_bias", "drop_embedding")),
        *((key, True) for key in ("fused_wings", "attn_output_gate", "flash_memory_tokens", "fused_linear_attention")),
        *(("attention_backend", value) for value in ("linear", "flash_linear_wings", "mamba")),
        *((key, 4) for key in ("kernel_size", "kernel", "conv_kernel", "fused", "kv_cache")),
    ],
)
def test_what_a_model_computes_is_refused_whatever_words_its_name_has(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=key):
        config_from_hf({**QWEN3_8B, key: value})


def test_dual_chunk_attention_is_plain_attention_within_its_first_chunk() -> None:
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    million = {**R1_DISTILL_QWEN_1_5B, "max_position_embeddings": 1010000, "dual_chunk_attention_config": chunks}
    assert config_from_hf(million).max_position == 262144
    assert config_from_hf({**million, "max_position_embeddings": 32768}).max_position == 32768


@pytest.mark.parametrize(("raw", "body"), [(QWEN3_8B, "Qwen3Model"), (R1_DISTILL_QWEN_1_5B, "Qwen2Model")])
def test_a_model_saved_as_its_body_is_one_without_a_head(raw: dict[str, Any], body: str) -> None:
    whole = config_from_hf(raw)
    assert config_from_hf({**raw, "architectures": [body]}) == dataclasses.replace(whole, tie_embeddings=True)


@pytest.mark.parametrize("raw", [QWEN3_8B, R1_DISTILL_QWEN_1_5B, LLAMA_3_2_1B])
def test_names_beside_an_architecture_change_nothing(raw: dict[str, Any]) -> None:
    assert config_from_hf({**raw, "architectures": [*raw["architectures"], "X"]}) == config_from_hf(raw)


def test_the_first_of_several_architectures_must_be_of_the_model_s_type() -> None:
    with pytest.raises(CheckpointError, match="model_type must be 'qwen2', got 'qwen3'"):
        config_from_hf({**QWEN3_8B, "architectures": ["Qwen2ForCausalLM", "Qwen3ForCausalLM"]})


@pytest.mark.parametrize("key", ["attention_multiplier", "softmax_scale"])
@pytest.mark.parametrize("raw", [QWEN3_8B, LLAMA_3_2_1B])
def test_the_usual_factor_of_the_scores_changes_nothing(raw: dict[str, Any], key: str) -> None:
    whole = config_from_hf(raw)
    for scale in (whole.head_dim**-0.5, float(np.float32(whole.head_dim**-0.5))):
        assert config_from_hf({**raw, key: scale, "query_pre_attn_scalar": whole.head_dim}) == whole


@pytest.mark.parametrize("raw", [QWEN3_8B, R1_DISTILL_QWEN_1_5B, LLAMA_3_2_1B])
def test_a_model_without_architectures_is_what_its_type_says(raw: dict[str, Any]) -> None:
    for nothing in (None, []):
        assert config_from_hf({**raw, "architectures": nothing}) == config_from_hf(raw)
    with pytest.raises(CheckpointError, match="architectures must name one of"):
        config_from_hf({**raw, "architectures": None, "model_type": "gemma3"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
ROPE_KEYS = sorted({*R1_0528_QWEN3_8B["rope_scaling"], *LLAMA_3_2_1B["rope_scaling"], "type", "mscale", "beta_fast"})


@settings(max_examples=300)
@given(
    raw=st.sampled_from([R1_0528_QWEN3_8B, R1_DISTILL_QWEN_1_5B, LLAMA_3_2_1B]),
    changes=st.dictionaries(st.sampled_from(sorted({*QWEN3_8B, *LLAMA_3_2_1B, "dtype", "layer_types"})), JSON),
    rope_changes=st.dictionaries(st.sampled_from(ROPE_KEYS), JSON, max_size=2),
)
def test_any_json_is_read_or_refused_and_never_crashes(
    raw: dict[str, Any], changes: dict[str, Any], rope_changes: dict[str, Any]
) -> None:
    scaling = {**(raw.get("rope_scaling") or {}), **rope_changes}
    changed = json.loads(json.dumps({**raw, "rope_scaling": scaling, **changes}))
    try:
        assert family_for(changed) is dense
        assert isinstance(config_from_hf(changed), DenseConfig)
    except CheckpointError as error:
        assert str(error)


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"])
@pytest.mark.parametrize("value", ["4096", True, 4096.5, 0, [1, 2], {}])
def test_a_value_of_a_wrong_type_is_one_fault(key, value) -> None:
    raw = {**QWEN3_8B, "head_dim": None, "num_key_value_heads": None, key: value}
    with pytest.raises(CheckpointError) as refusal:
        config_from_hf(raw)
    assert str(refusal.value).count("\n  - ") == str(refusal.value).count(f"\n  - {key} must be an integer in ") == 1
