"""Switches of a config.json: of a part that each model here has, of additions, and of what changes nothing."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxinfer.errors import CheckpointError
from jaxinfer.models.dense import config_from_hf
from tests.models.test_config import QWEN3_8B, R1_DISTILL_QWEN_1_5B

ADDITIONS = ["sandwich_norm", "scale_embedding", "scale_embeddings", "embedding_norm", "norm_bias", "layernorm_1p"]
ADDITIONS += [
    "gated_attention",
    "rope_yarn",
    "dynamic_rope",
    "rotary_interleaved",
    "use_residual_scaling",
    "extra_norm",
]
ADDITIONS += ["qk_norm_bias", "attention_output_bias", "position_embedding_bias", "use_rope_scaling"]


@given(
    st.dictionaries(
        st.from_regex(r"(use|num|has)_[xyz]{3,8}s?", fullmatch=True),
        st.sampled_from([None, False, 0, 0.0, "", [], {}]),
        max_size=4,
    ),
)
def test_any_feature_that_is_switched_off_is_harmless(added: dict[str, Any]) -> None:
    assert config_from_hf({**QWEN3_8B, **added}) == config_from_hf(QWEN3_8B)


OFF = ["use_moe", "fused_bias", "attention_out_bias", "attention_sinks", "use_biases", "num_nextn_predict_layer"]
RANKS = ["ep_size", "tp_size", "tensor_parallel_size", "expert_model_parallel_size", "context_parallel_degree"]


@pytest.mark.parametrize(
    "added",
    [
        *({key: off} for key in OFF for off in (False, 0)),
        *({key: True} for key in ("no_bias", "disable_bias", "without_sinks", "no_moe")),
        *({key: 1} for key in RANKS),
        {"no_rope": False, "disable_rotary": False},
        *({key: False} for key in ADDITIONS),
        {"rope_ratio": 1, "scale_emb": 1, "cla_share_factor": 1.0, "window_size": -1, "full_attention_interval": 1},
    ],
    ids=str,
)
def test_switches_that_are_off_factors_of_one_and_one_device_are_harmless(added: dict[str, Any]) -> None:
    assert config_from_hf({**QWEN3_8B, **added}) == config_from_hf(QWEN3_8B)


@pytest.mark.parametrize(
    "added",
    [
        *({key: count} for key in RANKS for count in (2, True)),
        {"no_rope": True},
        {"no_norm": True},
        {"tp_rank_sinks": 1},
    ],
    ids=str,
)
def test_what_is_spread_and_a_part_that_is_denied_are_refused(added: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(added))):
        config_from_hf({**QWEN3_8B, **added})


SWITCH, OFF_VALUES = ["use", "has", "apply", "with", "enable", ""], [False, 0, 0.0]
MADE_OF = ["rope", "rotary_pos_emb", "gated_mlp", "swiglu", "causal", "norm", "pre_norm", "attention", "residual"]
ADDED = ["sandwich", "scaling", "bias", "yarn", "dynamic", "interleaved", "extra", "xyz", "1p", "cross"]


@given(st.sampled_from(SWITCH), st.sampled_from(MADE_OF), st.sampled_from(OFF_VALUES))
def test_what_every_model_here_is_made_of_is_never_taken_for_off(first: str, part: str, off: Any) -> None:
    key = f"{first}_{part}".removeprefix("_")
    with pytest.raises(CheckpointError, match=f"{key} must (not be off|be true)"):
        config_from_hf({**QWEN3_8B, key: off})


@given(st.sampled_from(SWITCH), st.sampled_from(MADE_OF), st.sampled_from(ADDED), st.booleans())
def test_what_is_added_to_a_part_may_be_off(first: str, part: str, added: str, is_last: bool) -> None:
    key = "_".join(filter(None, [first, part, added] if is_last else [first, added, part]))
    assume(key != "rope_scaling")  # an object
    assert config_from_hf({**QWEN3_8B, key: False}) == config_from_hf(QWEN3_8B)


@given(st.sampled_from(["scale", "multiplier", "scaling"]), st.sampled_from(["", "xyz"]), st.sampled_from([0, 0.0]))
def test_a_factor_of_nothing_is_refused(factor: str, last: str, off: Any) -> None:
    key = f"{factor}_{last}".removesuffix("_")
    with pytest.raises(CheckpointError, match=key):
        config_from_hf({**QWEN3_8B, key: off})


@pytest.mark.parametrize("key", ["attention_output_bias", "attention_out_bias", "attention_sink_bias"])
def test_another_bias_may_be_off_where_that_of_q_k_v_may_not(key: str) -> None:
    assert config_from_hf({**R1_DISTILL_QWEN_1_5B, key: False}) == config_from_hf(R1_DISTILL_QWEN_1_5B)


OWN = {
    "hidden_size": ["n_embd", "d_model", "hidden_dim"],
    "intermediate_size": ["ffn_hidden_size", "n_inner"],
    "num_hidden_layers": ["n_layer", "num_layers"],
    "num_attention_heads": ["n_head", "num_heads"],
    "num_key_value_heads": ["num_kv_heads", "num_query_groups"],
    "head_dim": ["kv_channels"],
    "max_position_embeddings": ["n_positions"],
    "rms_norm_eps": ["layer_norm_eps"],
}
WORDS = [
    ("rope_type", "default", "yarn"),
    ("position_embedding_type", "rope", "alibi"),
    ("position_embedding_type", "Rotary", "absolute"),
    ("attn_type", "full", "linear"),
    ("norm_type", "RMSNorm", "layernorm"),
    ("normalization", "rms_norm", "batch_norm"),
    ("mlp_type", "swiglu", "relu"),
    ("pooling_type", "LAST", "mean"),
]


@pytest.mark.parametrize(("name", "other"), [(name, other) for name, others in OWN.items() for other in others])
def test_a_size_under_another_name_is_harmless_where_it_is_the_same(name: str, other: str) -> None:
    assert config_from_hf({**QWEN3_8B, other: QWEN3_8B[name]}) == config_from_hf(QWEN3_8B)
    for wrong in (QWEN3_8B[name] * 2, True, "8"):
        with pytest.raises(CheckpointError, match=f"- {other} must be what {name} is"):
            config_from_hf({**QWEN3_8B, other: wrong})


@pytest.mark.parametrize(("key", "ours", "another"), WORDS)
def test_a_word_for_what_each_model_here_has_is_harmless(key: str, ours: str, another: str) -> None:
    for off in (ours, None, ""):
        assert config_from_hf({**QWEN3_8B, key: off}) == config_from_hf(QWEN3_8B)
    with pytest.raises(CheckpointError, match=f"- {key} must be one of .*{another}"):
        config_from_hf({**QWEN3_8B, key: another})


def test_how_a_model_was_trained_saved_and_sampled_is_harmless() -> None:
    added = {"cache_implementation": "hybrid", "max_new_tokens": 100, "bf16": True, "matryoshka_dimensions": [32, 64]}
    assert config_from_hf({**QWEN3_8B, **added}) == config_from_hf(QWEN3_8B)
