"""The dense decoder family: Qwen2 / Qwen2.5, Qwen3, Llama 3.x and the DeepSeek-R1 distills of them.

Sources: Qwen2.5 (arXiv:2412.15115), Qwen3 (arXiv:2505.09388), Llama 3 (arXiv:2407.21783). They differ in a bias on
q, k, v and a norm on each head of q and k. Shape letters: T tokens, L rows or layers, D model, F MLP, N query heads,
K kv heads, H head, V vocabulary.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Float32

from jaxinfer.errors import CheckpointError
from jaxinfer.layers.attention import attention
from jaxinfer.layers.batch import Batch
from jaxinfer.layers.embedding import embedding
from jaxinfer.layers.linear import add, array, linear, normed, swiglu
from jaxinfer.layers.products import XLA, Products
from jaxinfer.layers.spec import Attention, Dense, Layer, Rope
from jaxinfer.models import rope
from jaxinfer.models.config import (
    CHECK,
    USUAL_LAYERS,
    HFConfig,
    ModelConfig,
    checkpoint_dtype,
    first_architecture,
    is_headless,
    is_off,
    raise_faults,
    shown,
    token_ids,
)
from jaxinfer.models.features import refuse_features
from jaxinfer.models.parameters import LayerParams, matrices, single, stacked
from jaxinfer.models.quantization_config import published_from_hf
from jaxinfer_kernels.linear.quantized import Quantized

PerLayer = tuple[jax.Array | Quantized, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseConfig(ModelConfig):
    """The constants of one dense model, whose layers are all alike."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope: Rope
    qkv_bias: bool
    qk_norm: bool

    @functools.cached_property
    def layers(self) -> tuple[Layer, ...]:
        mixer = Attention(
            heads=self.num_heads,
            kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            rope=self.rope,
            norm_eps=self.norm_eps,
            qk_norm=self.qk_norm,
            bias=self.qkv_bias,
        )
        return (Layer(mixer=mixer, mlp=Dense(width=self.intermediate_size)),) * self.num_layers

    def local(self, devices: int) -> "DenseConfig":
        """The constants of one device's part of the model, over as many devices as its specs can be split into."""
        return dataclasses.replace(
            self,
            vocab_size=self.vocab_size // devices,
            num_heads=self.num_heads // devices,
            num_kv_heads=max(1, self.num_kv_heads // devices),
            intermediate_size=self.intermediate_size // devices,
        )


class Layers(LayerParams):
    """Every layer's parameters by kind; matrices are [out, in]. `layers[i]` has those of layer i."""

    attention_norm: jax.Array  # [L, D]
    qkv: PerLayer  # L x [(N + 2K) * H, D]
    qkv_bias: jax.Array | None  # [L, (N + 2K) * H]
    q_norm: jax.Array | None  # [L, H]
    k_norm: jax.Array | None  # [L, H]
    o: PerLayer  # L x [D, N * H]
    mlp_norm: jax.Array  # [L, D]
    gate_up: PerLayer  # L x [2F, D]
    down: PerLayer  # L x [D, F]


class Params(flax.struct.PyTreeNode):
    embed: jax.Array | Quantized  # [V, D]
    layers: Layers
    final_norm: jax.Array  # [D]
    unembed: jax.Array | Quantized | None  # [V, D]; None when tied to `embed`


@dataclasses.dataclass(frozen=True)
class _Traits:
    model_type: str
    qkv_bias: bool
    qk_norm: bool


_ACTIVATIONS = ("silu", "swish", "swiglu")  # names of one
_OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model", "hidden_dim", "embed_dim", "embedding_size"),
    "intermediate_size": ("ffn_hidden_size", "ffn_dim", "n_inner"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("n_kv_heads", "num_kv_heads", "num_query_groups"),
    "head_dim": ("kv_channels", "d_kv", "query_pre_attn_scalar"),
    "max_position_embeddings": ("n_positions", "n_ctx"),
    "rms_norm_eps": ("norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"),
}
_OUR_WORDS = {  # letters alone: rms_norm is RMSNorm
    "rope_type": {"default"},
    "position_embedding_type": {"rope", "rotary"},
    "attn_type": {"full", "causal", "fullattention", "softmax"},
    "attention_type": {"full", "causal", "fullattention", "softmax"},
    "norm_type": {"rms", "rmsnorm"},
    "normalization": {"rms", "rmsnorm"},
    "mlp_type": {"swiglu", "gated"},
    "pooling_type": {"last", "lasttoken"},
}
UNBOUNDED = 2**30  # positions
TENSOR = "tensor"  # the axis of a mesh over which heads, the MLP's width and the vocabulary are split
TRAITS = {
    "LlamaForCausalLM": _Traits("llama", qkv_bias=False, qk_norm=False),
    "Qwen2ForCausalLM": _Traits("qwen2", qkv_bias=True, qk_norm=False),
    "Qwen3ForCausalLM": _Traits("qwen3", qkv_bias=False, qk_norm=True),
}

# Keys that say how the model was trained, saved or should be sampled from; none changes what a forward pass computes.
# Names of kernels and of training are known by their words (config.says_how).
# fmt: off
HARMLESS = frozenset([
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "attn_implementation",
    "bad_words_ids", "base_model", "base_model_name_or_path", "begin_suppress_tokens", "bf16", "bos_token",
    "cache_implementation", "chunk_size_feed_forward", "cls_token_id", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token", "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "fp16", "id2label", "is_decoder",
    "is_llama_config", "keys_to_ignore_at_inference", "label2id", "length_penalty", "mask_token_id",
    "matryoshka_dimensions", "max_length", "max_new_tokens", "max_seq_len", "max_seq_length", "max_sequence_length",
    "max_window_layers", "min_length", "model_max_length", "model_name", "name_or_path", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_labels", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_scores", "pad_token", "pad_token_id", "padding_side", "prefix", "pretraining_tp", "problem_type",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id",
    "seq_length", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
    "tokenizer_class", "tokenizer_padding_side", "top_k", "top_p", "torchscript", "transformers.js_config",
    "transformers_version", "typical_p", "unk_token", "unk_token_id", "unsloth_fixed", "unsloth_version",
    "use_bfloat16",
])
# fmt: on
_OLD_NAMES = {"LLaMAForCausalLM": "LlamaForCausalLM"}  # of the first conversions


def architecture_of(raw: Mapping[str, Any]) -> str | None:
    """What `architectures` names, one of TRAITS where it can be; None when it does not name one.

    A model saved without its head is named for its body (Qwen3Model); where no name is given, `model_type` tells.
    """
    if raw.get("architectures") in (None, []):
        return next((name for name, traits in TRAITS.items() if traits.model_type == raw.get("model_type")), None)
    first = first_architecture(raw)
    given = _OLD_NAMES.get(first or "", first)
    whole = (given or "").removesuffix("Model") + "ForCausalLM"
    return whole if is_headless(raw) and whole in TRAITS else given


def config_from_hf(raw: Mapping[str, Any]) -> DenseConfig:
    """Read the config.json of a model whose architecture is one of TRAITS.

    Raises CheckpointError with every unknown key, missing key and unsupported feature at once.
    """
    config = HFConfig(raw)
    names, architecture = shown(config.value("architectures")), architecture_of(raw)
    if architecture not in TRAITS:
        raise CheckpointError(f"architectures must name one of {', '.join(TRAITS)}, got {names}; choose such a model")
    traits = TRAITS[architecture]
    config.must_be("model_type", (traits.model_type,), f"{architecture} is a model of that type")
    heads = config.integer("num_attention_heads", high=2**12)
    kv_heads = config.integer("num_key_value_heads", heads, high=2**12)
    if heads % kv_heads and config.value("num_attention_heads") is heads:  # else that is what is wrong
        config.refuse("num_key_value_heads", f"must divide num_attention_heads ({heads})", CHECK)
    hidden = config.integer("hidden_size")
    vocab_size = config.integer("vocab_size")
    dtype = checkpoint_dtype(config)
    known_size = vocab_size if config.value("vocab_size") is vocab_size else None
    stated_position = config.integer("max_position_embeddings", high=UNBOUNDED)
    angles = rope.rope_from_hf(config, stated_position)
    max_position = min(rope.max_position(angles, stated_position), _dual_chunk(config))
    result = DenseConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers", high=2**10),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(config, hidden, heads),
        intermediate_size=config.integer("intermediate_size"),
        norm_eps=config.number("rms_norm_eps", high=1.0),
        rope=angles,
        max_position=max_position,
        qkv_bias=traits.qkv_bias,
        qk_norm=traits.qk_norm,
        tie_embeddings=config.flag("tie_word_embeddings") or is_headless(raw),
        dtype=dtype,
        published=published_from_hf(config),
        bos_token_id=next(iter(token_ids(config, "bos_token_id", known_size)), None),
        eos_token_ids=token_ids(config, "eos_token_id", known_size),
    )
    _refuse_unsupported(config, traits)
    _refuse_other_scale(config, result.head_dim)
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": result.intermediate_size,
        "num_hidden_layers": result.num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": result.head_dim,
        "max_position_embeddings": stated_position,
        "rms_norm_eps": result.norm_eps,
    }
    _read_other_names(config, sizes)
    _refuse_sliding_windows(config, result.num_layers, max_position)
    refuse_features(config)
    config.finish(HARMLESS)
    raise_faults(architecture, config.faults)
    return result


def _dual_chunk(config: HFConfig) -> int:
    """Tokens for which attention in chunks, of long-context Qwen2.5, is what it is without: up to one chunk."""
    section = config.section("dual_chunk_attention_config")
    if section is None:
        return UNBOUNDED
    chunk = section.integer("chunk_size", high=UNBOUNDED)
    section.integer("local_size", high=UNBOUNDED)
    original = section.integer("original_max_position_embeddings", chunk, high=UNBOUNDED)
    section.must_be("sparse_attention_enabled", (False,), "sparse attention is not supported")
    section.finish(frozenset(["sparse_attention_threshold", "sparse_attention_last_q"]))
    return min(chunk, original)


def _read_other_names(config: HFConfig, sizes: Mapping[str, float]) -> None:
    """Sizes under names of other frameworks, which must be those under ours, and words for what each model here has."""
    for name, others in _OTHER_NAMES.items():
        for key in filter(config.has, others):
            value = config.value(key)
            if isinstance(value, bool) or value != sizes[name]:
                config.refuse(key, f"must be what {name} is ({sizes[name]:g})", "delete it if it does not count")
    for key, words in _OUR_WORDS.items():
        value = config.value(key) if config.has(key) else ""
        if not is_off(value) and re.sub(r"[^a-z]", "", str(value).lower()) not in words:
            config.refuse(key, f"must be one of {', '.join(sorted(words))}", "others are not supported")


def _head_dim(config: HFConfig, hidden: int, heads: int) -> int:
    if not config.has("head_dim") and config.value("hidden_size") is not hidden:
        return 2  # of a hidden_size that is refused by its own name
    if not config.has("head_dim") and hidden % heads:
        config.refuse("head_dim", f"must be given when {heads} heads do not divide hidden_size {hidden}", "add it")
        return 2
    head_dim = config.integer("head_dim", hidden // heads, low=2, high=2**12)
    if head_dim % 2:
        config.refuse("head_dim", "must be even, since its halves are rotated", CHECK)
        return 2
    return head_dim


def _refuse_other_scale(config: HFConfig, head_dim: int) -> None:
    """A factor of the scores that is not the usual one, but for the rounding of how it is written."""
    scale = head_dim**-0.5
    for key in ("attention_multiplier", "softmax_scale"):
        value = config.value(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isclose(value, scale, rel_tol=1e-6)):
            config.refuse(key, f"must be {scale:g}, which is 1 / sqrt(head_dim)", "other factors are not supported")


def _refuse_unsupported(config: HFConfig, traits: _Traits) -> None:
    """Features that change what the model computes and that this file does not have, or has and a model has not."""
    unsupported = "this variant of the architecture is not supported"
    for key in ("hidden_act", "activation", "activation_function", "hidden_activation"):
        if config.value(key) not in _ACTIVATIONS:
            config.must_be(key, ("silu",), "other activations are not supported")
    for key in ("attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias"):
        config.must_be(key, (traits.qkv_bias,), unsupported)
    for key in ("qk_norm", "use_qk_norm", "qk_layernorm"):
        config.must_be(key, (traits.qk_norm,), unsupported)
    for key in ("use_rope", "use_rotary", "is_causal", "causal", "use_rms_norm", "rms_norm"):
        config.must_be(key, (True,), unsupported)
    for key in ("residual_multiplier", "embedding_multiplier", "logits_scaling", "logit_scale", "rotary_pct"):
        if config.value(key) not in (None, 1):
            config.refuse(key, "must be 1", unsupported)
    for key in ("mlp_bias", "use_bias", "rope_interleaved"):
        config.must_be(key, (False,), unsupported)
    config.must_be("use_mrope", (False,), "rotary positions in several dimensions are not supported")
    for key in ("is_encoder_decoder", "add_cross_attention"):
        config.must_be(key, (False,), "only decoders are supported")
    config.must_be("pruned_heads", ({},), "pruned heads are not supported")
    # beside the name of an architecture it is for those who run a checkpoint's own code; the name says what that is
    if not is_off(config.value("auto_map")) and is_off(config.value("architectures")):
        cure = "code from a checkpoint is never run; name its architecture, if that is one of ours"
        config.refuse("auto_map", "must be absent where architectures names none", cure)


def _refuse_sliding_windows(config: HFConfig, num_layers: int, max_position: int) -> None:
    """A window as long as the context hides nothing."""
    cure = "sliding windows are not supported"
    window, types = config.value("sliding_window"), config.value("layer_types")
    hides_nothing = isinstance(window, int) and window >= max_position
    if config.flag("use_sliding_window") and window is not None and not hides_nothing:
        config.refuse("use_sliding_window", f"must be false (sliding_window is {window!r})", cure)
    if types is None:
        return
    allowed = USUAL_LAYERS + (("sliding_attention",) if hides_nothing else ())
    if types in allowed:
        return
    if not isinstance(types, list) or any(item not in allowed for item in types):
        config.refuse("layer_types", "must all be full_attention", f"{cure}, nor are other kinds of layers")
    elif len(types) != num_layers:
        config.refuse("layer_types", f"must have num_hidden_layers ({num_layers}) entries", CHECK)


def parameters(config: DenseConfig) -> Params:
    """The tree of ParamSpec with Params' structure."""
    d, h = config.hidden_size, config.head_dim
    q, kv = config.num_heads * h, config.num_kv_heads * h
    split_out, split_in, split = PartitionSpec(TENSOR, None), PartitionSpec(None, TENSOR), PartitionSpec(TENSOR)
    whole = PartitionSpec(None)
    heads = dict(block=h, copied=(False, True, True))
    linear: dict[str, Any] = dict(may="be quantized")
    tied: dict[str, Any] = dict(may="have 8 bits") if config.tie_embeddings else {}

    def groups(*names: str) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(f"model.layers.{i}.{name}" for name in names) for i in range(config.num_layers))

    attention = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    weights, biases = (groups(*(f"{name}.{kind}" for name in attention)) for kind in ("weight", "bias"))
    mlp = groups("mlp.gate_proj.weight", "mlp.up_proj.weight")
    return Params(
        embed=single("model.embed_tokens.weight", (config.vocab_size, d), split_out, **tied),
        layers=Layers(
            attention_norm=stacked(groups("input_layernorm.weight"), (d,), (), whole, "ones"),
            qkv=matrices(weights, (q, kv, kv), d, split_out, **heads, **linear),
            qkv_bias=stacked(biases, (q, kv, kv), (), split, "zeros", **heads) if config.qkv_bias else None,
            q_norm=stacked(groups("self_attn.q_norm.weight"), (h,), (), whole, "ones") if config.qk_norm else None,
            k_norm=stacked(groups("self_attn.k_norm.weight"), (h,), (), whole, "ones") if config.qk_norm else None,
            o=matrices(groups("self_attn.o_proj.weight"), (d,), q, split_in, **linear),
            mlp_norm=stacked(groups("post_attention_layernorm.weight"), (d,), (), whole, "ones"),
            gate_up=matrices(mlp, (config.intermediate_size,) * 2, d, split_out, **linear),
            down=matrices(groups("mlp.down_proj.weight"), (d,), config.intermediate_size, split_in, **linear),
        ),
        final_norm=single("model.norm.weight", (d,), whole, "ones"),
        unembed=None
        if config.tie_embeddings
        else single("lm_head.weight", (config.vocab_size, d), split_out, may="have 8 bits"),
    )


def forward(
    config: DenseConfig, params: Params, batch: Batch, cache: Any
) -> tuple[Float[Array, "T {config.hidden_size}"], Any]:
    """Run the batch's tokens through all layers. Returns (hidden after the final norm, cache)."""
    x, eps = embedding(batch.tokens, params.embed, batch.products, split=TENSOR), config.norm_eps
    for i, layer in enumerate(config.layers):
        p = params.layers[i]
        qkv = linear(normed(x, p.attention_norm, eps), p.qkv, p.qkv_bias)
        out, cache = attention(qkv, layer.mixer, batch, cache, i, q_norm=p.q_norm, k_norm=p.k_norm)
        x = add(x, linear(out, p.o, reduce=TENSOR))
        x = add(x, linear(swiglu(linear(normed(x, p.mlp_norm, eps), p.gate_up)), p.down, reduce=TENSOR))
    return array(normed(x, params.final_norm, eps), batch.products), cache


def unembed(
    config: DenseConfig, params: Params, hidden: Float[Array, "T D"], products: Products = XLA
) -> Float32[Array, "T {config.vocab_size}"]:
    """Logits in float32 of rows of forward's result; over a mesh, of the device's part of the vocabulary."""
    matrix = params.embed if params.unembed is None else params.unembed
    return products.logits(hidden, matrix)
