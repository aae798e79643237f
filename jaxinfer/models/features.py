"""What models of other kinds have and ours do not: how a config.json names it, and when it says that there is none."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from jaxinfer.models.config import HFConfig, is_neutral, is_off, num_layers_of, of_each_layer


@dataclasses.dataclass(frozen=True)
class Feature:
    """A part of a model.

    name: as a message names it.    switches: keys whose value says whether the model has it: null, false, 0 and what is
    empty say that it has not.    details: keys that mean nothing where the switches say so.
    words: parts of an architecture's name that stand for it.    asides: keys that say nothing without the switches.
    usual: switches with a value for each layer, of which 1 is a layer as ours.
    """

    name: str
    switches: tuple[str, ...]
    details: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    asides: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()

    def is_in(self, raw: Mapping[str, Any]) -> bool:
        return any(self.has(key, raw.get(key), num_layers_of(raw)) for key in self.switches)

    def has(self, key: str, value: Any, num_layers: int | None) -> bool:
        """Whether a switch of this value says that the model has it."""
        of_each = of_each_layer(value, num_layers)
        if key not in self.usual:
            return not is_off(of_each)
        return value is not None and value != [] and not (isinstance(value, list) and of_each == 1)


EXPERTS = Feature(
    "experts",
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"),
    (
        *("num_experts_per_tok", "num_experts_per_token", "moe_intermediate_size", "shared_expert_intermediate_size"),
        *("n_shared_experts", "num_shared_experts", "norm_topk_prob", "mlp_only_layers", "first_k_dense_replace"),
        *("moe_layer_freq", "n_group", "topk_group", "topk_method", "scoring_func", "routed_scaling_factor"),
        *("aux_loss_alpha", "seq_aux", "ep_size"),
    ),
    ("Moe", "MoE", "Mixtral", "GptOss", "Olmoe", "Dbrx", "Grok", "DeepseekV2", "DeepseekV3", "MiniMaxM"),
    ("decoder_sparse_step", "router_aux_loss_coef", "router_jitter_noise", "output_router_logits"),
)
IMAGES = Feature(
    "images",
    ("vision_config", "mm_vision_tower"),
    (
        *("image_token_id", "image_token_index", "video_token_id"),
        *("vision_start_token_id", "vision_end_token_id", "vision_token_id"),
    ),
    ("VL", "Vision", "Llava", "Mllama", "Mistral3", "Gemma3ForConditional", "Llama4ForConditional"),
)
AUDIO = Feature("sounds", ("audio_config",), ("audio_token_id", "audio_token_index"), ("Audio", "Omni", "Whisper"))
NEXT_TOKENS = Feature(
    "layers that predict several tokens",
    ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers"),
    ("mtp_use_dedicated_embeddings", "mtp_loss_scaling_factor"),
)
LATENT = Feature("latent attention", ("kv_lora_rank", "q_lora_rank"), ("qk_rope_head_dim", "qk_nope_head_dim"))
RECURRENT = Feature(
    "recurrent layers",
    (
        *("linear_num_key_heads", "ssm_cfg", "mamba_d_state", "state_size", "ssm_state_size", "attn_layer_period"),
        "attn_type_list",
    ),
    (
        *("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_value_heads"),
        *("mamba_d_conv", "mamba_expand", "full_attention_interval"),
    ),
    ("Mamba", "Rwkv", "RWKV", "Jamba", "Zamba", "Bamba", "FalconH1", "NemotronH", "Qwen3Next", "Qwen35", "Lfm2"),
    usual=("attn_type_list",),
)
# the interval is what layers follow where no list says which they are
UNPLACED = Feature(
    "layers without rotary positions", ("no_rope_layers",), ("no_rope_layer_interval",), usual=("no_rope_layers",)
)
WINDOWS = Feature("sliding windows", ("sliding_window_pattern",))
ENCODER = Feature("an encoder", ("is_encoder_decoder",), (), ("T5", "Bart", "Encoder"))
HEADS = Feature(
    "a head that classifies or rewards", (), (), ("ForSequenceClassification", "ForTokenClassification", "Reward")
)
DRAFT = Feature(
    "a head that drafts for another model",
    ("draft_vocab_size", "medusa_num_heads", "speculators_config", "eagle_config"),
    words=("Eagle", "Medusa", "Speculator"),
)
FEATURES = (DRAFT, EXPERTS, IMAGES, AUDIO, NEXT_TOKENS, LATENT, RECURRENT, UNPLACED, WINDOWS, ENCODER, HEADS)
_IN_THE_FAMILY = (DRAFT, EXPERTS, IMAGES, AUDIO, NEXT_TOKENS, LATENT, RECURRENT, UNPLACED)


def refuse_features(config: HFConfig) -> None:
    """Record a fault for each feature that the model has; what is switched off is read with all that belongs to it."""
    for feature in _IN_THE_FAMILY:
        switches = [key for key in feature.switches if key in config.names() and config.value(key) != []]
        for key in feature.switches:
            off = config.is_off(key)  # which reads it
            if feature.has(key, config.given(key), config.num_layers) if key in feature.usual else not off:
                law = "must be 1 for each layer, or absent" if key in feature.usual else "must be 0, empty or absent"
                config.refuse(key, law, f"{feature.name} are not supported")
        for key in feature.asides:
            config.value(key)
        for key in feature.details:
            if not config.has(key):
                continue
            if not (config.is_off(key) or switches or is_neutral(key, config.value(key))):
                config.refuse(key, "must be absent", f"{feature.name} are not supported")


def features_of(architecture: str, raw: Mapping[str, Any]) -> Iterator[str]:
    """The names of what a model has and ours do not, as its config.json and its architecture's name tell.

    architecture: or a model_type, as qwen3_moe.
    """
    inner = raw.get("text_config")
    sections = [raw, inner] if isinstance(inner, dict) else [raw]
    for feature in FEATURES:
        kind = architecture.split("_")
        of_type = {*kind, "".join(kind), "".join(kind[:2])}  # as qwen3_moe, gpt_oss and qwen3_next_text
        named = any(word in architecture or word.casefold() in of_type for word in feature.words)
        if named or any(feature.is_in(section) or feature is WINDOWS and _slides(section) for section in sections):
            yield feature.name


def _slides(raw: Mapping[str, Any]) -> bool:
    types = raw.get("layer_types")
    if isinstance(types, list):
        return "sliding_attention" in types
    return not is_off(raw.get("sliding_window")) and raw.get("use_sliding_window") is not False
