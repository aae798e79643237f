"""Switches of a config.json: of a part that each model here has, of additions, and of what changes nothing."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
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


@settings(deadline=None)
@given(st.sampled_from(SWITCH), st.sampled_from(MADE_OF), st.sampled_from(OFF_VALUES))
def test_what_every_model_here_is_made_of_is_never_taken_for_off(first: str, part: str, off: Any) -> None:
    key = f"{first}_{part}".removeprefix("_")
    with pytest.raises(CheckpointError, match=f"{key} must (not be off|be true)"):
        config_from_hf({**QWEN3_8B, key: off})


@settings(deadline=None)
@given(st.sampled_from(SWITCH), st.sampled_from(MADE_OF), st.sampled_from(ADDED), st.booleans())
def test_what_is_added_to_a_part_may_be_off(first: str, part: str, added: str, is_last: bool) -> None:
    key = "_".join(filter(None, [first, part, added] if is_last else [first, added, part]))
    assume(key != "rope_scaling")  # an object
    assert config_from_hf({**QWEN3_8B, key: False}) == config_from_hf(QWEN3_8B)


@settings(deadline=None)
@given(st.sampled_from(["scale", "multiplier", "scaling"]), st.sampled_from(["", "xyz"]), st.sampled_from([0, 0.0]))
def test_a_factor_of_nothing_is_refused(factor: str, last: str, off: Any) -> None:
    key = f"{factor}_{last}".removesuffix("_")
    with pytest.raises(CheckpointError, match=key):
        config_from_hf({**QWEN3_8B, key: off})


@pytest.mark.parametrize("key", ["attention_output_bias", "attention_out_bias", "attention_sink_bias"])
def test_another_bias_may_be_off_where_that_of_q_k_v_may_not(key: str) -> None:
    assert config_from_hf({**R1_DISTILL_QWEN_1_5B, key: False}) == config_from_hf(R1_DISTILL_QWEN_1_5B)
